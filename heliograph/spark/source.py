"""The batch data source: one or more topics of one region, as they were when the job was planned.

Is: planning byte-balanced tasks, and turning entries into Arrow batches. Isn't: streaming; a consumer (nothing is acknowledged).
Invariants: a retried task reads the same ranges; every message at or before the planned end appears once; a task's memory is bounded by its batch.
A partition is a bundle of (topic, ledger, first entry, last entry), never one topic: a thousand tiny topics would be a thousand tasks.
Options: admin_url (required), topic or topics (required; comma separated), task_bytes (default 64 MiB), tasks_min (default 2).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from heliograph.client.blocks import BlockReader, TopicSnapshot
from heliograph.model.errors import ConfigError
from heliograph.model.names import TopicName
from heliograph.spark.messages import messages_of

SCHEMA = (
    "topic string, key string, value binary, properties map<string,string>, publish_time timestamp, event_time timestamp, producer_name string, "
    "sequence_id bigint, origin_region string, coordinate struct<region:int,epoch:int,incarnation:string,ledger:bigint,entry:bigint,batch_index:int>, "
    "ledger bigint, entry bigint, batch_index int"
)
_ROWS = 8192
_BATCH_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class EntryRange:
    """Entries first to last, both included, of one ledger of one topic."""

    topic: str
    ledger: int
    first: int
    last: int
    size_bytes: int


class Bundle(InputPartition):
    """What one task reads."""

    def __init__(self, ranges: tuple[EntryRange, ...], snapshots: dict[str, TopicSnapshot]) -> None:
        super().__init__(None)
        self.ranges, self.snapshots = ranges, snapshots


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


class HeliographReader(DataSourceReader):
    """Planned once on the driver; `read` runs in a worker for each bundle."""

    def __init__(self, schema: StructType, options: dict[str, str]) -> None:
        self._schema = schema
        self._admin_url = options.get("admin_url", "")
        names = options.get("topics") or options.get("topic") or ""
        self._topics = [name.strip() for name in names.split(",") if name.strip()]
        if not self._admin_url or not self._topics:
            raise ConfigError("the heliograph source wants two options: admin_url (such as http://127.0.0.1:8080) and topic (or topics, comma separated)")
        self._task_bytes = int(options.get("task_bytes", 64 << 20))
        self._tasks_min = int(options.get("tasks_min", 2))
        if self._task_bytes < 1 or self._tasks_min < 1:
            raise ConfigError("task_bytes and tasks_min must be at least 1")

    def partitions(self) -> list[InputPartition]:
        reader = BlockReader(self._admin_url)
        ranges: list[EntryRange] = []
        snapshots: dict[str, TopicSnapshot] = {}
        for topic in self._topics:
            count = reader.partitions(topic)
            name = TopicName.parse(topic)
            for part in [str(name.with_partition(i)) for i in range(count)] or [str(name)]:
                snapshots[part] = snapshot = reader.snapshot(part)
                ranges += [EntryRange(part, ledger, 0, entries - 1, max(1, size)) for ledger, entries, size in snapshot.ledgers if entries]
        return [Bundle(b, {r.topic: snapshots[r.topic] for r in b}) for b in pack(ranges, self._task_bytes, self._tasks_min)] or [Bundle((), {})]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Bundle)
        reader = BlockReader(self._admin_url)
        schema = to_arrow_schema(self._schema, timezone="UTC")
        wanted = set(schema.names)
        rows: dict[str, list[Any]] = {name: [] for name in schema.names}
        pending = size = 0
        for part in partition.ranges:
            snapshot = partition.snapshots[part.topic]
            for ledger, first, run in reader.runs(part.topic, (part.ledger, part.first), (part.ledger, part.last)):
                for message in messages_of(part.topic, snapshot, ledger, first, run):
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


class HeliographDataSource(DataSource):
    """`format("heliograph")`."""

    @classmethod
    def name(cls) -> str:
        return "heliograph"

    def schema(self) -> str:
        return SCHEMA

    def reader(self, schema: StructType) -> HeliographReader:
        return HeliographReader(schema, dict(self.options))
