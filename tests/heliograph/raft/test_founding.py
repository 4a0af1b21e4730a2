"""Members whose folders are empty, or older copies: a group is founded by all of its first voters or not at all, and
whoever comes back with less than it has said votes for nobody until a leader has proved it.
"""

from __future__ import annotations

import json
from copy import deepcopy
from dataclasses import replace

import pytest

from geo_tests.sim.raft_losses import (
    CountsWhatIsUnproven,
    FoundsAlone,
    OlderWorld,
    ProvesTooEarly,
    TrustsItsDisk,
    VotesWithAnEmptyFolder,
    WipingWorld,
)
from geo_tests.sim.raft_member import DurableState, Violation
from geo_tests.sim.raft_world import RaftWorld, violations
from heliograph.model.errors import NotAllowed
from heliograph.raft.core import RaftCore, RaftRole
from heliograph.raft.founding import Founders
from heliograph.raft.membership import AddLearner, Promote
from heliograph.raft.messages import (
    NOOP,
    Append,
    AppendReply,
    Config,
    Founding,
    FoundingStage,
    Heartbeat,
    HeartbeatReply,
    Proof,
)
from tests.broken_rules import BrokenRules, fitting
from tests.heliograph.raft.cores import make, sent, settle

NAMES = ("n0", "n1", "n2")
SETTLED_S = 5.0


class QuietWorld(RaftWorld):
    """Three voters, a network and disks that do what they should, no clients: what goes wrong is told step by step."""

    def __init__(self, *, core: type[RaftCore] = RaftCore, voters: tuple[str, ...] = NAMES) -> None:
        self.voters = voters
        super().__init__(0, core=core)
        self.loss = self.repetition = self.cruelty = self.coups = 0.0
        self.delay_s, self.sync_s = (0.001, 0.005), (0.0005, 0.003)
        for member in self.members.values():
            member.keeps, member.rate, member.offset = False, 1.0, 0.0

    def _draw_group(self) -> tuple[Config, tuple[str, ...]]:
        return Config(self.voters), ("n8", "n9")

    def go_on(self, seconds: float = SETTLED_S) -> None:
        self._run_until(self.time + seconds)

    def start(self, *names: str) -> None:
        for name in names:
            self._start(name)

    def stop(self, name: str) -> None:
        """Everything that it has to store is stored."""
        self.go_on(0.05)
        self._crash(name)

    def wipe(self, name: str) -> None:
        """Its folder is empty now."""
        self._crash(name)
        self.members[name].durable = self.members[name].durable.empty()

    def copy_of(self, name: str) -> DurableState:
        """Its folder as it is now, while it runs or not."""
        return deepcopy(self.members[name].durable)

    def put_back(self, name: str, copy: DurableState) -> None:
        """Its folder is that copy now."""
        self._crash(name)
        copy = deepcopy(copy)
        copy.forgotten = self.members[name].durable
        self.members[name].durable = copy

    def separate(self, *pairs: tuple[str, str]) -> None:
        """These do not reach each other; all others do."""
        self.cut = {way for a, b in pairs for way in ((a, b), (b, a))}

    def leading(self) -> list[str]:
        return [name for name in self.members if self._leads(name) >= 0]

    def leader(self) -> str:
        (name,) = self.leading()
        return name

    def proven(self) -> set[str]:
        return {name for name, member in self.members.items() if member.durable.proven is not None}

    def core(self, name: str) -> RaftCore:
        core = self.members[name].core
        assert core is not None
        return core

    def write(self, value: str) -> int:
        """Asks the leader for a write, and returns the version of it once that is committed and applied there."""
        answers: list[int] = []
        member = self.members[max(self.members, key=self._leads)]
        self.tokens += 1
        member.waiting["client", self.tokens] = answers.append
        self.core(member.name).propose([json.dumps(["client", self.tokens, "put", "key", value, 0]).encode()])
        self._pump(member)
        self.go_on(1)
        assert answers and answers[0] > 0, "the write is answered"
        return answers[0]

    def holds(self, value: str, version: int) -> bool:
        """Whether everybody who runs has that write as the last one."""
        running = [member for member in self.members.values() if member.core is not None and member.kv.index]
        return all(member.kv.table.get("key") == (value.encode(), version) for member in running)


def founded(*, core: type[RaftCore] = RaftCore) -> QuietWorld:
    world = QuietWorld(core=core)
    world.start(*NAMES)
    world.go_on()
    return world


# -- a voter that has forgotten everything ----------------------------------------------------------------------------


def test_a_committed_write_stays_when_a_founder_begins_with_an_empty_folder() -> None:
    """A voter that has lost its folder has forgotten what it stored: with a member that was cut off it would be a
    majority that knows of nothing.
    """
    world = founded()
    leader = world.leader()
    forgetful, away = (name for name in NAMES if name != leader)
    world.separate((away, leader), (away, forgetful))
    version = world.write("precious")
    world.stop(leader)
    world.wipe(forgetful)
    world.separate()
    world.start(forgetful)
    world.go_on()
    assert not world.leading(), "nobody who lacks the write leads"
    world.start(leader)
    world.go_on()
    assert world.members[world.leader()].kv.table.get("key") == (b"precious", version)
    assert forgetful in world.proven() and world.holds("precious", version)


def test_a_term_has_one_leader_when_a_founder_begins_with_an_empty_folder() -> None:
    """A vote lies in the folder: whoever has lost it would give another one for the same term."""
    world = QuietWorld()
    world.start(*NAMES)
    while world.proven() != set(NAMES):
        world.go_on(0.005)
    assert not world.leading(), "the case is none"
    world._crash("n2")
    world.go_on()
    first = world.leader()
    (forgetful,) = {"n0", "n1"} - {first}
    assert world.members[forgetful].durable.vote == first, "the case is none"
    world.separate((first, "n2"), (first, forgetful))
    world.wipe(forgetful)
    world.members["n2"].durable.term = world._leads(first) - 1  # whatever happened before that term, it was there
    world.start("n2", forgetful)
    world.go_on()
    assert len(world.leading()) <= 1
    world.separate()
    world.go_on()
    assert world.leader() in (first, "n2") and forgetful in world.proven()


@pytest.mark.parametrize("core", [RaftCore, ProvesTooEarly, CountsWhatIsUnproven])
def test_a_leader_that_is_none_any_more_proves_nobody(core: type[RaftCore]) -> None:
    """It has not heard yet that another one was elected, by the vote that the emptied folder held."""

    def story() -> None:
        world = founded(core=core)
        old = world.leader()
        world.members[old].set_rate(world.time, 0.01)  # for it, hardly any time goes by
        forgetful, other = (name for name in NAMES if name != old)
        world.separate((old, forgetful), (old, other))
        world.go_on()
        new = max(world.members, key=world._leads)
        (forgetful,) = {forgetful, other} - {new}
        assert world.leading() == sorted((old, new)), "the case is none"
        version = world.write("precious")
        world.separate((new, old), (new, forgetful))
        world.wipe(forgetful)
        world.start(forgetful)
        world.members[old].set_rate(world.time, 1.0)
        world._pump(world.members[old])
        world.go_on(1)
        world.core(old).propose([json.dumps(["client", 99, "put", "key", "another", 0]).encode()])
        world._pump(world.members[old])
        world.go_on()
        assert forgetful not in world.proven()
        world.separate()
        world.go_on()
        assert world.holds("precious", version) and forgetful in world.proven()

    if core is RaftCore:
        story()
    else:
        with pytest.raises(Violation, match="state machine safety"):
            story()


def test_everybodys_folder_is_emptied_again_and_again_and_nothing_is_lost() -> None:
    world, version = founded(), 0
    for number in range(60):
        value = str(number)
        version = world.write(value)
        name = NAMES[number % 3]
        world.wipe(name)
        world.start(name)
        world.go_on(4)
        assert world.proven() == set(NAMES), f"{name} counts again"
        assert world.holds(value, version)
    for name in NAMES:
        world.stop(name)
    world.start(*NAMES)
    world.go_on()
    assert world.holds("59", version)


def test_a_member_that_is_restarted_before_it_is_proven_stays_what_it_is() -> None:
    world = founded()
    leader = world.leader()
    forgetful, other = (name for name in NAMES if name != leader)
    version = world.write("precious")
    world.stop(other)
    world.wipe(forgetful)
    for _ in range(5):
        world.start(forgetful)
        world.go_on(0.7)
        world._crash(forgetful)
        assert forgetful not in world.proven(), "no majority without it holds anything that is new"
    world.start(forgetful)
    world.go_on()
    assert not world.leading(), "two of three have to answer, and one of two has forgotten what it was"
    world.start(other)
    world.go_on()
    assert world.proven() == set(NAMES) and world.holds("precious", version)


def test_where_a_majority_is_emptied_nobody_pretends_to_know() -> None:
    world = founded()
    left = world.leader()
    world.write("precious")
    for name in NAMES:
        if name != left:
            world.wipe(name)
    world._crash(left)
    world.start(*NAMES)
    world.go_on(20)
    assert not world.leading() and world.proven() == {left}


# -- a voter whose folder is an older copy ----------------------------------------------------------------------------


def forgetting(*, core: type[RaftCore] = RaftCore, running: bool = False) -> tuple[QuietWorld, str, str, str, int]:
    """(world, who led, who is put back, who lagged, version of a write that the first two held). Only the last runs.

    running: the copy was made while it ran, and no start lies between.
    """
    world = QuietWorld(core=core)
    if running:
        world.settings = replace(world.settings, renumber_s=2.0)
    world.start(*NAMES)
    world.go_on()
    leader = world.leader()
    older, lagging = (name for name in NAMES if name != leader)
    copy = world.copy_of(older)
    if not running:
        world.stop(older)
        world.start(older)
    world.go_on()
    assert world.leader() == leader, "the case is none"
    world.separate((lagging, leader), (lagging, older))
    version = world.write("precious")
    world.stop(leader)
    world.put_back(older, copy)
    world.separate()
    return world, leader, older, lagging, version


@pytest.mark.parametrize("running", [False, True])
@pytest.mark.parametrize("core", [RaftCore, TrustsItsDisk])
def test_an_older_copy_elects_nobody_while_nobody_leads(core: type[RaftCore], running: bool) -> None:
    """With one that lagged it would be a majority that knows nothing of what is committed."""

    def story() -> None:
        world, leader, older, _, version = forgetting(core=core, running=running)
        world.start(older)
        world.go_on()
        assert not world.leading() and older not in world.proven()
        world.start(leader)
        world.go_on()
        assert world.members[world.leader()].kv.table.get("key") == (b"precious", version)
        assert world.proven() == set(NAMES) and world.holds("precious", version)

    if core is RaftCore:
        story()
    else:
        with pytest.raises(Violation, match="leader completeness"):
            story()


def test_starts_of_which_nobody_hears_do_not_climb_past_what_others_know() -> None:
    world, leader, older, lagging, version = forgetting()
    world.stop(lagging)
    for _ in range(5):
        world.start(older)
        world.go_on(1)
        world._crash(older)
    world.start(lagging)
    world.start(older)
    world.go_on()
    assert not world.leading()
    world.start(leader)
    world.go_on()
    assert world.holds("precious", version) and world.proven() == set(NAMES)


def test_voters_that_are_started_again_or_put_back_together_lead_as_before() -> None:
    world = founded()
    for together in (NAMES, NAMES[:2], NAMES):
        for name in NAMES:
            world.stop(name)
        world.start(*together)
        world.go_on()
        assert world.leading()
        world.start(*NAMES)
        world.go_on(1)
    copies = {name: world.copy_of(name) for name in NAMES}
    for name in NAMES:
        world.stop(name)
        world.start(name)
        world.go_on()
    for name, copy in copies.items():
        world._crash(name)
        world.members[name].durable = copy
    world.committed.clear()
    world.leaders.clear()
    world.entries.clear()
    world.digests.clear()
    for copy in copies.values():
        copy.commit = 0  # the world has forgotten as well
    world.start(*NAMES)
    world.go_on()
    assert world.leading() and world.proven() == set(NAMES)


def test_a_member_is_unproven_until_its_proof_lies_on_the_disk() -> None:
    """Else a learner becomes a voter, and after the next power cut one that may not vote."""
    core = make()
    core.founders, core.unproven = Founders("a", 7), True
    core.receive("b", Append(1, 0, 0, 0, [(1, NOOP, b"")]), 0.1)
    core.receive("b", Proof(1, 7, 2), 0.2)
    assert sent(settle(core), "b")[-1] == AppendReply(1, 1, True, life=7)
    core.receive("b", Heartbeat(1, 1, 3), 0.3)
    assert sent(settle(core), "b") == [HeartbeatReply(1, 3, 7)]
    core.receive("b", Append(1, 1, 1, 1, [(1, NOOP, b"")]), 0.4)
    settle(core)
    core.receive("b", Heartbeat(1, 2, 4), 0.5)
    actions = core.take_actions()
    assert actions.proven == () and sent(actions, "b") == [HeartbeatReply(1, 4)]


# -- a group that there is not yet ------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_a_group_is_founded_when_all_of_its_first_voters_are_there(count: int) -> None:
    names = tuple(f"n{number}" for number in range(count))
    world = QuietWorld(voters=names)
    world.start(*names[:-1])
    world.go_on()
    assert not world.leading() and not world.proven(), "the last one may hold a group that the others have forgotten"
    world.start(names[-1])
    world.go_on(3)
    version = world.write("first")
    world.go_on(1)
    assert world.holds("first", version) and world.proven() == set(names)


@pytest.mark.parametrize("at_ms", range(0, 40, 2))
def test_a_founder_is_killed_at_any_moment_of_the_founding(at_ms: int) -> None:
    for name in NAMES:
        world = QuietWorld()
        world.start(*NAMES)
        world.go_on(at_ms / 1000)
        world._crash(name)
        world.go_on(1)
        world.start(name)
        world.go_on(3)
        version = world.write("first")
        world.go_on(1)
        assert world.holds("first", version) and world.proven() == set(NAMES), name


@pytest.mark.parametrize("at_ms", range(0, 40, 2))
@pytest.mark.parametrize("apart", [False, True])
def test_a_founders_folder_is_emptied_at_any_moment_of_the_founding(at_ms: int, apart: bool) -> None:
    """apart: two of them did not reach each other in the beginning."""
    for name in NAMES:
        world = QuietWorld()
        world.delay_s = (0.001, 0.02)
        if apart:
            world.cut = {("n0", "n1")}
        world.start(*NAMES)
        world.go_on(at_ms / 1000)
        world.wipe(name)
        world.go_on(0.003)
        world.start(name)
        world.separate()
        world.go_on(4)
        version = world.write("first")
        world.go_on(1)
        assert world.holds("first", version) and world.proven() == set(NAMES), name


def test_who_was_told_of_the_founding_by_one_founder_alone_tells_the_others() -> None:
    """One of them is proven, and does not start again for a long time, or ever."""
    for gone in NAMES:
        world = QuietWorld()
        world.start(*NAMES)
        while gone not in world.proven():
            world.go_on(0.001)
        world._crash(gone)
        world.go_on()
        version = world.write("first") if world.leading() else 0
        world.start(gone)
        world.go_on()
        version = version or world.write("first")
        world.go_on(1)
        assert world.holds("first", version) and world.proven() == set(NAMES)


def test_lives_that_somebody_else_heard_of_found_nothing() -> None:
    """All have to name the same lives: one that was emptied in between is another."""
    one = Founders("a", 1, ("a", "b", "c"))
    fresh = FoundingStage.FRESH
    assert one.hear("b", Founding(0, fresh, (("b", 2),)), fresh=True)
    assert one.hear("c", Founding(0, fresh, (("c", 3),)), fresh=True)
    everybody = (("a", 1), ("b", 2), ("c", 3))
    assert one.question(fresh=True).lives == everybody
    assert not one.hear("b", Founding(0, fresh, everybody), fresh=True) and not one.lives
    assert one.hear("c", Founding(0, fresh, (("a", 1), ("b", 2), ("c", 4))), fresh=True) and not one.lives
    assert not one.hear("c", Founding(0, FoundingStage.LATE, everybody), fresh=True) and not one.lives
    assert not one.hear("b", Founding(0, fresh, (("a", 1), ("b", 2), ("c", 4))), fresh=False) and not one.lives
    assert not one.hear("b", Founding(0, FoundingStage.FOUNDED, (("a", 9), ("b", 2), ("c", 4))), fresh=True)
    assert not one.lives
    assert not one.hear("b", Founding(0, fresh, (("a", 1), ("b", 2), ("c", 4))), fresh=True)
    assert one.lives == (("a", 1), ("b", 2), ("c", 4))
    late = Founders("a", 1, ("a", "b", "c"))
    late.hear("b", Founding(0, FoundingStage.FOUNDED, everybody), fresh=False)
    assert late.lives == everybody


# -- a member that comes later ----------------------------------------------------------------------------------------


def test_a_member_that_joins_counts_once_the_leader_has_proved_it() -> None:
    world = founded()
    leader = world.members[world.leader()]
    world.separate(*[("n9", name) for name in NAMES])
    world.start("n9")
    world.core(leader.name).change(AddLearner("n9"), leader.now(world.time))
    world._pump(leader)
    world.separate()
    while not world.core(leader.name).progress["n9"].life:
        world.go_on(0.001)
    with pytest.raises(NotAllowed, match="empty folder"):
        world.core(leader.name).change(Promote("n9"), leader.now(world.time))
    world.go_on(1)
    assert "n9" in world.proven()
    assert world.core(leader.name).change(Promote("n9"), leader.now(world.time))
    world._pump(leader)
    version = world.write("four")
    world.wipe("n9")
    world.start("n9")
    world.go_on(2)
    assert "n9" in world.proven() and world.holds("four", version) and world.core("n9").role is not RaftRole.LEADER


def test_a_member_of_an_earlier_version_is_one_that_counts() -> None:
    world = founded()
    version = world.write("old")
    for name in NAMES:
        world.stop(name)
        old = world.members[name].durable
        world.members[name].durable = DurableState(
            term=old.term, vote=old.vote, entries=old.entries, commit=old.commit, life=7, proven=()
        )
    world.start(*NAMES)
    world.go_on()
    assert world.holds("old", version) and world.leader()
    world.wipe("n1")
    world.start("n1")
    world.go_on()
    assert world.holds("old", version) and "n1" in world.proven()


# -- worlds -----------------------------------------------------------------------------------------------------------


def test_what_is_committed_stays_although_folders_are_emptied() -> None:
    assert list(violations(RaftCore, range(60), WipingWorld)) == []


def test_folders_are_emptied_also_while_the_group_is_founded() -> None:
    worlds = [WipingWorld(seed) for seed in range(20)]
    for world in worlds:
        world.run()
    assert sum(world.wiped for world in worlds) > 20 and sum(world.early for world in worlds) > 3


def test_what_is_committed_stays_although_older_copies_are_put_back(broken: BrokenRules) -> None:
    worlds = [OlderWorld(seed) for seed in range(16)]
    for world in worlds:
        world.run()
    assert sum(world.put_back for world in worlds) > 12
    fitting(TrustsItsDisk)
    broken.look(lambda seed: OlderWorld(seed, core=TrustsItsDisk).run(), (104,), Violation)


@pytest.mark.parametrize(("mutant", "first"), [(VotesWithAnEmptyFolder, 0), (FoundsAlone, 0)])
def test_a_rule_without_which_an_empty_folder_does_harm_is_missed(
    mutant: type[RaftCore], first: int, broken: BrokenRules
) -> None:
    fitting(mutant)
    broken.look(lambda seed: WipingWorld(seed, core=mutant).run(), range(first, first + 8), Violation)
