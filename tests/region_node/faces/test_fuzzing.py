"""Any bytes, and any commands in any order: a connection answers or is closed, and nobody else notices. `make fuzz`
runs many more.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.region_node.faces.kafka.fuzz import run as run_kafka
from tests.region_node.faces.pulsar.fuzz import run as run_pulsar


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("run", [run_pulsar, run_kafka], ids=["pulsar", "kafka"])
def test_nothing_that_a_client_sends_harms_another(
    run: Callable[[int], None], seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    run(seed)
    assert [r for r in caplog.records if r.levelname == "ERROR"] == []
