"""The data source: topics of one region, as they were when a job was planned, or as they grow.

Is: planning byte-balanced tasks, turning entries into Arrow batches, and the positions of a streaming query. Isn't: a consumer: nothing is acknowledged, but
a streaming query may have a subscription, which holds what it has not read.
Invariants: a retried task, and a micro-batch that is run again, read the same ranges; every message appears once; a task's memory is bounded by its batch.
A partition is a bundle of (topic, ledger, first entry, last entry), never one topic: a thousand tiny topics would be a thousand tasks.
Options: docs/spark.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from re import Pattern
from re import compile as compile_pattern
from re import error as PatternError
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from heliograph.client.blocks import BlockReader, TopicSnapshot
from heliograph.model.errors import ConfigError
from heliograph.model.names import TopicName
from heliograph.model.positions import Position
from heliograph.spark.declared import Declared
from heliograph.spark.messages import messages_of
from heliograph.spark.moves import ALL, Kept, advanced, first_unread, plan
from heliograph.spark.offsets import EntryRange, Place, Places, Positions, Watermarks, begin, between, decode, encode, end, limited
from heliograph.spark.sink import HeliographStreamWriter, HeliographWriter

SCHEMA = (
    "topic string, key string, value binary, properties map<string,string>, publish_time timestamp, event_time timestamp, producer_name string, "
    "sequence_id bigint, origin_region string, coordinate struct<region:int,epoch:int,incarnation:string,ledger:bigint,entry:bigint,batch_index:int>, "
    "ledger bigint, entry bigint, batch_index int"
)
RAW = {part.split()[0] for part in SCHEMA.split(", ")}
_ROWS = 8192
_BATCH_BYTES = 8 << 20


class Bundle(InputPartition):
    """What one task reads. kept: by topic, what of it is wanted; all of it where the topic is not named."""

    def __init__(self, ranges: tuple[EntryRange, ...], snapshots: dict[str, TopicSnapshot], kept: dict[str, Kept]) -> None:
        super().__init__(None)
        self.ranges, self.snapshots, self.kept = ranges, snapshots, kept


def pack(ranges: list[EntryRange], task_bytes: int, tasks_min: int) -> list[tuple[EntryRange, ...]]:
    """Splits and packs ranges into bundles of about equal size, at least `tasks_min` where there are enough entries."""
    total = sum(r.size_bytes for r in ranges)
    tasks = max(tasks_min, -(-total // task_bytes))
    limit = max(1, -(-total // tasks))
    bundles: list[tuple[EntryRange, ...]] = []
    current: list[EntryRange] = []
    room = limit
    for whole in ranges:
        first, left = whole.first, whole.size_bytes
        while first <= whole.last:
            count = whole.last - first + 1
            each = max(1, left // count)
            taken = min(count, max(1, room // each))
            size = left if taken == count else each * taken
            current.append(EntryRange(whole.topic, whole.ledger, first, first + taken - 1, size))
            first, left, room = first + taken, left - size, room - size
            if room <= 0:
                bundles.append(tuple(current))
                current, room = [], limit
    if current:
        bundles.append(tuple(current))
    return bundles


class Options:
    """What a user said, checked. Raises ConfigError with one sentence."""

    def __init__(self, given: dict[str, str]) -> None:
        self.admin_url, self.token = given.get("admin_url", ""), given.get("token", "")
        names = given.get("topics") or given.get("topic") or ""
        self.names = [name.strip() for name in names.split(",") if name.strip()]
        self.namespace, pattern = given.get("namespace", ""), given.get("topics_pattern", "")
        self.pattern: Pattern[str] | None = None
        if not self.admin_url or bool(self.names) == bool(self.namespace):
            raise ConfigError(
                "the heliograph source wants admin_url (such as http://127.0.0.1:8080) and either topic (or topics, comma separated)"
                " or namespace (tenant/name, with topics_pattern at will)"
            )
        try:
            self.pattern = compile_pattern(pattern) if pattern else None
        except PatternError as error:
            raise ConfigError(f"topics_pattern {pattern!r} is no regular expression: {error}") from error
        self.task_bytes, self.tasks_min = self._number(given, "task_bytes", 64 << 20), self._number(given, "tasks_min", 2)
        self.batch_bytes = self._number(given, "max_bytes_per_trigger", 256 << 20)
        self.starting = given.get("starting", "earliest")
        if self.starting not in ("earliest", "latest"):
            raise ConfigError(f"starting is {self.starting!r}; it may be earliest or latest")
        self.mode, self.columns = given.get("mode", "PERMISSIVE").upper(), given.get("columns", "auto")
        if self.columns not in ("auto", "raw", "json"):
            raise ConfigError(f"columns is {self.columns!r}; it may be auto, raw, or json")
        self.subscription = given.get("subscription", "")
        self.gaps_allowed = given.get("fail_on_data_loss", "true").lower() == "false"
        self.may_lose = bool(self.subscription) or self.gaps_allowed

    @staticmethod
    def _number(given: dict[str, str], name: str, default: int) -> int:
        text = given.get(name, str(default))
        if not text.isdecimal() or int(text) < 1:
            raise ConfigError(f"{name} is {text!r}; it is a whole number of at least 1")
        return int(text)

    def reader(self) -> BlockReader:
        return BlockReader(self.admin_url, self.token)

    def topics(self, reader: BlockReader) -> list[str]:
        """Full names, each partition by itself, as they are now."""
        if self.namespace:
            return [t for t in reader.topics(self.namespace) if self.pattern is None or self.pattern.fullmatch(TopicName.parse(t).partitioned.local)]
        found = []
        for topic in self.names:
            name = TopicName.parse(topic)
            found += [str(name.with_partition(i)) for i in range(reader.partitions(topic))] or [str(name)]
        return found

    def bundles(self, ranges: list[EntryRange], snapshots: dict[str, TopicSnapshot], kept: dict[str, Kept]) -> list[InputPartition]:
        packed = pack(ranges, self.task_bytes, self.tasks_min)
        made = [Bundle(b, {r.topic: snapshots[r.topic] for r in b}, {r.topic: kept[r.topic] for r in b if r.topic in kept}) for b in packed]
        return [*made] or [Bundle((), {}, {})]


def declared_of(options: Options, columns: StructType) -> Declared | None:
    """None where only columns of the messages themselves are wanted, and none of their payloads. Raises ConfigError for what cannot be declared."""
    if options.columns == "raw" or (options.columns == "auto" and set(columns.fieldNames()) <= RAW):
        return None
    return Declared(to_arrow_schema(columns, timezone="UTC"), options.mode)


def _messages(reader: BlockReader, bundle: Bundle, part: EntryRange) -> Iterator[dict[str, Any]]:
    snapshot, kept = bundle.snapshots[part.topic], bundle.kept.get(part.topic)
    for ledger, first, run in reader.runs(part.topic, (part.ledger, part.first), (part.ledger, part.last)):
        left = (first, run) if kept is None else kept.of(snapshot, ledger, first, run)
        if left is not None:
            yield from messages_of(part.topic, snapshot, ledger, *left)


def read_bundle(options: Options, columns: StructType, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """The rows of one task."""
    assert isinstance(partition, Bundle)
    declared = declared_of(options, columns)
    if declared is not None:
        yield from _read_declared(options, declared, partition)
        return
    reader = options.reader()
    schema = to_arrow_schema(columns, timezone="UTC")
    wanted = set(schema.names)
    rows: dict[str, list[Any]] = {name: [] for name in schema.names}
    pending = size = 0
    for part in partition.ranges:
        for message in _messages(reader, partition, part):
            for name, value in message.items():
                if name in wanted:
                    rows[name].append(value)
            pending += 1
            size += len(message["value"])
            if pending >= _ROWS or size >= _BATCH_BYTES:
                yield pa.RecordBatch.from_pydict(rows, schema=schema)
                rows, pending, size = {name: [] for name in schema.names}, 0, 0
    if pending:
        yield pa.RecordBatch.from_pydict(rows, schema=schema)


def _read_declared(options: Options, declared: Declared, partition: Bundle) -> Iterator[pa.RecordBatch]:
    reader = options.reader()
    payloads: list[bytes] = []
    places: list[str] = []
    about: dict[str, list[Any]] = {name: [] for name in declared.about}
    size = 0
    for part in partition.ranges:
        for message in _messages(reader, partition, part):
            payloads.append(message["value"])
            places.append(f"{part.topic} {message['ledger']}:{message['entry']}:{message['batch_index']}")
            for name, values in about.items():
                values.append(message[name[1:]])
            size += len(message["value"])
            if len(payloads) >= _ROWS or size >= _BATCH_BYTES:
                yield declared.batch(payloads, about, places)
                payloads, places, about, size = [], [], {name: [] for name in declared.about}, 0
    if payloads:
        yield declared.batch(payloads, about, places)


class HeliographReader(DataSourceReader):
    """Planned once on the driver; `read` runs in a worker for each bundle."""

    def __init__(self, schema: StructType, options: dict[str, str]) -> None:
        self._schema, self._options = schema, Options(options)
        declared_of(self._options, schema)

    def partitions(self) -> list[InputPartition]:
        reader = self._options.reader()
        snapshots = {topic: reader.snapshot(topic) for topic in self._options.topics(reader)}
        ranges = [r for snapshot in snapshots.values() for r in between(snapshot, begin(snapshot), end(snapshot), may_lose=True)]
        return self._options.bundles(ranges, snapshots, {})

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_bundle(self._options, self._schema, partition)


class HeliographStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Micro-batches over topics that grow, and topics that come; exactly once with Spark's checkpoint, in whatever region is asked."""

    def __init__(self, schema: StructType, options: dict[str, str]) -> None:
        self._schema, self._options = schema, Options(options)
        declared_of(self._options, schema)
        self._until: Positions | None = None
        self._held: Positions = {}
        self._region = ""
        """The one that is asked, since it was."""
        self._came: dict[str, tuple[Watermarks, Position]] = {}
        """By topic that stands in another region: its vector, and from where on that goes on here."""

    def initialOffset(self) -> dict[str, Any]:
        reader = self._options.reader()
        places: Places = {}
        for topic in self._options.topics(reader):
            snapshot = reader.snapshot(topic)
            places[topic] = self._first(reader, snapshot, begin(snapshot) if self._options.starting == "earliest" else end(snapshot))
        self._hold(reader, {topic: place.at for topic, place in places.items()})
        return encode(places)

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxBytes(self._options.batch_bytes)

    def prepareForTriggerAvailableNow(self) -> None:
        reader = self._options.reader()
        self._until = {topic: end(reader.snapshot(topic)) for topic in self._options.topics(reader)}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        places, reader = decode(start), self._options.reader()
        pending: dict[str, list[EntryRange]] = {}
        new: Positions = {}
        for topic in self._options.topics(reader) if self._until is None else self._until:
            snapshot = reader.snapshot(topic)
            region = self._region = snapshot.region
            stop = end(snapshot) if self._until is None else self._until[topic]
            place = places.get(topic)
            if place is None:  # it came while the query runs: all of it is new
                place = self._first(reader, snapshot, begin(snapshot))
                new[topic] = place.at
            elif place.vector is None:
                place = replace(place, region=region, vector=reader.vector(topic, _before(place.at)))
            places[topic] = place
            if place.region == region:
                pending[topic] = between(snapshot, place.at, stop, may_lose=self._options.may_lose)
            else:
                pending[topic] = between(snapshot, self._coming(reader, snapshot, place), stop, may_lose=True)
        self._hold(reader, new)
        most = limit.max_bytes if isinstance(limit, ReadMaxBytes) else self._options.batch_bytes
        if isinstance(limit, ReadAllAvailable):
            most = 1 << 62
        for topic, at in limited(pending, most).items():
            places[topic] = advanced(places[topic], self._region, at, reader.vector(topic, _before(at)))
        return encode(places)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        begins, stops, reader = decode(start), decode(end), self._options.reader()
        snapshots: dict[str, TopicSnapshot] = {}
        kept: dict[str, Kept] = {}
        ranges: list[EntryRange] = []
        for topic, stop in stops.items():
            if begins.get(topic) == stop:
                continue
            snapshots[topic] = snapshot = reader.snapshot(topic)
            lossy = self._options.gaps_allowed
            found, wanted = plan(reader, snapshot, begins.get(topic), stop, may_lose=self._options.may_lose, moved_may_lose=lossy)
            ranges += found
            if wanted != ALL:
                kept[topic] = wanted
        return self._options.bundles(ranges, snapshots, kept)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_bundle(self._options, self._schema, partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Spark says so one batch late, and may say so again."""
        reader = self._options.reader()
        ends = {topic: place.at for topic, place in decode(end).items() if place.region in ("", self._region)}
        self._hold(reader, {topic: at for topic, at in ends.items() if at > self._held.get(topic, (-1, -1))})

    def _first(self, reader: BlockReader, snapshot: TopicSnapshot, at: Position) -> Place:
        """The place of a topic that is read from `at` on. What lies before it is not wanted, also where another region still has it."""
        if at == begin(snapshot) and not snapshot.trimmed:
            return Place(snapshot.region, at, {})
        seen = reader.vector(snapshot.topic, _before(at))
        return Place(snapshot.region, at, seen, seen)

    def _coming(self, reader: BlockReader, snapshot: TopicSnapshot, place: Place) -> Position:
        """From where on a query goes on here that stands at `place` of another region; the subscription here holds that."""
        topic, read = snapshot.topic, place.vector or {}
        known = self._came.get(topic)
        if known is None or known[0] != read:
            first = first_unread(reader, snapshot, read, may_lose=self._options.gaps_allowed)
            known = self._came[topic] = read, first
            self._hold(reader, {topic: first})
        return known[1]

    def _hold(self, reader: BlockReader, positions: dict[str, Position]) -> None:
        """The subscription stands before what is not read yet."""
        for topic, at in positions.items() if self._options.subscription else ():
            reader.hold(topic, self._options.subscription, at)
            self._held[topic] = at


def _before(at: Position) -> Position:
    return at[0], at[1] - 1


class HeliographDataSource(DataSource):
    """`format("heliograph")`."""

    @classmethod
    def name(cls) -> str:
        return "heliograph"

    def schema(self) -> str:
        return SCHEMA

    def reader(self, schema: StructType) -> HeliographReader:
        return HeliographReader(schema, dict(self.options))

    def streamReader(self, schema: StructType) -> HeliographStreamReader:
        return HeliographStreamReader(schema, dict(self.options))

    def writer(self, schema: StructType, overwrite: bool) -> HeliographWriter:
        if overwrite:
            raise ConfigError("a topic is a log, and is not overwritten: use mode('append'), or truncate the topic first")
        return HeliographWriter(dict(self.options), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> HeliographStreamWriter:
        return HeliographStreamWriter(dict(self.options), schema)
