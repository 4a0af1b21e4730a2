"""Tables that are damaged on real disks, found at the start: made again from the log or from the other voters, or
refused where there is nothing to go by.
"""

from __future__ import annotations

import asyncio
import random
import socket
import subprocess
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from heliograph.kv.engine import lmdb_store
from heliograph.kv.engine.lmdb_check import check_in_a_child
from heliograph.kv.engine.lmdb_store import DAMAGED, LmdbStore
from heliograph.kv.engine.table_store import TableBatch
from heliograph.kv.metadata_client import MetaClient
from heliograph.kv.metadata_store import Put
from heliograph.model.errors import CorruptData, NotAllowed
from heliograph.raft.core import CoreSettings
from heliograph.raft.disk.log_storage import LogStorage
from heliograph.runtime.clock import SystemClock
from heliograph.runtime.system_disk import SystemDisk
from local_meta.node import LocalMetaNode, LocalMetaSettings
from tests.local_meta.lmdb_nodes import DEADLINE_S, client_of, hand_over

DEFAULT = LocalMetaSettings()
CORE = CoreSettings(election_timeout_s=2.0, heartbeat_s=0.1, chunk_bytes=50_000, lag_entries_max=0)
SMALL = replace(
    DEFAULT, raft=replace(DEFAULT.raft, core=CORE, snapshot_entries=20, keep_entries=5, segment_bytes=64 << 10)
)
PAGE = 4096


def ports(count: int) -> list[int]:
    with ExitStack() as stack:
        listeners = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [listener.getsockname()[1] for listener in listeners]


def node_of(
    folder: Path, name: str, addresses: dict[str, str], settings: LocalMetaSettings = SMALL, *, joining: bool = False
) -> LocalMetaNode:
    path = folder / name / "table"
    table = LmdbStore(SystemDisk(path), str(path), map_bytes=1 << 20, check=check_in_a_child)
    return LocalMetaNode(
        node_id=name,
        disk=SystemDisk(folder / name),
        clock=SystemClock(),
        rng=random.Random(name),
        port=int(addresses[name].rpartition(":")[2]),
        peers=addresses,
        joining=joining,
        table=table,
        settings=settings,
    )


async def fill(client: MetaClient, batches: int, size_bytes: int = 900) -> dict[str, bytes]:
    expected: dict[str, bytes] = {}
    for batch in range(batches):
        rows = {
            f"/ml/public/default/{batch:03d}-{number}": random.Random(batch * 10 + number).randbytes(size_bytes)
            for number in range(10)
        }
        expected |= rows
        await client.txn([Put(key, value) for key, value in rows.items()])
    return expected


def cut_off(data: Path) -> None:
    with data.open("r+b") as file:
        file.truncate(data.stat().st_size // 2 // PAGE * PAGE)


def garbage_in_pages(data: Path) -> None:
    """Everywhere but in the two pages that describe the file: as after a disk that has answered with another one's
    blocks.
    """
    rng, size = random.Random(5), data.stat().st_size
    with data.open("r+b") as file:
        for page in range(2, size // PAGE):
            file.seek(page * PAGE + 8)
            file.write(rng.randbytes(PAGE - 8))


def bad_row(data: Path) -> None:
    """One that the process does not ask for at its start. Nobody has closed the file in order."""
    raw, value = data.read_bytes(), random.Random(33).randbytes(900)  # of 003-3, as `fill` makes it
    assert value in raw
    data.write_bytes(raw.replace(value, value[:-1] + b"?"))
    (data.parent / "in-use").touch()


def lost(data: Path) -> None:
    for file in data.parent.iterdir():
        file.unlink()


@pytest.mark.parametrize("damage", [cut_off, bad_row, lost])
def test_a_voter_makes_its_table_again_from_the_others(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    async def main() -> None:
        names = ["m0", "m1", "m2"]
        addresses = {name: f"127.0.0.1:{port}" for name, port in zip(names, ports(3), strict=True)}
        nodes = {name: node_of(tmp_path, name, addresses) for name in names}
        for node in nodes.values():
            await node.start()
        client = client_of(*(int(address.rpartition(":")[2]) for address in addresses.values()))
        async with asyncio.timeout(DEADLINE_S):
            expected = await fill(client, 40)
            while not all(  # noqa: ASYNC110
                node.machine.index >= nodes[node.raft.leader or node.node_id].machine.index for node in nodes.values()
            ):
                await asyncio.sleep(0.05)
            victim = next(name for name in names if not nodes[name].raft.is_leader)
            held = nodes[victim].raft._core.log.last_index  # type: ignore[union-attr]
            await nodes[victim].stop()
            damage(tmp_path / victim / "table" / "data.mdb")

            again = nodes[victim] = node_of(tmp_path, victim, addresses)
            await (
                again.start()
            )  # nothing is written meanwhile: the leader hears of the loss by the answer to a heartbeat
            while again.machine.index < held:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            assert {key: value for key, value, _ in again.machine.under("/ml/")} == expected
            assert (tmp_path / victim / "table" / DAMAGED).exists() == (
                damage is not lost
            ) and again.raft.failed is None
            while (tmp_path / victim / "debt").exists():  # noqa: ASYNC110
                await asyncio.sleep(0.05)

            gone = next(name for name in names if name != victim and nodes[name].raft.is_leader)
            await nodes[gone].stop()  # a majority is left with it only
            await client.put("/after", b"it votes, and holds what is written")
            assert {key: value for key, value, _ in await client.range("/ml/", "/ml0")} == expected
            await again.stop()
            whole = nodes[victim] = node_of(tmp_path, victim, addresses)
            await whole.start()
            await client.put("/after", b"and again")
        client.close()
        for name, node in nodes.items():
            if name != gone:
                await node.stop()

    asyncio.run(main())


def test_a_founder_that_was_alone_goes_by_what_became_of_its_group(tmp_path: Path) -> None:
    async def main() -> None:
        names = ["m0", "m1", "m2"]
        addresses = {name: f"127.0.0.1:{port}" for name, port in zip(names, ports(3), strict=True)}
        alone = {"m0": addresses["m0"]}
        nodes = {
            name: node_of(tmp_path, name, alone if name == "m0" else addresses, joining=name != "m0") for name in names
        }
        client = client_of(*(int(address.rpartition(":")[2]) for address in addresses.values()))
        async with asyncio.timeout(DEADLINE_S):
            await nodes["m0"].start()
            expected = await fill(client, 10)
            for name in names[1:]:
                await nodes[name].start()
                await client.members("add", name, addresses[name])
                await promoted(client, name)
            expected |= await fill(client, 30)
            await hand_over(client, "m1")
            while (held := nodes["m1"].raft.applied_index) > nodes["m0"].raft.applied_index:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            await nodes["m0"].stop()
            cut_off(tmp_path / "m0" / "table" / "data.mdb")
            again = nodes["m0"] = node_of(tmp_path, "m0", alone)
            await again.start()
            assert again.raft._others, "it does not take its beginning anew for the group's"
            while again.machine.index < held:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            assert {key: value for key, value, _ in again.machine.under("/ml/")} == expected and (
                tmp_path / "m0" / "table" / DAMAGED
            ).exists()
            while (tmp_path / "m0" / "debt").exists():
                await client.put("/beat", b"")
                await asyncio.sleep(0.05)

            await hand_over(client, "m0")
            for name in names[1:]:
                await client.members("remove", name, "")
                await nodes.pop(name).stop()
            await fill(client, 30)  # the log does not go back to where it began anew
            await again.stop()
            data = tmp_path / "m0" / "table" / "data.mdb"
            cut_off(data)
            before = data.read_bytes()
            with pytest.raises(CorruptData, match=r"cut off.*heliograph restore"):
                await node_of(tmp_path, "m0", alone).start()
            assert data.read_bytes() == before, "alone again, it is left as it is"
        client.close()

    asyncio.run(main())


async def promoted(client: MetaClient, name: str) -> None:
    while True:
        try:
            await client.members("promote", name, "")
            return
        except NotAllowed:
            await client.put("/beat", b"")
            await asyncio.sleep(0.05)


def test_an_only_voter_goes_by_its_log_where_that_is_whole_and_refuses_where_it_is_not(tmp_path: Path) -> None:
    async def main() -> None:
        addresses = {"m0": f"127.0.0.1:{ports(1)[0]}"}
        whole = replace(SMALL, raft=replace(SMALL.raft, segment_bytes=8 << 20))
        for folder, settings, cut in (tmp_path / "whole", whole, False), (tmp_path / "cut", SMALL, True):
            node = node_of(folder, "m0", addresses, settings)
            client = client_of(await node.start())
            expected = await fill(client, 40)
            client.close()
            await node.stop()
            data = folder / "m0" / "table" / "data.mdb"
            cut_off(data)
            before = data.read_bytes()
            again = node_of(folder, "m0", addresses, settings)
            if cut:
                with pytest.raises(CorruptData, match=r"cut off.*heliograph restore"):
                    await again.start()
                assert data.read_bytes() == before, "it is left as it is"
                owed = LogStorage(SystemDisk(folder / "m0"), segment_bytes=64 << 10).recover(
                    None, lost=True, others=True
                )  # as beside others
                assert owed.owed is not None and owed.owed[1] > 30 and not owed.entries and not owed.commit
                assert LogStorage(SystemDisk(folder / "m0"), segment_bytes=64 << 10).recover(None).owed == owed.owed, (
                    "until it is paid, every start knows"
                )
                continue
            client = client_of(await again.start())
            assert {key: value for key, value, _ in await client.range("/ml/", "/ml0")} == expected
            client.close()
            await again.stop()

    asyncio.run(main())


def test_the_check_finds_garbage_where_reading_would_end_the_process_and_passes_what_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        addresses = {"m0": f"127.0.0.1:{ports(1)[0]}"}
        node = node_of(tmp_path, "m0", addresses)
        client = client_of(await node.start())
        await fill(client, 25, 200)
        client.close()
        await node.stop()

    asyncio.run(main())
    table = tmp_path / "m0" / "table"
    check_in_a_child(str(table))
    whole = (table / "data.mdb").read_bytes()
    with monkeypatch.context() as patched:
        patched.setattr(subprocess, "run", lambda *args, **more: subprocess.CompletedProcess(args, 1, "", "no memory"))
        check_in_a_child(str(table))  # a walk that could not be made says nothing
    with monkeypatch.context() as patched, pytest.raises(CorruptData, match="SIGSEGV"):
        patched.setattr(subprocess, "run", lambda *args, **more: subprocess.CompletedProcess(args, -11, "", ""))
        check_in_a_child(str(table))
    garbage_in_pages(table / "data.mdb")
    with pytest.raises(CorruptData, match="meta replace"):
        check_in_a_child(str(table))
    value = random.Random(33).randbytes(200)  # of 003-3, as `fill` makes it
    assert value in whole
    (table / "data.mdb").write_bytes(whole.replace(value, value[:-1] + b"?"))
    with pytest.raises(CorruptData, match="the row of"):
        check_in_a_child(str(table))

    async def met() -> None:
        """Whoever meets it while it runs is to look at everything at the next start, however it ends."""
        store = LmdbStore(SystemDisk(table), str(table), map_bytes=1 << 20)
        opening: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        store.open_soon(lambda kept, error: opening.set_result(None))
        await opening
        with pytest.raises(CorruptData):
            store.get("/ml/public/default/003-3")
        store.close()
        assert (table / "in-use").exists()

    asyncio.run(met())


def test_damage_that_a_write_meets_is_looked_for_at_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def met(*_: object) -> None:
        raise CorruptData("its pages are another file's")

    async def work() -> None:
        store = LmdbStore(SystemDisk(tmp_path), str(tmp_path), map_bytes=1 << 20)
        for damage in (False, True):
            opening: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            store.open_soon(lambda kept, error, opening=opening: opening.set_result(None))  # type: ignore[misc]
            await opening
            written: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()
            if damage:
                monkeypatch.setattr(lmdb_store, "_put_rows", met)
            store.commit(TableBatch({"/a/b/c": (b"1", 1, 0)}, {}, b"mark"), written.set_result)
            assert isinstance(await written, CorruptData) is damage
            store.close()
            assert (tmp_path / "in-use").exists() is damage
            store = LmdbStore(SystemDisk(tmp_path), str(tmp_path), map_bytes=1 << 20)

    asyncio.run(work())
