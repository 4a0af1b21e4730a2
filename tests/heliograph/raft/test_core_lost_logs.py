"""Members that lose their logs: the invariants of Raft hold, all is made good in the end, and each rule that makes it
so is needed.
"""

from __future__ import annotations

import pytest

from geo_tests.sim.raft_losses import CountsOnWhatWasLost, LosingWorld, StandsWithNothing, VotesByWhatIsLeft
from geo_tests.sim.raft_member import Violation
from geo_tests.sim.raft_world import violations
from heliograph.raft.core import RaftCore
from heliograph.raft.messages import COMMAND, Append, AppendReply
from tests.broken_rules import BrokenRules, fitting
from tests.heliograph.raft.cores import elect, make, sent, settle


def test_what_is_committed_stays_although_members_lose_their_logs() -> None:
    assert list(violations(RaftCore, range(20, 55), LosingWorld)) == []


def test_members_lose_something_and_make_it_good() -> None:
    worlds = [LosingWorld(seed) for seed in range(8)]
    for world in worlds:
        world.run()
    assert sum(world.losses for world in worlds) > 8 and all(world.made_good == world.losses for world in worlds)


@pytest.mark.parametrize(("mutant", "first"), [(VotesByWhatIsLeft, 37), (StandsWithNothing, 3)])
def test_a_rule_without_which_a_loss_spreads_is_missed(mutant: type[RaftCore], first: int, broken: BrokenRules) -> None:
    fitting(mutant)
    broken.look(lambda seed: LosingWorld(seed, core=mutant).run(), range(first, first + 8), Violation)


@pytest.mark.parametrize("cls", [RaftCore, CountsOnWhatWasLost])
def test_a_leader_feeds_a_member_that_holds_less_than_it_has_said(cls: type[RaftCore]) -> None:
    """An older copy of its disk was put back: it is asked where it stands, and counts for nothing behind that."""
    core = make(cls=cls, term=1, entries=[(1, COMMAND, b"%d" % index) for index in range(5)])
    elect(core)
    core.receive("b", AppendReply(2, 6, True), 2.1)
    core.take_actions()
    assert core.commit == 6
    assert core.propose([b"more"]) == 7
    assert [m.previous_index for m in sent(settle(core), "b") if isinstance(m, Append)] == [6]
    core.receive("b", AppendReply(2, 6, False, 3, 1), 2.2)
    asked = [m for m in sent(settle(core), "b") if isinstance(m, Append)]
    if cls is CountsOnWhatWasLost:
        assert not asked, "it would lack these for ever"
        return
    assert [(m.previous_index, len(m.entries)) for m in asked] == [(3, 4)]
    core.receive("b", AppendReply(2, 7, True), 2.3)
    assert core.commit == 7 and core.progress["b"].match == 7


def test_a_refusal_that_comes_late_costs_one_question() -> None:
    core = make(term=1, entries=[(1, COMMAND, b"%d" % index) for index in range(5)])
    elect(core)
    core.receive("b", AppendReply(2, 5, False, 3, 1), 2.1)
    core.receive("b", AppendReply(2, 6, True), 2.1)
    settle(core)
    core.receive("b", AppendReply(2, 5, False, 3, 1), 2.2)
    asked = [m for m in sent(settle(core), "b") if isinstance(m, Append)]
    assert [m.previous_index for m in asked] == [3]
    core.receive("b", AppendReply(2, 6, True), 2.3)
    assert core.progress["b"].match == 6 and core.commit == 6
