"""Compaction by the same script, by the official client, against a real Apache Pulsar and against a standalone: the
answers are the same.

What differs on purpose is left out, and said in docs/protocols/pulsar.md: an empty message of its own (not in a batch,
without an uncompressed size) is a tombstone here only; `__compaction` is no subscription here; chunked messages stay
whole here.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pulsar
import pytest

from tests.system.side_by_side import PATIENCE_MS, Side, sides

__all__ = ["sides"]
pytestmark = [pytest.mark.system, pytest.mark.timeout(900)]

EARLIEST = pulsar.InitialPosition.Earliest
PATIENCE_S = 60.0


def compact(side: Side, topic: str) -> tuple[int, str]:
    """(status of the call, how it ended); returns once what is compacted is read."""
    path = f"/persistent/public/default/{topic}/compaction"
    begun, _ = side.rest("PUT", path)
    deadline = time.monotonic() + PATIENCE_S
    while (status := side.rest("GET", path)[1]["status"]) == "RUNNING":
        assert time.monotonic() < deadline, "it never ended"
        time.sleep(0.05)
    return begun, status


def read(side: Side, topic: str, start: Any = pulsar.MessageId.earliest, **options: Any) -> list[tuple[str, bytes]]:
    reader = side.client.create_reader(topic, start, **{"is_read_compacted": True, **options})
    out = []
    while reader.has_message_available():
        message = reader.read_next(PATIENCE_MS)
        out.append((message.partition_key(), message.data()))
    reader.close()
    return out


def read_until(side: Side, topic: str, count: int) -> list[tuple[str, bytes]]:
    """Pulsar shows what it has compacted a moment after it says so, and may refuse to name the last message till then.

    Raises pulsar.BrokerMetadataError where Heliograph does, and where Pulsar still does after a minute.
    """
    deadline = time.monotonic() + PATIENCE_S
    while True:
        late = time.monotonic() > deadline
        try:
            if len(found := read(side, topic)) == count or late:
                return found
        except pulsar.BrokerMetadataError:  # its compacted ledger is not readable yet
            if late or not side.peer:
                raise
        time.sleep(0.1)


def delete(side: Side, topic: str, *keys: str) -> None:
    producer = side.client.create_producer(topic, batching_enabled=True)
    for key in keys:
        producer.send(b"", partition_key=key)
    producer.close()


def keys_and_positions(side: Side) -> Any:
    producer = side.client.create_producer("compacted")
    ids = [producer.send(f"{key}{value}".encode(), partition_key=key) for value in range(4) for key in "abc"]
    producer.send(b"no key")
    delete(side, "compacted", "b")
    out: list[Any] = [
        side.rest("GET", "/persistent/public/default/compacted/compaction"),
        compact(side, "compacted"),
        read_until(side, "compacted", 2),
    ]
    out += [read(side, "compacted", pulsar.MessageId.latest), len(read(side, "compacted", is_read_compacted=False))]
    out += [
        read(side, "compacted", ids[3]),
        read(side, "compacted", ids[9]),
        read(side, "compacted", ids[9], start_message_id_inclusive=True),
    ]
    producer.send(b"a9", partition_key="a")
    out += [read(side, "compacted"), compact(side, "compacted"), read_until(side, "compacted", 2)]
    consumer = side.client.subscribe("compacted", "s", initial_position=EARLIEST, is_read_compacted=True)
    got = [consumer.receive(PATIENCE_MS) for _ in range(2)]
    out += [[m.data() for m in got], consumer.get_last_message_id().entry_id() == got[-1].message_id().entry_id()]
    consumer.seek(pulsar.MessageId.earliest)
    out.append(consumer.receive(PATIENCE_MS).data())
    consumer.seek(ids[9])
    out.append(consumer.receive(PATIENCE_MS).data())
    stats = side.rest("GET", "/persistent/public/default/compacted/stats")[1]["compaction"]
    internal = side.rest("GET", "/persistent/public/default/compacted/internalStats")[1]
    out += [
        sorted(stats),
        stats["lastCompactionRemovedEventCount"],
        internal["compactedLedger"]["entries"],
        sorted(internal["cursors"]),
    ]
    consumer.close()
    return out


def _batches(side: Side, kind: Any) -> Any:
    topic = f"compacted-{kind}".replace(".", "-")
    producer = side.client.create_producer(
        topic,
        compression_type=kind,
        batching_enabled=True,
        batching_max_messages=10,
        batching_max_publish_delay_ms=10_000,
    )
    for value in range(30):
        producer.send_async(f"v{value}".encode(), None, partition_key=f"k{value % 12}")
    producer.flush()
    delete(side, topic, "k3")
    out: list[Any] = [compact(side, topic), read_until(side, topic, 20)]
    consumer = side.client.subscribe(
        topic, "s", pulsar.ConsumerType.Failover, initial_position=EARLIEST, is_read_compacted=True
    )
    for _ in range(20):
        consumer.acknowledge(consumer.receive(PATIENCE_MS))
    deadline = time.monotonic() + PATIENCE_S
    while (
        backlog := side.rest("GET", f"/persistent/public/default/{topic}/stats")[1]["subscriptions"]["s"]["msgBacklog"]
    ) != 2:
        assert time.monotonic() < deadline, backlog
        time.sleep(0.1)
    consumer.close()
    return out


def batches(side: Side) -> Any:
    return _batches(side, pulsar.CompressionType.NONE)


def batches_of_lz4(side: Side) -> Any:
    return _batches(side, pulsar.CompressionType.LZ4)


def batches_of_zstd(side: Side) -> Any:
    return _batches(side, pulsar.CompressionType.ZSTD)


def batches_of_snappy(side: Side) -> Any:
    return _batches(side, pulsar.CompressionType.SNAPPY)


SCENARIOS = (keys_and_positions, batches, batches_of_lz4, batches_of_zstd, batches_of_snappy)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda s: s.__name__)
def test_the_answers_are_the_same(sides: tuple[Side, Side], scenario: Callable[[Side], Any]) -> None:
    ours, theirs = (scenario(side) for side in sides)
    assert ours == theirs
