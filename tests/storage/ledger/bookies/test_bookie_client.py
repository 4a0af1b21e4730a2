"""A broker's connection to one bookie."""

from __future__ import annotations

import pytest

from geo_tests.sim.simulation import Simulation
from heliograph.model.errors import BookieUnavailable
from storage.ledger.bookies.bookie_client import BookieClient


def test_a_bookie_whose_host_nobody_can_look_up_is_one_that_is_not_there() -> None:
    with Simulation(seed=1) as sim:

        async def main() -> None:
            client = BookieClient("b", "bookie..test", 1, rng=sim.rng("client"))
            with pytest.raises(BookieUnavailable, match="label"):
                await client.read_lac(5)

        sim.run(main(), limit_s=60)
