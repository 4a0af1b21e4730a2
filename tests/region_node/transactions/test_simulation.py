"""Transactions over several topics, with coordinators and topics crashing at any step, answers lost, and owners that do
not know that they are none.
"""

from __future__ import annotations

import pytest

from geo_tests.sim.simulation import Simulation
from tests.region_node.transactions.world import World


@pytest.mark.parametrize("seed", range(25))
def test_a_transaction_is_there_whole_or_not_at_all(seed: int) -> None:
    with Simulation(seed) as sim:
        sim.run(World(sim, seed).run(), limit_s=600)
