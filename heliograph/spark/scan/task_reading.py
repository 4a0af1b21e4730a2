"""What one task does: the entries of its bundle, as Arrow batches of the columns that were asked for.

Is: from blocks to record batches, in a worker. Isn't: planning, or positions.
Invariants: every message of the bundle once, in order within a topic; memory is a few batches, whatever the bundle's
size.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import ArrayType, DataType, MapType, StructField, StructType, VariantType

from heliograph.model.errors import ConfigError
from heliograph.spark.columns.declared_columns import Declared, check_nullable
from heliograph.spark.columns.entry_columns import MessageRows
from heliograph.spark.columns.registered_columns import Registered
from heliograph.spark.scan.source_options import Options
from heliograph.spark.scan.task_planning import Bundle

SCHEMA = (
    "topic string, key string, value binary, properties map<string,string>, publish_time timestamp, event_time "
    "timestamp, producer_name string, "
    "sequence_id bigint, origin_region string, coordinate "
    "struct<region:int,epoch:int,incarnation:string,ledger:bigint,entry:bigint,batch_index:int>, "
    "ledger bigint, entry bigint, batch_index int, partition int, schema_version bigint"
)
STORED = ("stored_time", "origin_time")
"""More columns, of who asks for them: when the region that is read stored the message, and when the region where it was
first published did.
"""
OF_ENTRIES = ("replicate_to", "first_sequence_id", "sealed")
"""And: the regions that the producer named, with commas between; the sequence id of the entry's first message; `piece`
or `encrypted` of such a payload.
"""
OF_KEYS = ("base64_key",)
"""And: whether `key` is bytes, as base64."""
KINDS = {
    **dict(part.split(maxsplit=1) for part in SCHEMA.split(", ")),
    **dict.fromkeys(STORED, "timestamp"),
    "replicate_to": "string",
    "first_sequence_id": "bigint",
    "sealed": "string",
    "base64_key": "boolean",
    "messages": "int",
}
"""The raw source's columns, and those of a source of entries, by name."""
RAW = {part.split()[0] for part in SCHEMA.split(", ")} | {*STORED, *OF_ENTRIES, *OF_KEYS}
BY_ENTRY = (RAW | {"messages"}) - {"key", "value", "properties", "event_time", "sequence_id", "batch_index", *OF_KEYS}
"""The columns of a source of entries. `messages`: how many the entry was published with."""
ENTRIES = ", ".join([*(part for part in SCHEMA.split(", ") if part.split()[0] in BY_ENTRY), "messages int"])
_ROWS = 8192
_BATCH_BYTES = 8 << 20
_PLACED_BYTES = 1 << 20
"""A range in an open ledger is asked for its place from this size on: with less, asking takes longer than reading it.
"""


def payload_columns(options: Options, columns: StructType) -> Declared | Registered | None:
    """None where only columns of the messages themselves are wanted, and none of their payloads. Raises ConfigError for
    what cannot be declared.
    """
    if any(not field.nullable for field in columns):
        check_nullable(to_arrow_schema(StructType([field for field in columns if not field.nullable]), timezone="UTC"))
    if options.columns == "entries":
        unknown = sorted(set(columns.fieldNames()) - BY_ENTRY)
        if unknown:
            raise ConfigError(
                f"a row is an entry here (columns=entries), which has no {unknown[0]}; it has "
                f"{', '.join(sorted(BY_ENTRY))}"
            )
        return None
    if options.columns == "raw" or (options.columns == "auto" and set(columns.fieldNames()) <= RAW):
        for field in columns:
            if field.dataType.simpleString() not in (KINDS.get(field.name), "string" if field.name == "value" else ""):
                raise ConfigError(_not_raw(field))
        return None
    for field in columns:
        if _has_variant(field.dataType):
            raise ConfigError(
                f"the column {field.name} is a variant, which the source cannot make: declare it as a string, and use "
                f"parse_json({field.name})"
            )
    declared = Declared(to_arrow_schema(columns, timezone="UTC"), options.mode)
    return Registered(declared) if options.columns == "registered" else declared


def _not_raw(field: StructField) -> str:
    if field.name not in KINDS:
        return f"columns = 'raw' knows no column {field.name}; it has {', '.join(sorted(RAW))}"
    return (
        f"the column {field.name} is the message's own here, {KINDS[field.name]}, and not "
        f"{field.dataType.simpleString()}: declare it so, or say"
        " columns = 'json' if it is a field of the payloads"
    )


def _has_variant(kind: DataType) -> bool:
    if isinstance(kind, StructType):
        return any(_has_variant(field.dataType) for field in kind)
    if isinstance(kind, ArrayType):
        return _has_variant(kind.elementType)
    return _has_variant(kind.valueType) if isinstance(kind, MapType) else isinstance(kind, VariantType)


def read_bundle(options: Options, columns: StructType, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """The rows of one task."""
    assert isinstance(partition, Bundle)
    gc.freeze()  # a worker is reused: each task would look at everything that was ever imported
    payload = payload_columns(options, columns)
    schema = to_arrow_schema(columns, timezone="UTC")
    reader = options.reader()
    if payload is None:
        wanted, keep_bad = frozenset(schema.names), options.keep_bad
        make: Callable[[MessageRows], pa.RecordBatch] = lambda rows: pa.RecordBatch.from_arrays(  # noqa: E731
            [rows.column(f.name, f.type) for f in schema], schema=schema
        )
    else:
        wanted, keep_bad = frozenset(name[1:] for name in payload.about), options.mode == "PERMISSIVE"
        if isinstance(payload, Registered):
            payload.learn(reader)
            wanted |= {"key", "base64_key"} if payload.keyed else set()
        make = payload.of
    for rows in gathered(reader, partition, options, wanted, keep_bad=keep_bad):
        yield make(rows)
    reader.close()


def gathered(
    reader: Any, bundle: Bundle, options: Options, wanted: frozenset[str], *, keep_bad: bool
) -> Iterator[MessageRows]:
    """Messages, or entries, about as many as make a good Arrow batch."""
    by_entry, may_go = options.columns == "entries", bool(options.namespace)
    rows = MessageRows(wanted, keep_bad=keep_bad, by_entry=by_entry)
    parts = bundle.ranges
    placed = [
        n
        for n, part in enumerate(parts)
        if part.size_bytes >= _PLACED_BYTES or part.ledger < bundle.snapshots[part.topic].last[0]
    ]
    wanted_ranges = [(part.topic, part.ledger, part.first, part.last) for part in parts]
    for number, ledger, first, run in reader.runs(
        wanted_ranges, placed=placed, may_lose=options.gaps_allowed, may_go=may_go
    ):
        topic = parts[number].topic
        snapshot, kept = bundle.snapshots[topic], bundle.kept.get(topic)
        left = (first, run) if kept is None else kept.of(snapshot, ledger, first, run)
        if left is None:
            continue
        rows.add(topic, snapshot, ledger, *left)
        if len(rows) >= _ROWS or rows.size_bytes >= _BATCH_BYTES:
            yield rows
            rows = MessageRows(wanted, keep_bad=keep_bad, by_entry=by_entry)
    if len(rows):
        yield rows
