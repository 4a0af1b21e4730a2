"""A connection of Kafka's protocol that has ended is freed at once: a process looks for circles seldom."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from heliograph.wire.kafka.record_batches import build_batch
from tests.region_node.faces.kafka import harness as kafka
from tests.region_node.faces.pulsar import harness as pulsar


@pytest.fixture(autouse=True)
def _no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


async def _used_by_kafka(client: kafka.Client) -> None:
    part = {"index": 0, "records": build_batch([(1, None, b"x", ())])}
    topic = {"name": "t", "partition_data": [part]}
    await client.ask("api_versions", 0, {})
    await client.ask("metadata", 4, {"topics": [{"name": "t"}], "allow_auto_topic_creation": True})
    await client.ask("produce", 7, {"transactional_id": None, "acks": -1, "timeout": 1000, "topic_data": [topic]})


@pytest.mark.parametrize("how", ("unused", "used", "closed by the broker", "cut in a frame", "not a request"))
def test_it_is_freed_however_it_ended(how: str) -> None:
    async def test(face: kafka.Face) -> None:
        client = kafka.Client(face.listener)
        if how != "unused":
            await _used_by_kafka(client)
        match how:
            case "closed by the broker":
                client.protocol.close("it is idle")
            case "cut in a frame":
                client.raw(kafka.request("metadata", 4, {"topics": None, "allow_auto_topic_creation": True})[:-1])
            case "not a request":
                client.raw(b"\x00\x00\x00\x08" + b"\xff" * 8)
        connection = weakref.ref(client.protocol)
        if not client.transport.closing:
            client.protocol.connection_lost(None)
        await pulsar.settle()
        del client
        assert connection() is None

    kafka.with_face(test)
