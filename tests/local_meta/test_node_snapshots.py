"""Snapshots in pieces under a running voter: power cuts and full disks in the middle of one, and writes between its
pieces.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from dataclasses import replace
from itertools import pairwise

import pytest

from geo_tests.sim.simulation import Machine, Simulation
from geo_tests.sim.table import SimTable
from heliograph.kv.history import HISTORY
from heliograph.kv.metadata_client import ClientSettings, MetaClient
from heliograph.kv.state_machine import MachineSettings
from heliograph.model.errors import MetadataError, MetadataUnavailable
from heliograph.raft.member.raft_node import RaftSettings
from local_meta.node import LocalMetaNode, LocalMetaSettings

PORT = 7001
DEFAULT = LocalMetaSettings()
OFTEN = replace(DEFAULT, raft=replace(DEFAULT.raft, snapshot_entries=25, segment_bytes=64 << 10, keep_entries=5))
IN_PIECES = replace(OFTEN, machine=MachineSettings(part_rows=3))


class Voter:
    def __init__(self, sim: Simulation, settings: LocalMetaSettings = OFTEN, keeps: bool = False) -> None:
        """keeps: the table lies in a store of its own."""
        self.sim, self.settings, self.keeps = sim, settings, keeps
        self.node: LocalMetaNode
        self.start()

    def start(self) -> None:
        self.sim.machine("m0").start(self._serve)

    async def _serve(self, machine: Machine) -> None:
        self.node = LocalMetaNode(
            node_id="m0",
            disk=machine.disk("meta"),
            clock=machine.clock,
            rng=machine.rng,
            host="m0",
            port=PORT,
            table=SimTable(machine.disk("table")) if self.keeps else None,
            settings=self.settings,
        )
        await self.node.start()

    def client(self) -> MetaClient:
        machine = self.sim.machine("c")

        async def idle(_: Machine) -> None: ...

        machine.start(idle)
        made: MetaClient = machine.run(
            lambda: MetaClient(
                [f"m0:{PORT}"], clock=machine.clock, rng=machine.rng, settings=ClientSettings(timeout_s=30.0)
            )
        )
        machine.run(made._run)
        return made

    def files(self) -> list[str]:
        return self.sim.machine("m0").platter("meta").names()


@pytest.mark.parametrize("seed", range(25))
def test_power_cuts_in_the_middle_of_snapshots_lose_nothing(seed: int) -> None:
    unfinished = 0

    async def main(sim: Simulation) -> None:
        nonlocal unfinished
        voter, rng, kept = Voter(sim, IN_PIECES), random.Random(seed), dict[str, tuple[bytes, int]]()
        client = voter.client()
        for step in range(300):
            key = f"/{rng.randrange(60):02d}"
            if rng.random() < 0.2:
                await client.delete(key)
                kept.pop(key, None)
            else:
                kept[key] = (b"%d" % step, await client.put(key, b"%d" % step))
            if rng.random() < 0.03 or (rng.random() < 0.4 and "image.tmp" in voter.files()):
                unfinished += "image.tmp" in voter.files()
                sim.machine("m0").power_cut()
                voter.start()
                await asyncio.sleep(0.1)
                assert "image.tmp" not in voter.files() or voter.node.raft._snapshotter._making is not None
        found = await client.range("/", HISTORY)
        assert {key: (value, version) for key, value, version in found} == kept
        assert any(name.startswith("snapshot-") for name in voter.files())

    with Simulation(seed) as sim:
        sim.run(main(sim), limit_s=600)
    assert unfinished or seed != 0


@pytest.mark.parametrize("seed", range(25))
def test_power_cuts_anywhere_lose_nothing_of_a_table_that_is_kept(seed: int) -> None:
    """A cut in any operation of either disk, with few entries between two saves."""
    saves = 0

    async def main(sim: Simulation) -> None:
        nonlocal saves
        voter, rng, kept = Voter(sim, keeps=True), random.Random(seed), dict[str, tuple[bytes, int]]()
        client, machine = voter.client(), sim.machine("m0")
        for step in range(300):
            key = f"/a/b/{step % 3}/{rng.randrange(60):02d}"
            if rng.random() < 0.2:
                await client.delete(key)
                kept.pop(key, None)
            else:
                kept[key] = (b"%d" % step, await client.put(key, b"%d" % step))
            if rng.random() < 0.06:
                table: SimTable = voter.node.machine._store  # type: ignore[attr-defined]
                saves += table.commits
                if rng.random() < 0.5:
                    machine.power_cut()
                else:
                    machine.platter(rng.choice(("meta", "table"))).cut_after(rng.randrange(1, 8))
                    for number in range(30):
                        if not machine.running:
                            break
                        with contextlib.suppress(MetadataError, TimeoutError):
                            await asyncio.wait_for(client.put(f"/noise/{number % 3}", b""), 0.5)
                    if machine.running:
                        machine.power_cut()
                voter.start()
                await asyncio.sleep(0.1)
                assert not [name for name in voter.files() if name.startswith("snapshot-")]
        found = await client.range("/a", "/b")
        assert {key: (value, version) for key, value, version in found} == kept
        assert sum(voter.node.machine.count(f"/a/b/{part}/") for part in range(3)) == len(kept)

    with Simulation(seed) as sim:
        sim.run(main(sim), limit_s=900)
    assert saves > 3


def test_a_table_in_memory_becomes_one_that_is_kept() -> None:
    """A node that comes back with a store finds its snapshot and log, and needs no snapshot from then on."""

    async def main(sim: Simulation) -> None:
        voter = Voter(sim)
        client, kept = voter.client(), dict[str, bytes]()
        for life in range(3):
            for number in range(70):
                key = f"/{number:02d}"
                kept[key] = b"%d %d" % (life, number)
                await client.put(key, kept[key])
            assert any(name.startswith("snapshot-") for name in voter.files()) == (life == 0)
            sim.machine("m0").power_cut()
            voter.keeps = True
            voter.start()
            await asyncio.sleep(0.2)
            assert {key: value for key, value, _ in await client.range("/", HISTORY)} == kept

    with Simulation(10) as sim:
        sim.run(main(sim), limit_s=600)


def test_a_table_that_meets_a_full_disk_refuses_writes_reads_on_and_recovers() -> None:
    async def main(sim: Simulation) -> None:
        raft = replace(OFTEN.raft, unsaved_bytes_max=100_000, segment_bytes=4 << 20)
        voter = Voter(sim, replace(DEFAULT, raft=raft), keeps=True)
        client, platter = voter.client(), sim.machine("m0").platter("table")
        await client.put("/first", b"1")
        platter.capacity_bytes = platter.used_bytes() + 500
        refused = ""
        for number in range(400):
            try:
                await client.put(f"/{number:03d}", bytes(2000))
            except MetadataUnavailable as error:
                refused = str(error)
                break
        assert "disk of the metadata's table is full: free some space" in refused
        assert await client.get("/first") is not None and voter.node.raft.failed is None
        platter.capacity_bytes = 1 << 40
        await asyncio.sleep(3)
        await client.put("/after", b"2")
        sim.machine("m0").power_cut()
        voter.start()
        await asyncio.sleep(0.2)
        assert await client.get("/after") is not None and len(await client.range("/0", "/9")) == number

    with Simulation(9) as sim:
        sim.run(main(sim), limit_s=600)


def test_a_snapshot_that_meets_a_full_disk_is_given_up_and_made_later() -> None:
    async def main(sim: Simulation) -> None:
        voter = Voter(sim, IN_PIECES)
        client = voter.client()
        for number in range(24):
            await client.put(f"/{number:02d}", bytes(2000))
        platter = sim.machine("m0").platter("meta")
        platter.capacity_bytes = platter.used_bytes() + 5000  # less than a snapshot needs
        refused = 0
        for number in range(60):
            try:
                await client.put(f"/{number % 24:02d}", bytes(2000))
            except MetadataUnavailable as error:
                assert "full: free some space" in str(error)
                refused += 1
                break
        await asyncio.sleep(5)
        assert refused and not [name for name in voter.files() if name.startswith(("snapshot-", "image"))]
        assert await client.get("/07") is not None and voter.node.raft.failed is None
        platter.capacity_bytes = 10 << 20
        await asyncio.sleep(3)
        for number in range(40):
            await client.put(f"/{number % 24:02d}", b"again")
        await asyncio.sleep(1)
        assert [name for name in voter.files() if name.startswith("snapshot-")] and "image.tmp" not in voter.files()

    with Simulation(5) as sim:
        sim.run(main(sim), limit_s=600)


def test_a_large_table_is_written_again_less_often() -> None:
    """Each snapshot of a table of some MB is due after half its size of log: what is written stays in proportion to
    what came.
    """
    made: list[int] = []

    async def main(sim: Simulation) -> None:
        raft: RaftSettings = replace(DEFAULT.raft, snapshot_bytes=64 << 10, snapshot_entries=100_000)
        voter = Voter(sim, replace(DEFAULT, raft=raft))
        client = voter.client()
        for number in range(600):
            await client.put(f"/{number:03d}", bytes(2000))
            index = max((int(name[9:]) for name in voter.files() if name.startswith("snapshot-")), default=0)
            if index not in made:
                made.append(index)

    with Simulation(6) as sim:
        sim.run(main(sim), limit_s=600)
    gaps = [later - earlier for earlier, later in pairwise(made[1:])]
    assert 4 <= len(made) <= 12 and gaps == sorted(gaps), made
