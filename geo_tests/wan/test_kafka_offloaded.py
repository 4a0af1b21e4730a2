"""A Kafka client reads what lies in the object store alone: the same offsets, the same bytes, and on into what came
since.
"""

from __future__ import annotations

from typing import Any

import pytest

from geo_tests.wan.instance import eventually
from geo_tests.wan.kafka_support import DEADLINE_S, ck, consumer, create, get, producer, rest, send, take
from tests.region_node.region_processes import Region

pytestmark = pytest.mark.wan
TOPIC = "public/cold/archive"
PATH = "/admin/v2/persistent/public/cold/archive-partition-0"


def test_ledgers_in_the_object_store_are_read_at_their_offsets(kafka_region: Region) -> None:
    region = kafka_region
    rest(region, "PUT", "/admin/v2/namespaces/public/cold")
    rest(region, "PUT", "/admin/v2/namespaces/public/cold/offloadDeletionLagMs", 0)
    create(region, TOPIC, **{"retention.ms": "-1"})
    values: list[bytes | None] = [None if i % 13 == 5 else b"%d " % i * (i % 40) for i in range(300)]
    made = producer(region, compression_type="zstd", linger_ms=20)
    for first in range(0, 300, 60):
        send(
            made,
            TOPIC,
            values[first : first + 60],
            key=b"k",
            headers=[("h", b"\xfe")],
            timestamp=1_700_000_000_000 + first,
        )
    rest(region, "PUT", f"{PATH}/offload?rollOver=true")
    found: dict[str, Any] = {}
    eventually(
        lambda: found.update(get(region, f"{PATH}/offload")) or found["status"] in ("SUCCESS", "ERROR"),
        "the offload has ended",
    )
    assert found["status"] == "SUCCESS", found

    def rid() -> bool:
        rows = get(region, f"{PATH}/internalStats")["ledgers"]
        return bool(rows) and not any(row["onBookies"] for row in rows if row["entries"])

    eventually(rid, "the bookies are rid of it")
    rest(region, "PUT", f"{PATH}/unload")  # its next owner has nothing in memory
    send(made, TOPIC, [b"new"], timestamp=1_700_000_001_000)

    reader = consumer(region, "archive-readers")
    part = ck.TopicPartition(TOPIC, 0)
    assert reader.get_watermark_offsets(part, timeout=DEADLINE_S) == (0, 301)
    reader.assign([ck.TopicPartition(TOPIC, 0, 0)])
    messages = take(reader, 301)
    assert [(message.offset(), message.value()) for message in messages] == [*enumerate(values), (300, b"new")]
    assert all(message.key() == b"k" and message.headers() == [("h", b"\xfe")] for message in messages[:300])
    reader.assign([ck.TopicPartition(TOPIC, 0, 77)])
    assert [message.offset() for message in take(reader, 3)] == [77, 78, 79]
    at = reader.offsets_for_times([ck.TopicPartition(TOPIC, 0, 1_700_000_000_000 + 120)], timeout=DEADLINE_S)
    assert at[0].offset == 120
    reader.close()
