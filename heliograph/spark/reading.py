"""What one task does: the entries of its bundle, as Arrow batches of the columns that were asked for.

Is: from blocks to record batches, in a worker. Isn't: planning, or positions.
Invariants: every message of the bundle once, in order within a topic; memory is a few batches, whatever the bundle's size.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from heliograph.spark.declared import Declared
from heliograph.spark.messages import Rows
from heliograph.spark.options import Options
from heliograph.spark.planning import Bundle
from heliograph.spark.registered import Registered

SCHEMA = (
    "topic string, key string, value binary, properties map<string,string>, publish_time timestamp, event_time timestamp, producer_name string, "
    "sequence_id bigint, origin_region string, coordinate struct<region:int,epoch:int,incarnation:string,ledger:bigint,entry:bigint,batch_index:int>, "
    "ledger bigint, entry bigint, batch_index int, partition int, schema_version bigint"
)
STORED = ("stored_time", "origin_time")
"""More columns, of who asks for them: when the region that is read stored the message, and when the region where it was first published did."""
OF_ENTRIES = ("replicate_to", "first_sequence_id", "sealed")
"""And: the regions that the producer named, with commas between; the sequence id of the entry's first message; `piece` or `encrypted` of such a payload."""
RAW = {part.split()[0] for part in SCHEMA.split(", ")} | {*STORED, *OF_ENTRIES}
_ROWS = 8192
_BATCH_BYTES = 8 << 20


def payload_columns(options: Options, columns: StructType) -> Declared | Registered | None:
    """None where only columns of the messages themselves are wanted, and none of their payloads. Raises ConfigError for what cannot be declared."""
    if options.columns == "raw" or (options.columns == "auto" and set(columns.fieldNames()) <= RAW):
        return None
    declared = Declared(to_arrow_schema(columns, timezone="UTC"), options.mode)
    return Registered(declared) if options.columns == "registered" else declared


def read_bundle(options: Options, columns: StructType, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """The rows of one task."""
    assert isinstance(partition, Bundle)
    gc.freeze()  # a worker is reused: each task would look at everything that was ever imported
    payload = payload_columns(options, columns)
    schema = to_arrow_schema(columns, timezone="UTC")
    reader = options.reader()
    if payload is None:
        wanted, keep_bad = frozenset(schema.names), options.keep_bad
        make: Callable[[Rows], pa.RecordBatch] = lambda rows: pa.RecordBatch.from_arrays([rows.column(f.name, f.type) for f in schema], schema=schema)  # noqa: E731
    else:
        if isinstance(payload, Registered):
            payload.learn(reader)
        wanted, keep_bad = frozenset(name[1:] for name in payload.about), options.mode == "PERMISSIVE"
        make = payload.of
    for rows in gathered(reader, partition, wanted, keep_bad=keep_bad, may_lose=options.gaps_allowed):
        yield make(rows)
    reader.close()


def gathered(reader: Any, bundle: Bundle, wanted: frozenset[str], *, keep_bad: bool, may_lose: bool) -> Iterator[Rows]:
    """Messages, about as many as make a good Arrow batch."""
    rows = Rows(wanted, keep_bad=keep_bad)
    parts = bundle.ranges
    sealed = [number for number, part in enumerate(parts) if part.ledger < bundle.snapshots[part.topic].last[0]]
    wanted_ranges = [(part.topic, part.ledger, part.first, part.last) for part in parts]
    for number, ledger, first, run in reader.runs(wanted_ranges, sealed=sealed, may_lose=may_lose):
        topic = parts[number].topic
        snapshot, kept = bundle.snapshots[topic], bundle.kept.get(topic)
        left = (first, run) if kept is None else kept.of(snapshot, ledger, first, run)
        if left is None:
            continue
        rows.add(topic, snapshot, ledger, *left)
        if len(rows) >= _ROWS or rows.size_bytes >= _BATCH_BYTES:
            yield rows
            rows = Rows(wanted, keep_bad=keep_bad)
    if len(rows):
        yield rows
