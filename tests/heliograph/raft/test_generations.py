"""Generations: a member goes on without the others, and nobody hears anybody of another generation."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import crc32c
import pytest

from heliograph.model.errors import NotAllowed, PeerError
from heliograph.raft.core import RaftCore, RaftRole
from heliograph.raft.generations import Standing, following, is_lossy, number_of
from heliograph.raft.member.raft_node import RaftNode, RaftSettings
from heliograph.raft.membership import AddLearner
from heliograph.raft.messages import (
    COMMAND,
    CONFIG,
    Append,
    AppendReply,
    Config,
    Heartbeat,
    HeartbeatReply,
    LaterGeneration,
    SnapshotChunk,
    SnapshotMeta,
    SnapshotReply,
    TimeoutNow,
    VoteReply,
    VoteRequest,
    decode,
    decode_config,
    encode,
    encode_config,
    generation_of,
)
from tests.heliograph.raft.cores import THREE, elect, make, sent, settle

TWO = Config(("a", "b"))
LATER = following(0, 6, lossy=False)


def forced(config: Config = TWO) -> RaftCore:
    core = make(config, term=3, entries=[(3, COMMAND, b"x")])
    core.force(99, 50.0)
    settle(core)
    settle(core)
    return core


def test_a_generation_is_a_number_that_goes_up_and_chance() -> None:
    one, other = following(0, 1 << 40 | 12, lossy=False), following(0, 13, lossy=True)
    assert (number_of(one), number_of(following(one, 1, lossy=False))) == (1, 2)
    assert one != other and not is_lossy(one) and is_lossy(other)


def test_messages_and_configurations_name_their_generation_and_earlier_versions_refuse_them() -> None:
    for message in (Append(5, 6, 7, 8, [(1, COMMAND, b"x" * 100)]), TimeoutNow(3), LaterGeneration(0, 7)):
        raw = encode(message, LATER)
        assert raw[0] == 2 and decode(raw) == message and generation_of(raw) == LATER
        assert decode(memoryview(raw)) == message and generation_of(encode(message)) == 0
    for size in range(1, 20):
        with pytest.raises(PeerError):
            decode(encode(TimeoutNow(3), LATER)[:size])
    for config in (Config(("a",), (), (), LATER), Config(("a",), ("bé",), (("bé", "h:1"),), LATER)):
        raw = encode_config(config)
        assert raw[0] == 3 and decode_config(raw) == (config, len(raw))
        with pytest.raises(PeerError):
            decode_config(raw[:-1])


def test_the_one_that_is_left_of_two_goes_on_alone() -> None:
    core = forced()
    assert core.role is RaftRole.LEADER and core.config.voters == ("a",)
    assert number_of(core.generation) == 1 and not is_lossy(core.generation)
    assert core.commit == core.log.last_index == 3, "what it had, the configuration, and its first entry"
    assert core.term > 1 << 32
    assert core.propose([b"y"]) == 4


def test_the_log_says_who_was_left_behind() -> None:
    config = Config(("a", "b"), ("c",), (("c", "h:1"),))
    core = forced(config)
    assert core.configs.left_behind() == config
    core.change(AddLearner("c", "h:2"), 51.0)
    assert core.configs.left_behind() == config
    assert make(TWO).configs.left_behind() == TWO


def test_it_is_told_apart_where_others_may_decide_without_it() -> None:
    assert is_lossy(forced(THREE).generation)
    assert is_lossy(forced(Config(("a", "b"), ("c",))).generation), "a learner may be a voter by now"
    entries = [(1, CONFIG, encode_config(THREE)), (3, CONFIG, encode_config(TWO))]
    core = make(TWO, term=3, entries=entries)
    assert core.others_may_decide, "a removal that is not known to be committed may not have been made"


def test_it_is_refused_where_somebody_leads_and_to_who_counts_for_nothing() -> None:
    core = make(THREE, name="b")
    elect(leader := make())
    with pytest.raises(NotAllowed, match="'a' leads"):
        leader.examine_force(2.1)
    core.receive("a", Heartbeat(1, 0, 1), 5.0)
    with pytest.raises(NotAllowed, match="'a' leads, and 'b' hears it"):
        core.force(1, 5.5)
    core.force(1, 7.0)
    for refused in (make(Config(("b",), ("a",))), make(TWO)):
        refused.unproven = refused.config == TWO
        with pytest.raises(NotAllowed, match=r"counts for nothing|is no voter"):
            refused.examine_force(9.0)


@pytest.mark.parametrize("generation", [0, LATER + (1 << 32)], ids=["earlier", "later"])
def test_nothing_is_heard_of_another_generation(generation: int) -> None:
    core = make(
        TWO, term=3, entries=[(3, COMMAND, b"x"), (3, CONFIG, encode_config(Config(("a", "b"), (), (), LATER)))]
    )
    core.hear("b", VoteRequest(9, 99, 9), generation, 5.0)
    core.hear("b", Append(9, 0, 0, 0, [(9, COMMAND, b"z")]), generation, 5.0)
    actions = settle(core)
    assert core.term == 3 and core.log.last_term == 3
    assert set(map(type, sent(actions, "b"))) <= {LaterGeneration}
    assert bool(sent(actions, "b")) is (generation < LATER), "who was left behind is told, and answers nothing"
    assert core.standing == Standing(0, generation if generation > LATER else 0)


def test_a_leader_that_is_superseded_leads_no_more_and_says_nothing() -> None:
    core = make()
    elect(core)
    core.read(7)
    core.hear("b", LaterGeneration(0), LATER, 3.0)
    actions = settle(core)
    assert actions.standing == Standing(0, LATER) and actions.lost_reads == [7]
    assert core.role is RaftRole.FOLLOWER and core.propose([b"x"]) is None
    for at in range(4, 40):
        core.tick(float(at))
        core.hear("b", VoteRequest(9, 99, 9), 0, float(at))
        core.hear("b", VoteReply(9, True, True), 0, float(at))
        assert not settle(core).sends and core.next_deadline() > at
    with pytest.raises(NotAllowed, match="forced already"):
        core.force(1, 50.0)


def test_a_voter_that_was_left_behind_is_not_heard_by_one_that_is_alone_again() -> None:
    """An acknowledgement, or a confirmed round, of before is of another generation."""
    core = forced()
    core.change(AddLearner("b"), 51.0)
    core.hear("b", HeartbeatReply(core.term, 99), 0, 51.1)
    core.hear("b", AppendReply(core.term, 4, True), 0, 51.1)
    assert core.progress["b"].match == 0


def test_what_was_decided_before_a_generation_leaves_as_of_before() -> None:
    """Else a vote of before would count as one of the generation, which does not lie on the disk yet."""
    core = make(TWO, term=3, entries=[(3, COMMAND, b"x")])
    core.hear("b", VoteRequest(9, 99, 9, pre=True), 0, 50.0)
    before = core.take_actions()
    core.force(99, 50.0)
    raws: list[bytes] = []
    node: Any = SimpleNamespace(
        _batches=deque([(before, False), (core.take_actions(), True)]),
        _transport=SimpleNamespace(send=lambda to, raw: raws.append(raw)),
        _unapplied=deque(),
        _snapshotter=SimpleNamespace(restoring=True),
        generation=core.generation,
    )
    while RaftNode._release_next(node):
        pass
    assert raws and [generation_of(raw) for raw in raws] == [0] * len(raws)


def test_where_a_member_stands_is_written_again_where_the_disk_was_full() -> None:
    standing, found, later = Standing(0, LATER, True), iter((False, True)), list[Callable[[], None]]()
    node: Any = SimpleNamespace(
        node_id="a",
        standing=standing,
        settings=RaftSettings(),
        _stopped=False,
        _later=lambda delay_s, call: later.append(call),
        _storage=SimpleNamespace(note=lambda job, done: done(next(found))),
        _fail=lambda error: failed.append(error),
    )
    failed: list[BaseException] = []
    RaftNode._note_standing(node, standing)
    for call in later:  # to try again; then to end, for it is written
        call()
    assert len(later) == 2 and len(failed) == 1 and not list(found)


def test_a_snapshot_of_before_is_not_installed_by_who_goes_over() -> None:
    core = make(TWO, name="b")
    meta = SnapshotMeta(5, 3, TWO, 4, crc32c.crc32c(b"1234"))
    core.hear("a", SnapshotChunk(3, meta, 0, b"1234"), 0, 5.0)
    ((number, *_),) = core.take_actions().pieces
    core.hear("a", Heartbeat(1 << 33, 0, 1), LATER, 5.1)
    assert core.generation == LATER and core.leader == "a"
    core.on_piece_stored(number)
    actions = core.take_actions()
    assert actions.snapshot is None and not any(isinstance(m, AppendReply | SnapshotReply) for m in sent(actions, "a"))


@pytest.mark.parametrize("sender", ["b", "z"])
def test_only_a_member_or_one_that_was_left_behind_supersedes(sender: str) -> None:
    """Another one with a certificate of the group, as one that was removed, does not."""
    removal = [(1, CONFIG, encode_config(Config(("a", "b", "z")))), (1, CONFIG, encode_config(TWO))]
    core = make(TWO, term=3, entries=[*removal, (3, COMMAND, b"x")])
    core.commit = 3
    core.hear(sender, LaterGeneration(0), LATER, 5.0)
    assert bool(core.standing.superseded) is (sender == "b") and not sent(settle(core), sender)
    alone = forced()
    alone.hear(sender, LaterGeneration(0), LATER + (1 << 32), 60.0)
    assert bool(alone.standing.superseded) is (sender == "b")
    alone = forced()
    alone.configs.compact(alone.commit)
    alone.hear(sender, LaterGeneration(0), LATER + (1 << 32), 60.0)
    assert alone.standing.superseded, "it has forgotten whom it left behind"


@pytest.mark.parametrize(
    ("sender", "left", "heard"),
    [("n", 3, True), ("n", 2, False), ("n", 0, False), ("z", 1, False), ("b", 0, True)],
)
def test_who_joined_while_it_was_away_supersedes_and_who_was_removed_does_not(
    sender: str, left: int, heard: bool
) -> None:
    """n left a configuration that this member has not read of; z one of before it was removed."""
    removal = [(1, CONFIG, encode_config(Config(("a", "b", "z")))), (1, CONFIG, encode_config(TWO))]
    core = make(TWO, term=3, entries=[*removal, (3, COMMAND, b"x")])
    core.commit = 3
    core.hear(sender, LaterGeneration(0, left), LATER, 5.0)
    assert bool(core.standing.superseded) is heard


def test_who_hears_a_leader_hears_nobody_whom_it_does_not_know() -> None:
    core = make(TWO, name="b", term=3, entries=[(3, COMMAND, b"x")])
    core.hear("a", Heartbeat(3, 0, 1), 0, 5.0)
    core.hear("n", LaterGeneration(0, 9), LATER, 5.1)
    assert not core.standing.superseded
    core.hear("n", LaterGeneration(0, 9), LATER, 60.0)
    assert core.standing.superseded


def test_a_later_generation_that_is_told_of_an_earlier_one_says_so_once() -> None:
    core, left = forced(), make(TWO, name="b", term=3, entries=[(3, COMMAND, b"x")])
    core.take_actions()
    core.hear("b", LaterGeneration(0), 1, 60.0)
    (answer,) = sent(core.take_actions(), "b")
    assert isinstance(answer, LaterGeneration)
    left.hear("a", answer, core.generation, 60.0)
    assert left.standing.superseded == core.generation and not sent(settle(left), "a")


def test_a_later_generation_that_has_forgotten_what_it_left_names_no_index_of_it() -> None:
    """That of its own forced configuration would be a later one than any: who removed it would be left behind."""
    core = forced()
    core.configs.compact(core.configs.latest_index)
    core.take_actions()
    core.hear("b", LaterGeneration(0), 1, 60.0)
    assert sent(core.take_actions(), "b") == [LaterGeneration(0, 0)]


def test_who_holds_nothing_goes_over_and_learns() -> None:
    core = make(TWO, name="b")
    core.hear("a", Append(1 << 33, 0, 0, 0, [(1 << 33, COMMAND, b"x")]), LATER, 5.0)
    actions = core.take_actions()
    assert actions.standing == Standing(LATER) and core.generation == LATER and core.log.last_index == 1
    assert sent(actions, "a") == [AppendReply(1 << 33, 1, True)]
    core.hear("a", Heartbeat(1 << 33, 0, 1), 0, 5.1)
    assert sent(core.take_actions(), "a") == [LaterGeneration(0)]


def test_only_what_was_left_behind_is_set_aside() -> None:
    core = forced()
    with pytest.raises(NotAllowed, match="nothing of it is set aside"):
        core.set_aside(core.generation, 60.0)
    left = make(TWO, name="b", term=3, entries=[(3, COMMAND, b"x")])
    with pytest.raises(NotAllowed, match="not heard yet"):
        left.set_aside(core.generation, 60.0)
    assert not left.standing.superseded, "nobody's word but the group's"
    left.hear("a", LaterGeneration(0), core.generation, 60.0)
    left.set_aside(core.generation, 60.0)
    assert left.take_actions().standing == Standing(0, core.generation, True)
    with pytest.raises(NotAllowed):
        left.set_aside(core.generation - 1, 61.0)
