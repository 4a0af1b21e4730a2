"""The sink: rows become messages, each once, also where a task or a micro-batch runs again.

Is: the writers of `df.write` and `df.writeStream`, and how rows and columns become entries. Isn't: the protocol
(`heliograph.client.producer`).
Exactly once: the producer's name is the query and the partition, a message's sequence id is (micro-batch, row of the
partition in its topic); the topic's deduplication drops what it has. So a micro-batch that runs again must cut its rows
into the same partitions in the same order: Spark's own sources and this one's do, as long as their options stay the
same. One below a micro-batch that is stored is refused: it has that one's ids, and other rows. With a column
`coordinate` a row's place in its partition is by that (`portable`); behind a shuffle, whose blocks come from other
machines in any order, by what the row holds (`order`).
Invariants: `write` returns once every row is stored by a quorum; a poisoned row (no value, no topic) ends the task with
its place.
Options: docs/spark.md.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from array import array
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from urllib.parse import quote

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from heliograph.client.admin_http import Http
from heliograph.client.block_reader import BlockReader
from heliograph.client.broker_connections import Brokers
from heliograph.client.producer import Message, TopicProducer
from heliograph.model.errors import ConfigError, HeliographError, MetadataUnavailable, NotAllowed, NotFound
from heliograph.model.producer_names import EVERYWHERE
from heliograph.model.topic_names import TopicName
from heliograph.spark.portable import by_content, placed
from heliograph.spark.scan.source_options import KNOWN, RegionAccess
from heliograph.wire.pulsar import pulsar_pb2 as pb

_BYTES = 128 << 10
_PACED_ROWS = 100
"""In an entry of a sink with a rate, whatever the rate: a task that runs again under another one must cut the same
entries.
"""
_BATCH_ROWS_BITS = 36
"""Rows of one topic in one partition of one micro-batch; above stands the micro-batch's number."""
_BATCHES_BITS = 63 - _BATCH_ROWS_BITS
"""Micro-batches of one producer's name: half a year of the shortest triggers. A sequence id is a long of Java's."""
_COORDINATE = "struct<region:int,epoch:int,incarnation:string,ledger:bigint,entry:bigint,batch_index:int>"
_KINDS = {
    "value": ("binary", "string"),
    "topic": ("string",),
    "key": ("string", "binary"),
    "event_time": ("timestamp",),
    "properties": ("map<string,string>",),
}
_KINDS |= {"coordinate": (_COORDINATE,), "schema_version": ("bigint", "int")}
_DEDUPLICATED: set[tuple[str, str]] = set()
"""(admin URL, topic) that was seen to: workers are reused, and a column may name thousands of topics."""
_TOPICS_KNOWN = 1 << 16
_ASKERS = 8
"""Threads of a task that ask about topics it has not written to yet."""
_OWN = frozenset({"topic", "compression", "name", "order", "rate", "exactly_once"})
_OTHERS = frozenset(
    {
        "checkpointlocation",
        "queryname",
        "asyncprogresstrackingenabled",
        "asyncprogresstrackingcheckpointintervalms",
        "portable_tasks",
    }
)
"""What users say to Spark in the same place, and to job files for the source."""
_COMPRESSIONS = {"none": 0, "lz4": 1, "zlib": 2, "zstd": 3, "snappy": 4}


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSettings:
    """What a task gathers before it sends. A task that runs again must have the same, to cut the same entries."""

    rows: int = 1000
    """In an entry, at most; and so many rows without a key go to one partition before the next has its share."""
    pending_bytes: int = 64 << 20
    """A task gathers this much in all its entries: beyond that they go as they are."""

    def __post_init__(self) -> None:
        assert self.rows > 0 and self.pending_bytes > 0


_SETTINGS = TaskSettings()


class SinkOptions(RegionAccess):
    """What a user said, checked against the columns. Raises ConfigError with one sentence."""

    def __init__(self, given: dict[str, str], schema: StructType) -> None:
        super().__init__(given, "sink")
        unknown = sorted(
            set(map(str.lower, given)) - KNOWN - _OWN - _OTHERS
        )  # the source's: a job file has options of both in one table
        if unknown:
            access = {"admin_url", "service_url", "token", "token_file", "tls_ca", "tls_certificate", "tls_key"}
            raise ConfigError(
                f"the heliograph sink has no option {unknown[0]!r}; it has {', '.join(sorted(_OWN | access))}"
            )
        self.topic = given.get("topic", "")
        columns = {field.name: field.dataType.simpleString() for field in schema.fields}
        for name, kind in columns.items():
            if name not in _KINDS:
                raise ConfigError(
                    f"the sink does not know the column {name!r}: select value, and at will "
                    f"{', '.join(k for k in _KINDS if k != 'value')}"
                )
            if kind not in _KINDS[name]:
                raise ConfigError(f"the column {name} is {kind}; it must be {' or '.join(_KINDS[name])}: cast it")
        if "value" not in columns:
            raise ConfigError(
                "the sink wants a column value (binary or string): select to_json(struct(*)) as value, or the like"
            )
        if ("topic" in columns) == bool(self.topic):
            raise ConfigError("give either the option topic, or a column topic")
        if self.topic:
            self.topic = str(_kept(self.topic))
        self.portable = "coordinate" in columns
        self.name = given.get("name", "")
        compression = given.get("compression", "none").lower()
        if compression not in _COMPRESSIONS:
            raise ConfigError(f"compression is {compression!r}; it may be {', '.join(_COMPRESSIONS)}")
        self.compression = compression
        self.order = given.get("order", "").lower()
        if self.order not in ("", "arrival", "content"):
            raise ConfigError(
                f"order is {self.order!r}; it may be arrival, or, behind a groupBy, a join, or a repartition, content"
            )
        exactly_once = given.get("exactly_once", "true").lower()
        if exactly_once not in ("true", "false"):
            raise ConfigError(f"exactly_once is {exactly_once!r}; it is true or false")
        self.exactly_once = exactly_once == "true"
        try:
            self.rate = float(given.get("rate", "0"))
        except ValueError:
            self.rate = -1.0
        if not 0 <= self.rate <= 1e9:
            raise ConfigError(
                f"rate is {given['rate']!r}; it is how many rows a second a task may write at most, and 0 is as many "
                "as it can"
            )

    def check_deduplication(self) -> None:
        """Raises ConfigError where a repeated message would be stored twice. On the driver, once."""
        if not self.topic or not self.exactly_once:
            return  # of a column of topics nothing is known before the rows are: each task looks
        _DEDUPLICATED.discard((self.admin_url, self.topic))  # policies change
        http = self.http()
        try:
            self.check_topic(self.topic, http)
        finally:
            http.close()

    def http(self) -> Http:
        return Http(self.admin_url, token=self.current_token(), tls=self.tls())

    def check_topic(self, topic: str, http: Http) -> None:
        """The same of one topic, once a process."""
        if (self.admin_url, topic) in _DEDUPLICATED or not self.exactly_once:
            return
        if not deduplicates(http, topic):
            namespace = TopicName.parse(topic).namespace
            raise ConfigError(
                f"{topic} does not deduplicate, so a task that runs again would write its rows twice: run `heliograph "
                "namespaces set"
                f" {namespace} deduplication true`, or say exactly_once=false"
            )
        if len(_DEDUPLICATED) >= _TOPICS_KNOWN:
            _DEDUPLICATED.clear()
        _DEDUPLICATED.add((self.admin_url, topic))

    def places(self, topic: str, reader: BlockReader) -> list[str]:
        """The topic, or its partitions. Asked once a task."""
        name = TopicName.parse(topic)
        if name.partition >= 0:
            return [str(name)]
        try:
            count = reader.partitions(topic)
        except NotFound:  # it comes with its first message
            count = 0
        return [str(name.with_partition(number)) for number in range(count)] or [str(name)]

    @property
    def compress(self) -> tuple[Any, Callable[[bytes], bytes]] | None:
        if self.compression == "none":
            return None
        if self.compression == "zlib":
            import zlib

            return pb.ZLIB, zlib.compress
        codec = "lz4_raw" if self.compression == "lz4" else self.compression
        return _COMPRESSIONS[self.compression], lambda data: pa.compress(data, codec=codec, asbytes=True)


def _kept(topic: str) -> TopicName:
    """Returns the parsed name. Raises ConfigError for a topic that is not persistent."""
    try:
        name = TopicName.parse(topic)
    except NotAllowed as error:
        raise ConfigError(str(error)) from error
    if name.domain != "persistent":
        raise ConfigError(
            f"{topic} keeps nothing that is written to it, and is not deduplicated: name a persistent topic"
        )
    return name


def deduplicates(http: Http, topic: str) -> bool:
    """What holds for the topic: its own policy, its namespace's, the brokers'. Raises ConfigError where the role may
    not know, MetadataUnavailable.
    """
    name = TopicName.parse(topic)
    local = quote(name.partitioned.local, safe="")
    own = f"/admin/v2/persistent/{name.tenant}/{name.namespace_local}/{local}/deduplicationEnabled?applied=true"
    try:
        for path in (own, f"/admin/v2/namespaces/{name.namespace}/deduplication"):
            try:
                return bool(http.json("GET", path))
            except NotFound:  # the topic comes with its first message: then its namespace says it
                continue
        return False
    except MetadataUnavailable:
        raise
    except HeliographError as error:
        raise ConfigError(
            f"whether {topic} deduplicates cannot be known, so a task that runs again might write its rows twice: "
            f"{error}. Grant the role `produce` (at the"
            " namespace, where the topic is not there yet; brokers of an earlier version want a tenant's admin), or "
            "say exactly_once=false"
        ) from error


class Written(WriterCommitMessage):
    """What one task wrote. `skipped`: what an earlier attempt had stored already."""

    def __init__(self, rows: int, skipped: int) -> None:
        self.rows, self.skipped = rows, skipped


class HeliographWriter(DataSourceArrowWriter):
    """`df.write`. Without a `name` each job has its own, and only its tasks are repeated safely; with one, so is the
    job.
    """

    def __init__(self, options: dict[str, str], schema: StructType) -> None:
        self._options = SinkOptions(options, schema)
        self._options.check_deduplication()
        if self._options.name and not self._options.order:
            self._options.order = "content"  # it is meant to run again, and of a batch nobody waits for the first row
        self._name = self._options.name or f"spark-{uuid.uuid4().hex[:16]}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        return write_rows(self._options, self._name, 0, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Everything is stored by now."""

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """What was stored stays: a log takes nothing back."""


class HeliographStreamWriter(DataSourceStreamArrowWriter):
    """`df.writeStream`: the query's own id is in its producers' names, so they are the same after a restart from its
    checkpoint, and no other query's.

    A new checkpoint is a new query, whose micro-batches count from 0 again: under the old name all it writes would be
    taken for what is there.
    """

    def __init__(self, options: dict[str, str], schema: StructType) -> None:
        self._options = SinkOptions(options, schema)
        self._options.check_deduplication()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        task = TaskContext.get()
        query, batch = (
            task.getLocalProperty(name) if task is not None else None
            for name in ("sql.streaming.queryId", "streaming.sql.batchId")
        )
        if not query or not batch:
            raise ConfigError(
                "this task does not know its query and micro-batch: the sink of a stream runs by writeStream only"
            )
        return write_rows(self._options, f"{self._options.name or 'spark'}-{query}", int(batch), iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Everything is stored by now."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """What was stored stays; the micro-batch runs again under the same sequence ids."""


def write_rows(
    options: SinkOptions,
    name: str,
    batch: int,
    batches: Iterator[pa.RecordBatch],
    *,
    settings: TaskSettings = _SETTINGS,
) -> Written:
    """The rows of one partition."""
    task = TaskContext.get()
    batches = placed(batches) if options.portable else by_content(batches) if options.order == "content" else batches
    number, generation = task.partitionId() if task is not None else 0, batch >> _BATCHES_BITS
    first = (batch & (1 << _BATCHES_BITS) - 1) << _BATCH_ROWS_BITS
    producer = f"{EVERYWHERE}{name}-{number}" + (f"-turn-{generation}" if generation else "")
    return asyncio.run(_write(options, settings, producer, number, first, batches))


@lru_cache(1 << 16)
def key_hash(key: str) -> int:
    """As the Java client's, and Flink's, by which a key has its partition."""
    found = 0
    for unit in array("H", key.encode("utf-16-le", "surrogatepass")):
        found = (31 * found + unit) & 0xFFFFFFFF
    return found & 0x7FFFFFFF


class _Routes:
    """Where rows go whose topic has partitions: by key, or without one a thousand after another. The same rows go the
    same ways.
    """

    def __init__(self, options: SinkOptions, task: int, rows: int = _SETTINGS.rows) -> None:
        """rows: so many without a key go to one partition before the next has its share."""
        self._options, self._task, self._rows = options, task, rows
        self._places: dict[str, list[str]] = {}
        self._loose: dict[str, int] = {}
        self._suffixes: dict[str, str] = {}
        self._failed = False

    async def learn(self, topics: Iterable[str]) -> None:
        """Asks for the partitions of topics that are new, several at a time: thousands, one behind the other, would
        take the longer the more the region has to do.
        """
        new = [topic for topic in topics if topic not in self._places]
        askers = min(len(new), _ASKERS)
        await asyncio.gather(*(asyncio.to_thread(self._ask, new[number::askers]) for number in range(askers)))

    def _ask(self, topics: list[str]) -> None:
        """In a thread of its own."""
        http, reader = self._options.http(), self._options.reader()
        try:
            for topic in topics:
                if self._failed:
                    return
                _kept(topic)
                if not self._options.topic:
                    self._options.check_topic(topic, http)
                places = self._places[topic] = self._options.places(topic, reader)
                if len(places) > 1:
                    self._suffixes |= dict.fromkeys(places, f"-of-{len(places)}")
        except BaseException:
            self._failed = True
            raise
        finally:
            http.close()
            reader.close()

    def suffix(self, place: str) -> str:
        """Ends the producer's name: with other partitions rows go other ways, and under the same ids others would be
        taken for what is there.
        """
        return self._suffixes.get(place, "")

    def of(self, topic: str, key: str | None) -> str:
        places = self._places[topic]
        if len(places) == 1:
            return places[0]
        if key is not None:
            return places[key_hash(key) % len(places)]
        count = self._loose[topic] = self._loose.get(topic, -1) + 1
        return places[(self._task + count // self._rows) % len(places)]


async def _write(
    options: SinkOptions,
    settings: TaskSettings,
    name: str,
    task: int,
    first: int,
    batches: Iterator[pa.RecordBatch],
) -> Written:
    routes = _Routes(options, task, settings.rows)
    brokers = Brokers(options.admin_url, token=options.current_token, ssl=options.tls())
    producers: dict[str, TopicProducer] = {}
    pending: dict[str, _Entry] = {}
    counts: dict[str, int] = {}
    rows, sent, begun, held = 0, 0, 0.0, 0
    entry_rows = _PACED_ROWS if options.rate else settings.rows

    async def paced() -> None:
        """Until what was sent may have been."""
        if options.rate and (early := begun + sent / options.rate - time.monotonic()) > 0:
            await asyncio.sleep(early)

    async def send(topic: str) -> None:
        nonlocal begun, held, sent
        await paced()
        entry = pending.pop(topic)
        held -= entry.size_bytes
        producer = producers.get(topic)
        if producer is None:
            producer = producers[topic] = TopicProducer(
                brokers,
                topic,
                name + routes.suffix(topic),
                compress=options.compress,
                ids_end=first + (1 << _BATCH_ROWS_BITS),
            )
            if options.rate:
                await producer.ready()
        begun = begun or time.monotonic()  # what it took to find and open the first topic is no time to write in
        sent += len(entry.messages)
        counts[topic] = entry.first - first + len(entry.messages)
        await producer.send(entry.messages, entry.first, time.time_ns() // 1_000_000, entry.version)

    try:
        for columns in batches:
            named = (
                [options.topic]
                if options.topic
                else columns.column(columns.schema.get_field_index("topic")).unique().to_pylist()
            )
            await routes.learn(filter(None, named))
            for message, whole, version in _messages(columns, options.topic, rows):
                topic = routes.of(whole, message.key)
                entry = pending.get(topic)
                if entry is not None and (entry.version != version or len(message.value) > _BYTES):
                    await send(topic)
                    entry = None
                if entry is None:
                    entry = pending[topic] = _Entry(first + counts.get(topic, 0), version)
                entry.messages.append(message)
                entry.size_bytes += len(message.value)
                held += len(message.value)
                rows += 1
                if len(entry.messages) >= entry_rows or entry.size_bytes >= _BYTES:
                    await send(topic)
                elif held >= settings.pending_bytes:  # thousands of topics, of each a little
                    for each in list(pending):
                        await send(each)
        for topic in list(pending):
            await send(topic)
        await asyncio.gather(*(producer.flush() for producer in producers.values()))
        await paced()  # the next micro-batch begins with a burst of nothing
    finally:
        for producer in producers.values():
            producer.close()
        brokers.close()
    return Written(rows, sum(producer.skipped for producer in producers.values()))


class _Entry:
    __slots__ = ("first", "messages", "size_bytes", "version")

    def __init__(self, first: int, version: int | None) -> None:
        self.first, self.version, self.messages, self.size_bytes = first, version, list[Message](), 0


def _messages(columns: pa.RecordBatch, topic: str, rows: int) -> Iterator[tuple[Message, str, int | None]]:
    """Each with its topic, and the version of its schema there."""
    names = columns.schema.names
    lists: dict[str, list[Any]] = {
        name: columns.column(index).to_pylist() for index, name in enumerate(names) if name != "event_time"
    }
    if "event_time" in names:
        lists["event_time"] = (
            columns.column(names.index("event_time"))
            .cast(pa.timestamp("ms", "UTC"), safe=False)
            .cast(pa.int64())
            .to_pylist()
        )
    absent = [None] * columns.num_rows
    picked = [
        lists.get(name, absent) for name in ("value", "key", "properties", "event_time", "topic", "schema_version")
    ]
    for at, (value, key, properties, event_ms, own, version) in enumerate(zip(*picked, strict=True)):
        where = topic or own
        if value is None or not where:
            raise ConfigError(
                f"row {rows + at} of partition has no {'value' if value is None else 'topic'}: filter such rows, or "
                "give them one"
            )
        if version is not None and version < 0:
            raise ConfigError(
                f"row {rows + at} of partition has the schema version {version}: versions are 0 or more, and null is "
                "none"
            )
        key, coded = _text(key) if isinstance(key, bytes) else (key, False)
        yield (
            Message(value.encode() if isinstance(value, str) else value, key, properties or (), event_ms or 0, coded),
            where,
            version,
        )


def _text(key: bytes) -> tuple[str, bool]:
    """A key, and whether it is base64: what is no text goes as clients send it."""
    try:
        return key.decode(), False
    except UnicodeDecodeError:
        return b64encode(key).decode(), True
