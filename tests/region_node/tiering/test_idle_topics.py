"""Idle topics, once through real processes: the open ledger is closed, the topic is unloaded, and its ledgers go to the
object store all the same.
"""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pulsar
import pytest

from heliograph.kv.metadata_client import MetaClient
from heliograph.model.ledger_metadata import ManagedLedgerMetadata
from heliograph.runtime.clock import SystemClock
from local_meta import keys
from tests.region_node.live import until
from tests.region_node.region_processes import Region
from tests.region_node.tiering.tiered_region import TOPIC, provisioned, read_all


async def closed_ledgers(address: str) -> int:
    """As the region's metadata has them; 0 while the last one is open."""
    client = MetaClient([address], clock=SystemClock(), rng=random.Random(1))
    try:
        found = await client.get(keys.managed_ledger(TOPIC))
    finally:
        client.close()
    infos = ManagedLedgerMetadata.decode(found[0]).ledgers if found is not None else ()
    return len(infos) if all(info.closed_ms for info in infos) else 0


@pytest.mark.slow
def test_a_topic_that_nobody_uses_is_closed_and_offloaded_although_it_is_not_loaded(tmp_path: Path) -> None:
    with Region(tmp_path) as region:
        region.start(
            tiered={"store": f"file://{tmp_path}/objects", "tick_s": 0.3, "manifest_s": 0},
            managed_ledger={"ledger_idle_s": 0.5, "sweep_s": 0.3},
        )
        rest = provisioned(region, namespace=True)
        client = pulsar.Client(region.service_url(), logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
        producer = client.create_producer(TOPIC)
        for part in range(2):
            for i in range(50):
                producer.send(str(50 * part + i).encode())
            until(lambda count=part + 1: asyncio.run(closed_ledgers(region.addresses["meta"][0])) >= count)  # type: ignore[misc]
        client.close()
        ledgers = asyncio.run(closed_ledgers(region.addresses["meta"][0]))
        assert rest("PUT", "/admin/v2/persistent/public/default/old/unload")[0] == 204
        assert rest("PUT", "/admin/v2/namespaces/public/default/offloadDeletionLagMs", 0)[0] == 204
        assert rest("PUT", "/admin/v2/namespaces/public/default/offloadThreshold", 0)[0] == 204
        until(
            lambda: (
                len([one for one in (tmp_path / "objects").rglob("*") if one.is_file() and one.parent.name == "ledger"])
                == ledgers
            )
        )
        assert read_all(region.service_url(), 100) == list(range(100))
