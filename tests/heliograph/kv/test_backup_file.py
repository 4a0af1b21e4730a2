"""Backup files are whole or refused; one is fetched from a running node while everything changes, and a voter that was
restored goes on.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from geo_tests.sim.simulation import Machine, Simulation
from heliograph.kv.backup_client import fetch
from heliograph.kv.backup_file import (
    BackedUpStore,
    BackupReader,
    BackupWriter,
    Info,
    group_of,
    restored_index,
    restored_pieces,
)
from heliograph.kv.engine.table_image import Restoring, head_of
from heliograph.kv.history import HISTORY
from heliograph.kv.metadata_client import ClientSettings, MetaClient
from heliograph.kv.metadata_store import Put
from heliograph.kv.state_machine import KvMachine, MachineSettings
from heliograph.model.errors import CorruptData, LeaseLost, MetadataUnavailable, VersionConflict
from heliograph.raft.disk.snapshot_file import write_snapshot
from heliograph.runtime.disk import File
from local_meta import keys
from local_meta.node import LocalMetaNode, LocalMetaSettings
from tests.heliograph.kv.driver import Driver

INFO = Info(BackedUpStore.LOCAL, "us", 1_700_000_000_000, 0, "1.2.3")
PORT = 7001


def written(pieces: list[bytes], file: File) -> None:
    writer = BackupWriter(file)
    writer.begin(INFO)
    for piece in pieces:
        writer.add(piece)


def backed_up(sim: Simulation, rows: int = 10) -> tuple[Driver, File]:
    driver = Driver(KvMachine(settings=MachineSettings(part_rows=3)))
    for number in range(rows):
        driver.txn(Put(f"/{number:03d}", b"%d" % number))
    file = sim.machine("m").disk("backup").open("b", create=True)
    written(list(driver.machine.parts()), file)
    return driver, file


def test_a_backup_comes_back_as_it_was_written() -> None:
    with Simulation(1) as sim:
        driver, file = backed_up(sim)
        reader, seen = BackupReader(file), list[tuple[int, int]]()
        for _ in range(2):  # it can be read again
            rows = [
                (key, value, version)
                for key, (value, version, _) in reader.rows(lambda done, total: seen.append((done, total)))
            ]
            assert rows == driver.machine.under("/")
        assert reader.info == INFO and reader.head.index == driver.machine.index
        assert seen[-1] == (file.size_bytes(), file.size_bytes())


def test_a_backup_that_is_not_whole_is_refused() -> None:
    """Cut at any byte, any bit turned, two records exchanged, or something behind its end."""
    with Simulation(1) as sim:
        _, file = backed_up(sim)
        raw = file.pread(file.size_bytes(), 0)
        other = sim.machine("m").disk("backup").open("other", create=True)

        def refused(wrong: bytes) -> None:
            other.truncate(0)
            other.pwritev([wrong], 0)
            with pytest.raises(CorruptData):
                list(BackupReader(other).rows())

        for size in range(len(raw)):
            refused(raw[:size])
        rng = random.Random(1)
        for at in range(len(raw)):
            refused(raw[:at] + bytes([raw[at] ^ 1 << rng.randrange(8)]) + raw[at + 1 :])
        refused(raw + b"\0")
        refused(raw[:4] + b"\x02" + raw[5:])
        starts, at = [], 8
        while at < len(raw):
            starts.append(at)
            at += 8 + int.from_bytes(raw[at : at + 4], "big")
        pieces = [raw[a:b] for a, b in zip(starts, [*starts[1:], len(raw)], strict=True)]
        refused(raw[:8] + b"".join([pieces[0], pieces[1], pieces[3], pieces[2], *pieces[4:]]))
        refused(raw[:8] + b"".join(pieces) + pieces[-1])


def simulate(main: Callable[[Simulation], Coroutine[Any, Any, None]], seed: int = 1) -> None:
    with Simulation(seed) as sim:
        sim.run(main(sim), limit_s=600)


async def start(sim: Simulation, folder: str = "meta", settings: LocalMetaSettings | None = None) -> None:
    async def serve(machine: Machine) -> None:
        node = LocalMetaNode(
            node_id="m0",
            disk=machine.disk(folder),
            clock=machine.clock,
            rng=machine.rng,
            host="m0",
            port=PORT,
            settings=settings,
        )
        await node.start()

    sim.machine("m0").start(serve)


async def client_of(sim: Simulation) -> MetaClient:
    machine = sim.machine("c")

    async def idle(_: Machine) -> None: ...

    if not machine.running:
        machine.start(idle)
    made: MetaClient = machine.run(
        lambda: MetaClient(
            [f"m0:{PORT}"], clock=machine.clock, rng=machine.rng, settings=ClientSettings(timeout_s=30.0)
        )
    )
    machine.run(made._run)
    return made


@pytest.mark.parametrize("seed", range(6))
def test_a_backup_of_a_running_node_is_one_moment_behind_what_was_acknowledged(seed: int) -> None:
    """Pairs of keys are always written together, so an image of two moments would hold unequal ones."""

    async def main(sim: Simulation) -> None:
        await start(sim, settings=LocalMetaSettings(machine=MachineSettings(part_rows=5)))
        client, rng, written = await client_of(sim), sim.rng("test"), dict.fromkeys(range(40), 0)

        async def write(step: int) -> None:
            pair = rng.randrange(40)
            await client.txn([Put(f"/a/{pair:02d}", b"%d" % step), Put(f"/b/{pair:02d}", b"%d" % step)])
            written[pair] = step

        async def go_on() -> None:
            step = 1000
            while True:
                step += 1
                await write(step)

        for step in range(1, 60):
            await write(step)
        before, pieces = dict(written), list[bytes]()
        writing = asyncio.create_task(go_on())
        await fetch(client, f"m0:{PORT}", pieces.append)
        writing.cancel()
        table = dict(Restoring().add(b"".join(pieces)))
        for pair, step in before.items():
            values = [int(table[f"/{side}/{pair:02d}"][0]) if f"/{side}/{pair:02d}" in table else 0 for side in "ab"]
            assert values[0] == values[1] >= step
        with pytest.raises(MetadataUnavailable, match="cannot be reached"):
            await fetch(client, "m0:7999", pieces.append)
        with pytest.raises(MetadataUnavailable, match="cannot be reached"):
            await fetch(client, f"m..0:{PORT}", pieces.append)

    simulate(main, seed)


def test_what_was_known_of_the_old_store_is_of_no_use_with_the_restored_one() -> None:
    """Versions, leases, a session with an answer under way, and the place of a watch; and the new voter goes on over
    restarts.
    """

    async def main(sim: Simulation) -> None:
        await start(sim)
        client, seen = await client_of(sim), dict[str, bytes | None]()
        version = await client.put("/a", b"1")
        lease = await client.grant(60_000)
        await client.put("/live", b"", lease=lease)
        await client.next_ids("ids", 7)
        pieces: list[bytes] = []
        await fetch(client, f"m0:{PORT}", pieces.append)
        await client.put("/later", b"2")
        for _ in range(300):  # far behind the backup
            await client.put("/x", b"")
        own = keys.INSTANCE, keys.PASSED_OVER, HISTORY
        client.watch("/", lambda key, value, _: None if key in own else seen.__setitem__(key, value))
        await client.synced("/")
        assert seen == {"/a": b"1", "/live": b"", "/later": b"2", "/x": b""}
        sim.machine("m0").power_cut()
        file = sim.machine("c").disk("backup").open("b", create=True)
        written(pieces, file)
        reader = BackupReader(file)
        index = restored_index(head_of(pieces[0]).index, 1_700_000_000)
        rows = [(key, value) for key, (value, _, held) in reader.rows() if not held]
        write_snapshot(
            sim.machine("m0").disk("new"),
            index,
            1,
            group_of(["m0"]),
            restored_pieces(index, reader.head.counters, rows),
        )
        for _ in range(2):
            await start(sim, "new")
            assert await client.get("/a") == (b"1", index)
            assert await client.get("/live") is None and await client.get("/later") is None
            with pytest.raises(LeaseLost):
                await client.renew(lease)
            with pytest.raises(VersionConflict):
                await client.put("/a", b"old", expected=version)
            for _ in range(100):
                if seen == {"/a": b"1", "/live": None, "/later": None, "/x": None}:
                    break
                await asyncio.sleep(0.05)
            assert seen == {"/a": b"1", "/live": None, "/later": None, "/x": None}
            sim.machine("m0").power_cut()
        await start(sim, "new")
        assert await client.next_ids("ids") == 7

    simulate(main)


def test_one_backup_at_a_time_and_none_from_a_node_that_lags() -> None:
    async def main(sim: Simulation) -> None:
        nodes: list[LocalMetaNode] = []

        async def serve(machine: Machine) -> None:
            nodes.append(
                LocalMetaNode(
                    node_id="m0", disk=machine.disk("meta"), clock=machine.clock, rng=machine.rng, host="m0", port=PORT
                )
            )
            await nodes[0].start()

        sim.machine("m0").start(serve)
        client = await client_of(sim)
        await client.put("/a", b"1")
        image = await nodes[0].service.backup(0)
        with pytest.raises(MetadataUnavailable, match="another backup"):
            await fetch(client, f"m0:{PORT}", lambda piece: None)
        nodes[0].service.end_backup(image)
        with pytest.raises(MetadataUnavailable, match="behind"):
            await nodes[0].service.backup(nodes[0].machine.index + 100)
        pieces: list[bytes] = []
        await fetch(client, f"m0:{PORT}", pieces.append)
        assert dict(Restoring().add(b"".join(pieces)))["/a"][0] == b"1"
        assert not nodes[0].machine._images

    simulate(main)
