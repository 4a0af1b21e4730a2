"""The sink's tasks against topics that remember the highest sequence id of each producer, as deduplication does: what is lost, and what is there twice."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from pyspark.sql.types import StructType

from heliograph.client.producer import Message
from heliograph.model.errors import ConfigError
from heliograph.spark import sink as sink_module
from heliograph.spark.sink import SinkOptions, write_rows

ADMIN = "http://none"


class Topics:
    """By topic what is stored; `left`: how many entries are stored before the next task dies."""

    def __init__(self) -> None:
        self.stored: dict[str, list[Message]] = {}
        self.highest: dict[tuple[str, str], int] = {}
        self.left = 1 << 30
        self.partitions = 0
        self.asked: list[str] = []

    def deduplicates(self, http: Any, topic: str) -> bool:
        self.asked.append(topic)
        return "plain" not in topic


class Producer:
    """`TopicProducer`, as far as the sink uses it."""

    topics: Topics

    def __init__(self, topic: str, name: str) -> None:
        self.topic, self.name, self.skipped = topic, name, 0

    @classmethod
    async def open(cls, admin_url: str, topic: str, name: str, **_: Any) -> Producer:
        return cls(topic, name)

    async def send(self, messages: Sequence[Message], first: int, publish_ms: int) -> None:
        topics, key = self.topics, (self.topic, self.name)
        if not topics.left:
            raise RuntimeError("the executor is gone")
        topics.left -= 1
        if first + len(messages) - 1 <= topics.highest.get(key, -1):
            self.skipped += len(messages)
            return
        topics.highest[key] = first + len(messages) - 1
        topics.stored.setdefault(self.topic, []).extend(messages)

    async def flush(self) -> None: ...

    def close(self) -> None: ...


@pytest.fixture
def topics(monkeypatch: pytest.MonkeyPatch) -> Iterator[Topics]:
    made = Topics()
    monkeypatch.setattr(Producer, "topics", made, raising=False)
    monkeypatch.setattr(sink_module, "TopicProducer", Producer)
    monkeypatch.setattr(sink_module, "deduplicates", made.deduplicates)
    monkeypatch.setattr(sink_module, "_DEDUPLICATED", set())

    def places(options: SinkOptions, topic: str) -> list[str]:
        return [f"{topic}-partition-{number}" for number in range(made.partitions)] or [topic]

    monkeypatch.setattr(SinkOptions, "places", places)
    yield made


def options(columns: str, **more: str) -> SinkOptions:
    schema = StructType()
    for each in columns.split(", "):
        name, kind = each.split(" ")
        schema = schema.add(name, kind)
    return SinkOptions({"admin_url": ADMIN, **more}, schema)


@pytest.mark.parametrize("seed", range(30))
def test_partitions_that_are_added_while_a_micro_batch_is_unfinished_cost_no_row(topics: Topics, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(seed)
    monkeypatch.setattr(sink_module, "_ROWS", 5)
    rows = pa.record_batch({"value": [str(n) for n in range(300)], "key": [rng.choice((None, f"k{rng.randrange(40)}")) for _ in range(300)]})
    given = options("value string, key string", topic="persistent://a/b/t")
    topics.partitions, topics.left = rng.randrange(2, 5), rng.randrange(1, 60)
    try:
        write_rows(given, "query", 3, iter([rows]))
    except RuntimeError:
        topics.partitions, topics.left = topics.partitions + rng.randrange(3), 1 << 30
        write_rows(given, "query", 3, iter([rows]))
    assert {message.value for messages in topics.stored.values() for message in messages} == {str(n).encode() for n in range(300)}


def test_a_task_that_runs_again_writes_nothing_twice(topics: Topics, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink_module, "_ROWS", 5)
    rows = pa.record_batch({"value": [str(n) for n in range(300)], "key": [f"k{n % 7}" for n in range(300)]})
    given = options("value string, key string", topic="persistent://a/b/t")
    topics.partitions, topics.left = 3, 20
    with pytest.raises(RuntimeError):
        write_rows(given, "query", 3, iter([rows]))
    topics.left = 1 << 30
    assert write_rows(given, "query", 3, iter([rows])).skipped == 20 * 5
    assert sorted(int(message.value) for messages in topics.stored.values() for message in messages) == list(range(300))


def test_each_topic_of_a_column_must_deduplicate(topics: Topics) -> None:
    columns = "value string, topic string"
    rows = pa.record_batch({"value": ["x"] * 4, "topic": [f"persistent://a/b/{name}" for name in ("one", "two", "one", "plain")]})
    with pytest.raises(ConfigError, match=r"a/b/plain does not deduplicate"):
        write_rows(options(columns), "query", 0, iter([rows]))
    write_rows(options(columns), "query", 0, iter([rows.slice(0, 3)]))
    assert topics.asked == [f"persistent://a/b/{name}" for name in ("one", "two", "plain")], "once a process, not once a task"
    write_rows(options(columns, exactly_once="false"), "query", 0, iter([rows]))
    assert len(topics.stored["persistent://a/b/plain"]) == 1


def test_a_key_of_bytes_is_a_key(topics: Topics) -> None:
    rows = pa.record_batch({"value": ["x", "y", "z"], "key": pa.array([b"text", b"\xff\x00", None], pa.binary())})
    write_rows(options("value string, key binary", topic="persistent://a/b/t"), "query", 0, iter([rows]))
    (messages,) = topics.stored.values()
    assert [(message.key, message.base64_key) for message in messages] == [("text", False), ("/wA=", True), (None, False)]
