"""A founder of a Raft group that comes back with an empty folder, as the voter that it was."""

from __future__ import annotations

import json

import pytest

from geo_tests.sim.raft_member import DurableState, Violation
from geo_tests.sim.raft_world import RaftWorld
from heliograph.raft.messages import Config
from tests.known_faults.region_stories import given

NAMES = ("n0", "n1", "n2")
SETTLED_S = 5.0


class QuietWorld(RaftWorld):
    """Three voters, a network and disks that do what they should, no clients: what goes wrong is told step by step."""

    def __init__(self) -> None:
        super().__init__(0)
        self.loss = self.repetition = self.cruelty = self.coups = 0.0
        self.delay_s, self.sync_s = (0.001, 0.005), (0.0005, 0.003)
        for member in self.members.values():
            member.keeps, member.rate, member.offset = False, 1.0, 0.0

    def _draw_group(self) -> tuple[Config, tuple[str, ...]]:
        return Config(NAMES), ()

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
        self.stop(name)
        self.members[name].durable = DurableState()

    def separate(self, *pairs: tuple[str, str]) -> None:
        """These do not reach each other; all others do."""
        self.cut = {way for a, b in pairs for way in ((a, b), (b, a))}

    def leader(self) -> str:
        (name,) = (name for name in self.members if self._leads(name) >= 0)
        return name

    def write(self, value: str) -> int:
        """Asks the leader for a write, and returns the version of it once that is committed and applied there."""
        answers: list[int] = []
        member = self.members[self.leader()]
        assert member.core is not None
        member.waiting["client", 1] = answers.append
        member.core.propose([json.dumps(["client", 1, "put", "key", value, 0]).encode()])
        self._pump(member)
        self.go_on(1)
        assert answers and answers[0] > 0, "the write is answered"
        return answers[0]


def broken_by(world: QuietWorld) -> str:
    """What of Raft's invariants breaks in the next seconds; "": nothing."""
    try:
        world.go_on()
    except Violation as violation:
        return str(violation)
    return ""


@pytest.mark.xfail(
    strict=True,
    raises=AssertionError,
    reason="a founder with an empty folder votes for a member that lacks a committed write, and the write is lost",
)
def test_a_committed_write_stays_when_a_founder_begins_with_an_empty_folder() -> None:
    """What two of three voters have stored is committed, and every later leader has it.

    A voter that has lost its folder has forgotten what it stored, and votes as in the hour of the founding: with a
    member that was cut off it is a majority that knows of nothing. Right would be that an empty founder learns from a
    leader before it votes or stands, unless it is told that it founds the group.
    """
    with given():
        world = QuietWorld()
        world.start(*NAMES)
        world.go_on()
        leader = world.leader()
        forgetful, away = (name for name in NAMES if name != leader)
        world.separate((away, leader), (away, forgetful))
        version = world.write("precious")
        world.stop(leader)
        world.wipe(forgetful)
        world.separate()
    world.start(forgetful)
    broken = broken_by(world)
    assert not broken, broken
    world.start(leader)
    broken = broken_by(world)
    assert not broken, broken
    found = world.members[world.leader()].kv.table.get("key")
    assert found == (b"precious", version), found


@pytest.mark.xfail(
    strict=True,
    raises=AssertionError,
    reason="a founder with an empty folder votes a second time in a term, and the term has two leaders",
)
def test_a_term_has_one_leader_when_a_founder_begins_with_an_empty_folder() -> None:
    """A voter votes once in a term, so that a term has one leader.

    A vote lies in the folder. A founder that has lost it gives another one for the same term to whoever asks next.
    Right would be as above: whoever has forgotten how it voted does not vote until a leader has told it where the group
    is.
    """
    with given():
        world = QuietWorld()
        world.start("n0", "n1")
        world.go_on()
        first = world.leader()
        (forgetful,) = {"n0", "n1"} - {first}
        term = world._leads(first)
        assert world.members[forgetful].durable.vote == first, f"its vote is what {first} leads by"
        world.separate((first, "n2"), (first, forgetful))
        world.wipe(forgetful)
        world.members["n2"].durable.term = term - 1  # whatever happened before that term, it was there
    world.start("n2", forgetful)
    broken = broken_by(world)
    assert not broken, broken
