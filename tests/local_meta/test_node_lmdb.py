"""Metadata nodes over real LMDB tables, disks, and sockets: restarts, and a member that joins by a snapshot of many
pieces.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from pathlib import Path

import pytest

from heliograph.kv.durable_state_machine import DurableMachine
from heliograph.kv.engine.lmdb_store import LmdbStore
from heliograph.kv.metadata_client import ClientSettings, MetaClient
from heliograph.kv.metadata_store import Put
from heliograph.model.errors import CorruptData, MetadataUnavailable, NotAllowed
from heliograph.raft.core import CoreSettings
from heliograph.raft.disk.snapshot_file import Done
from heliograph.raft.messages import SnapshotMeta
from heliograph.runtime.clock import SystemClock
from heliograph.runtime.system_disk import SystemDisk
from local_meta.node import LocalMetaNode, LocalMetaSettings
from tests.local_meta.lmdb_nodes import DEADLINE_S, client_of, hand_over

DEFAULT = LocalMetaSettings()
CORE = CoreSettings(election_timeout_s=2.0, heartbeat_s=0.1, chunk_bytes=20_000, lag_entries_max=0)
OFTEN = replace(DEFAULT, raft=replace(DEFAULT.raft, core=CORE, snapshot_entries=20, keep_entries=5))


def node_of(folder: Path, name: str, *, port: int = 0, founder: str = "") -> LocalMetaNode:
    table = LmdbStore(SystemDisk(folder / name / "table"), str(folder / name / "table"), map_bytes=1 << 20)
    peers = {"m0": founder} if founder else None
    return LocalMetaNode(
        node_id=name,
        disk=SystemDisk(folder / name),
        clock=SystemClock(),
        rng=random.Random(name),
        port=port,
        peers=peers,
        joining=bool(founder),
        table=table,
        settings=OFTEN,
    )


def test_a_restart_finds_everything_and_a_new_member_gets_it_in_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        first = node_of(tmp_path, "m0")
        port = await first.start()
        client, expected = client_of(port), dict[str, bytes]()
        for batch in range(60):
            rows = {
                f"/ml/public/default/{batch:03d}-{number}": random.Random(batch * 10 + number).randbytes(900)
                for number in range(10)
            }
            expected |= rows
            await client.txn([Put(key, value) for key, value in rows.items()])
        client.close()
        await first.stop()

        first = node_of(tmp_path, "m0", port=port)
        await first.start()
        client = client_of(port)
        assert {key: value for key, value, _ in await client.range("/ml/", "/ml/~")} == expected
        assert await client.count("/ml/public/default/") == len(expected)
        assert not [name for name in (tmp_path / "m0").iterdir() if name.name.startswith("snapshot-")], (
            "a table of its own needs none"
        )

        second, pieces = node_of(tmp_path, "m1", founder=f"127.0.0.1:{port}"), list[int]()
        receive = second.raft._storage.receive

        def noted(meta: SnapshotMeta, offset: int, data: bytes, done: Done) -> None:
            pieces.append(offset)
            receive(meta, offset, data, done)

        monkeypatch.setattr(second.raft._storage, "receive", noted)
        await client.members("add", "m1", f"127.0.0.1:{await second.start()}")
        async with asyncio.timeout(DEADLINE_S):
            while True:
                await client.put("/beat", b"")  # the log goes on meanwhile
                try:
                    await client.members("promote", "m1", "")
                    break
                except NotAllowed:
                    await asyncio.sleep(0.05)
            while second.machine.index < first.machine.index:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        assert len(set(pieces)) > 20
        assert second.machine.snapshot() == first.machine.snapshot() and second.machine.count(
            "/ml/public/default/"
        ) == len(expected)
        client.close()
        await second.stop()
        again = node_of(tmp_path, "m1", founder=f"127.0.0.1:{port}")
        await again.start()
        assert {key: value for key, value, _ in again.machine.under("/ml/")} == expected
        await again.stop()
        await first.stop()

    asyncio.run(main())


@pytest.mark.parametrize("watched", [False, True])
@pytest.mark.parametrize("voters", [1, 3])
def test_a_voter_with_a_damaged_table_gives_way_to_the_others_and_an_only_one_goes_on(
    tmp_path: Path, voters: int, watched: bool
) -> None:
    """Whether the damage is met by a read, or by the first listing of a watch."""

    async def main() -> None:
        nodes = {"m0": node_of(tmp_path, "m0")}
        ports = {"m0": await nodes["m0"].start()}
        for name in [f"m{number}" for number in range(1, voters)]:
            nodes[name] = node_of(tmp_path, name, founder=f"127.0.0.1:{ports['m0']}")
            ports[name] = await nodes[name].start()
        client = client_of(*ports.values())
        async with asyncio.timeout(DEADLINE_S):
            for name in list(ports)[1:]:
                await client.members("add", name, f"127.0.0.1:{ports[name]}")
                while True:
                    try:
                        await client.members("promote", name, "")
                        break
                    except NotAllowed:
                        await client.put("/beat", b"")
                        await asyncio.sleep(0.05)
            await client.put("/mine", b"the value that is damaged")
            saved = nodes["m0"].machine.kept
            assert isinstance(saved, DurableMachine)
            number = 0
            while (
                b"the value that is damaged" not in (tmp_path / "m0" / "table" / "data.mdb").read_bytes()
                or saved.saving
                or saved.unsaved_bytes
            ):
                await client.put(f"/other-{number % 30}", b"whole")
                number += 1
                if not nodes["m0"].raft.is_leader:  # this machine stood still for longer than an election takes
                    await hand_over(client, "m0")
                await asyncio.sleep(0.01)
            damage(tmp_path / "m0" / "table" / "data.mdb", b"the value that is damaged")
            assert nodes["m0"].raft.is_leader
            if watched:
                seen: dict[str, bytes | None] = {}
                watcher = client_of(*ports.values())
                watcher.watch("/mine", lambda key, value, _: seen.update({key: value}))
                if voters > 1:
                    await watcher.synced("/mine")
                    assert seen == {"/mine": b"the value that is damaged"}, "another voter answers"
                else:
                    await asyncio.sleep(0.3)
                    assert not seen
                assert not nodes["m0"].machine._images, "none is kept for whoever did not get it"
                watcher.close()
            if voters > 1:
                assert (await until_read(client, "/mine"))[0] == b"the value that is damaged", "another voter answers"
                assert isinstance(nodes["m0"].raft.failed, CorruptData)
                with pytest.raises(CorruptData, match="heliograph meta replace"):
                    await nodes["m0"].failed()
            else:
                impatient = MetaClient(
                    [f"127.0.0.1:{ports['m0']}"],
                    clock=SystemClock(),
                    rng=random.Random(3),
                    settings=ClientSettings(timeout_s=5.0),
                )
                with pytest.raises(MetadataUnavailable, match="damaged"):
                    await impatient.get("/mine")
                impatient.close()
                assert await client.get("/other-0") is not None and nodes["m0"].raft.failed is None
        client.close()
        for node in nodes.values():
            await node.stop()

    asyncio.run(main())


def damage(data: Path, value: bytes) -> None:
    """In place, as a disk does it: the process has the file mapped."""
    raw, at = data.read_bytes(), -1
    with data.open("r+b") as file:
        while (at := raw.find(value, at + 1)) >= 0:
            file.seek(at + 5)
            file.write(bytes([raw[at + 5] ^ 1]))


async def until_read(client: MetaClient, key: str) -> tuple[bytes, int]:
    while True:
        try:
            found = await client.get(key)
            assert found is not None
            return found
        except MetadataUnavailable:
            await asyncio.sleep(0.05)
