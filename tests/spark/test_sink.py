"""The sink's tasks against topics that remember the highest sequence id of each producer, as deduplication does: what is lost, and what is there twice."""

from __future__ import annotations

import asyncio
import errno
import random
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from pyspark.sql.types import StructType

from heliograph.client.producer import Message, TopicProducer
from heliograph.client.pulsar import ConnectionLost
from heliograph.model.errors import ConfigError, MetadataUnavailable, NotAllowed
from heliograph.spark import sink as sink_module
from heliograph.spark.sink import SinkOptions, write_rows

ADMIN = "http://none"


class Topics:
    """By topic what is stored; `left`: how many entries are stored before the next task dies."""

    def __init__(self) -> None:
        self.stored: dict[str, list[Message]] = {}
        self.entries: list[tuple[int | None, int]] = []
        """(schema version, messages) of each."""
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

    async def send(self, messages: Sequence[Message], first: int, publish_ms: int, schema_version: int | None = None) -> None:
        topics, key = self.topics, (self.topic, self.name)
        if not topics.left:
            raise RuntimeError("the executor is gone")
        topics.left -= 1
        if first + len(messages) - 1 <= topics.highest.get(key, -1):
            self.skipped += len(messages)
            return
        topics.highest[key] = first + len(messages) - 1
        topics.stored.setdefault(self.topic, []).extend(messages)
        topics.entries.append((schema_version, len(messages)))

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


def test_micro_batches_go_on_where_a_sequence_id_has_no_room_for_their_number(topics: Topics) -> None:
    given, first = options("value string", topic="persistent://a/b/t"), (1 << 27) - 1
    for batch in (first, first + 1, first + 2, first + 1):
        write_rows(given, "query", batch, iter([pa.record_batch({"value": [f"{batch - first}-{n}" for n in range(3)]})]))
    assert [message.value.decode() for message in topics.stored["persistent://a/b/t"]] == [f"{batch}-{n}" for batch in range(3) for n in range(3)]
    assert max(topics.highest.values()) < 1 << 63


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


def test_an_entry_has_messages_of_one_schema_version(topics: Topics, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink_module, "_ROWS", 3)
    versions = [None, 0, 0, 0, 0, 1 << 41, None, None, 0]
    rows = pa.record_batch({"value": [str(n) for n in range(9)], "schema_version": pa.array(versions, pa.int64())})
    given = options("value string, schema_version long", topic="persistent://a/b/t")
    topics.left = 4
    with pytest.raises(RuntimeError):
        write_rows(given, "query", 0, iter([rows]))
    topics.left = 1 << 30
    assert write_rows(given, "query", 0, iter([rows])).skipped == 6
    assert topics.entries == [(None, 1), (0, 3), (0, 1), (1 << 41, 1), (None, 2), (0, 1)]
    assert [message.value for message in topics.stored["persistent://a/b/t"]] == [b"%d" % n for n in range(9)]
    with pytest.raises(ConfigError, match=r"row 1 of partition has the schema version -1"):
        write_rows(given, "query", 1, iter([pa.record_batch({"value": ["x", "y"], "schema_version": pa.array([0, -1], pa.int64())})]))


def test_what_was_stored_in_other_entries_is_not_sent_again() -> None:
    """A producer whose broker has a part of an entry that is cut otherwise now."""
    producer = TopicProducer(ADMIN, "persistent://a/b/t", "query-0", token="", ssl=None, patience_s=1, compress=None)
    producer._stored = 5
    sent: list[tuple[list[bytes], int, int | None]] = []

    def frame(messages: Sequence[Message], first: int, publish_ms: int, schema_version: int | None) -> bytes:
        sent.append(([message.value for message in messages], first, schema_version))
        return b""

    producer._frame = frame  # type: ignore[method-assign]

    async def write() -> None:
        for first in (0, 4, 8):
            await producer.send([Message(b"%d" % (first + n)) for n in range(4)], first, 1, 7)

    asyncio.run(write())
    producer.close()
    assert sent == [([b"6", b"7"], 6, 7), ([b"8", b"9", b"10", b"11"], 8, 7)] and producer.skipped == 6


@pytest.mark.parametrize(
    ("message", "says"),
    [
        (Message(b"x" * 20_000), "a message of 20,000 bytes; its brokers take 5,000 at most"),
        (Message(b"x", properties=[("k", None)]), "a property without a value"),  # type: ignore[list-item]
        (Message(b"x", event_ms=-1), "an event time before 1970"),
    ],
)
def test_what_no_broker_takes_is_said_and_not_tried_again(message: Message, says: str) -> None:
    producer = TopicProducer(ADMIN, "persistent://a/b/t", "query-0", token="", ssl=None, patience_s=1, compress=None)
    producer._bytes_max = 5000
    with pytest.raises(NotAllowed, match=says):
        asyncio.run(producer.send([Message(b"first"), message], 0, 1))
    producer.close()


def test_connections_that_end_before_anything_is_stored_come_to_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    producer = TopicProducer(ADMIN, "persistent://a/b/t", "query-0", token="", ssl=None, patience_s=-1, compress=None)
    made: list[int] = []

    async def connect() -> None:
        made.append(len(made))

    async def write() -> None:
        await producer.send([Message(b"x")], 0, 1)
        await producer.flush()

    monkeypatch.setattr(producer, "_connect", connect)
    with pytest.raises(ConnectionLost, match="brokers have ended each connection"):
        asyncio.run(write())
    assert made == [0]
    producer.close()


def test_a_process_that_may_open_no_more_files_says_so_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def owner(_: TopicProducer) -> None:
        try:
            raise OSError(errno.EMFILE, "Too many open files")
        except OSError as error:
            raise MetadataUnavailable("http://none does not answer") from error

    monkeypatch.setattr(TopicProducer, "_owner", owner)
    with pytest.raises(NotAllowed, match="ulimit -n"):
        asyncio.run(TopicProducer.open(ADMIN, "persistent://a/b/t", "query-0"))
