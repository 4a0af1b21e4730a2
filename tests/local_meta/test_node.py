"""LocalMetaNode on the simulator: one voter and three, over kills and power cuts; and once on real sockets with a real
disk.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from geo_tests.sim.simulation import Machine, Simulation
from heliograph.kv.history import HISTORY
from heliograph.kv.metadata_client import ClientSettings, MetaClient
from heliograph.kv.metadata_store import Put, pages_between, prefix_end
from heliograph.model.errors import DiskFailed, MetadataUnavailable, OutcomeUnknown, VersionConflict
from heliograph.runtime.clock import SystemClock
from heliograph.runtime.system_disk import SystemDisk
from local_meta import keys
from local_meta.ledger_ids import passed_over
from local_meta.node import LocalMetaNode

PORT = 7001


class Region:
    """The metadata of one region, each voter on a machine of its own."""

    def __init__(self, sim: Simulation, names: tuple[str, ...]) -> None:
        self.sim, self.names = sim, names
        self.nodes: dict[str, LocalMetaNode] = {}
        for name in names:
            self.start(name)

    def start(self, name: str) -> None:
        self.sim.machine(name).start(self._serve)

    async def _serve(self, machine: Machine) -> None:
        node = LocalMetaNode(
            node_id=machine.host,
            disk=machine.disk("meta"),
            clock=machine.clock,
            rng=machine.rng,
            host=machine.host,
            port=PORT,
            peers={name: f"{name}:{PORT}" for name in self.names},
        )
        self.nodes[machine.host] = node
        await node.start()

    def client(self, name: str = "c", **settings: Any) -> MetaClient:
        machine = self.sim.machine(name)
        if not machine.running:
            machine.start(_idle)
        made: MetaClient = machine.run(
            lambda: MetaClient(
                [f"{n}:{PORT}" for n in self.names],
                clock=machine.clock,
                rng=machine.rng,
                settings=ClientSettings(**settings),
            )
        )
        machine.run(made._run)
        return made

    def leader(self) -> str:
        return next(name for name in self.names if self.sim.machine(name).running and self.nodes[name].raft.is_leader)


async def _idle(_: Machine) -> None:
    pass


def simulate(
    names: tuple[str, ...], main: Callable[[Simulation, Region], Coroutine[Any, Any, None]], seed: int = 1
) -> None:
    with Simulation(seed) as sim:

        async def run() -> None:
            await main(sim, Region(sim, names))

        sim.run(run(), limit_s=600)


ONE, THREE = ("m0",), ("m0", "m1", "m2")


def test_ledger_ids_begin_at_the_clock_and_go_on_from_there() -> None:
    """Also for clients who all come first at once, and anew with each start; another metadata, on empty disks, begins
    above all of them.
    """

    async def main(sim: Simulation, region: Region) -> None:
        begun_ms, known = sim.clock().wall_ms(), -1
        instances = set()
        for life in range(3):
            clients = [region.client(f"c{life}{number}") for number in range(5)]
            given = await asyncio.gather(*(client.next_ids(keys.LEDGER_IDS, 2) for client in clients))
            assert len(set(given)) == 5 and min(given) >= max(begun_ms, known + 1) and max(given) < min(given) + 20
            found = await clients[0].get(keys.INSTANCE)
            assert found is not None and len(found[0]) == 32
            sim.machine("m0").power_cut()
            region.start("m0")
            again_ms = sim.clock().wall_ms()
            known = await clients[0].next_ids(keys.LEDGER_IDS)
            assert max(again_ms, max(given) + 2) <= known < again_ms + 5000
            assert await clients[0].next_ids(keys.LEDGER_IDS) == known + 1, "begun already"
            assert await clients[0].get(keys.INSTANCE) == found, "founded already"
            never = await passed_over(clients[0])
            assert known - 1 in never and not [one for one in (known, known + 1, *given) if one in never]
            instances.add(found[0])
            known += 1
            sim.machine("m0").power_cut()
            sim.machine("m0").platters().clear()
            region.start("m0")
            await asyncio.sleep(2.0)
        assert len(instances) == 3

    simulate(ONE, main)


@pytest.mark.parametrize("seed", range(8))
def test_voters_that_die_while_they_found_give_no_id_below_the_clock(seed: int) -> None:
    async def main(sim: Simulation, region: Region) -> None:
        rng, begun_ms = sim.rng("test"), sim.clock().wall_ms()
        clients = [region.client(f"c{number}", timeout_s=60.0) for number in range(4)]
        asking = [asyncio.create_task(client.next_ids(keys.LEDGER_IDS)) for client in clients]
        for _ in range(4):
            await asyncio.sleep(rng.uniform(0.0, 0.7))
            victim = rng.choice(THREE)
            sim.machine(victim).power_cut()
            await asyncio.sleep(rng.uniform(0.0, 0.3))
            region.start(victim)
        given = await asyncio.gather(*asking)
        assert len(set(given)) == 4 and min(given) >= begun_ms
        found = await asyncio.gather(*(client.get(keys.INSTANCE) for client in clients))
        assert found[0] is not None and len(set(found)) == 1

    simulate(THREE, main, seed)


def test_one_voter_is_ready_at_once() -> None:
    async def main(sim: Simulation, region: Region) -> None:
        client = region.client()
        await client.put("/a", b"1")
        assert sim.now() < 1.0

    simulate(ONE, main)


@pytest.mark.parametrize("seed", range(12))
def test_one_voter_keeps_everything_over_power_cuts(seed: int) -> None:
    """Versions, counters, leases, and client sessions: a compare-and-set that was under way is made once, whatever the
    cut took.
    """

    async def main(sim: Simulation, region: Region) -> None:
        rng = sim.rng("test")
        client = region.client(timeout_s=60.0)
        lease = await client.grant(60_000)
        await client.put("/mine", b"", lease=lease)

        async def cuts() -> None:
            while True:
                await asyncio.sleep(rng.uniform(0.001, 0.5))
                if rng.random() < 0.5:
                    sim.machine("m0").kill()
                else:
                    sim.machine("m0").power_cut()
                await asyncio.sleep(rng.uniform(0, 1))
                region.start("m0")

        cutting = asyncio.create_task(cuts())
        version, ids = -1, []
        for number in range(40):
            version = await client.put("/n", str(number).encode(), expected=version)
            ids.append(await client.next_ids("ids", 2))
        cutting.cancel()
        await asyncio.sleep(2)
        if not sim.machine("m0").running:
            region.start("m0")
        assert await client.get("/n") == (b"39", version)
        assert ids == list(range(0, 80, 2))
        assert await client.get("/mine") is not None
        await client.renew(lease)

    simulate(ONE, main, seed)


def test_a_lease_survives_a_restart_by_one_ttl_and_no_longer() -> None:
    async def main(sim: Simulation, region: Region) -> None:
        client = region.client()
        lease = await client.grant(3000)
        await client.put("/mine", b"", lease=lease)
        await asyncio.sleep(2.5)
        sim.machine("m0").power_cut()
        region.start("m0")
        await client.get("/mine")
        restarted = sim.now()
        await asyncio.sleep(2.5)
        assert await client.get("/mine") is not None
        for _ in range(100):
            if await client.get("/mine") is None:
                break
            await asyncio.sleep(0.05)
        assert 2.9 < sim.now() - restarted < 4.5

    simulate(ONE, main)


@pytest.mark.parametrize("seed", range(8))
def test_three_voters_go_on_without_one(seed: int) -> None:
    """A counter under compare-and-set by two writers while voters are killed one at a time: each increment is made
    once; watches agree in the end.
    """

    async def main(sim: Simulation, region: Region) -> None:
        rng = sim.rng("test")
        clients = [region.client(f"c{number}", timeout_s=30.0) for number in range(2)]
        seen: dict[str, bytes] = {}

        def on_change(key: str, value: bytes | None, _version: int) -> None:
            if value is None:
                del seen[key]
            else:
                seen[key] = value

        watcher = region.client("w")
        watcher.watch("/", on_change)
        unknown = 0

        async def count(client: MetaClient, name: str) -> int:
            nonlocal unknown
            made = 0
            while made < 15:
                found = await client.get("/n")
                value, version = found or (b"0", -1)
                try:
                    await client.txn(
                        [Put("/n", str(int(value) + 1).encode(), version), Put(f"/by/{name}/{made}", value)]
                    )
                except VersionConflict:
                    continue
                except OutcomeUnknown:
                    unknown += 1
                made += 1
                await asyncio.sleep(rng.uniform(0, 0.3))
            return made

        async def kills() -> None:
            while True:
                await asyncio.sleep(rng.uniform(1, 4))
                victim = rng.choice(THREE)
                if rng.random() < 0.5:
                    sim.machine(victim).kill()
                else:
                    sim.machine(victim).power_cut()
                await asyncio.sleep(rng.uniform(0, 3))
                region.start(victim)

        killing = asyncio.create_task(kills())
        made = await asyncio.gather(*(count(client, f"w{number}") for number, client in enumerate(clients)))
        killing.cancel()
        for name in THREE:
            if not sim.machine(name).running:
                region.start(name)
        found = await clients[0].get("/n")
        assert found is not None and sum(made) - unknown <= int(found[0]) <= sum(made)
        assert unknown == 0
        await asyncio.sleep(10)
        assert seen == {key: value for key, value, _ in await clients[1].range("/", prefix_end("/"))}

    simulate(THREE, main, seed)


def test_a_minority_refuses_writes_in_bounded_time() -> None:
    async def main(sim: Simulation, region: Region) -> None:
        client = region.client()
        await client.put("/a", b"1")
        leader = region.leader()
        for name in THREE:
            if name != leader:
                sim.machine(name).kill()
        before = sim.now()
        with pytest.raises((MetadataUnavailable, OutcomeUnknown)):
            await client.put("/a", b"2")
        with pytest.raises(MetadataUnavailable):
            await client.get("/a")
        assert sim.now() - before < 21
        for name in THREE:
            if name != leader:
                region.start(name)
        await asyncio.sleep(5)
        await client.put("/a", b"3")

    simulate(THREE, main)


def test_a_voter_whose_disk_fails_stops_for_good_and_says_so() -> None:
    async def main(sim: Simulation, region: Region) -> None:
        client = region.client(timeout_s=3.0)
        await client.put("/a", b"1")
        failing = asyncio.create_task(sim.machine("m0").ask(region.nodes["m0"].failed))
        await asyncio.sleep(0.1)
        sim.machine("m0").platter("meta").fail_syncs = True
        with pytest.raises((MetadataUnavailable, OutcomeUnknown)):
            await client.put("/a", b"2")
        with pytest.raises(DiskFailed, match="'m0' cannot be written"):
            await failing
        with pytest.raises(MetadataUnavailable):
            await client.put("/a", b"3")

    simulate(ONE, main)


def test_a_full_disk_refuses_writes_and_goes_on_reading() -> None:
    async def main(sim: Simulation, region: Region) -> None:
        client = region.client(timeout_s=3.0)
        platter = sim.machine("m0").platter("meta")
        await client.put("/a", b"1")
        platter.capacity_bytes = 0
        with pytest.raises(MetadataUnavailable, match="full"):
            for number in range(100):
                await client.put(f"/{number}", bytes(900_000))
        assert (await client.get("/a") or (b"", 0))[0] == b"1"
        platter.capacity_bytes = 1 << 40
        await asyncio.sleep(5)
        await client.put("/a", b"2")

    simulate(ONE, main)


@pytest.mark.slow
def test_large_values_pass_through_the_log() -> None:
    async def main(sim: Simulation, region: Region) -> None:
        client = region.client()
        for number in range(6):
            await client.txn([Put(f"/{number}/{part}", bytes([number]) * (1 << 20)) for part in range(3)])
        sim.machine("m0").power_cut()
        region.start("m0")
        rows = [row async for page in pages_between(client, "/", HISTORY) for row in page]
        assert [(key, value[:1], len(value)) for key, value, _ in rows] == [
            (f"/{number}/{part}", bytes([number]), 1 << 20) for number in range(6) for part in range(3)
        ]

    simulate(ONE, main)


def test_on_real_sockets_and_a_real_disk(tmp_path: Path) -> None:
    async def main() -> None:
        disks = [SystemDisk(tmp_path) for _ in range(2)]
        first = LocalMetaNode(node_id="m0", disk=disks[0], clock=SystemClock(), rng=random.Random(1))
        port = await first.start()
        told: list[tuple[str, bytes | None]] = []
        client = MetaClient([f"127.0.0.1:{port}"], clock=SystemClock(), rng=random.Random(2))
        client.watch("/", lambda key, value, version: told.append((key, value)))
        versions = await asyncio.gather(*(client.put(f"/{number:03}", b"x") for number in range(200)))
        assert len(set(versions)) == 200
        with pytest.raises(VersionConflict):
            await client.put("/000", b"", expected=-1)
        await first.stop()
        disks[0].close()
        second = LocalMetaNode(node_id="m0", disk=disks[1], clock=SystemClock(), rng=random.Random(3), port=port)
        await second.start()
        assert len(await client.range("/", HISTORY)) == 200
        await client.delete("/007")
        async with asyncio.timeout(60):
            while told[-1] != ("/007", None):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert len(told) == 1 + 201 + 1 + 2, "the id, what was put here, what the second life passed over, two stamps"
        client.close()
        await second.stop()
        disks[1].close()

    asyncio.run(main())
