"""A metadata node on a real file system that is full: it refuses writes and says why, goes on reading, and writes again
once there is room.

Wants root: a small tmpfs is mounted.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import time
from pathlib import Path

import pytest

from heliograph.kv.metadata_client import ClientSettings, MetaClient
from heliograph.model.errors import MetadataUnavailable, OutcomeUnknown
from heliograph.runtime.clock import SystemClock
from tests.region_node.region_processes import Region

pytestmark = pytest.mark.system
VALUE = bytes(range(256)) * 128
PATIENCE_S = 90.0
SMALL_MIB = 96


def test_a_full_metadata_disk_refuses_writes_reads_on_and_recovers(small: Path, tmp_path: Path) -> None:
    with Region(tmp_path) as region:
        settings = region.settings(
            "meta-0", ["meta", "config"], meta_node={"port": 0}, config_node={"port": 0, "raft_port": 0}
        )
        settings["data_dir"] = str(small / "meta")
        node = region.spawn(settings).wait_ready()
        (small / "ballast").write_bytes(bytes(shutil.disk_usage(small).free - (40 << 20)))
        address = f"127.0.0.1:{node.ports['meta']}"

        def client() -> MetaClient:
            return MetaClient(
                [address], clock=SystemClock(), rng=random.Random(1), settings=ClientSettings(timeout_s=30)
            )

        kept: dict[str, bytes] = {}

        async def put(meta: MetaClient, number: int) -> None:
            key, value = f"/{number:06d}", number.to_bytes(4, "big") + VALUE
            await meta.put(key, value)
            kept[key] = value

        async def fill() -> None:
            meta = client()
            lease = await meta.grant(600_000)
            with pytest.raises(MetadataUnavailable, match="full: free some space"):
                for number in range(10_000):
                    await put(meta, number)
            assert len(kept) > 50
            for key, value in list(kept.items())[:20]:
                found = await meta.get(key)
                assert found is not None and found[0] == value
            await meta.renew(lease)  # leases are renewed without a write
            (small / "ballast").unlink()
            began = time.monotonic()
            while True:
                try:
                    await put(meta, 20_000)
                    break
                except (MetadataUnavailable, OutcomeUnknown):
                    assert time.monotonic() - began < PATIENCE_S, "it did not recover by itself"
            for number in range(20_001, 20_300):
                await put(meta, number)
            meta.close()

        async def check() -> None:
            meta = client()
            for key, value in kept.items():
                found = await meta.get(key)
                assert found is not None and found[0] == value
            meta.close()

        asyncio.run(fill())
        assert node.popen.poll() is None, "it went on without a restart"
        node.kill()
        settings["meta_node"] = {"port": node.ports["meta"]}
        region.spawn(settings).wait_ready()
        asyncio.run(check())
