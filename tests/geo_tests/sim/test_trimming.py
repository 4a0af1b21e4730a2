"""Worlds that keep nothing: what a region does not have it names, exactly."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from geo_tests.sim.world import World, WorldSettings, run_seed
from tests.seeds import TRIMMED_WORLDS, WORLDS

SETTINGS = WorldSettings(trims=True)


@pytest.mark.slow
def test_what_is_gone_is_named_and_nothing_else() -> None:
    kinds: Counter[str] = Counter()
    reports = 0
    for seed in range(TRIMMED_WORLDS):
        verdict = run_seed(seed, SETTINGS)
        kinds.update(set(verdict.kinds))
        reports += verdict.reports["missing, by name"]
    assert reports > TRIMMED_WORLDS and kinds["truncate"] and kinds["leave"] and kinds["missing, and named"], kinds


@pytest.mark.slow
def test_without_a_hand_that_takes_away_nothing_is_missing() -> None:
    kinds = ("cut_wan", "kill_broker", "unload")
    verdict = run_seed(0, replace(SETTINGS, kinds=kinds))
    assert verdict.reports and "missing, and named" not in verdict.kinds


def test_a_part_of_all_worlds_keeps_nothing() -> None:
    assert WORLDS // 10 < sum(bool(World(seed).settings.trims) for seed in range(WORLDS)) < WORLDS // 3
