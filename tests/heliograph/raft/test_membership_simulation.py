"""Raft with members that come and go, level 1: cores on virtual time; and the same with broken rules, which must be
found.
"""

from __future__ import annotations

from collections import Counter

import pytest

from geo_tests.sim.raft_member import Violation
from geo_tests.sim.raft_membership import MembershipWorld
from geo_tests.sim.raft_membership_mutants import (
    MUTANTS,
    LearnersVote,
    NeverGivesUpTransfer,
    RemovedCountsItself,
    RemovedMayNotStand,
)
from geo_tests.sim.raft_world import violations
from heliograph.raft.core import RaftCore
from tests.broken_rules import BrokenRules, fitting

SEEDS, CHUNK = 160, 40


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_the_group_changes_and_nothing_is_lost(first: int) -> None:
    """The invariants of RaftWorld and of MembershipWorld, after every step. A failure names its seed."""
    assert list(violations(RaftCore, range(first, first + CHUNK), MembershipWorld)) == []


def test_the_runs_are_worth_something() -> None:
    worlds = [MembershipWorld(seed) for seed in range(30)]
    changes: Counter[str] = Counter()
    for world in worlds:
        world.run()
        changes += world.changes
    assert all(changes[kind] > 8 for kind in ("AddLearner", "Promote", "Remove", "transfer")), changes
    assert sum(world.answered for world in worlds) > 20 * 30


FOUND_BY: dict[type[RaftCore], int] = {
    RemovedCountsItself: 517,
    RemovedMayNotStand: 354,
    NeverGivesUpTransfer: 11,
    LearnersVote: 19,
}
"""Seeds that are tried first: a rare interleaving is not searched for again each time."""


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_broken_rule_is_found(mutant: type[RaftCore], broken: BrokenRules) -> None:
    fitting(mutant)
    seeds = (FOUND_BY.get(mutant, 0), *range(600))
    broken.look(lambda seed: MembershipWorld(seed, core=mutant).run(), seeds, Violation)
