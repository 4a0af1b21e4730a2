"""Members that lose their logs: the invariants of Raft hold, all is made good in the end, and each rule that makes it
so is needed.
"""

from __future__ import annotations

import pytest

from geo_tests.sim.raft_losses import CountsOnWhatWasLost, LosingWorld, StandsWithNothing, VotesByWhatIsLeft
from geo_tests.sim.raft_world import violations
from heliograph.raft.core import RaftCore


def test_what_is_committed_stays_although_members_lose_their_logs() -> None:
    assert list(violations(RaftCore, range(20, 55), LosingWorld)) == []


def test_members_lose_something_and_make_it_good() -> None:
    worlds = [LosingWorld(seed) for seed in range(8)]
    for world in worlds:
        world.run()
    assert sum(world.losses for world in worlds) > 8 and all(world.made_good == world.losses for world in worlds)


@pytest.mark.parametrize(
    ("mutant", "first"), [(VotesByWhatIsLeft, 48), (StandsWithNothing, 2), (CountsOnWhatWasLost, 46)]
)
def test_a_rule_without_which_a_loss_spreads_is_missed(mutant: type[RaftCore], first: int) -> None:
    assert next(violations(mutant, range(first, first + 8), LosingWorld), None) is not None, (
        f"{mutant.__doc__} was not found"
    )
