"""Batches with acks=0: nobody tells their producer anything, so what came whole is stored, and what cannot be stored
closes the connection.
"""

from __future__ import annotations

from typing import Any

from heliograph.wire.kafka.record_batches import build_batch
from tests.region_node.faces.kafka.harness import Client, Face, request, with_face
from tests.region_node.faces.pulsar.harness import settle


def produce(topic: str, value: bytes, acks: int = 0) -> bytes:
    part = {"index": 0, "records": build_batch([(1, None, value, ())])}
    fields = {
        "transactional_id": None,
        "acks": acks,
        "timeout": 1000,
        "topic_data": [{"name": topic, "partition_data": [part]}],
    }
    return request("produce", 7, fields)


async def create(client: Client, topic: str) -> None:
    rows: list[dict[str, Any]] = [
        {"name": topic, "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
    ]
    await client.ask("create_topics", 2, {"topics": rows, "timeout": 1000, "validate_only": False})


async def stored(face: Face, topic: str) -> int:
    await settle(100)
    log = await face.broker.log(topic, 0)
    return log.high_watermark


def test_what_came_before_a_client_closed_is_stored() -> None:
    """The first batch waits for its topic to be loaded, and the others for it; meanwhile the client, which has sent
    all, goes.
    """

    async def run(face: Face) -> None:
        client = Client(face.listener)
        await create(client, "t")
        client.raw(b"".join(produce("t", b"%d" % number) for number in range(20)))
        client.protocol.connection_lost(None)
        assert await stored(face, "t") == 20 and not face.listener.connections

    with_face(run)


def test_what_waited_for_a_rate_when_its_client_closed_is_stored() -> None:
    async def run(face: Face) -> None:
        client = Client(face.listener)
        await create(client, "t")
        client.protocol.hold_reading(True, "a rate")
        client.raw(b"".join(produce("t", b"%d" % number) for number in range(20)))
        await settle(20)
        client.protocol.connection_lost(None)
        assert await stored(face, "t") == 20
        client.protocol.hold_reading(False, "a rate")

    with_face(run)


def test_of_a_connection_that_the_broker_closes_nothing_more_is_done() -> None:
    async def run(face: Face) -> None:
        client = Client(face.listener)
        await create(client, "t")
        client.raw(produce("t", b"x") + b"\0\0\0\x08nonsense" + produce("t", b"y"))
        assert await stored(face, "t") == 1 and client.protocol.closed

    with_face(run)


def test_a_batch_that_cannot_be_stored_closes_the_connection() -> None:
    async def run(face: Face) -> None:
        client = Client(face.listener)
        await create(client, "t")
        client.raw(produce("none", b"x"))
        await settle(100)
        assert client.protocol.closed and not client.answers()
        other = Client(face.listener)
        other.raw(produce("t", b"x") + produce("none", b"x", acks=1))
        await settle(100)
        assert not other.protocol.closed and len(other.answers()) == 1, "who is answered reads it there"
        assert await stored(face, "t") == 1

    with_face(run)
