"""RaftCore: single rules, each by a short script of events. What random runs seldom reach is written out here, and
shown red on the broken rule.
"""

from __future__ import annotations

import random
from dataclasses import replace

import crc32c
import pytest

from geo_tests.sim.raft_mutants import (
    CommitsOlderTerms,
    ForgetsItsVote,
    HeartbeatCommits,
    ReplacesOldTerm,
    VoteBeforeSync,
)
from heliograph.raft.actions import FOREVER
from heliograph.raft.core import CoreSettings, RaftCore, RaftRole
from heliograph.raft.membership import AddLearner
from heliograph.raft.messages import (
    COMMAND,
    CONFIG,
    NOOP,
    Append,
    AppendReply,
    Config,
    Heartbeat,
    HeartbeatReply,
    SnapshotChunk,
    SnapshotMeta,
    SnapshotReply,
    TimeoutNow,
    VoteReply,
    VoteRequest,
    encode_config,
)
from heliograph.raft.raft_log import RaftLog
from tests.broken_rules import BrokenRules, fitting
from tests.heliograph.raft.cores import SETTINGS, THREE, elect, make, sent

FIVE = Config(("a", "b", "c", "d", "e"))


def test_single_voter_leads_from_the_start_and_commits_when_its_own_copy_is_durable() -> None:
    core = RaftCore(
        "a",
        config=Config(("a",)),
        term=4,
        vote="b",
        log=RaftLog(),
        snapshot=None,
        settings=SETTINGS,
        rng=random.Random(1),
        now=0.0,
    )
    assert core.role is RaftRole.LEADER and core.term == 5 and not core.ready
    actions = core.take_actions()
    assert actions.hard_state == (5, "a") and actions.entries == [(5, NOOP, b"")] and not actions.committed
    core.propose([b"x", b"y"])
    second = core.take_actions()
    core.on_durable(actions.durable_mark)
    assert core.ready and core.commit == 1
    core.on_durable(second.durable_mark)
    assert core.take_actions().committed == [(5, NOOP, b""), (5, COMMAND, b"x"), (5, COMMAND, b"y")]
    assert core.next_deadline() == FOREVER, "it has nobody to tell that it lives"
    core.change(AddLearner("b"), 100.0)
    assert core.next_deadline() <= 100.0 + SETTINGS.heartbeat_s


def test_pre_vote_changes_no_term_until_a_majority_agrees() -> None:
    core = make(term=3)
    core.tick(2.0)
    actions = core.take_actions()
    assert not actions.stores and sent(actions, "b") == [VoteRequest(4, 0, 0, pre=True)] and core.term == 3
    core.receive("b", VoteReply(4, True, True), 2.0)
    actions = core.take_actions()
    assert actions.hard_state == (4, "a") and sent(actions, "c") == [VoteRequest(4, 0, 0)]


def test_a_voter_that_hears_its_leader_grants_nothing() -> None:
    core = make(name="b", term=3)
    core.receive("c", Heartbeat(3, 0, 0), 5.0)
    core.take_actions()
    core.receive("a", VoteRequest(4, 9, 3, pre=True), 5.5)
    assert sent(core.take_actions(), "a") == [VoteReply(3, False, True)]
    core.receive("a", VoteRequest(4, 9, 3), 5.5)
    assert not core.take_actions() and core.term == 3
    core.receive("a", VoteRequest(4, 9, 3, ordered=True), 5.5)
    actions = core.take_actions()
    assert actions.hard_state == (4, "a") and sent(actions, "a") == [VoteReply(4, True)]


def test_votes_once_a_term_and_only_for_who_has_enough() -> None:
    core = make(name="b", term=3, entries=[(2, COMMAND, b"x"), (3, COMMAND, b"y")])
    core.receive("a", VoteRequest(4, 9, 2), 5.0)
    assert sent(core.take_actions(), "a") == [VoteReply(4, False)], "its last term is older"
    core.receive("a", VoteRequest(4, 1, 3), 5.0)
    assert sent(core.take_actions(), "a") == [VoteReply(4, False)], "its log is shorter"
    core.receive("c", VoteRequest(4, 2, 3), 5.0)
    actions = core.take_actions()
    assert sent(actions, "c") == [VoteReply(4, True)] and actions.hard_state == (4, "c")
    core.receive("a", VoteRequest(4, 2, 3), 5.0)
    assert sent(core.take_actions(), "a") == [VoteReply(4, False)]
    again = make(name="b", term=4, vote="c")  # and after a restart
    again.receive("a", VoteRequest(4, 2, 3), 5.0)
    assert sent(again.take_actions(), "a") == [VoteReply(4, False)]


def vote_leaves_only_when_durable(cls: type[RaftCore]) -> None:
    core = make(name="b", cls=cls)
    core.receive("a", VoteRequest(4, 0, 0), 5.0)
    stored = False
    while actions := core.take_actions():
        stored |= actions.hard_state == (4, "a")
        assert stored or not sent(actions, "a")


def one_vote_a_term(cls: type[RaftCore]) -> None:
    core = make(name="b", cls=cls)
    core.receive("a", VoteRequest(4, 0, 0), 5.0)
    core.take_actions()
    core.receive("c", VoteRequest(4, 0, 0), 5.0)
    assert sent(core.take_actions(), "c") == [VoteReply(4, False)]


def figure_3_7(cls: type[RaftCore]) -> None:
    """An entry of an older term that lies on a majority can still be replaced, until one of the leader's own term is
    committed (Ongaro, 3.6.2).
    """
    core = make(FIVE, cls=cls, term=3, entries=[(1, COMMAND, b"1"), (2, COMMAND, b"2")])
    elect(core)
    core.receive("b", AppendReply(4, 2, True), 2.1)
    core.receive("c", AppendReply(4, 2, True), 2.1)
    assert core.commit == 0, "an entry of term 2 was committed by counting"
    core.receive("b", AppendReply(4, 3, True), 2.1)
    core.receive("c", AppendReply(4, 3, True), 2.1)
    assert core.commit == 3


def heartbeats_commit_only_what_matched(cls: type[RaftCore]) -> None:
    leader = make(cls=cls)
    elect(leader)
    leader.receive("b", AppendReply(1, 1, True), 2.1)
    assert leader.commit == 1
    leader.take_actions()
    leader.tick(2.2)
    assert sent(leader.take_actions(), "c") == [Heartbeat(1, 0, 0)], "c has acknowledged nothing"


def an_older_copys_own_tail_is_not_committed(cls: type[RaftCore]) -> None:
    """The leader remembers what a member held before its folder was put back."""
    core = make(name="b", cls=cls, term=3, entries=[(1, COMMAND, b"kept"), (2, COMMAND, b"replaced meanwhile")])
    core.receive("a", Heartbeat(3, 2, 0), 5.0)
    assert core.commit == 0
    assert sent(core.take_actions(), "a") == [AppendReply(3, 2, False), HeartbeatReply(3, 0)], "it asks what follows"
    core.receive("a", Append(3, 0, 0, 2, [(1, COMMAND, b"kept"), (3, COMMAND, b"new")]), 5.1)
    assert core.take_actions().committed == [(1, COMMAND, b"kept"), (3, COMMAND, b"new")]
    core.receive("a", Append(3, 2, 3, 2, [(3, COMMAND, b"more")]), 5.2)
    core.receive("a", Heartbeat(3, 3, 0), 5.3)
    assert core.commit == 3, "what was compared needs no other question"


def old_terms_are_not_obeyed(cls: type[RaftCore]) -> None:
    core = make(name="b", cls=cls, term=3, entries=[(3, COMMAND, b"new")])
    core.receive("a", Append(2, 0, 0, 0, [(2, COMMAND, b"old")]), 5.0)
    assert core.log.term(1) == 3
    assert sent(core.take_actions(), "a") == [AppendReply(3, 0, False)], "and the old leader learns that it is over"


RULES = [
    (vote_leaves_only_when_durable, VoteBeforeSync),
    (one_vote_a_term, ForgetsItsVote),
    (figure_3_7, CommitsOlderTerms),
    (heartbeats_commit_only_what_matched, HeartbeatCommits),
    (an_older_copys_own_tail_is_not_committed, HeartbeatCommits),
    (old_terms_are_not_obeyed, ReplacesOldTerm),
]


@pytest.mark.parametrize(("rule", "mutant"), RULES, ids=lambda each: each.__name__)
def test_rule_holds_and_its_mutant_fails(rule: object, mutant: type[RaftCore], broken: BrokenRules) -> None:
    assert callable(rule)
    rule(RaftCore)
    with broken.found():
        rule(fitting(mutant))


def test_a_leader_without_a_majority_steps_down() -> None:
    core = make()
    elect(core, 2.0)
    now = 2.0
    for _ in range(15):
        now += 0.1
        core.receive("b", HeartbeatReply(1, 0), now)
        core.tick(now)
    assert core.role is RaftRole.LEADER, "itself and b are a majority"
    core.read(7)
    core.take_actions()
    for _ in range(12):
        now += 0.1
        core.tick(now)
    assert core.role is RaftRole.FOLLOWER and core.term == 1
    assert core.take_actions().lost_reads == [7]


def test_reads_wait_for_the_first_commit_of_the_term_and_a_round_begun_after_them() -> None:
    core = make(entries=[(1, COMMAND, b"x")], term=1)
    elect(core)
    assert core.read(1)
    assert not core.take_actions().reads
    core.receive("b", HeartbeatReply(2, 0), 2.1)
    core.receive("b", AppendReply(2, 2, True), 2.1)
    actions = core.take_actions()
    assert core.commit == 2 and not actions.reads
    assert Heartbeat(2, 2, 1) in sent(actions, "b")
    core.receive("c", HeartbeatReply(2, 0), 2.1)
    assert not core.take_actions().reads, "an answer to an older round"
    core.receive("b", HeartbeatReply(2, 1), 2.1)
    assert core.take_actions().reads == [([1], 2)]


def test_appends_are_pipelined_within_bounds() -> None:
    core = make()
    elect(core)
    core.receive("b", AppendReply(1, 1, True), 2.1)
    core.take_actions()
    core.propose([bytes(80)] * 5)
    appends = [m for m in sent(core.take_actions(), "b") if isinstance(m, Append)]
    assert [(m.previous_index, len(m.entries)) for m in appends] == [(1, 1), (2, 1)], "two on their way, one entry each"
    core.receive("b", AppendReply(1, 2, True), 2.1)
    appends = [m for m in sent(core.take_actions(), "b") if isinstance(m, Append)]
    assert [(m.previous_index, len(m.entries)) for m in appends] == [(3, 1)]


def test_a_follower_replaces_what_differs_and_keeps_what_matches() -> None:
    core = make(name="b", term=2, entries=[(1, COMMAND, b"1"), (1, COMMAND, b"2"), (1, COMMAND, b"3")])
    core.receive("a", Append(2, 1, 1, 0, [(1, COMMAND, b"2")]), 5.0)
    actions = core.take_actions()
    assert not actions.stores and sent(actions, "a") == [AppendReply(2, 2, True)] and core.log.last_index == 3, (
        "a late repetition removes nothing"
    )
    core.receive("a", Append(2, 1, 1, 2, [(2, COMMAND, b"two")]), 5.0)
    actions = core.take_actions()
    assert (
        (actions.first_index, actions.entries) == (2, [(2, COMMAND, b"two")])
        and core.log.last_index == 2
        and core.commit == 2
    )
    core.receive("a", Append(2, 7, 2, 2, []), 5.0)
    assert sent(core.take_actions(), "a") == [AppendReply(2, 7, False, 2, 2)]


def test_an_acknowledgement_of_replaced_entries_counts_for_nothing() -> None:
    core = make(name="b", term=1)
    core.receive("a", Append(1, 0, 0, 0, [(1, COMMAND, b"1"), (1, COMMAND, b"2")]), 5.0)
    first = core.take_actions()
    core.receive("c", Append(2, 0, 0, 0, [(2, COMMAND, b"one")]), 5.0)
    core.take_actions()
    core.on_durable(first.durable_mark)
    assert core.durable == 0


def test_a_commit_is_noted_with_the_next_batch_or_by_itself_after_a_while() -> None:
    core = make(name="b", term=1)
    core.receive("a", Append(1, 0, 0, 0, [(1, COMMAND, b"1"), (1, COMMAND, b"2")]), 5.0)
    assert core.take_actions().commit == 0
    core.receive("a", Heartbeat(1, 1, 0), 5.1)
    actions = core.take_actions()
    assert not actions.stores and not actions.note_commit and core.next_deadline() <= 5.1 + SETTINGS.note_commit_s
    core.receive("a", Append(1, 2, 1, 1, [(1, COMMAND, b"3")]), 5.2)
    actions = core.take_actions()
    assert actions.stores and actions.commit == 1 and not actions.note_commit
    core.receive("a", Heartbeat(1, 2, 0), 5.9)
    core.receive("a", Heartbeat(1, 3, 0), 6.8)
    core.take_actions()
    core.tick(6.85)
    assert not core.take_actions()
    core.receive("a", Heartbeat(1, 3, 0), 6.88)
    core.tick(6.9)
    actions = core.take_actions()
    assert actions.note_commit and not actions.stores and actions.commit == 3
    core.receive("a", Heartbeat(1, 3, 0), 7.0)
    core.tick(7.95)
    assert not any(actions.note_commit for actions in (core.take_actions(), core.take_actions()))


def test_a_member_comes_back_with_what_was_noted_as_committed() -> None:
    entries = [(1, COMMAND, b"1"), (1, COMMAND, b"2"), (2, COMMAND, b"3")]
    for commit, expected in ((0, 0), (2, 2), (3, 3)):
        core = RaftCore(
            "b",
            config=THREE,
            term=2,
            vote="",
            log=RaftLog(0, 0, entries),
            snapshot=None,
            settings=SETTINGS,
            rng=random.Random(1),
            now=0.0,
            commit=commit,
        )
        actions = core.take_actions()
        assert core.commit == expected and not actions.stores and not actions.sends
        assert actions.committed == entries[:expected] and actions.committed_first == (1 if expected else 0)


def test_a_group_of_one_notes_nothing_by_itself() -> None:
    core = make(Config(("a",)))
    core.on_durable((1, core.term))
    core.take_actions()
    core.tick(50.0)
    assert core.commit == 1 and not core.take_actions().note_commit


def test_a_snapshot_travels_in_chunks_and_replaces_the_log() -> None:
    blob = bytes(range(100))
    leader = make(entries=[(1, COMMAND, b"%d" % i) for i in range(20)], term=1)
    elect(leader)
    leader.receive("b", AppendReply(2, 21, True), 2.1)
    leader.take_actions()
    meta = replace(leader.describe_snapshot(15), size_bytes=len(blob), crc=crc32c.crc32c(blob))
    assert (meta.index, meta.term, meta.config) == (15, 1, THREE)
    leader.on_snapshot_stored(meta, keep_entries=2)
    assert leader.log.base_index == 13
    follower = make(name="c", entries=[(1, COMMAND, b"other")], term=1)
    leader.receive("c", AppendReply(2, 20, False, 1, 1), 2.1)
    offset, chunks, received = 0, 0, b""
    while actions := leader.take_actions():
        for to, which, offset in actions.chunks:
            assert (to, which) == ("c", meta)
            chunks += 1
            follower.receive("a", SnapshotChunk(2, meta, offset, blob[offset : offset + 30]), 2.2)
            answers = follower.take_actions()
            for number, of, at, data in answers.pieces:
                assert of == meta and at == len(received) and not sent(answers, "a")  # it is answered once it is stored
                received += data
                follower.on_piece_stored(number)
                answers = follower.take_actions()
            if answers.snapshot is not None:
                assert answers.snapshot == meta and received == blob
            for reply in sent(answers, "a"):
                leader.receive("c", reply, 2.2)
    assert chunks == 4 and follower.commit == follower.log.base_index == 15 and follower.log.term(15) == 1
    assert leader.progress["c"].match == 15


def test_a_table_of_its_own_lets_the_log_go_as_far_as_no_member_that_answers_needs_it() -> None:
    leader = make(entries=[(1, COMMAND, b"%d" % i) for i in range(20)], term=1)
    elect(leader)
    leader.receive("b", AppendReply(2, 21, True), 2.1)
    leader.receive("c", AppendReply(2, 20, False, 6, 1), 2.1)
    leader.receive("c", AppendReply(2, 6, True), 2.1)
    assert leader.progress["c"].match == 6
    assert not leader.on_kept(20, 2, 2.2) and leader.log.base_index == 6
    leader.receive("b", AppendReply(2, 21, True), 50.0)
    assert not leader.on_kept(20, 2, 50.0) and leader.log.base_index == 18, "c is silent: it is not waited for"


def test_a_snapshot_that_the_log_does_not_follow_is_not_sent_and_another_is_asked_for() -> None:
    blob = bytes(10)
    stale = SnapshotMeta(5, 1, THREE, len(blob), crc32c.crc32c(blob))
    leader = RaftCore(
        "a",
        config=THREE,
        term=1,
        vote="",
        log=RaftLog(10, 1, [(1, COMMAND, b"x")] * 5),
        snapshot=stale,
        settings=SETTINGS,
        rng=random.Random(1),
        now=0.0,
    )
    elect(leader)
    leader.take_actions()
    leader.receive("c", AppendReply(2, 15, False, 3, 1), 2.1)
    actions = leader.take_actions()
    assert actions.wants_snapshot and not actions.chunks
    fresh = replace(leader.describe_snapshot(15), size_bytes=len(blob), crc=crc32c.crc32c(blob))
    leader.on_snapshot_stored(fresh, keep_entries=0)
    leader.receive("c", HeartbeatReply(2, 0), 2.2)
    actions = leader.take_actions()
    assert not actions.wants_snapshot and actions.chunks == [("c", fresh, 0)]


def test_a_damaged_or_mixed_snapshot_is_not_installed() -> None:
    blob = bytes(50)
    meta = SnapshotMeta(9, 1, THREE, 50, 12345)
    core = make(name="b", term=1)
    core.receive("a", SnapshotChunk(1, meta, 0, blob), 5.0)
    ((number, _, _, _),) = core.take_actions().pieces
    core.on_piece_stored(number)
    assert core.log.base_index == 0 and core.take_actions().snapshot is None
    other = SnapshotMeta(10, 1, THREE, 50, 999)
    core.receive("a", SnapshotChunk(1, meta, 0, blob[:20]), 5.0)
    core.receive("a", SnapshotChunk(1, other, 20, blob[20:]), 5.0)
    actions = core.take_actions()
    assert actions.snapshot is None and sent(actions, "a")[-1] == SnapshotReply(1, 10, 0)


def test_learners_receive_everything_and_decide_nothing() -> None:
    config = Config(("a", "b", "c"), ("z",))
    leader = make(config)
    elect(leader)
    leader.receive("z", AppendReply(1, 1, True), 2.1)
    assert leader.commit == 0
    leader.receive("b", AppendReply(1, 1, True), 2.1)
    assert leader.commit == 1
    learner = make(config, name="z")
    learner.tick(50.0)
    assert not learner.take_actions() and learner.role is RaftRole.FOLLOWER
    learner.receive("a", TimeoutNow(0), 50.0)
    assert learner.role is RaftRole.FOLLOWER


def test_a_configuration_holds_from_the_log_on_and_goes_with_its_entry() -> None:
    core = make(name="b", term=1, entries=[(1, CONFIG, encode_config(FIVE))])
    assert core.config == FIVE
    core.receive("a", Append(2, 0, 0, 0, [(2, COMMAND, b"x")]), 5.0)
    assert core.config == THREE
    core.receive("a", Append(2, 1, 2, 2, [(2, CONFIG, encode_config(FIVE))]), 5.0)
    assert (
        core.config == FIVE and core.describe_snapshot(1).config == THREE and core.describe_snapshot(2).config == FIVE
    )


def test_settings_are_checked() -> None:
    with pytest.raises(ValueError, match="heartbeats"):
        CoreSettings(election_timeout_s=0.1, heartbeat_s=0.1)
    with pytest.raises(ValueError, match="at least 1"):
        CoreSettings(chunk_bytes=0)
