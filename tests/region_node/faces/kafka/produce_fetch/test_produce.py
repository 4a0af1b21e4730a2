"""Batches with acks=0: nobody tells their producer anything, so what came whole is stored, and what cannot be stored
closes the connection.
"""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Callable
from typing import Any

import pytest

from heliograph.wire.kafka.record_batches import EXPANDED_BYTES_MAX, build_batch, old_message_set, sealed
from region_node.faces.kafka.error_codes import Code
from region_node.faces.kafka.produce_fetch import produce as produced_by
from region_node.faces.kafka.produce_fetch.produce import PARTS_AT_ONCE
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
        assert await stored(face, "t") == 20 and not face.listener.opened.all

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


def old_set(records: int, each: bytes = b"v") -> bytes:
    """A compressed message set of format v0."""
    inner = old_message_set([(n, (0, None, each, ())) for n in range(records)], 0, 0)
    value = gzip.compress(inner, 9)
    body = struct.pack(">bb", 0, 1) + b"\xff" * 4 + struct.pack(">i", len(value)) + value
    return struct.pack(">qiI", 0, len(body) + 4, zlib.crc32(body)) + body


def produced(topic: str, records: bytes) -> dict[str, Any]:
    rows = [{"name": topic, "partition_data": [{"index": 0, "records": records}]}]
    return {"transactional_id": None, "acks": -1, "timeout": 1000, "topic_data": rows}


def test_a_small_old_set_that_is_very_large_inside_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    async def at_once(work: Callable[[], Any], **_: Any) -> Any:
        return work()

    async def run(face: Face) -> None:
        client = Client(face.listener)
        monkeypatch.setattr(face.broker.converting, "run", at_once)
        await create(client, "t")
        for sent, code in (
            (old_set(4, bytes(EXPANDED_BYTES_MAX // 4)), Code.CORRUPT_MESSAGE),
            (old_set(1000), Code.NONE),
        ):
            answer = await client.ask("produce", 2, produced("t", sent))
            assert answer["responses"][0]["partition_responses"][0]["error_code"] == code
        assert await stored(face, "t") == 1000

    with_face(run)


def test_new_requests_take_the_new_format_alone() -> None:
    """As in Kafka: who can send the new request can send the new format."""

    async def run(face: Face) -> None:
        client = Client(face.listener)
        await create(client, "t")
        answer = await client.ask("produce", 7, produced("t", old_set(3)))
        assert answer["responses"][0]["partition_responses"][0]["error_code"] == Code.INVALID_RECORD

    with_face(run)


def test_a_batch_that_is_not_compressed_as_it_says_is_refused() -> None:
    async def run(face: Face) -> None:
        client = Client(face.listener)
        await create(client, "t")
        for codec in (1, 3, 4):
            answer = await client.ask("produce", 7, produced("t", sealed(b"no such thing", codec, 0, 1, 1, 1)))
            assert answer["responses"][0]["partition_responses"][0]["error_code"] == Code.CORRUPT_MESSAGE
        count = (1 << 18) + 1
        many = sealed(zlib.compress(b"", wbits=31), 1, count - 1, 1, 1, count)
        answer = await client.ask("produce", 7, produced("t", many))
        assert answer["responses"][0]["partition_responses"][0]["error_code"] == Code.MESSAGE_TOO_LARGE

    with_face(run)


def test_very_many_partitions_are_refused_with_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request of 1 MB can name 131,072 of them without records."""
    pauses: list[int] = []
    publish = produced_by.ProduceRequest.publish

    def counted(of: Any, logs: Any) -> Any:
        pauses.append(sum(1 for _ in publish(of, logs)))
        return iter(())

    async def run(face: Face) -> None:
        client = Client(face.listener)
        await create(client, "t")
        for count, wanted in ((5 * PARTS_AT_ONCE // 2, 2), (PARTS_AT_ONCE, 1), (PARTS_AT_ONCE - 1, 0)):
            parts = [{"index": index, "records": None} for index in range(count)]
            fields = produced("t", b"") | {"topic_data": [{"name": "t", "partition_data": parts}]}
            answer = await client.ask("produce", 7, fields)
            codes = [row["error_code"] for row in answer["responses"][0]["partition_responses"]]
            assert len(codes) == count and codes[0] == Code.INVALID_RECORD
            assert pauses.pop() == wanted and not face.broker.budget.used

    monkeypatch.setattr(produced_by.ProduceRequest, "publish", counted)
    with_face(run)
