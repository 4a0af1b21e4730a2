"""A client of a group whose disks were put back to older copies, and have come further since, takes nothing of before
for something of now: neither what a watch told, nor a lease.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from geo_tests.sim.simulation import Simulation
from heliograph.kv.client_history import AnotherHistory
from heliograph.kv.machine_commands import answer_of, applied_of, ok, open_answer, with_applied
from heliograph.model.errors import LeaseLost, VersionConflict
from tests.heliograph.kv.group import Group, Mirror, simulate


def _put_back(sim: Simulation, group: Group, kept: int) -> None:
    sim.machine("m0").kill()
    del group.log.entries[kept:]
    group.start("m0")


def test_a_watch_that_was_cut_off_until_the_group_has_passed_it_reads_anew() -> None:
    """Also what has the same version as something else that it had before."""

    async def main(sim: Simulation, group: Group) -> None:
        found, shown = list[AnotherHistory](), dict[str, bytes]()
        client, other = group.client("c", found.append), group.client("d")

        def on_change(key: str, value: bytes | None, _: int) -> None:
            if value is None:
                del shown[key]
            else:
                shown[key] = value

        for key in ("/keep", "/change", "/deleted-beside"):
            await other.put(key, b"1")
        kept = group.replica().machine.index
        client.watch("/", on_change)
        await client.synced("/")
        version = 0
        for _ in range(3):
            version = await other.put("/lost", b"")
        version = await other.put("/change", b"lost")
        await asyncio.sleep(2)
        assert shown["/change"] == b"lost"
        sim.network.cut("c", "m0")
        _put_back(sim, group, kept)
        await asyncio.sleep(0.1)
        while await other.put("/beside", b"") < version - 1:
            pass
        assert await other.put("/change", b"2") == version
        await other.delete("/deleted-beside")
        for _ in range(30):
            await other.put("/beside", b"")
        sim.network.heal("c", "m0")
        await asyncio.sleep(10)
        assert shown == {key: value for key, value, _ in await other.range("/", "0")}
        assert len(found) == 1 and client.stale_s() == 0
        await other.put("/after", b"3")
        await asyncio.sleep(1)
        assert shown["/after"] == b"3"

    simulate(main, stamps=True)


def test_a_watch_that_waits_for_a_slow_node_as_the_history_is_told_there_reads_anew() -> None:
    """Its node told the history of before, as it had not applied the new one yet, and lists behind that."""

    async def main(sim: Simulation, group: Group) -> None:
        group.pass_on("m1")
        sim.network.cut("c", "m0")
        sim.network.cut("d", "m1")
        found, shown = list[AnotherHistory](), dict[str, bytes | None]()
        client, other = group.client("c", found.append), group.client("d")
        client.watch("/k/", lambda key, value, version: shown.update({key: value}))
        await client.synced("/k/")
        await other.put("/k/1", b"1")
        kept = len(group.log.entries)
        for _ in range(20):
            version = await other.put("/k/1", b"lost")
        await asyncio.sleep(2)
        for name in ("m0", "m1"):
            sim.machine(name).kill()
        del group.log.entries[kept:]
        for name in ("m1", "m0"):
            group.start(name)
            await asyncio.sleep(0.1)
            group.replica(name).lag = name == "m1"
        group.pass_on("m1")
        while not client.history.caught_up:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        assert found == []
        while await other.put("/beside", b"") < version - 1:
            pass
        assert await other.put("/k/1", b"2") == version
        follower = group.replica("m1")
        follower.lag = False
        sim.machine("m1").run(follower.catch_up)
        await asyncio.sleep(10)
        assert len(found) == 1 and shown == {"/k/1": b"2"} and client.stale_s() == 0

    simulate(main, ("m0", "m1"), stamps=True)


def test_a_write_that_was_answered_is_heard_of_at_once() -> None:
    async def main(sim: Simulation, group: Group) -> None:
        found = list[AnotherHistory]()
        client = group.client("c", found.append)
        await client.grant(60_000)
        kept = group.replica().machine.index
        await client.put("/lost", b"")
        _put_back(sim, group, kept)
        await client.put("/after", b"")
        await asyncio.sleep(10)
        assert len(found) == 1

    simulate(main, stamps=True)


@pytest.mark.parametrize("fields", [[], [5], [5, [True, False]], list(range(13))])
def test_an_answer_that_says_how_far_its_node_is_says_all_that_it_said(fields: list[Any]) -> None:
    said = with_applied(ok(*fields), 1 << 40)
    assert said is not None and open_answer(said) == [*fields, {"at": 1 << 40}]
    assert applied_of(open_answer(said)) == 1 << 40 and applied_of(fields) == -1


@pytest.mark.parametrize(
    "answer",
    [answer_of(VersionConflict("/a", 1, 2)), ok(*range(15)), b"", b"\x01\x90"],
    ids=["no", "long", "none", "cut"],
)
def test_an_answer_whose_fields_are_counted_says_nothing_more(answer: bytes) -> None:
    assert with_applied(answer, 1) is None


def test_a_deletion_that_was_listed_is_heard_of_at_once() -> None:
    async def main(sim: Simulation, group: Group) -> None:
        found, gone = list[AnotherHistory](), asyncio.Event()
        client, other = group.client("c", found.append), group.client("d")
        client.watch("/k/", lambda key, value, version: gone.set() if value is None else None)
        await other.put("/k/1", b"")
        await client.synced("/k/")
        kept = group.replica().machine.index
        sim.network.cut("c", "m0")
        await other.delete("/k/1")
        await asyncio.sleep(8)
        sim.network.heal("c", "m0")
        await gone.wait()
        _put_back(sim, group, kept)
        await other.put("/after", b"")
        await asyncio.sleep(10)
        assert len(found) == 1

    simulate(main, stamps=True)


@pytest.mark.parametrize("late", ["applies late", "takes a snapshot"])
def test_an_answer_of_a_node_that_is_behind_is_not_heard_of(late: str) -> None:
    """What its new leader began with is told once it is applied, and is behind what was answered."""

    async def main(sim: Simulation, group: Group) -> None:
        group.pass_on("m1")
        sim.network.cut("c", "m0")
        found = list[AnotherHistory]()
        client, other = group.client("c", found.append), group.client("d")
        await client.grant(60_000)
        await client.put("/before", b"")
        follower = group.replica("m1")
        follower.lag = True
        group.elect("m0")
        await other.put("/beside", b"")
        answered = await client.put("/passed-on", b"")
        lease = await client.grant(60_000)
        assert follower.machine.index < answered
        if late == "takes a snapshot":
            sim.machine("m1").run(follower.machine.restore, group.replica("m0").machine.snapshot())
        follower.lag = False
        sim.machine("m1").run(follower.catch_up)
        await asyncio.sleep(10)
        assert found == []
        await client.renew(lease)

    simulate(main, ("m0", "m1"), stamps=True)


def test_a_lease_whose_number_another_client_has_by_now_is_lost() -> None:
    async def main(sim: Simulation, group: Group) -> None:
        found = list[AnotherHistory]()
        client, other = group.client("c", found.append), group.client("d")
        await other.put("/before", b"")
        kept = group.replica().machine.index
        for _ in range(4):
            await other.put("/lost", b"")
        lease = await client.grant(60_000)
        await client.put("/mine", b"", lease=lease)
        await client.renew(lease)
        sim.network.cut("c", "m0")
        _put_back(sim, group, kept)
        await asyncio.sleep(0.1)
        while (theirs := await other.grant(60_000)) < lease:
            pass
        assert theirs == lease
        await other.put("/theirs", b"", lease=theirs)
        sim.network.heal("c", "m0")
        with pytest.raises(LeaseLost, match="take a new one"):
            await client.renew(lease)
        assert len(found) == 1
        for refused in (client.renew(lease), client.put("/mine", b"", lease=lease)):
            with pytest.raises(LeaseLost):
                await refused
        await client.revoke(lease)
        await other.renew(theirs)
        assert await other.get("/theirs") is not None and await other.get("/mine") is None
        again = await client.grant(60_000)
        await client.put("/mine", b"", lease=again)
        await client.renew(again)
        assert again != lease and len(found) == 1

    simulate(main, stamps=True)


@pytest.mark.parametrize("seed", range(20))
def test_other_leaders_and_restarts_are_no_other_history(seed: int) -> None:
    async def main(sim: Simulation, group: Group) -> None:
        rng = sim.rng("test")
        found = list[AnotherHistory]()
        writer, reader = group.client("w", found.append), group.client("r", found.append)
        mirror = Mirror(reader, "/k/")
        lease = await reader.grant(60_000)
        for _ in range(80):
            await writer.put(f"/k/{rng.randrange(12)}", bytes([rng.randrange(256)]))
            node = rng.choice(group.names)
            match rng.randrange(7):
                case 0:
                    sim.network.reset("r", node)
                case 1:
                    group.elect(node)
                    if rng.random() < 0.7:
                        group.log.entries.append(b"")  # a leader's, which nobody else has asked for
                        sim.machine(node).run(group.replica(node).catch_up)
                case 2:
                    sim.network.cut("r", node)
                    await asyncio.sleep(rng.uniform(0, 8))
                    sim.network.heal("r", node)
                case 3:
                    behind = group.replica(node)
                    if behind.machine.index < len(group.log.entries) and not behind.is_leader:
                        leader: Any = group.log.replicas[group.log.leader or ""]
                        sim.machine(node).run(behind.machine.restore, leader.machine.snapshot())
                case 4:
                    await asyncio.sleep(rng.uniform(0, 3))
                case _:
                    await asyncio.sleep(rng.uniform(0, 0.1))
            if rng.random() < 0.1:
                await reader.renew(lease)
        await asyncio.sleep(20)
        assert found == []
        await reader.renew(lease)
        assert mirror.table == {key: (value, version) for key, value, version in await writer.range("/k/", "/k0")}

    simulate(main, ("m0", "m1", "m2"), seed, stamps=True)
