"""Whole instances whose namespace is moved by the real commands' conductor: seeds that hold, and a step that
must do its work.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from geo_tests.sim.conducted_world import ConductedWorld
from geo_tests.sim.loop import collect
from geo_tests.sim.world import WorldSettings
from tests.broken_rules import BrokenRules
from tests.geo_tests.sim.mutants import a_switchover_waits_for_no_delivery
from tests.geo_tests.sim.passive_settings import SMALL

SETTINGS = replace(SMALL, chaos_s=12.0)
SLOW = replace(SETTINGS, messages=120, faults=8, kinds=("slow_wan", "cut_wan", "cut_wan_one_way"))
SEEDS = 5
MUTANT_SEEDS = 40


class MostlyMovedWorld(ConductedWorld):
    """One drill, which is soon over, so that it is the operator who moves the namespace."""

    pauses_s = (60.0, 61.0)


def run(seed: int, settings: WorldSettings = SETTINGS, world: type[ConductedWorld] = ConductedWorld) -> Counter[str]:
    try:
        made = world(seed, settings)
        assert made.run().messages == settings.messages * len(settings.regions)
        return made.counts
    finally:
        collect()


@pytest.mark.slow
def test_commands_at_bad_moments_lose_nothing_and_tell_the_truth() -> None:
    seen: Counter[str] = Counter()
    for seed in range(SEEDS):
        seen += run(seed)
    assert seen["switched over"] and seen["failed over"] and seen["rejoined"] and seen["drilled"] >= SEEDS, seen


@pytest.mark.slow
def test_a_switchover_that_waits_for_no_delivery_is_found(broken: BrokenRules) -> None:
    a_switchover_waits_for_no_delivery(broken)
    broken.look(lambda seed: run(seed, SLOW, MostlyMovedWorld), (6, *range(MUTANT_SEEDS)), match="switchover goes on")
