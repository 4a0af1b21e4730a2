"""A forced quorum over a WAN in memory: when it is refused, that nothing is lost or said twice, and how the lost region
comes back.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from geo_tests.sim.simulation import Simulation
from global_config import keys
from global_config.transport.config_transport import MemberRefused
from global_config.voters.forced_quorum import HEARD_S, STOPPED, TELL_S, ForcedQuorum, left_behind
from heliograph.kv.machine_commands import CommandKind, CommandStatus, command, refusal, txn_fields
from heliograph.kv.metadata_store import Put
from heliograph.kv.state_machine import KvMachine
from heliograph.model.configuration.leadership import FENCED, FLOOR, Leadership, leadership
from heliograph.model.errors import MetadataError, MetadataUnavailable, NotAllowed
from heliograph.raft.core import RaftCore
from heliograph.raft.generations import Standing
from heliograph.raft.member.membership_calls import GroupCalls
from heliograph.raft.messages import Config, Message
from tests.broken_rules import BrokenRules
from tests.global_config.config_instance import Instance, simulate

TWO = ("eu", "us")
THREE = ("eu", "oslo", "us")


async def force(instance: Instance, lost: str = "us", *, dry: bool = False, said: str = "") -> dict[str, Any]:
    report, _ = await instance.clients["eu"].members("dry-force" if dry else "force", lost, said)
    return report


async def us_is_lost(sim: Simulation, instance: Instance) -> None:
    await instance.clients["us"].put("/before", b"1")
    sim.machine("us").power_cut()
    await asyncio.sleep(HEARD_S + 1)


async def rejoined(sim: Simulation, instance: Instance, name: str, by: str = "eu") -> int:
    """Gives the command until it is done, and starts the process again that ends for it. How often it ended."""
    ends = 0
    for _ in range(100):
        if sim.machine(name).running and instance.nodes[name].raft.failed is not None:
            sim.machine(name).power_cut()
            instance.start(name)
            ends += 1
        try:
            await instance.clients[by].members("rejoin", name)
            return ends
        except NotAllowed:
            await asyncio.sleep(0.3)
    raise AssertionError("it does not come back")


def test_of_two_regions_the_one_that_is_left_decides_again_and_the_lost_one_comes_back() -> None:
    async def main(sim: Simulation, instance: Instance) -> None:
        eu, us = instance.clients["eu"], instance.clients["us"]
        await us_is_lost(sim, instance)
        with pytest.raises(MetadataUnavailable):
            await eu.put("/after", b"1")
        plan = (await force(instance, dry=True))["plan"]
        assert not plan["refused"] and plan["lost"] == ["us"] and not plan["others_may_decide"]
        assert plan["last_index"] >= plan["committed"] > 0 and plan["silent_s"]["us"] > HEARD_S
        report = await force(instance)
        assert report["leader"] == "eu" and report["generation"] == 1
        assert await eu.get("/before") is not None, "nothing that was acknowledged is lost"
        await eu.put("/after", b"1")
        assert (await force(instance))["plan"] is None, "given again, it does nothing"
        instance.start("us")
        await asyncio.sleep(10)
        assert instance.nodes["us"].raft.standing.superseded
        with pytest.raises(MetadataUnavailable, match="was forced, without 'us'"):
            await us.put("/alone", b"1")
        assert await rejoined(sim, instance, "us") == 1
        await us.put("/both", b"1")
        found = await us.get("/after")
        assert found is not None and instance.nodes["us"].raft.config.voters == TWO
        aside = [name for name in sim.machine("us").platter("config").disk().names() if name.startswith("aside-")]
        assert any("-log-" in name for name in aside), "what it held is kept"
        with pytest.raises(NotAllowed, match="leads"):
            await force(instance, dry=False)

    simulate(main, regions=TWO)


def test_a_region_that_comes_back_tells_nobody_a_table_that_lacks_what_the_other_one_has() -> None:
    async def main(sim: Simulation, instance: Instance) -> None:
        await us_is_lost(sim, instance)
        await force(instance)
        instance.start("us")
        for _ in range(100):
            try:
                await instance.clients["eu"].members("rejoin", "us")
            except NotAllowed:
                if instance.nodes["us"].raft.failed is not None:
                    break
            await asyncio.sleep(0.3)
        sim.machine("us").power_cut()
        instance.mesh.isolate("us")
        instance.start("us")
        await asyncio.sleep(1)
        keys_seen: list[str] = []
        instance.clients["us"].watch("/", lambda key, *_: keys_seen.append(key))
        synced = asyncio.ensure_future(instance.clients["us"].synced("/"))
        await asyncio.sleep(5)
        assert not synced.done(), "a broker that starts now would take an empty table for the configuration"
        instance.mesh.heal()
        await rejoined(sim, instance, "us")
        await synced
        assert "/before" in keys_seen

    simulate(main, regions=TWO)


def test_what_was_forced_holds_after_power_cuts_of_both() -> None:
    async def main(sim: Simulation, instance: Instance) -> None:
        await us_is_lost(sim, instance)
        await force(instance)
        sim.machine("eu").power_cut()
        instance.start("us")
        await asyncio.sleep(10)
        with pytest.raises(MetadataUnavailable):
            await instance.clients["us"].put("/alone", b"1")
        instance.start("eu")
        await asyncio.sleep(10)
        sim.machine("us").power_cut()
        instance.start("us")
        await instance.clients["eu"].put("/after", b"1")
        assert instance.leader() == "eu"
        await asyncio.sleep(5)
        assert instance.nodes["us"].raft.standing.superseded, "it knows that also after a start"

    simulate(main, regions=TWO)


def test_it_is_refused_while_anything_is_heard_of_the_lost_one() -> None:
    async def refused(instance: Instance, why: str, lost: str = "us") -> None:
        assert any(why in sentence for sentence in (await force(instance, lost, dry=True))["plan"]["refused"])
        with pytest.raises(NotAllowed):
            await force(instance, lost)

    async def main(sim: Simulation, instance: Instance) -> None:
        await instance.clients["us"].put("/before", b"1")
        await refused(instance, "leads")
        sim.machine("us").power_cut()
        await asyncio.sleep(HEARD_S / 2)
        await refused(instance, "was heard")
        await asyncio.sleep(HEARD_S)
        await refused(instance, "is not named as lost", "")
        await refused(instance, "no other member", "us,mars")
        instance.mesh.cut = {("us", "eu")}
        instance.start("us")
        await asyncio.sleep(HEARD_S)
        assert not (await force(instance, dry=True))["plan"]["refused"], "nothing at all comes from there"

    simulate(main, regions=TWO)


async def asked_for(instance: Instance, namespace: str) -> Leadership:
    found = await instance.clients["eu"].get(leadership(namespace))
    assert found is not None
    return Leadership.decode(found[0])


def test_where_the_lost_may_have_decided_more_an_operator_says_that_they_are_stopped_and_leaderships_ask() -> None:
    async def main(sim: Simulation, instance: Instance) -> None:
        await instance.clients["us"].put(leadership("public/a"), Leadership(active="us", epoch=7).encode())
        await asyncio.sleep(1)
        for name in ("us", "oslo"):
            sim.machine(name).power_cut()
        await asyncio.sleep(HEARD_S + 1)
        with pytest.raises(NotAllowed, match="--lost-are-stopped"):
            await force(instance, "oslo,us")
        assert (await force(instance, "oslo,us", said=STOPPED))["leader"] == "eu"
        record = await asked_for(instance, "public/a")
        assert record.state == FENCED and record.asks and record.epoch > 7
        forced = await instance.clients["eu"].get(keys.FORCED)
        assert forced is not None and json.loads(forced[0])["by"] == "eu"
        assert await instance.clients["eu"].get(FLOOR) is not None
        await instance.clients["eu"].put(leadership("public/a"), Leadership(active="eu", epoch=9).encode())
        sim.machine("eu").power_cut()
        instance.start("eu")
        await instance.clients["eu"].put("/n", b"1")
        assert not (await asked_for(instance, "public/a")).asks, "once, not at each start"

    simulate(main, regions=THREE)


async def of_two_histories_one_is_left(sim: Simulation, instance: Instance) -> None:
    """The lost ones were not stopped, but cut off: an operator was wrong. They go on, and end as they hear of it."""
    await instance.clients["us"].put("/before", b"1")
    instance.mesh.isolate("eu")
    await asyncio.sleep(HEARD_S + 1)
    await force(instance, "oslo,us", said=STOPPED)
    for n in range(30):
        await instance.clients["us"].put(f"/us/{n}", b"1")
    await instance.clients["eu"].put("/eu", b"1")
    instance.mesh.heal()
    await asyncio.sleep(10)
    assert all(instance.nodes[name].raft.standing.superseded for name in ("us", "oslo"))
    with pytest.raises(MetadataUnavailable):
        await instance.clients["us"].put("/us", b"1")
    assert instance.leader() == "eu" and instance.nodes["eu"].raft.failed is None
    for name in ("oslo", "us"):
        assert await rejoined(sim, instance, name) == 1
    await instance.clients["us"].put("/both", b"1")
    for name in THREE:
        assert not instance.nodes[name].machine.under("/us/"), "of the history that was not forced nothing is there"
    assert instance.nodes["us"].raft.config.voters == THREE


def test_of_two_histories_one_is_left_when_they_meet_and_nothing_is_merged() -> None:
    simulate(of_two_histories_one_is_left, regions=THREE)


@pytest.mark.parametrize("seed", range(3))
def test_of_two_that_were_both_forced_one_is_left(seed: int) -> None:
    async def main(sim: Simulation, instance: Instance) -> None:
        await instance.clients["us"].put("/before", b"1")
        instance.mesh.isolate("eu")
        await asyncio.sleep(HEARD_S + 1)
        for name, other in (TWO, reversed(TWO)):
            await instance.clients[name].members("force", other)
            await instance.clients[name].put(f"/{name}", b"1")
        instance.mesh.heal()
        await asyncio.sleep(TELL_S + 1)
        (left,) = (name for name in TWO if not instance.nodes[name].raft.standing.superseded)
        (behind,) = {*TWO} - {left}
        assert instance.nodes[left].raft.generation > instance.nodes[behind].raft.generation
        assert await rejoined(sim, instance, behind, left) == 1
        await instance.clients[behind].get("/before")  # its connection is another one by now
        await instance.clients[behind].put("/both", b"1")
        assert await instance.clients[behind].get(f"/{behind}") is None
        assert await instance.clients[behind].get(f"/{left}") is not None

    simulate(main, seed, TWO)


async def ap_has_joined_while_us_was_away(sim: Simulation, instance: Instance) -> None:
    """What us has is of before; eu and oslo are lost for good then, and ap is forced."""
    eu = instance.clients["eu"]
    await instance.clients["us"].put("/before", b"1")
    sim.machine("us").power_cut()
    instance.join("ap")
    await eu.members("add", "ap", "")
    for _ in range(100):
        try:
            await eu.members("promote", "ap")
            break
        except NotAllowed:
            await asyncio.sleep(0.3)
    await eu.put("/without-us", b"1")
    await asyncio.sleep(1)
    for name in ("eu", "oslo"):
        sim.machine(name).power_cut()
    await asyncio.sleep(HEARD_S + 1)
    await instance.clients["ap"].members("force", "eu,oslo,us", STOPPED)


def test_one_that_was_away_while_another_one_joined_hears_that_it_was_left_behind_and_comes_back() -> None:
    async def main(sim: Simulation, instance: Instance) -> None:
        await ap_has_joined_while_us_was_away(sim, instance)
        instance.start("us")
        await asyncio.sleep(HEARD_S + TELL_S)
        assert "ap" not in instance.nodes["us"].raft.config.members
        assert instance.nodes["us"].raft.standing.superseded
        with pytest.raises(NotAllowed, match="forced already, without 'us'"):
            await instance.clients["us"].members("force", "eu,oslo", STOPPED)
        assert await rejoined(sim, instance, "us", by="ap") == 1
        await instance.clients["us"].put("/both", b"1")
        assert await instance.clients["us"].get("/without-us") is not None
        assert instance.nodes["ap"].raft.config.voters == ("ap", "us")

    simulate(main, regions=THREE)


@pytest.mark.parametrize("seed", range(3))
def test_of_two_that_were_forced_and_of_which_one_knows_nothing_of_the_other_one_is_left(seed: int) -> None:
    async def main(sim: Simulation, instance: Instance) -> None:
        await ap_has_joined_while_us_was_away(sim, instance)
        instance.mesh.isolate("ap")
        instance.mesh.cut |= {("ap", "us"), ("us", "ap")}
        instance.start("us")
        await asyncio.sleep(HEARD_S + 5)
        await instance.clients["us"].members("force", "eu,oslo", STOPPED)
        both = ("ap", "us")
        for name in both:
            await instance.clients[name].put(f"/{name}", b"1")
        instance.mesh.heal()
        await asyncio.sleep(TELL_S + 2)
        (left,) = (name for name in both if not instance.nodes[name].raft.standing.superseded)
        (behind,) = {*both} - {left}
        assert instance.nodes[left].raft.generation > instance.nodes[behind].raft.generation
        with pytest.raises(MetadataUnavailable):
            await instance.clients[behind].put("/two", b"1")

    simulate(main, seed, regions=THREE)


def everything_is_heard(patch: BrokenRules) -> None:
    patch.setattr(RaftCore, "_is_of", lambda self, sender, message, generation, now: True)


def what_is_left_behind_is_not_set_aside(patch: BrokenRules) -> None:
    """It learns over what it holds."""

    def is_of(self: RaftCore, sender: str, message: Message, generation: int, now: float) -> bool:
        if generation > self.generation:
            self.standing = Standing(generation)
        return generation == self.generation

    patch.setattr(RaftCore, "_is_of", is_of)


@pytest.mark.parametrize("mutant", [everything_is_heard, what_is_left_behind_is_not_set_aside])
def test_generations_are_needed(mutant: Callable[[BrokenRules], None], broken: BrokenRules) -> None:
    mutant(broken)
    broken.look(lambda seed: simulate(of_two_histories_one_is_left, seed, THREE), range(1, 4))


async def emptied(sim: Simulation, instance: Instance) -> None:
    """Half of all messages are lost, so that what it has forgotten of its starts is told to it late."""
    await us_is_lost(sim, instance)
    await force(instance)
    instance.mesh.loss = 0.5
    sim.machine("us").platters().clear()
    instance.start("us")
    assert await rejoined(sim, instance, "us") == 0
    await asyncio.sleep(20)
    instance.mesh.loss = 0.0
    try:
        await instance.clients["us"].put("/both", b"1")
    except MetadataError as error:
        raise AssertionError("nobody leads") from error
    assert instance.nodes["us"].raft.config.voters == TWO


@pytest.mark.parametrize("seed", [5, 14])
def test_a_lost_region_whose_disk_was_emptied_comes_back_too(seed: int) -> None:
    simulate(emptied, seed, TWO)


def test_a_member_votes_only_once_it_counts_for_good(broken: BrokenRules) -> None:
    """One of two voters that hears of a later start of its own counts for nothing, and nobody could prove it."""
    broken.setattr(GroupCalls, "settled", property(lambda self: True))
    broken.look(lambda seed: simulate(emptied, seed, TWO), (5, *range(6, 60)), AssertionError)


@pytest.mark.parametrize("seed", range(4))
def test_power_cuts_in_the_middle_of_each_step_change_nothing_in_the_end(seed: int) -> None:
    async def main(sim: Simulation, instance: Instance) -> None:
        rng = sim.rng("cuts")
        await us_is_lost(sim, instance)
        begun = asyncio.get_running_loop().create_task(force(instance))
        await asyncio.sleep(rng.uniform(1.0, 1.1))
        sim.machine("eu").power_cut()
        instance.start("eu")
        begun.cancel()
        await asyncio.sleep(HEARD_S + 1)
        assert (await force(instance))["generation"] == 1
        instance.start("us")
        eu = instance.clients["eu"]
        for _ in range(60):
            if rng.random() < 0.3 or instance.nodes["us"].raft.failed is not None:
                sim.machine("us").power_cut()
                instance.start("us")
            await asyncio.sleep(rng.uniform(0.1, 2))
            try:
                await eu.members("rejoin", "us")
            except NotAllowed:
                continue
            break
        await eu.put("/both", b"1")
        assert instance.nodes["us"].raft.config.voters == TWO
        found = await instance.clients["us"].get("/before")
        assert found is not None

    simulate(main, seed, TWO)


class Answering:
    """A node of eu, beside one of us that answers something else than where it stands."""

    generation, is_leader, leader = 1 << 32, True, "eu"
    config = Config(("eu",), ("us",), (), 1 << 32)

    def __init__(self, answer: bytes) -> None:
        self.answer = answer

    def get(self, key: str) -> None:
        return None

    async def forward(self, to: str, request: bytes, *, timeout_s: float) -> bytes:
        return self.answer

    def report(self) -> dict[str, Any]:
        return {}


class Forced:
    """A leader of a lossy generation. now_ms: its clock."""

    generation, node_id, now_ms, left_index = 1 << 32 | 1, "eu", 1000, 3

    def left_behind(self) -> dict[str, str]:
        return {"us": ""}

    def wall_ms(self) -> int:
        return self.now_ms


def test_what_is_put_in_doubt_is_gone_on_with_where_it_was_interrupted_and_in_pieces_that_are_taken() -> None:
    lent: Any = Forced()
    machine, node = KvMachine(), ForcedQuorum(lent, lent, lent, lent)
    for n in range(250):
        running = json.dumps({"state": "running", "n": "x" * 50_000 if n < 90 else n}).encode()
        puts = [Put(leadership(f"public/{n:03}"), Leadership(active="us", epoch=7).encode())]
        machine.apply(n + 1, command(CommandKind.TXN, txn_fields([*puts, Put(f"{keys.OPERATIONS}{n:03}", running)])))
    sizes: list[int] = []
    for _ in range(100):
        before = machine.index
        for one, _ in zip(node.beginning(machine), range(5), strict=False):  # then it is interrupted
            sizes.append(len(one))
            if one:
                machine.apply(machine.index + 1, one)
        lent.now_ms += 1
        if machine.index == before:
            break
    assert max(sizes) < 1 << 20 and machine.get(keys.FORCED) is not None and machine.get(keys.FORCING) is None
    for n in range(250):
        found = machine.get(leadership(f"public/{n:03}"))
        assert found is not None and Leadership.decode(found[0]).epoch == 1000, "each once, by one clock"
        operation = machine.get(f"{keys.OPERATIONS}{n:03}")
        assert operation is not None and json.loads(operation[0])["state"] == "cancelled"


@pytest.mark.parametrize("said", ["", "-1", "x", "9" * 5000])
def test_what_is_no_generation_sets_nothing_aside(said: str) -> None:
    lent: Any = Answering(b"")
    with pytest.raises(NotAllowed, match="is no generation"):
        asyncio.run(ForcedQuorum(lent, lent, lent, lent).answer(lent, "set-aside", "us", said, timeout_s=1.0))


def test_a_leader_is_not_superseded_by_a_request() -> None:
    async def main(sim: Simulation, instance: Instance) -> None:
        await instance.clients["us"].put("/before", b"1")
        for name in TWO:
            with pytest.raises(NotAllowed, match="not heard yet"):
                await instance.clients[name].members("set-aside", name, str((1 << 64) - 1))
        await instance.clients["us"].put("/after", b"1")

    simulate(main, regions=TWO)


def test_who_refuses_is_there() -> None:
    class Refusing(Answering):
        error: MetadataError

        async def forward(self, to: str, request: bytes, *, timeout_s: float) -> bytes:
            raise self.error

    lent: Any = Refusing(b"")
    for lent.error, answers in ((MemberRefused("no"), True), (MetadataUnavailable("no connection"), False)):
        assert asyncio.run(ForcedQuorum(lent, lent, lent, lent)._answers("us")) is answers


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (CommandStatus.UNAVAILABLE, "us does not answer: why"),  # it is ending: a command waits for it
        (CommandStatus.NOT_LEADER, "earlier version"),
        (CommandStatus.REFUSED, "us sets nothing aside: why"),
    ],
)
def test_a_member_that_cannot_set_aside_now_is_told_from_one_that_will_not(status: CommandStatus, said: str) -> None:
    lent: Any = Answering(refusal(status, "why"))
    node = ForcedQuorum(lent, lent, lent, lent)
    with pytest.raises(NotAllowed, match=said):
        asyncio.run(node.answer(lent, "rejoin", "us", "", timeout_s=1.0))


@pytest.mark.parametrize("value", (b"7", b"no json", b'{"format": 2}'))
@pytest.mark.parametrize("key", (keys.FORCED, keys.FORCING))
def test_what_is_written_of_a_forced_quorum_and_cannot_be_read_ends_no_leader(key: str, value: bytes) -> None:
    """It would end each one that begins to lead, and with it all writes."""
    lent: Any = Forced()
    machine, node = KvMachine(), ForcedQuorum(lent, lent, lent, lent)
    machine.apply(1, command(CommandKind.TXN, txn_fields([Put(key, value)])))
    for index, one in enumerate(node.beginning(machine), 2):
        if one:
            machine.apply(index, one)
    found = machine.get(keys.FORCED)
    assert found is not None and left_behind(found[0]) == {"us": ""} and machine.get(keys.FORCING) is None
    assert left_behind(value) == {}
