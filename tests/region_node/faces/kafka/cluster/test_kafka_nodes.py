"""Numbers of brokers, as Kafka's clients know them."""

from __future__ import annotations

import asyncio

from heliograph.kv.in_process_store import EmbeddedStore
from heliograph.kv.state_machine import KvMachine, MachineSettings
from region_node.faces.kafka.cluster.kafka_nodes import (
    A_REGION,
    REGIONS_MAX,
    KafkaNode,
    node_of,
    node_url,
    number_in_instance,
    own_number,
)


def test_each_broker_keeps_its_number_also_behind_a_page_of_the_metadata() -> None:
    async def run() -> None:
        meta = EmbeddedStore(KvMachine(settings=MachineSettings(range_limit=3)))
        async with asyncio.timeout(10):
            for _ in range(2):
                assert [await own_number(meta, f"b{number}") for number in range(8)] == list(range(8))

    asyncio.run(run())


def test_no_two_brokers_of_the_instance_have_one_number() -> None:
    numbers = [
        number_in_instance(region, number) for region in (1, 2, 7, REGIONS_MAX) for number in (0, 1, A_REGION - 1)
    ]
    assert len({*numbers}) == len(numbers) and max(numbers) < 1 << 31
    assert numbers[:2] == [0, 1], "those of the first region are as they were before"
    assert number_in_instance(1 << 30, 3) < 1 << 31


def test_a_record_says_the_number_and_the_address() -> None:
    listeners = {"kafka": node_url(100_002, "a.example", 9092)}
    assert node_of(listeners, tls=False) == KafkaNode(100_002, "a.example", 9092)
    assert node_of(listeners, tls=True) is None
