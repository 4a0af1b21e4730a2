"""A witness among two regions over a WAN in memory: who leads, and what goes on while something is lost or cut.

The group is the one of `config_instance`, in which ap is the witness.
"""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from geo_tests.sim.simulation import Simulation
from global_config.voters.witness import ABSENT_S, LOOK_S, TAKE_S, WitnessLeadership, marked
from heliograph.kv.machine_commands import ok
from heliograph.model.errors import MetadataError, MetadataUnavailable, OutcomeUnknown
from heliograph.raft.messages import Config
from heliograph.raft.ports import MemberState
from heliograph.wire.metadata_frames import fields
from tests.global_config.config_instance import Instance, simulate

WITNESS, REGIONS = "ap", ("eu", "us")


async def led_by_the_witness(sim: Simulation, instance: Instance) -> None:
    await instance.clients["us"].put("/n", b"0")
    machine = sim.machine(WITNESS)
    machine.run(lambda: machine.run(WitnessLeadership, instance.nodes[WITNESS], machine.clock).start())
    await asyncio.sleep(TAKE_S + 10)
    assert instance.leader() == WITNESS


def cut(instance: Instance, one: str, other: str) -> None:
    instance.mesh.cut |= {(one, other), (other, one)}


@pytest.mark.parametrize("seed", range(3))
def test_regions_that_do_not_reach_each_other_both_reach_the_leader(seed: int) -> None:
    async def main(sim: Simulation, instance: Instance) -> None:
        await led_by_the_witness(sim, instance)
        cut(instance, *REGIONS)
        await asyncio.sleep(20)
        assert instance.leader() == WITNESS
        for name in REGIONS:
            await instance.clients[name].put(f"/{name}", b"1")

    simulate(main, seed)


@pytest.mark.parametrize("lost", REGIONS)
def test_a_region_is_lost_and_the_other_one_goes_on_and_leads(lost: str) -> None:
    async def main(sim: Simulation, instance: Instance) -> None:
        (left,) = set(REGIONS) - {lost}
        await led_by_the_witness(sim, instance)
        sim.machine(lost).power_cut()
        before = sim.now()
        await instance.clients[left].put("/n", b"1")
        assert sim.now() - before < 1, "nobody has to be elected"
        await asyncio.sleep(TAKE_S + 10)
        assert instance.leader() == left, "for it may be reached by who does not reach the witness"
        instance.start(lost)
        await asyncio.sleep(TAKE_S + 20)
        assert instance.leader() == WITNESS

    simulate(main)


@pytest.mark.parametrize("far", REGIONS)
def test_a_region_that_the_witness_does_not_reach_reaches_the_leader_all_the_same(far: str) -> None:
    async def main(sim: Simulation, instance: Instance) -> None:
        (left,) = set(REGIONS) - {far}
        await led_by_the_witness(sim, instance)
        cut(instance, WITNESS, far)
        await asyncio.sleep(5)
        term = instance.nodes[left].raft.term
        for _ in range(7):
            assert instance.leader() == left and instance.nodes[left].raft.term == term, "and nothing goes to and fro"
            for name in REGIONS:
                await instance.clients[name].put(f"/{name}", b"1")
            await asyncio.sleep(TAKE_S / 5)

    simulate(main)


def test_with_a_full_disk_it_leaves_the_leadership_to_a_region() -> None:
    async def main(sim: Simulation, instance: Instance) -> None:
        await led_by_the_witness(sim, instance)
        platter = sim.machine(WITNESS).platter("config")
        platter.capacity_bytes = platter.used_bytes() + 1000
        while not instance.nodes[WITNESS].raft.full:
            await instance.clients["us"].put("/large", bytes(100_000))
        await asyncio.sleep(5)
        term = instance.nodes["us"].raft.term
        for _ in range(8):
            await instance.clients["us"].put("/n", b"1")
            await asyncio.sleep(TAKE_S / 6)
        assert instance.leader() in REGIONS and instance.nodes["us"].raft.term == term, "and it does not take it back"
        for _ in range(10):
            await instance.clients["us"].put("/large", bytes(100_000))
        platter.capacity_bytes *= 10
        await asyncio.sleep(TAKE_S + 10)
        assert instance.leader() == WITNESS

    simulate(main)


def test_a_look_that_fails_is_not_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused() -> None:
        raise MetadataUnavailable("for a while")

    async def main(sim: Simulation, instance: Instance) -> None:
        await led_by_the_witness(sim, instance)
        monkeypatch.setattr(instance.nodes[WITNESS], "members", refused)
        await asyncio.sleep(5)
        monkeypatch.undo()
        sim.machine("us").power_cut()
        await asyncio.sleep(10)
        assert instance.leader() == "eu"

    simulate(main)


def test_without_the_witness_the_regions_go_on() -> None:
    async def main(sim: Simulation, instance: Instance) -> None:
        await led_by_the_witness(sim, instance)
        sim.machine(WITNESS).power_cut()
        for name in REGIONS:
            await instance.clients[name].put(f"/{name}", b"1")
        assert instance.leader() in REGIONS
        sim.machine("us").power_cut()
        with pytest.raises(MetadataError):
            await instance.clients["eu"].put("/n", b"1")

    simulate(main)


def test_an_entry_that_only_the_witness_and_the_lost_region_have_is_kept() -> None:
    """So it must be able to lead: eu lacks what was committed, and nobody else could be elected."""

    async def main(sim: Simulation, instance: Instance) -> None:
        await led_by_the_witness(sim, instance)
        cut(instance, WITNESS, "eu")
        cut(instance, "us", "eu")
        await instance.clients["us"].put("/kept", b"1")
        sim.machine("us").power_cut()
        instance.mesh.heal()
        await asyncio.sleep(20)
        found = await instance.clients["eu"].get("/kept")
        assert found is not None and found[0] == b"1"

    simulate(main)


class Lent:
    """A witness's node among us and eu, without Raft: what it is asked to do happens at once. now: seconds."""

    node_id = "oslo"

    def __init__(self, *learners: str) -> None:
        self.now, self.took_at, self.takes = 0.0, 0.0, 0
        self.learners = learners
        self.answer, self.heard = {"us", "eu"}, {"us", "eu"}
        self.raft = SimpleNamespace(
            is_leader=False,
            leader="us",
            full=False,
            config=Config(("eu", "oslo", "us"), learners),
        )
        self.transport = self
        self.witness = WitnessLeadership(cast(Any, self), cast(Any, SimpleNamespace(monotonic=lambda: self.now)))

    def members(self) -> list[MemberState]:
        return [
            MemberState(
                member=name,
                voter=name not in self.learners,
                address="",
                leads=False,
                behind=0,
                silent_s=0.0 if name in self.heard else self.now - self.took_at,
            )
            for name in self.raft.config.members
        ]

    async def transfer_leadership(self, to: str) -> None:
        self.raft.is_leader, self.raft.leader = False, to

    async def forward(self, to: str, request: bytes, *, timeout_s: float) -> bytes:
        if to not in self.answer:
            raise OutcomeUnknown("no answer")
        verb, member, _ = fields(request[1:], str, str, str)
        if verb == "transfer":
            self.raft.is_leader, self.raft.leader = True, member
            self.takes, self.took_at = self.takes + 1, self.now
            return ok()
        silent = {name: self.now if name in self.learners else 0.1 for name in self.raft.config.members}
        return ok({"members": [{"member": name, "silent_s": silent_s} for name, silent_s in silent.items()]}, False)

    async def pass_s(self, seconds: float) -> None:
        for _ in range(int(seconds / LOOK_S)):
            self.now += LOOK_S
            await self.witness.look()


def test_it_takes_the_leadership_seldom_where_it_does_not_hear_who_answers_it() -> None:
    async def main() -> None:
        lent = Lent()
        lent.heard.remove("eu")
        await lent.pass_s(20 * TAKE_S)
        assert 3 <= lent.takes <= 5, "not each minute"
        lent.heard.add("eu")
        await lent.pass_s(20 * TAKE_S)
        assert lent.raft.is_leader and lent.takes <= 6
        lent.heard.remove("eu")
        await lent.pass_s(1)
        lent.heard.add("eu")
        await lent.pass_s(TAKE_S + 1)
        assert lent.raft.is_leader, "it has led for long, so it was back at once"

    asyncio.run(main())


def test_a_region_that_is_added_and_not_started_counts_for_some_minutes() -> None:
    async def main() -> None:
        lent = Lent("ap")
        await lent.pass_s(ABSENT_S)
        assert lent.takes == 0, "it may be reached by another leader"
        await lent.pass_s(2 * TAKE_S)
        assert lent.raft.is_leader and lent.takes == 1
        await lent.pass_s(ABSENT_S)
        assert lent.raft.is_leader and lent.takes == 1, "nothing goes to and fro"
        lent.heard.add("ap")
        await lent.pass_s(1)
        lent.heard.remove("ap")
        await lent.pass_s(1)
        assert not lent.raft.is_leader, "it was there, so it counts again"

    asyncio.run(main())


def test_a_voter_that_is_no_region_is_shown_as_a_witness() -> None:
    rows = [{"member": "us", "role": "voter"}, {"member": "oslo", "role": "voter"}, {"member": "ap", "role": "learner"}]
    shown = marked({"leader": "us", "members": rows}, ["us", "eu"])
    assert {row["member"]: row["witness"] for row in shown["members"]} == {"us": False, "oslo": True, "ap": False}
