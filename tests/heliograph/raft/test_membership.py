"""Changes of a Raft group, step by step: what the simulation would need luck for, and the sentences of what is
refused.
"""

from __future__ import annotations

import pytest

from geo_tests.sim.raft_membership_mutants import ChangesBeforeNoop
from heliograph.model.errors import NotAllowed, PeerError
from heliograph.raft.core import RaftCore, RaftRole
from heliograph.raft.membership import AddLearner, Addresses, Configurations, Promote, Remove, address_for, changed
from heliograph.raft.messages import (
    COMMAND,
    CONFIG,
    Append,
    AppendReply,
    Config,
    Heartbeat,
    HeartbeatReply,
    TimeoutNow,
    VoteReply,
    VoteRequest,
    decode_config,
    encode_config,
)
from tests.broken_rules import fitting
from tests.heliograph.raft.cores import SETTINGS, THREE, elect, make, sent, settle


def lead(config: Config = THREE, cls: type[RaftCore] = RaftCore) -> RaftCore:
    """`a` leads, b has acknowledged the first entry."""
    core = make(config, cls=cls)
    elect(core)
    core.receive("b", AppendReply(core.term, core.log.last_index, True), 2.1)
    assert core.ready
    core.take_actions()
    return core


def acknowledge(core: RaftCore, *members: str, now: float = 2.2) -> None:
    settle(core)
    for member in members:
        core.receive(member, AppendReply(core.term, core.log.last_index, True), now)


def test_a_configuration_with_addresses_comes_back_equal_and_without_them_as_it_was_before() -> None:
    old = Config(("a", "b"), ("c",))
    assert encode_config(old)[0] == 1
    new = Config(("a", "b"), ("c",), (("b", "h:1"), ("c", "x=h:2,h:3")))
    for config in (old, new):
        assert decode_config(encode_config(config)) == (config, len(encode_config(config)))
    for end in range(len(encode_config(new))):
        with pytest.raises(PeerError):
            decode_config(encode_config(new)[:end])


def test_an_address_may_differ_by_who_asks() -> None:
    assert address_for("eu", "h:1") == "h:1"
    assert address_for("eu", "us=p:1, eu=p:2, h:3") == "p:2" and address_for("ap", "us=p:1,h:3") == "h:3"
    assert address_for("ap", "us=p:1") == "" and address_for("ap", "") == ""


def test_what_a_change_makes_and_what_it_refuses() -> None:
    config = changed(THREE, AddLearner("z", "h:1"))
    assert config == Config(("a", "b", "c"), ("z",), (("z", "h:1"),))
    assert changed(config, AddLearner("z", "h:1")) == config, "a repetition changes nothing"
    config = changed(config, Promote("z"))
    assert config.voters == ("a", "b", "c", "z") and config.addresses and changed(config, Promote("z")) == config
    config = changed(config, Remove("z"))
    assert config == THREE and changed(config, Remove("z")) == config
    for change, text in (
        (AddLearner("a", "h:2"), "remove it first"),
        (Promote("y"), "add it as a learner first"),
        (AddLearner("x", "nonsense"), "no address"),
        (AddLearner("x", "h:99999"), "no address"),
        (AddLearner("", "h:1"), "printable"),
    ):
        with pytest.raises(NotAllowed, match=text):
            changed(THREE, change)
    with pytest.raises(NotAllowed, match="only voter"):
        changed(Config(("a",), ("b",)), Remove("a"))


def test_where_a_member_is_say_settings_then_the_configuration_then_itself() -> None:
    book = Addresses("a", {"a": "own:1", "b": "b:1"})
    assert (book.of("a"), book.of("b"), book.of("c"), book.own) == ("", "b:1", "", "")
    assert not book.hear("c", ""), "who cannot be answered is not heard"
    assert book.hear("c", "a=c:7,c:1") and book.of("c") == "c:7"
    book.learn(Config(("a", "b", "c"), (), (("a", "me:1"), ("b", "b:2"), ("c", "c:2"))))
    assert (book.of("b"), book.of("c"), book.own) == ("b:1", "c:2", "me:1")
    assert book.hear("c", "elsewhere:1") and book.of("c") == "c:2", "the configuration knows better"
    for number in range(1000):
        book.hear(f"x{number}", "h:1")
    assert len(book.known()) < 200 and book.of("c") == "c:2"


def test_configurations_go_back_with_the_log() -> None:
    configs = Configurations(0, THREE)
    first, second = Config(("a", "b")), Config(("a",))
    assert configs.adopt(1, [(1, COMMAND, b"x"), (1, CONFIG, encode_config(first)), (1, CONFIG, encode_config(second))])
    assert (configs.latest, configs.before, configs.latest_index, configs.at(2)) == (second, first, 3, first)
    configs.roll_back(3)
    assert configs.latest == first
    configs.compact(2)
    assert configs.at(2) == first and configs.before == first


def test_a_learner_is_fed_becomes_a_voter_when_it_has_caught_up_and_counts_then() -> None:
    core = lead()
    assert core.change(AddLearner("z"), 2.2) == 2
    (probe,) = sent(settle(core), "z")
    assert isinstance(probe, Append) and probe.previous_index == 1
    with pytest.raises(NotAllowed, match="not committed yet"):
        core.change(Promote("z"), 2.2)
    acknowledge(core, "b")
    assert core.commit == 2
    with pytest.raises(NotAllowed, match="2 entries behind"):
        core.change(Promote("z"), 2.2)
    core.receive("z", AppendReply(core.term, 1, False, 0, 0), 2.2)
    core.receive("z", AppendReply(core.term, 2, True), 2.2)
    assert core.change(Promote("z"), 2.2) == 3 and core.config.voters == ("a", "b", "c", "z")
    acknowledge(core, "z")
    assert core.commit == 2, "two of four"
    acknowledge(core, "b")
    assert core.commit == 3


def test_a_removal_that_would_lose_the_quorum_is_refused_with_what_to_do() -> None:
    core = lead()
    for now in (3.0, 3.9):
        core.receive("b", HeartbeatReply(core.term, 0), now)
    with pytest.raises(
        NotAllowed, match="the quorum would be lost: of the 2 voters that this leaves, 2 must answer, and c does not"
    ):
        core.change(Remove("b"), 4.0)
    assert core.change(Remove("c"), 4.0), "the silent one may go"


def test_a_follower_changes_nothing() -> None:
    core = make(name="b")
    assert core.change(Remove("a"), 2.0) is None and core.transfer("a", 2.0) is None


def test_a_removed_leader_commits_without_itself_names_an_heir_and_goes() -> None:
    core = lead()
    core.change(Remove("a"), 2.2)
    core.on_durable(core.take_actions().durable_mark)
    core.receive("b", AppendReply(core.term, 2, True), 2.2)
    assert core.commit == 1, "one of two"
    core.receive("c", AppendReply(core.term, 2, True), 2.2)
    assert core.commit == 2 and [m for to, m in core.take_actions().sends if isinstance(m, TimeoutNow)] == [
        TimeoutNow(core.term)
    ]
    core.tick(core.next_deadline())
    assert core.role is RaftRole.FOLLOWER
    core.tick(50.0)
    assert not core.take_actions().sends, "and stands for nothing any more"


def test_who_was_removed_is_sent_its_removal_and_then_nothing() -> None:
    core = lead()
    core.receive("c", AppendReply(core.term, 1, True), 2.1)
    core.take_actions()
    core.change(Remove("c"), 2.2)
    assert [e[1] for m in sent(core.take_actions(), "c") if isinstance(m, Append) for e in m.entries] == [CONFIG]
    core.receive("b", AppendReply(core.term, 2, True), 2.2)
    core.on_durable((2, core.term))
    assert [m.commit for m in sent(core.take_actions(), "c") if isinstance(m, Append)] == [2]
    core.tick(core.next_deadline())
    actions = core.take_actions()
    assert sent(actions, "b") and not sent(actions, "c")


def test_a_removed_member_asks_and_is_refused_and_changes_no_term() -> None:
    core = make(Config(("b", "c")), name="b", term=3)
    core.receive("c", Heartbeat(3, 0, 0), 5.0)
    core.take_actions()
    core.receive("a", VoteRequest(4, 9, 3, pre=True), 5.2)
    core.receive("a", VoteRequest(7, 9, 3), 5.2)
    assert core.term == 3 and sent(core.take_actions(), "a") == [VoteReply(3, False, True)]


def test_who_may_not_stand_forgets_a_leader_that_is_silent() -> None:
    for config in (Config(("b", "c")), Config(("b", "c"), ("a",))):
        core = make(config, term=3)
        core.receive("c", Heartbeat(3, 0, 0), 5.0)
        core.take_actions()
        assert core.leader == "c"
        core.tick(50.0)
        assert core.leader == "" and core.term == 3 and not core.take_actions(), (
            "else it would send its clients there for ever"
        )


def test_a_member_whose_removal_is_not_committed_may_stand_but_not_vote_for_itself() -> None:
    core = make(THREE, term=1, entries=[(1, COMMAND, b"x"), (1, CONFIG, encode_config(Config(("b", "c"))))])
    core.tick(2.0)
    for pre, role in ((True, RaftRole.CANDIDATE), (False, RaftRole.LEADER)):
        settle(core)
        core.receive("b", VoteReply(2, True, pre), 2.0)
        assert core.role is not role, "its own vote does not count"
        core.receive("c", VoteReply(2, True, pre), 2.0)
        assert core.role is role
    settle(core)
    core.receive("b", AppendReply(2, 3, True), 2.1)
    assert core.commit == 0, "its own copy does not count"
    core.receive("c", AppendReply(2, 3, True), 2.1)
    assert core.commit == 3
    core.tick(core.next_deadline())
    assert core.role is RaftRole.FOLLOWER


def test_the_last_but_one_voter_goes_only_once_it_has_read_of_it() -> None:
    """Else it could be forced to go on alone, beside the one that does already."""
    core = make(Config(("a", "b")))
    elect(core)
    core.receive("b", AppendReply(core.term, 1, True), 2.1)
    settle(core)
    assert core.change(Remove("b"), 2.2) == 2
    settle(core)
    assert core.commit == 1, "its own copy is not enough"
    core.receive("b", AppendReply(core.term, 2, True), 2.3)
    actions = core.take_actions()
    assert core.commit == 2 and actions.stores, "it is durable before anybody hears of it"
    core.on_durable(actions.durable_mark)
    assert core.propose([b"x"]) == 3 and settle(core) and core.commit == 3, "from then on it is alone"


def test_of_two_voters_neither_leads_alone_while_a_removal_is_not_committed() -> None:
    entries = [(1, COMMAND, b"x"), (1, CONFIG, encode_config(Config(("a",))))]
    core = make(Config(("a", "b")), term=1, entries=entries)
    core.tick(2.0)
    for pre in (True, False):
        assert core.role is not RaftRole.LEADER and any(isinstance(m, VoteRequest) for m in sent(settle(core), "b"))
        core.receive("b", VoteReply(2, True, pre), 2.0)
    settle(core)
    assert core.role is RaftRole.LEADER and core.commit == 0
    core.receive("b", AppendReply(2, 3, True), 2.1)
    assert core.commit == 3


def test_who_has_left_elects_the_one_that_does_not_know_yet_that_it_is_alone() -> None:
    removal = (1, CONFIG, encode_config(Config(("b",))))
    core = make(Config(("a", "b")), term=1, entries=[removal, (1, COMMAND, b"which b has not heard of")])
    core.commit = 1
    for last, granted in ((0, False), (1, True)):
        core.receive("b", VoteRequest(2 + last, last, last), 50.0)
        assert sent(settle(core), "b") == [VoteReply(2 + last, granted)]


def test_a_voter_of_two_that_does_not_answer_is_not_removed() -> None:
    core = make(Config(("a", "b")))
    elect(core)
    core.receive("b", AppendReply(core.term, 1, True), 2.1)
    with pytest.raises(NotAllowed, match=r"'b' does not answer: .*force the quorum"):
        core.change(Remove("b"), 3.2)


def test_a_member_outside_of_any_group_waits() -> None:
    core = make(Config(()), name="z")
    core.tick(50.0)
    core.receive("a", TimeoutNow(0), 50.0)
    assert not core.take_actions() and core.role is RaftRole.FOLLOWER
    core.receive("a", Append(4, 0, 0, 0, [(4, CONFIG, encode_config(Config(("a",), ("z",))))]), 51.0)
    assert core.config == Config(("a",), ("z",))


def two_majorities_that_do_not_meet(cls: type[RaftCore]) -> None:
    """`a` led term 1 and has added `e` in its own log alone. `b` leads term 2: if it removed `a` now, {b, c} of its
    three voters could commit, and {a, d, e} of the five that `a` knows could elect `a` without them. An entry of term 2
    on a majority of the four prevents that election.
    """
    four = Config(("a", "b", "c", "d"))
    core = make(four, cls=cls, name="b", term=1)
    core.tick(2.0)
    for pre in (True, False):
        settle(core)
        for voter in ("c", "d"):
            core.receive(voter, VoteReply(core.term + pre, True, pre), 2.0)
    assert core.role is RaftRole.LEADER
    settle(core)
    with pytest.raises(NotAllowed, match="first entry of this leader"):
        core.change(Remove("a"), 2.1)
    core.receive("c", AppendReply(2, 1, True), 2.1)
    core.receive("d", AppendReply(2, 1, True), 2.1)
    assert core.change(Remove("a"), 2.1) == 2


def test_no_change_before_an_entry_of_the_own_term_is_committed() -> None:
    two_majorities_that_do_not_meet(RaftCore)
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        two_majorities_that_do_not_meet(fitting(ChangesBeforeNoop))


def test_a_transfer_waits_until_the_heir_has_everything_and_holds_commands_back() -> None:
    core = lead()
    core.propose([b"x"])
    core.take_actions()
    assert core.transfer("b", 2.2) and core.transferring and core.propose([b"y"]) is None
    assert not sent(core.take_actions(), "b")
    core.receive("b", AppendReply(core.term, 2, True), 2.3)
    assert TimeoutNow(core.term) in sent(core.take_actions(), "b")
    core.receive("b", VoteRequest(core.term + 1, 2, 1, ordered=True), 2.4)
    assert core.role is RaftRole.FOLLOWER and not core.transferring and core.vote == "b"


def test_a_transfer_that_comes_to_nothing_ends_in_bounded_time() -> None:
    core = lead()
    core.propose([b"x"])
    core.take_actions()
    assert core.transfer("c", 2.2)
    now = 2.2
    while core.transferring:
        now = max(core.next_deadline(), now + 0.01)
        core.receive("b", HeartbeatReply(core.term, 0), now)
        core.tick(now)
    assert (
        now <= 2.2 + SETTINGS.election_timeout_s + 0.1
        and core.role is RaftRole.LEADER
        and core.propose([b"y"]) is not None
    )


def test_a_transfer_to_who_cannot_lead_is_refused() -> None:
    core = lead(Config(("a", "b", "c"), ("z",)))
    assert core.transfer("a", 2.2) is False
    with pytest.raises(NotAllowed, match="no voter; there are a, b, c"):
        core.transfer("z", 2.2)
    for now in (3.0, 3.9):
        core.receive("b", HeartbeatReply(core.term, 0), now)
    with pytest.raises(NotAllowed, match="does not answer"):
        core.transfer("c", 4.0)
