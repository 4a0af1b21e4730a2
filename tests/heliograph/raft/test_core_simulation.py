"""Raft, level 1: cores stepped on virtual time through everything that can go wrong; and the same with broken rules,
which must be found.
"""

from __future__ import annotations

import pytest

from geo_tests.sim.raft_member import Violation
from geo_tests.sim.raft_mutants import MUTANTS, NeverStepsDown, ReadsWithoutAsking
from geo_tests.sim.raft_world import RaftWorld, violations
from heliograph.raft.core import RaftCore
from tests.broken_rules import BrokenRules, fitting

SEEDS, CHUNK = 360, 30


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_invariants_linearizability_and_liveness(first: int) -> None:
    """One leader a term, log matching, state machine safety, commits only grow, leader completeness, notes of what is
    committed: after every step.

    A failure names its seed.
    """
    assert list(violations(RaftCore, range(first, first + CHUNK))) == []


def test_a_seed_gives_the_same_run_again() -> None:
    runs = [RaftWorld(7), RaftWorld(7)]
    for world in runs:
        world.run()
    assert runs[0].steps == runs[1].steps and runs[0].committed == runs[1].committed


def test_the_runs_are_worth_something() -> None:
    worlds = [RaftWorld(seed) for seed in range(20)]
    for world in worlds:
        world.run()
    assert sum(len(world.committed) for world in worlds) > 20 * 20
    assert sum(world.answered for world in worlds) > 20 * 30
    assert sum(len(world.leaders) for world in worlds) > 20 * 2
    assert sum(world.notes for world in worlds) > 20 and sum(world.resumed for world in worlds) > 20
    assert sum(world.made_for_others for world in worlds) > 0
    assert any(member.durable.table for world in worlds for member in world.members.values())
    assert any(member.durable.snapshot for world in worlds for member in world.members.values())


FOUND_BY = {ReadsWithoutAsking: 229, NeverStepsDown: 381}
"""Seeds that are tried first: a rare interleaving is not searched for again each time."""


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_broken_rule_is_found(mutant: type[RaftCore], broken: BrokenRules) -> None:
    fitting(mutant)
    broken.look(lambda seed: RaftWorld(seed, core=mutant).run(), (FOUND_BY.get(mutant, 0), *range(600)), Violation)
