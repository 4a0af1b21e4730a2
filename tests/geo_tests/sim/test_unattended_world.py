"""Whole instances whose namespace fails over by itself when its active region falls silent: seeds that hold, and a rule
that is needed.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from geo_tests.sim.loop import collect
from geo_tests.sim.unattended_world import UnattendedWorld
from region_node.dr.operations import automatic_failover
from region_node.dr.operations.automatic_failover import AutomaticFailover
from tests.broken_rules import BrokenRules
from tests.geo_tests.sim.passive_settings import SMALL

SETTINGS = replace(SMALL, chaos_s=45.0, messages=24)
SEEDS = 3
MUTANT_SEEDS = 20


def run(seed: int) -> Counter[str]:
    try:
        world = UnattendedWorld(seed, SETTINGS)
        assert world.run().messages == SETTINGS.messages * len(SETTINGS.regions)
        return world.counts
    finally:
        collect()


@pytest.mark.slow
def test_a_region_that_falls_silent_is_failed_over_from_by_itself_and_every_message_counts() -> None:
    seen: Counter[str] = Counter()
    for seed in range(SEEDS):
        seen += run(seed)
    assert seen["moved by itself"] >= SEEDS and seen["fell silent"] > seen["moved by itself"], seen
    assert seen["confirmed"] > 10 * SEEDS, seen


async def _free(*_: Any) -> str:
    return ""


@pytest.mark.slow
def test_a_hold_that_is_ignored_is_found(broken: BrokenRules) -> None:
    broken.setattr(automatic_failover, "held", _free)
    broken.setattr(AutomaticFailover, "held", lambda self, namespace: "")
    broken.setattr(automatic_failover, "hold_keys", lambda namespace: ())
    broken.look(run, range(MUTANT_SEEDS), match="after a move, and is to stay")
