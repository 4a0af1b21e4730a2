"""The sink's tasks against topics that remember the highest sequence id of each producer, as deduplication does: what
is lost, and what is there twice.
"""

from __future__ import annotations

import asyncio
import errno
import random
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from pyspark.sql.types import StructType

from heliograph.client.broker_connections import Brokers, Line
from heliograph.client.producer import Message, TopicProducer
from heliograph.client.pulsar_connection import ConnectionLost
from heliograph.model.errors import ConfigError, MetadataUnavailable, NotAllowed
from heliograph.spark import sink as sink_module
from heliograph.spark.columns.entry_columns import MessageRows
from heliograph.spark.columns.entry_columns import _body as body_of
from heliograph.spark.sink import SinkOptions, TaskSettings, write_rows
from heliograph.wire.pulsar.pulsar_pb2 import BaseCommand, ServerError
from tests.region_node.live import NAMESPACE, TOPICS, until
from tests.region_node.rest_client import Rest

ADMIN = "http://none"
FIVE_ROWS = TaskSettings(rows=5)


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

    def __init__(self, brokers: Any, topic: str, name: str, **_: Any) -> None:
        self.topic, self.name, self.skipped = topic, name, 0

    async def send(
        self, messages: Sequence[Message], first: int, publish_ms: int, schema_version: int | None = None
    ) -> None:
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

    def places(options: SinkOptions, topic: str, reader: Any) -> list[str]:
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
def test_partitions_that_are_added_while_a_micro_batch_is_unfinished_cost_no_row(topics: Topics, seed: int) -> None:
    rng = random.Random(seed)
    rows = pa.record_batch(
        {
            "value": [str(n) for n in range(300)],
            "key": [rng.choice((None, f"k{rng.randrange(40)}")) for _ in range(300)],
        }
    )
    given = options("value string, key string", topic="persistent://a/b/t")
    topics.partitions, topics.left = rng.randrange(2, 5), rng.randrange(1, 60)
    try:
        write_rows(given, "query", 3, iter([rows]), settings=FIVE_ROWS)
    except RuntimeError:
        topics.partitions, topics.left = topics.partitions + rng.randrange(3), 1 << 30
        write_rows(given, "query", 3, iter([rows]), settings=FIVE_ROWS)
    assert {message.value for messages in topics.stored.values() for message in messages} == {
        str(n).encode() for n in range(300)
    }


def test_a_task_that_runs_again_writes_nothing_twice(topics: Topics) -> None:
    rows = pa.record_batch({"value": [str(n) for n in range(300)], "key": [f"k{n % 7}" for n in range(300)]})
    given = options("value string, key string", topic="persistent://a/b/t")
    topics.partitions, topics.left = 3, 20
    with pytest.raises(RuntimeError):
        write_rows(given, "query", 3, iter([rows]), settings=FIVE_ROWS)
    topics.left = 1 << 30
    assert write_rows(given, "query", 3, iter([rows]), settings=FIVE_ROWS).skipped == 20 * 5
    assert sorted(int(message.value) for messages in topics.stored.values() for message in messages) == list(range(300))


def test_micro_batches_go_on_where_a_sequence_id_has_no_room_for_their_number(topics: Topics) -> None:
    given, first = options("value string", topic="persistent://a/b/t"), (1 << 27) - 1
    for batch in (first, first + 1, first + 2, first + 1):
        write_rows(
            given, "query", batch, iter([pa.record_batch({"value": [f"{batch - first}-{n}" for n in range(3)]})])
        )
    assert [message.value.decode() for message in topics.stored["persistent://a/b/t"]] == [
        f"{batch}-{n}" for batch in range(3) for n in range(3)
    ]
    assert max(topics.highest.values()) < 1 << 63


def test_each_topic_of_a_column_must_deduplicate(topics: Topics) -> None:
    columns, unseen = "value string, topic string", f"http://{uuid.uuid4().hex}"
    rows = pa.record_batch(
        {"value": ["x"] * 4, "topic": [f"persistent://a/b/{name}" for name in ("one", "two", "one", "plain")]}
    )
    with pytest.raises(ConfigError, match=r"a/b/plain does not deduplicate"):
        write_rows(options(columns, admin_url=unseen), "query", 0, iter([rows]))
    write_rows(options(columns, admin_url=unseen), "query", 0, iter([rows.slice(0, 3)]))
    assert sorted(topics.asked) == [f"persistent://a/b/{name}" for name in ("one", "plain", "two")], (
        "once a process, not once a task"
    )
    write_rows(options(columns, admin_url=unseen, exactly_once="false"), "query", 0, iter([rows]))
    assert len(topics.stored["persistent://a/b/plain"]) == 1


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"topic": "persistent://a/b/t", "compresion": "lz4"}, "no option 'compresion'"),
        ({"topic": "persistent://a/b/t", "exactly_once": "no"}, "it is true or false"),
        ({"topic": "non-persistent://a/b/t"}, "name a persistent topic"),
        ({"topic": "persistent://a"}, "persistent://a"),
    ],
)
def test_what_an_option_cannot_be_is_said(given: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        options("value string", **given)
    options("value string", topic="t", checkpointLocation="/x", queryName="q", starting="latest", Token="a")


def test_a_topic_that_keeps_nothing_is_refused_in_a_column_too(topics: Topics) -> None:
    rows = pa.record_batch({"value": ["x"], "topic": ["non-persistent://a/b/t"]})
    with pytest.raises(ConfigError, match="name a persistent topic"):
        write_rows(options("value string, topic string"), "query", 0, iter([rows]))


def test_what_a_task_gathers_for_many_topics_is_bounded(topics: Topics) -> None:
    rows = pa.record_batch({"value": ["x" * 100] * 200, "topic": [f"persistent://a/b/t{n % 40}" for n in range(200)]})
    given = options("value string, topic string")
    write_rows(given, "query", 0, iter([rows]), settings=TaskSettings(pending_bytes=5000))
    assert sum(map(len, topics.stored.values())) == 200
    assert [count for _, count in topics.entries] == ([2] * 10 + [1] * 30) * 4, "fifty rows each time"


def test_a_key_of_bytes_is_a_key(topics: Topics) -> None:
    rows = pa.record_batch({"value": ["x", "y", "z"], "key": pa.array([b"text", b"\xff\x00", None], pa.binary())})
    write_rows(options("value string, key binary", topic="persistent://a/b/t"), "query", 0, iter([rows]))
    (messages,) = topics.stored.values()
    assert [(message.key, message.base64_key) for message in messages] == [
        ("text", False),
        ("/wA=", True),
        (None, False),
    ]


def test_an_entry_has_messages_of_one_schema_version(topics: Topics) -> None:
    settings = TaskSettings(rows=3)
    versions = [None, 0, 0, 0, 0, 1 << 41, None, None, 0]
    rows = pa.record_batch({"value": [str(n) for n in range(9)], "schema_version": pa.array(versions, pa.int64())})
    given = options("value string, schema_version long", topic="persistent://a/b/t")
    topics.left = 4
    with pytest.raises(RuntimeError):
        write_rows(given, "query", 0, iter([rows]), settings=settings)
    topics.left = 1 << 30
    assert write_rows(given, "query", 0, iter([rows]), settings=settings).skipped == 6
    assert topics.entries == [(None, 1), (0, 3), (0, 1), (1 << 41, 1), (None, 2), (0, 1)]
    assert [message.value for message in topics.stored["persistent://a/b/t"]] == [b"%d" % n for n in range(9)]
    with pytest.raises(ConfigError, match=r"row 1 of partition has the schema version -1"):
        write_rows(
            given,
            "query",
            1,
            iter([pa.record_batch({"value": ["x", "y"], "schema_version": pa.array([0, -1], pa.int64())})]),
        )


class Broker:
    """What a producer sends, and a broker answers: it stores entries of up to `bytes_max`, and nothing behind one that
    it refuses if the producer says so.
    """

    def __init__(self) -> None:
        self.brokers, self.closed, self.message_bytes_max, self.bytes_max = Brokers(ADMIN), None, 5_000_000, 1 << 30
        self.stored: dict[str, int] = {}
        self.messages: list[tuple[int, bytes]] = []
        self.taking: dict[int, str] = {}
        self.on_command: Any = None
        self.on_closed: Any = None
        self.made: list[str] = []
        self.in_order = True

    async def producer(self, number: int, topic: str, name: str, metadata: dict[str, str]) -> int:
        self.made.append(topic)
        self.taking[number] = topic
        return self.stored.get(topic, -1)

    def close_producer(self, number: int) -> None:
        asyncio.get_running_loop().call_soon(self.taking.pop, number, None)

    def close(self) -> None: ...

    def write(self, frames: Sequence[bytes]) -> None:
        for frame in frames:
            asyncio.get_running_loop().call_soon(self._take, frame)

    def _take(self, frame: bytes) -> None:
        size = int.from_bytes(frame[4:8], "big")
        command = BaseCommand.FromString(frame[8 : 8 + size]).send
        topic = self.taking.get(command.producer_id)
        if topic is None:
            return
        answer = BaseCommand(type=BaseCommand.SEND_RECEIPT)
        if len(frame) > self.bytes_max:
            if self.in_order:
                del self.taking[command.producer_id]
            answer = BaseCommand(type=BaseCommand.SEND_ERROR)
            answer.send_error.producer_id, answer.send_error.sequence_id = command.producer_id, command.sequence_id
            answer.send_error.error, answer.send_error.message = (
                ServerError.Value("NotAllowedError"),
                "too large for the topic",
            )
        else:
            self.stored[topic] = command.highest_sequence_id
            answer.send_receipt.producer_id, answer.send_receipt.sequence_id = command.producer_id, command.sequence_id
            answer.send_receipt.highest_sequence_id = command.highest_sequence_id
            self.messages += messages_of(frame[8 + size :], command.sequence_id)
        self.on_command(answer)


def messages_of(entry: bytes, first: int) -> list[tuple[int, bytes]]:
    rows = MessageRows(frozenset(), keep_bad=False)
    metadata, payload = body_of(memoryview(entry))
    rows._messages(metadata, payload)
    return [(first + number, bytes(value or b"")) for number, value in enumerate(rows.values)]


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Broker:
    made, lines = Broker(), list[Any]()

    async def line(brokers: Brokers, topic: str) -> Any:
        if not lines:
            lines.append(Line(made))  # type: ignore[arg-type]
        return lines[0]

    monkeypatch.setattr(Brokers, "line", line)
    return made


def test_what_was_stored_in_other_entries_is_not_sent_again(broker: Broker) -> None:
    """A producer whose broker has a part of an entry that is cut otherwise now."""
    broker.stored["persistent://a/b/t"] = 5

    async def write() -> TopicProducer:
        producer = TopicProducer(broker.brokers, "persistent://a/b/t", "query-0")
        for first in (0, 4, 8):
            await producer.send([Message(b"%d" % (first + n)) for n in range(4)], first, 1, 7)
        await producer.flush()
        producer.close()
        return producer

    producer = asyncio.run(write())
    assert broker.messages == [(n, b"%d" % n) for n in range(6, 12)] and producer.skipped == 6


def test_rows_of_a_micro_batch_below_one_that_is_stored_are_not_taken_for_what_is_there(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint that was restored from a backup counts on from an old number: its rows are others."""
    topic = "persistent://a/b/t"
    monkeypatch.setattr(sink_module, "deduplicates", lambda http, topic: True)
    monkeypatch.setattr(SinkOptions, "places", lambda self, topic, reader: [topic])
    given = options("value string", topic=topic)

    def write(batch: int) -> int:
        return write_rows(given, "query", batch, iter([pa.record_batch({"value": ["x", "y", "z"]})])).skipped

    assert [write(batch) for batch in (10, 20, 20)] == [0, 0, 3]
    for batch in (11, 19):
        with pytest.raises(NotAllowed, match=f"the checkpoint is older than {topic}"):
            write(batch)
    assert write(21) == 0 and [each >> 36 for each, _ in broker.messages] == [10] * 3 + [20] * 3 + [21] * 3


@pytest.mark.parametrize("later", [False, True])
def test_what_a_topic_refuses_is_sent_in_smaller_entries_and_hides_nothing(broker: Broker, later: bool) -> None:
    """The last entry is small enough, and on its way behind those that are not."""
    broker.bytes_max = 3000
    sizes = [1000] * 12 + [10] * 4

    async def write() -> TopicProducer:
        producer = TopicProducer(broker.brokers, "persistent://a/b/t", "query-0")
        if later:
            await producer.send([Message(b"x")], 0, 1)
            await producer.flush()
        for first in range(0, 16, 4):
            await producer.send(
                [Message(b"%04d" % (first + n) + b"-" * sizes[first + n]) for n in range(4)], 1 + first, 1
            )
        await producer.flush()
        producer.close()
        return producer

    producer = asyncio.run(write())
    assert [number for number, _ in broker.messages if number] == list(range(1, 17)) and producer.skipped == 0
    assert [int(value[:4]) for number, value in broker.messages if number] == list(range(16))
    assert broker.brokers.waiting_bytes == 0


def test_a_message_that_a_topic_does_not_take_is_said_each_time(broker: Broker) -> None:
    broker.bytes_max = 3000

    async def write() -> None:
        producer = TopicProducer(broker.brokers, "persistent://a/b/t", "query-0")
        try:
            for first in range(0, 9, 3):
                await producer.send([Message(b"x" * (5000 if first + n == 4 else 10)) for n in range(3)], first, 1)
            await producer.flush()
        finally:
            producer.close()

    for _ in range(2):
        with pytest.raises(NotAllowed, match="too large for the topic"):
            asyncio.run(write())
    assert [number for number, _ in broker.messages] == [0, 1, 2, 3], "and what is behind it waits for it"


def test_a_broker_that_stores_what_is_behind_a_refused_message_ends_the_task(broker: Broker) -> None:
    broker.bytes_max, broker.in_order = 3000, False

    async def write() -> None:
        producer = TopicProducer(broker.brokers, "persistent://a/b/t", "query-0")
        try:
            await producer.send([Message(b"x" * 1000) for _ in range(4)], 0, 1)
            await producer.send([Message(b"y")], 4, 1)
            await producer.flush()
        finally:
            producer.close()

    with pytest.raises(NotAllowed, match="upgrade brokers before Spark"):
        asyncio.run(write())


def test_producers_of_many_topics_share_a_connection(broker: Broker) -> None:
    async def write() -> None:
        producers = [TopicProducer(broker.brokers, f"persistent://a/b/t{number}", "query-0") for number in range(200)]
        for producer in producers:
            await producer.send([Message(producer.topic.encode())], 0, 1)
        await asyncio.gather(*(producer.flush() for producer in producers))
        for producer in producers:
            producer.close()

    asyncio.run(write())
    assert (
        sorted(value.decode() for _, value in broker.messages) == sorted(broker.made) and len(set(broker.made)) == 200
    )


@pytest.mark.parametrize(
    ("message", "says"),
    [
        (Message(b"x" * 20_000), "a message of 20,000 bytes; its brokers take 5,000 at most"),
        (Message(b"x", properties=[("k", None)]), "a property without a value"),  # type: ignore[list-item]
        (Message(b"x", event_ms=-1), "an event time before 1970"),
    ],
)
def test_what_no_broker_takes_is_said_and_not_tried_again(broker: Broker, message: Message, says: str) -> None:
    broker.message_bytes_max = 5000

    async def write() -> None:
        producer = TopicProducer(broker.brokers, "persistent://a/b/t", "query-0")
        try:
            await producer.send([Message(b"first"), message], 0, 1)
            await producer.flush()
        finally:
            producer.close()

    with pytest.raises(NotAllowed, match=says):
        asyncio.run(write())


def test_connections_that_end_before_anything_is_stored_come_to_an_end(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ends(frames: Sequence[bytes]) -> None:
        asyncio.get_running_loop().call_soon(broker.on_closed, ConnectionLost("gone"))

    async def write() -> None:
        producer = TopicProducer(broker.brokers, "persistent://a/b/t", "query-0", patience_s=-1)
        try:
            await producer.send([Message(b"x")], 0, 1)
            await producer.flush()
        finally:
            producer.close()

    monkeypatch.setattr(broker, "write", ends)
    with pytest.raises(ConnectionLost, match=r"brokers have ended each connection|no answer"):
        asyncio.run(write())
    assert len(broker.made) <= 2


def test_a_process_that_may_open_no_more_files_says_so_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def owner(*_: Any) -> None:
        try:
            raise OSError(errno.EMFILE, "Too many open files")
        except OSError as error:
            raise MetadataUnavailable("http://none does not answer") from error

    async def write() -> None:
        producer = TopicProducer(Brokers(ADMIN), "persistent://a/b/t", "query-0")
        await producer.send([Message(b"x")], 0, 1)
        await producer.flush()

    monkeypatch.setattr(Brokers, "_owner", owner)
    with pytest.raises(NotAllowed, match="ulimit -n"):
        asyncio.run(write())


def test_small_rows_are_stored_where_a_topic_refuses_their_batch(region: Any, rest: Rest) -> None:
    """Of a real one: the last batch is small enough, and on its way behind those that are refused."""
    assert rest("POST", f"{NAMESPACE}/deduplication", True)[0] == 204
    topic = f"sink-{uuid.uuid4().hex[:8]}"
    assert rest("PUT", f"{TOPICS}/{topic}")[0] == 204
    assert rest("POST", f"{TOPICS}/{topic}/maxMessageSize", 110_000)[0] == 204
    until(lambda: rest("GET", f"{TOPICS}/{topic}/maxMessageSize?applied=true")[1] == 110_000)
    given = SinkOptions(
        {"admin_url": region.admin_url(), "topic": f"persistent://public/default/{topic}"},
        StructType().add("value", "string"),
    )
    rows = pa.record_batch({"value": [f"{n:06}" + "-" * 994 for n in range(500)]})
    assert [write_rows(given, "query", 0, iter([rows])).skipped for _ in range(2)] == [0, 500]
    until(lambda: rest("GET", f"{TOPICS}/{topic}/stats")[1]["msgInCounter"] == 500)


def test_a_topic_is_asked_for_its_own_policy_whatever_it_is_called() -> None:
    asked: list[str] = []

    class Asked:
        def json(self, method: str, path: str) -> bool:
            asked.append(path)
            return True

    http: Any = Asked()
    assert sink_module.deduplicates(http, "persistent://a/b/c?d#e/f%g-partition-3")
    assert asked == ["/admin/v2/persistent/a/b/c%3Fd%23e%2Ff%25g/deduplicationEnabled?applied=true"]
