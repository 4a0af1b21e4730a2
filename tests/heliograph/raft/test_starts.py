"""Starts: whose numbers are known to whom, and what a member may do before the others have said what they know."""

from __future__ import annotations

import pytest

from geo_tests.sim.raft_losses import VotesBeforeItIsSure
from heliograph.raft.core import RaftCore, RaftRole
from heliograph.raft.messages import StartKnown, StartNumber, VoteReply, VoteRequest
from heliograph.raft.starts import NUMBER_MAX, OTHERS_MAX, Starts, StartsRecord, following, number_of
from tests.heliograph.raft.cores import make, sent, settle

RECORD = StartsRecord(following(6, 11), False)


def known(*cores: type[RaftCore]) -> list[RaftCore]:
    return [make(cls=core, starts=RECORD) for core in cores]


def test_a_start_is_numbered_behind_the_one_before_once_somebody_has_heard_of_that() -> None:
    record = StartsRecord().begun(5)
    assert (number_of(record.own), record.confirmed) == (1, False)
    assert record.begun(9) == record
    starts = Starts(record)
    assert starts.confirm("b") and not starts.confirm("c")
    again = starts.record().begun(9)
    assert number_of(again.own) == 2 and not again.confirmed


def test_another_start_with_the_same_number_is_known_as_another_one() -> None:
    starts = Starts(StartsRecord(following(0, 5)))
    assert starts.is_older_than(following(0, 6)) and starts.is_older_than(following(1 << 32, 1))
    assert not starts.is_older_than(starts.own) and not starts.is_older_than(0)


def test_the_starts_of_so_many_are_written_down_and_those_of_members_rather_than_of_others() -> None:
    starts = Starts()
    for number in range(OTHERS_MAX):
        assert starts.hear(f"n{number}", following(0, number), ("n1", "new"))
    assert starts.hear("new", following(0, 7), ("n1", "new"))
    assert [name for name, _ in starts.record().others] == ["n1", "new"]
    assert not starts.hear("n1", following(0, 99), ()), "an earlier one, or the same number"


def test_a_number_that_the_full_disk_does_not_take_is_told_to_nobody() -> None:
    starts = Starts(StartsRecord(following(0, 5)))
    starts.confirm("b")
    starts.renumber(7)
    record = starts.record()
    assert number_of(record.own) == 2 and number_of(starts.own) == 1
    assert not starts.store(record, written=False) and number_of(starts.own) == 1 and starts.told
    starts.renumber(8)
    assert starts.store(starts.record(), written=True) and number_of(starts.own) == 2 and not starts.told


@pytest.mark.parametrize("core", known(RaftCore, VotesBeforeItIsSure), ids=lambda core: type(core).__name__)
def test_a_vote_waits_until_the_candidate_knows_of_no_later_start(core: RaftCore) -> None:
    ask = VoteRequest(1, 0, 0)
    core.receive("b", ask, 5.0)
    replies = sent(settle(core), "b")
    if isinstance(core, VotesBeforeItIsSure):
        assert replies == [VoteReply(1, True)]
        return
    assert replies == [StartNumber(0, RECORD.own), VoteReply(1, False)]
    core.receive("b", StartKnown(0, RECORD.own), 5.1)
    core.receive("b", ask, 5.2)
    assert VoteReply(1, True) in sent(settle(core), "b")


def test_a_vote_waits_for_everybody_for_an_election_time_out() -> None:
    for at, granted in ((0.5, False), (1.0, True)):
        core = make(starts=RECORD)
        core.receive("b", StartKnown(0, RECORD.own), 0.1)
        core.receive("b", VoteRequest(1, 0, 0), at)
        assert VoteReply(1, granted) in sent(settle(core), "b")
        core.receive("c", StartKnown(0, RECORD.own), at)
        core.receive("b", VoteRequest(1, 0, 0), at)
        assert VoteReply(1, True) in sent(settle(core), "b"), "all have said it"


def test_nobody_is_elected_by_one_that_may_know_of_a_later_start() -> None:
    core = make(starts=RECORD)
    core.tick(2.0)
    settle(core)
    core.receive("b", VoteReply(1, True, True), 2.0)
    assert core.role is RaftRole.PRE_CANDIDATE and sent(settle(core), "b") == [StartNumber(0, RECORD.own)]
    core.receive("b", StartKnown(0, RECORD.own), 2.0)
    core.receive("b", VoteReply(1, True, True), 2.0)
    assert core.role is RaftRole.CANDIDATE
    core.receive("c", VoteReply(1, True), 2.0)
    assert core.role is RaftRole.CANDIDATE
    core.receive("b", VoteReply(1, True), 2.0)
    assert core.role is RaftRole.LEADER


def test_voters_of_an_earlier_version_are_not_asked_what_they_cannot_say() -> None:
    core = make(starts=RECORD)
    core.receive("b", VoteRequest(1, 0, 0, numbered=False), 2.0)
    assert sent(settle(core), "b") == [VoteReply(1, True)]


def test_who_hears_of_a_later_start_of_its_own_leads_no_more() -> None:
    core = make(starts=RECORD)
    core.tick(2.0)
    for pre in (True, False):
        core.receive("b", StartKnown(0, RECORD.own), 2.0)
        core.receive("b", VoteReply(1, True, pre), 2.0)
    assert core.role is RaftRole.LEADER
    settle(core)
    core.receive("c", StartKnown(0, following(8 << 32, 3)), 2.1)
    actions = core.take_actions()
    assert core.role is RaftRole.FOLLOWER and core.unproven
    assert actions.life == core.life and actions.starts is not None and number_of(actions.starts.own) == 10
    assert not sent(actions, "b"), "nobody is told before it lies on the disk"
    core.on_starts_stored(actions.starts, True)
    assert sent(core.take_actions(), "b") == [StartNumber(0, actions.starts.own)]
    before = core.life
    core.receive("c", StartKnown(0, following(20 << 32, 3)), 9.0)
    assert core.take_actions().life == core.life != before, "what may prove the life that was is on its way perhaps"


ABSURD = (1 << 64) - 1
LAST = (NUMBER_MAX << 32) | 3


def test_a_number_that_nobody_can_have_is_not_believed() -> None:
    """A word may be damaged: taken up, it would have no next one."""
    core = make(starts=RECORD)
    core.receive("b", StartKnown(0, ABSURD), 2.0)
    core.receive("b", StartNumber(0, ABSURD), 2.0)
    actions = settle(core)
    assert not core.unproven and actions.starts is None and StartKnown(0, 0) in sent(actions, "b")
    assert Starts(StartsRecord(1, True, (("b", ABSURD),))).of("b") == 0, "an earlier version wrote it down"


def test_a_member_whose_numbers_are_at_their_end_goes_on() -> None:
    """Its older copies are not known any more; that it is told of its own last start stops it by nothing."""
    core = make(starts=RECORD)
    core.receive("b", StartKnown(0, LAST), 2.0)
    actions = settle(core)
    assert core.unproven and actions.starts is not None and number_of(actions.starts.own) == NUMBER_MAX
    core.on_starts_stored(actions.starts, True)
    starts = Starts(actions.starts)
    for chance in (7, 8, 9):
        assert not starts.is_older_than(LAST)
        starts.renumber(chance)
        assert starts.store(starts.record(), written=True) and number_of(starts.own) == NUMBER_MAX
        other = Starts(StartsRecord(1, True, (("a", LAST),)))
        assert other.hear("a", starts.own, ()) and other.of("a") == starts.own and not other.hear("a", starts.own, ())


def test_two_that_were_put_back_and_whose_disks_are_full_do_not_talk_without_an_end() -> None:
    cores = {
        name: make(name=name, starts=StartsRecord(following(6, 1), False, ((other, following(8 << 32, 2)),)))
        for name, other in (("a", "b"), ("b", "a"))
    }
    for at in (0.0, 1.5, 3.0):
        said, tries = 0, 0
        for core in cores.values():
            core.tick(at)
        for _ in range(50):
            under_way = []
            for name, core in cores.items():
                actions = settle(core)
                if actions.starts is not None:
                    tries += 1
                    core.on_starts_stored(actions.starts, False)
                other = "b" if name == "a" else "a"
                under_way += [(other, name, m) for m in sent(actions, other) if isinstance(m, StartNumber | StartKnown)]
            said += len(under_way)
            for to, sender, message in under_way:
                cores[to].receive(sender, message, at)
        assert said <= 10 and tries <= 4, at
        assert at == 0.0 or (said and tries), "it is tried again"
    for core in cores.values():  # there is room again
        core.tick(9.0)
        core.receive("b" if core.node_id == "a" else "a", StartKnown(0, following(8 << 32, 2)), 9.0)
        actions = settle(core)
        assert actions.starts is not None and number_of(actions.starts.own) == 10
        core.on_starts_stored(actions.starts, True)
        assert core.starts.own == actions.starts.own


def test_a_voter_that_always_knows_of_a_later_start_moves_nobody_more_than_once_a_time_out() -> None:
    core = make(starts=RECORD)
    for at in (2.0, 3.1):
        taken = 0
        for _ in range(20):
            core.receive("b", StartKnown(0, following(core.starts.own, 1)), at)
            actions = settle(core)
            if actions.starts is not None:
                taken += 1
                core.on_starts_stored(actions.starts, True)
        assert taken == 1
