"""Whole instances whose namespace is moved by the real commands' conductor: seeds that hold, and steps that
must do their work.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest

from geo_tests.sim.checkers import Violation
from geo_tests.sim.conducted_world import ConductedWorld
from geo_tests.sim.loop import SimFailure, collect
from geo_tests.sim.world import WorldSettings
from tests.geo_tests.sim.mutants import a_failover_tells_of_no_loss, a_switchover_waits_for_no_delivery
from tests.geo_tests.sim.passive_settings import SMALL

SETTINGS = replace(SMALL, chaos_s=12.0)
SLOW = replace(SETTINGS, messages=120, faults=8, kinds=("slow_wan", "cut_wan", "cut_wan_one_way"))
FULL = replace(SETTINGS, messages=120, faults=8, kinds=("kill_two_bookies", "stop_bookie", "slow_disk"))
"""Regions that hear each other, and cannot store."""
SEEDS = 8
MUTANT_SEEDS = 40

Mutant = Callable[[pytest.MonkeyPatch], None]


def run(seed: int, settings: WorldSettings = SETTINGS) -> Counter[str]:
    try:
        world = ConductedWorld(seed, settings)
        assert world.run().messages == settings.messages * len(settings.regions)
        return world.counts
    finally:
        collect()


@pytest.mark.slow
def test_commands_at_bad_moments_lose_nothing_and_tell_the_truth() -> None:
    seen: Counter[str] = Counter()
    for seed in range(SEEDS):
        seen += run(seed)
    assert seen["switched over"] and seen["failed over"] and seen["rejoined"] and seen["drilled"] >= SEEDS, seen


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mutant", "settings"),
    [(a_switchover_waits_for_no_delivery, SLOW), (a_failover_tells_of_no_loss, FULL)],
    ids=lambda one: getattr(one, "__name__", ""),
)
def test_a_step_that_does_not_do_its_work_is_found(
    mutant: Mutant, settings: WorldSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant(monkeypatch)
    for seed in range(MUTANT_SEEDS):
        try:
            run(seed, settings)
        except (Violation, SimFailure) as found:
            assert "switchover goes on" in str(found) or "failover tells" in str(found)
            return
    pytest.fail(f"{MUTANT_SEEDS} seeds hold although {mutant.__name__.replace('_', ' ')}")
