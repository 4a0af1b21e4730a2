"""Requests of a Kafka client about topics, by id where their version has them."""

from __future__ import annotations

from typing import Any

from heliograph.model.topic_names import TopicName
from heliograph.wire.kafka.record_batches import build_batch
from tests.region_node.faces.kafka.harness import Client

ORDERS = TopicName.parse("persistent://public/default/orders")


async def create(client: Client, *topics: str, partitions: int = 1) -> list[bytes]:
    wanted = [
        {"name": topic, "num_partitions": partitions, "replication_factor": 1, "assignments": [], "configs": []}
        for topic in topics
    ]
    made = await client.ask("create_topics", 7, {"topics": wanted, "timeout": 1000})
    assert all(row["error_code"] == 0 for row in made["topics"]), made
    return [row["topic_id"] for row in made["topics"]]


async def metadata(client: Client, *topics: dict[str, Any]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = (await client.ask("metadata", 13, {"topics": list(topics)}))["topics"]
    return rows


def produce(topic: bytes) -> dict[str, Any]:
    batch = build_batch([(1000, b"k", b"v", ())])
    return {
        "transactional_id": None,
        "acks": -1,
        "timeout": 1000,
        "topic_data": [{"topic_id": topic, "partition_data": [{"index": 0, "records": batch}]}],
    }


def fetch(*topics: bytes, session: int = 0, epoch: int = -1, how: str = "topic_id") -> dict[str, Any]:
    part = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}
    rows = [{how: topic, "partitions": [part]} for topic in topics]
    return {
        "max_wait": 0,
        "min_bytes": 0,
        "session_id": session,
        "session_epoch": epoch,
        "topics": rows,
        "forgotten_topics_data": [],
        "rack_id": "",
    }
