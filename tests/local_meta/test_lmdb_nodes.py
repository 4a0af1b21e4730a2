"""Metadata nodes over real LMDB tables, disks, and sockets: restarts, and a member that joins by a snapshot of many pieces."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from pathlib import Path

import pytest

from heliograph.model.errors import NotAllowed
from heliograph.raft.client import ClientSettings, MetaClient
from heliograph.raft.core import CoreSettings
from heliograph.raft.lmdb_store import LmdbStore
from heliograph.raft.messages import SnapshotMeta
from heliograph.raft.snapshot_file import Done
from heliograph.raft.store import Put
from heliograph.runtime.clock import SystemClock
from heliograph.runtime.system_disk import SystemDisk
from local_meta.node import LocalMetaNode, LocalMetaSettings

DEFAULT = LocalMetaSettings()
CORE = CoreSettings(election_timeout_s=2.0, heartbeat_s=0.1, chunk_bytes=20_000, lag_entries_max=0)
OFTEN = replace(DEFAULT, raft=replace(DEFAULT.raft, core=CORE, snapshot_entries=20, keep_entries=5))
DEADLINE_S = 60.0


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


def client_of(*ports: int) -> MetaClient:
    addresses = [f"127.0.0.1:{port}" for port in ports]
    return MetaClient(addresses, clock=SystemClock(), rng=random.Random(9), settings=ClientSettings(timeout_s=DEADLINE_S))


def test_a_restart_finds_everything_and_a_new_member_gets_it_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        first = node_of(tmp_path, "m0")
        port = await first.start()
        client, expected = client_of(port), dict[str, bytes]()
        for batch in range(60):
            rows = {f"/ml/public/default/{batch:03d}-{number}": random.Random(batch * 10 + number).randbytes(900) for number in range(10)}
            expected |= rows
            await client.txn([Put(key, value) for key, value in rows.items()])
        client.close()
        await first.stop()

        first = node_of(tmp_path, "m0", port=port)
        await first.start()
        client = client_of(port)
        assert {key: value for key, value, _ in await client.range("/", "/~")} == expected
        assert await client.count("/ml/public/default/") == len(expected)
        assert not [name for name in (tmp_path / "m0").iterdir() if name.name.startswith("snapshot-")], "a table of its own needs none"

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
        assert second.machine.snapshot() == first.machine.snapshot() and second.machine.count("/ml/public/default/") == len(expected)
        client.close()
        await second.stop()
        again = node_of(tmp_path, "m1", founder=f"127.0.0.1:{port}")
        await again.start()
        assert {key: value for key, value, _ in again.machine.under("/ml/")} == expected
        await again.stop()
        await first.stop()

    asyncio.run(main())
