"""One consumer group as a pure core: the protocol step by step, and seeded histories of members that come, go, and
die.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from heliograph.kv.metadata_store import VALUE_BYTES_MAX
from heliograph.model.errors import CorruptData
from region_node.faces.kafka.error_codes import Code
from region_node.faces.kafka.groups.consumer_group import (
    COMPLETING,
    EMPTY,
    MEMBERS_BYTES_MAX,
    PREPARING,
    STABLE,
    Group,
    GroupMember,
)

RANGE = [("range", b"topics")]


class World:
    """A group and what its members were told."""

    def __init__(self, delay_s: float = 0.0) -> None:
        self.group = Group("g", delay_s=delay_s, members_max=50)
        self.now = 0.0
        self.told: dict[Any, dict[str, Any]] = {}
        self._tokens = itertools.count()

    def join(
        self,
        member: str = "",
        instance: str | None = None,
        protocols: Any = RANGE,
        *,
        needs_id: bool = False,
        skip: bool = False,
    ) -> int:
        token = next(self._tokens)
        made = GroupMember(member, instance, "client", "/h", 10.0, 30.0, protocols)
        self.group.join(self.now, made, "consumer", f"new-{token}", token, needs_id=needs_id, may_skip=skip)
        self.collect()
        return token

    def sync(
        self, answer: dict[str, Any], assignments: dict[str, bytes] | None = None, instance: str | None = None
    ) -> int:
        token = next(self._tokens)
        self.group.sync(self.now, answer["member_id"], instance, answer["generation_id"], assignments or {}, token)
        self.collect()
        return token

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.group.on_time(self.now)
        self.collect()

    def collect(self) -> None:
        for token, fields in self.group.take_answers():
            assert token not in self.told, "answered twice"
            self.told[token] = fields

    def stable(self, *tokens: int) -> list[int]:
        """Those who joined sync: each gets its own id."""
        answers = [self.told[token] for token in tokens]
        leader = next(a for a in answers if a["leader"] == a["member_id"])
        share = {row["member_id"]: row["member_id"].encode() for row in leader["members"]}
        return [self.sync(a, share if a is leader else None) for a in answers]


def test_two_members_get_their_shares_in_one_generation() -> None:
    world = World(delay_s=3.0)
    one, two = world.join(), world.join()
    assert not world.told
    world.pass_time(3.0)
    assert world.told[one]["generation_id"] == world.told[two]["generation_id"] == 1
    assert [bool(world.told[t]["members"]) for t in (one, two)] == [True, False]
    for token in world.stable(one, two):
        assert world.told[token]["error_code"] == 0 and world.told[token]["assignment"]
    assert world.group.state == STABLE
    assert world.group.heartbeat(world.now, world.told[one]["member_id"], None, 1) == Code.NONE
    assert world.group.heartbeat(world.now, world.told[one]["member_id"], None, 0) == Code.ILLEGAL_GENERATION
    assert world.group.heartbeat(world.now, "who", None, 1) == Code.UNKNOWN_MEMBER_ID


def test_a_new_member_waits_until_the_others_have_come_back() -> None:
    world = World()
    one = world.join()
    world.stable(one)
    member = world.told[one]["member_id"]
    two = world.join()
    assert two not in world.told and world.group.state == PREPARING
    assert world.group.heartbeat(world.now, member, None, 1) == Code.REBALANCE_IN_PROGRESS
    again = world.join(member)
    assert world.told[again]["generation_id"] == world.told[two]["generation_id"] == 2
    assert world.group.state == COMPLETING
    world.group.sync(world.now, member, None, 1, {}, "late")
    world.collect()
    assert world.told["late"]["error_code"] == Code.ILLEGAL_GENERATION


def test_who_does_not_come_back_in_time_is_out() -> None:
    world = World()
    one = world.join()
    world.stable(one)
    gone = world.told[one]["member_id"]
    two = world.join()
    for _ in range(6):
        world.pass_time(4.9)
        assert (
            world.group.heartbeat(world.now, gone, None, 1) == Code.REBALANCE_IN_PROGRESS
        )  # it is alive, and does not come
    world.pass_time(0.8)
    assert world.told[two]["generation_id"] == 2 and list(world.group.members) == [world.told[two]["member_id"]]
    assert world.group.heartbeat(world.now, gone, None, 1) == Code.UNKNOWN_MEMBER_ID


def test_who_is_silent_is_out_and_the_others_share_anew() -> None:
    world = World(delay_s=1.0)
    one, two = world.join(), world.join()
    world.pass_time(1.0)
    world.stable(one, two)
    alive, silent = world.told[one]["member_id"], world.told[two]["member_id"]
    world.now += 9
    assert world.group.heartbeat(world.now, alive, None, 1) == Code.NONE
    world.pass_time(1.5)
    assert silent not in world.group.members and world.group.state == PREPARING
    again = world.join(alive)
    assert world.told[again]["generation_id"] == 2


def test_an_id_must_be_presented_first_and_is_forgotten_when_it_is_not() -> None:
    world = World()
    asked = world.join(needs_id=True)
    assert world.told[asked]["error_code"] == Code.MEMBER_ID_REQUIRED
    given = world.told[asked]["member_id"]
    joined = world.join(given, needs_id=True)
    assert world.told[joined]["member_id"] == given
    other = world.join(needs_id=True)
    world.pass_time(11)
    late = world.join(world.told[other]["member_id"], needs_id=True)
    assert world.told[late]["error_code"] == Code.UNKNOWN_MEMBER_ID


def test_members_that_share_no_way_to_assign_are_refused() -> None:
    world = World()
    world.stable(world.join())
    refused = world.join(protocols=[("sticky", b"")])
    assert world.told[refused]["error_code"] == Code.INCONSISTENT_GROUP_PROTOCOL
    assert world.told[world.join(protocols=[])]["error_code"] == Code.INCONSISTENT_GROUP_PROTOCOL
    assert world.group.state == STABLE


def test_the_protocol_that_all_know_and_most_want() -> None:
    world = World(delay_s=1.0)
    both, other = [("sticky", b"s"), ("range", b"r")], [("range", b"r"), ("sticky", b"s")]
    tokens = [world.join(protocols=p) for p in (both, other, other)]
    world.pass_time(1.0)
    assert {world.told[t]["protocol_name"] for t in tokens} == {"range"}
    (leader,) = (world.told[t] for t in tokens if world.told[t]["members"])
    assert [row["metadata"] for row in leader["members"]] == [b"r"] * 3, "of that protocol, wherever it stands"


def test_a_static_member_comes_back_to_its_share_without_a_rebalance() -> None:
    world = World(delay_s=1.0)
    leader, static = world.join(), world.join(instance="i")
    world.pass_time(1.0)
    world.stable(leader, static)
    old = world.told[static]["member_id"]
    again = world.join(instance="i")
    assert world.told[again]["generation_id"] == 1 and world.told[again]["member_id"] != old
    assert world.group.state == STABLE
    assert world.group.heartbeat(world.now, old, "i", 1) == Code.FENCED_INSTANCE_ID
    synced = world.sync(world.told[again], instance="i")
    assert world.told[synced]["assignment"] == old.encode()
    assert world.group.leave(world.now, "", "i") == Code.NONE
    assert world.group.state == PREPARING


def test_a_static_leader_that_comes_back_does_not_assign_anew() -> None:
    world = World()
    first = world.join(instance="i")
    world.stable(first)
    newer = world.join(instance="i", skip=True)
    assert world.told[newer]["skip_assignment"] and world.told[newer]["leader"] == world.told[newer]["member_id"]
    older = world.join(instance="i")
    assert world.told[older]["leader"] != world.told[older]["member_id"] and not world.told[older]["members"]


def test_another_coordinator_goes_on_where_the_one_before_was() -> None:
    world = World(delay_s=1.0)
    one, two = world.join(), world.join(instance="i")
    world.pass_time(1.0)
    world.stable(one, two)
    taken = World()
    taken.group.load(world.group.dump(), 100.0)
    taken.now = 100.0
    member = world.told[one]["member_id"]
    assert taken.group.heartbeat(taken.now, member, None, 1) == Code.NONE
    assert taken.group.committed(taken.now, member, None, 1) == Code.NONE
    assert taken.told[taken.sync(world.told[one])]["assignment"] == member.encode()
    joined = taken.join()
    assert joined not in taken.told
    with pytest.raises(CorruptData):
        taken.group.load(b"\x93\x01\x02\x03", 0.0)


def test_a_generation_that_nobody_was_told_of_is_made_again() -> None:
    world = World()
    one = world.join()
    assert world.group.state == COMPLETING
    taken = World()
    taken.group.load(world.group.dump(), 0.0)
    member = world.told[one]["member_id"]
    assert taken.group.heartbeat(0.0, member, None, 1) == Code.REBALANCE_IN_PROGRESS
    assert taken.told[taken.join(member)]["generation_id"] == 2


def test_commits_of_who_is_no_member() -> None:
    world = World()
    assert world.group.committed(0.0, "", None, -1) == Code.NONE
    world.stable(world.join())
    assert world.group.committed(0.0, "", None, -1) == Code.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize("seed", range(300))
def test_histories(seed: int) -> None:
    """Whatever members do: nobody is answered twice or never, an assignment reaches only the generation that it was
    made for, and in the end all share.
    """
    rng = random.Random(seed)
    world = World(delay_s=rng.choice([0.0, 3.0]))
    waiting: dict[int, tuple[str, str]] = {}
    members: dict[str, dict[str, Any]] = {}
    made: dict[int, str] = {}

    def settle() -> None:
        for token in [t for t in waiting if t in world.told]:
            kind, who = waiting.pop(token)
            answer = world.told[token]
            if kind == "join" and not answer["error_code"]:
                members[answer["member_id"]] = answer
                if answer["leader"] == answer["member_id"] and answer["members"]:
                    assert (
                        answer["generation_id"] not in made or made[answer["generation_id"]] == answer["member_id"]
                    ), "two leaders"
                    made[answer["generation_id"]] = answer["member_id"]
            elif answer["error_code"] in (Code.UNKNOWN_MEMBER_ID, Code.FENCED_INSTANCE_ID):
                members.pop(who, None)
            elif kind == "sync" and not answer["error_code"]:
                assert answer["assignment"] == f"{members[who]['generation_id']}:{who}".encode()

    def sync(who: str) -> None:
        answer = members[who]
        share = {
            row["member_id"]: f"{answer['generation_id']}:{row['member_id']}".encode() for row in answer["members"]
        }
        waiting[world.sync(answer, share)] = ("sync", who)

    for _ in range(rng.randrange(20, 80)):
        settle()
        idle = [who for who in members if who not in {w for _, w in waiting.values()}]
        match rng.randrange(7):
            case 0 if len(members) < 5:
                waiting[world.join()] = ("join", "")
            case 1 | 2 if idle:
                who = rng.choice(idle)
                waiting[world.join(who)] = ("join", who)
            case 3 if idle:
                sync(rng.choice(idle))
            case 4 if idle and rng.random() < 0.4:
                world.group.leave(world.now, who := rng.choice(idle), None)
                world.collect()
                members.pop(who)
            case 5 if idle:
                world.group.heartbeat(world.now, who := rng.choice(idle), None, members[who]["generation_id"])
                world.collect()
            case _:
                world.pass_time(rng.choice([0.1, 3.0, 12.0, 40.0]))
    for _ in range(100):  # from here on everybody does what clients do
        settle()
        members = {who: answer for who, answer in members.items() if who in world.group.members}
        if not members and not waiting:
            waiting[world.join()] = ("join", "")
        busy = {w for _, w in waiting.values()}
        for who in [w for w in members if w not in busy]:
            code = world.group.heartbeat(world.now, who, None, members[who]["generation_id"])
            if code in (Code.REBALANCE_IN_PROGRESS, Code.ILLEGAL_GENERATION):
                waiting[world.join(who)] = ("join", who)
            elif code == Code.NONE and (world.group.state == COMPLETING or not world.group.members[who].assignment):
                sync(who)
            settle()
            busy = {w for _, w in waiting.values()}
        world.pass_time(1.0)
    settle()
    assert world.group.state == STABLE and members, (world.group.state, members, waiting)
    assert all(m.assignment == f"{world.group.generation}:{m.id}".encode() for m in world.group.members.values())
    assert world.group.state != EMPTY and not waiting
    left = world.group.members.values()
    assert world.group._totals.known_by == Counter(name for m in left for name, _ in m.protocols)
    assert world.group._totals.size_bytes == sum(m.measure() for m in left)


def test_members_that_are_expelled_are_unknown_and_may_come_again() -> None:
    world = World()
    one, static = world.join(), world.join(instance="i")
    again = world.join(world.told[one]["member_id"]) if one in world.told else one
    world.stable(again, static)
    member, waiting = (
        world.told[again]["member_id"],
        world.join(world.told[again]["member_id"], protocols=[("range", b"others")]),
    )
    assert world.group.state == PREPARING and waiting not in world.told
    world.group.expel()
    world.collect()
    assert (
        world.told[waiting]["error_code"] == Code.UNKNOWN_MEMBER_ID
        and world.group.state == EMPTY
        and world.group.changed
    )
    assert world.group.heartbeat(world.now, member, None, world.group.generation) == Code.UNKNOWN_MEMBER_ID
    back = world.join(instance="i")
    assert world.told[back]["error_code"] == 0 and world.told[back]["leader"] == world.told[back]["member_id"]


@pytest.mark.parametrize("stood_s", [9.0, 60.0, 6_000.0])
def test_a_coordinator_that_stood_still_expels_nobody_for_it_and_silence_behind_it_counts(stood_s: float) -> None:
    world = World(delay_s=1.0)
    one, two = world.join(), world.join()
    world.pass_time(1.0)
    world.stable(one, two)
    alive, silent = world.told[one]["member_id"], world.told[two]["member_id"]
    world.now += 5
    world.now += stood_s
    world.group.on_time(world.now, overslept=True)
    world.pass_time(0.0)
    assert world.group.state == STABLE and len(world.group.members) == 2
    world.now += 9
    assert world.group.heartbeat(world.now, alive, None, 1) == Code.NONE
    world.pass_time(1.5)
    assert silent not in world.group.members and alive in world.group.members


def test_a_rebalance_that_the_coordinator_slept_through_goes_on() -> None:
    world = World()
    one = world.join()
    world.stable(one)
    member = world.told[one]["member_id"]
    two = world.join()
    world.now += 104.0
    world.group.on_time(world.now, overslept=True)
    world.pass_time(0.0)
    assert two not in world.told and member in world.group.members
    again = world.join(member)
    assert world.told[again]["generation_id"] == world.told[two]["generation_id"] == 2


def test_a_group_takes_no_member_with_whom_it_could_not_be_stored() -> None:
    world = World()
    half = [("range", bytes(MEMBERS_BYTES_MAX // 2))]
    member = world.told[world.join(protocols=half)]["member_id"]
    assert world.told[world.join(protocols=half)]["error_code"] == Code.GROUP_MAX_SIZE_REACHED
    assert len(world.group.members) == 1
    more = world.join(member, protocols=[("range", bytes(MEMBERS_BYTES_MAX // 2 + 1))])
    assert world.told[more]["error_code"] == 0, "what it said before counts no more"
    small = world.join(protocols=[("range", bytes(MEMBERS_BYTES_MAX // 4))])
    assert small not in world.told and len(world.group.members) == 2


class CountedProtocols(list[tuple[str, bytes]]):
    """How often somebody went through them."""

    looks = 0

    def __iter__(self) -> Iterator[tuple[str, bytes]]:
        type(self).looks += 1
        return super().__iter__()


def test_a_join_looks_at_no_other_members_protocols() -> None:
    world = World()
    mine = CountedProtocols([(f"p{number}", b"") for number in range(32)])
    world.join(instance="one", protocols=mine)
    CountedProtocols.looks = 0
    token = world.join(instance="two", protocols=[("p31", b"")])
    assert token not in world.told and len(world.group.members) == 2 and CountedProtocols.looks == 0
    assert world.told[world.join(protocols=[("p30x", b"")])]["error_code"] == Code.INCONSISTENT_GROUP_PROTOCOL


def test_what_a_group_counts_is_what_is_stored() -> None:
    world = World()
    world.group = Group("g", delay_s=0.0, members_max=1_000)
    answers = []
    for number in range(200):  # little of it is their protocols
        made = GroupMember("", f"instance-{number}", "c" * 250, "/h" * 100, 10.0, 30.0, [("range", bytes(5_000))])
        token = object()
        world.group.join(0.0, made, "consumer", f"{'c' * 250}-{number:032x}", token, needs_id=False, may_skip=False)
        world.collect()
        answers.append(world.told.get(token, {"error_code": 0})["error_code"])
    world.pass_time(31.0)
    assert set(answers[:-20]) == {0} and answers[-1] == Code.GROUP_MAX_SIZE_REACHED
    assert VALUE_BYTES_MAX - 20_000 < len(world.group.dump()) <= VALUE_BYTES_MAX


def test_the_longest_name_of_a_protocol_is_the_one_of_most_bytes() -> None:
    """Any of them may become the group's, and is stored twice then."""
    world, two_bytes_each = World(), "\u00e9" * 200_000
    told = world.told[world.join(protocols=[(two_bytes_each, b""), ("x" * 300_000, b"")])]
    assert told["error_code"] == Code.GROUP_MAX_SIZE_REACHED and not world.group.members
    world.join(protocols=[(two_bytes_each, b""), ("x" * 200_000, b"")])
    assert world.group.protocol == two_bytes_each and len(world.group.dump()) <= VALUE_BYTES_MAX


def test_a_leader_whose_shares_could_not_be_stored_is_told() -> None:
    world = World()
    answer = world.told[world.join(protocols=[("range", bytes(MEMBERS_BYTES_MAX // 2))])]
    too_much = world.sync(answer, {answer["member_id"]: bytes(MEMBERS_BYTES_MAX // 2)})
    assert world.told[too_much]["error_code"] == Code.GROUP_MAX_SIZE_REACHED and world.group.state == COMPLETING
    fits = world.sync(answer, {answer["member_id"]: bytes(MEMBERS_BYTES_MAX // 2 - 200)})
    assert world.told[fits]["error_code"] == 0 and len(world.group.dump()) <= VALUE_BYTES_MAX
