"""Numbers of brokers, as Kafka clients know them."""

from __future__ import annotations

import asyncio

from heliograph.kv.in_process_store import EmbeddedStore
from heliograph.kv.state_machine import KvMachine, MachineSettings
from region_node.faces.kafka.cluster.kafka_cluster import own_number


def test_each_broker_keeps_its_number_also_behind_a_page_of_the_metadata() -> None:
    async def run() -> None:
        meta = EmbeddedStore(KvMachine(settings=MachineSettings(range_limit=3)))
        async with asyncio.timeout(10):
            for _ in range(2):
                assert [await own_number(meta, f"b{number}") for number in range(8)] == list(range(8))

    asyncio.run(run())
