"""A namespace that fails over by itself, among flapping links, silent regions, and wrong clocks: seeds that hold, and
rules that are needed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from geo_tests.sim.automatic_world import Moved, run_automatic
from region_node.dr.operations import automatic_failover, operation_steps
from region_node.dr.operations.automatic_failover import AutomaticFailover
from region_node.dr.operations.silent_regions import SilentRegions
from tests.broken_rules import BrokenRules

SEEDS = 12
MUTANT_SEEDS = 40


def run(seed: int) -> Counter[str]:
    """Every third instance has two regions, and a witness: the configuration lives without either."""
    return run_automatic(seed, ("us", "eu") if seed % 3 == 2 else ("us", "eu", "ap")).counts


@pytest.mark.parametrize("seed", (0, 2))
def test_a_silent_region_is_failed_over_from_once_a_hold_and_one_region_confirms(seed: int) -> None:
    seen = run(seed)
    assert seen["confirmed"] > 50 and seen["moved by itself"], seen


@pytest.mark.slow
def test_so_it_is_in_many() -> None:
    seen: Counter[str] = Counter()
    for seed in range(SEEDS):
        seen += run(seed)
    assert seen["moved by itself"] > SEEDS and seen["moved"] > SEEDS and seen["confirmed"] > 50 * SEEDS, seen


async def _nothing(*_: Any) -> str:
    return ""


async def _no_hold(*_: Any) -> list[Any]:
    return []


def _mutants() -> Mapping[str, tuple[int, Callable[[BrokenRules], None]]]:
    def a_hold_is_ignored(patch: BrokenRules) -> None:
        patch.setattr(automatic_failover, "held", _nothing)
        patch.setattr(AutomaticFailover, "held", lambda self, namespace: "")
        patch.setattr(automatic_failover, "hold_keys", lambda namespace: ())

    def a_move_holds_nothing(patch: BrokenRules) -> None:
        patch.setattr(operation_steps, "hold_behind_move", _no_hold)

    def one_region_is_enough(patch: BrokenRules) -> None:
        patch.setattr(automatic_failover, "majority", lambda silent, others: True)

    def leases_are_not_asked(patch: BrokenRules) -> None:
        patch.setattr(SilentRegions, "lost_s", lambda self, region: 99.0)

    first = {"one_region_is_enough": 1, "leases_are_not_asked": 3}
    return {name: (first.get(name, 0), mutant) for name, mutant in locals().items() if callable(mutant)}


@pytest.mark.slow
@pytest.mark.parametrize("mutant", sorted(_mutants()))
def test_each_rule_is_needed(mutant: str, broken: BrokenRules) -> None:
    first, rule = _mutants()[mutant]
    rule(broken)
    broken.look(run, (first, *range(MUTANT_SEEDS)), Moved)
