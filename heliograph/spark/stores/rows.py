"""What a table store is asked for: rows by key, of which a writer replaces the columns that are its own.

Is: pure: the request, and two sets of rows put together. Isn't: files, servers, or Spark.
Invariants of every store: after `upsert` each key has the writer's values, nulls too, and every column of other writers
as it was; a batch that is delivered again changes nothing; an `upsert` that died anywhere is completed by the next
delivery of the same batch; a column never changes its type.
Source: docs/spark.md, "Wide tables".
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc

from heliograph.model.errors import ConfigError

PERIOD = "period"
"""The first key of each table: when the hour, the day, or whatever the table counts by, begins; timestamp[us, UTC]."""

KEYS = "heliograph.keys"
"""A property of tables, and of files: by which columns a row is known, JSON."""


@dataclass(frozen=True, slots=True)
class Upsert:
    """Rows for one table.

    writer: whose columns these are, a name that stays; query, batch: which delivery this is. Batches of a query come in
    order, the last one perhaps again. batch None: no micro-batch, applied each time. rows: one a key; the columns of
    `keys`, none of them null, and the writer's.
    """

    table: str
    keys: tuple[str, ...]
    rows: pa.Table
    writer: str
    query: str
    batch: int | None

    @property
    def values(self) -> list[str]:
        return [name for name in self.rows.column_names if name not in self.keys]


class RowStore(Protocol):
    """Raises ConfigError for what is wrong with options or columns, else HeliographError, OSError, or the errors of its
    package: then deliver it again.
    """

    def upsert(self, given: Upsert) -> None: ...

    def close(self) -> None: ...


def merged(known: pa.Table | None, given: Upsert) -> pa.Table:
    """`known` with the rows of `given` in it, in the order of the keys. Raises ConfigError where a column would change
    its type.
    """
    keys, new = list(given.keys), given.rows
    if known is None:
        return new.sort_by([(key, "ascending") for key in keys])
    same_types(given.table, types_of(known.schema), types_of(new.schema))
    known, new = plain(known), plain(new)
    old_keys = known.select(keys).append_column("_old", pa.array(range(known.num_rows), pa.int64()))
    new_keys = new.select(keys).append_column("_new", pa.array(range(new.num_rows), pa.int64()))
    both = (
        old_keys.join(new_keys, keys, join_type="full outer")
        .combine_chunks()
        .sort_by([(key, "ascending") for key in keys])
    )
    at_old, at_new = both["_old"], both["_new"]
    touched = pc.is_valid(at_new)
    columns: dict[str, pa.ChunkedArray] = {key: both[key] for key in keys}
    for field in [*known.schema, *(field for field in new.schema if field.name not in known.schema.names)]:
        if field.name in keys:
            continue
        before = (
            known[field.name].take(at_old) if field.name in known.schema.names else pa.nulls(both.num_rows, field.type)
        )
        columns[field.name] = (
            pc.if_else(touched, new[field.name].take(at_new), before) if field.name in new.schema.names else before
        )
    return pa.table(columns)


def types_of(schema: pa.Schema) -> dict[str, str]:
    return {field.name: str(normal(field.type)) for field in schema}


def plain(rows: pa.Table, of: Mapping[pa.DataType, pa.DataType] | None = None) -> pa.Table:
    """Its columns of normal types."""
    return rows.cast(
        pa.schema([pa.field(field.name, normal(field.type, of)) for field in rows.schema])
    ).replace_schema_metadata(None)


def normal(kind: pa.DataType, of: Mapping[pa.DataType, pa.DataType] | None = None) -> pa.DataType:
    """What lists and maps hold has other names in each format, which are no part of a type. of: what else is the
    same.
    """
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(pa.field("element", normal(kind.value_type, of), kind.value_field.nullable))
    if pa.types.is_map(kind):
        return pa.map_(
            normal(kind.key_type, of), pa.field("value", normal(kind.item_type, of), kind.item_field.nullable)
        )
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(normal(field.type, of)) for field in kind])
    return (of or {}).get(kind, kind)


def same_keys(table: str, known: Sequence[str], given: Sequence[str]) -> None:
    """Raises ConfigError where rows would be known by other columns than those that are there: those of another writer,
    or of an earlier file.
    """
    if sorted(known) != sorted(given):
        raise ConfigError(
            f"table {table} has a row for each {', '.join(known)}, and now it would be each {', '.join(given)}: rows "
            "of both kinds would stand side by side;"
            " give the query the same keys, or write to a table of another name"
        )


def keys_of(mark: str | None, columns: Sequence[str], given: Sequence[str]) -> list[str]:
    """mark: as a table or file says it (KEYS), if it does: earlier versions wrote none, and then what can be known is
    whether the columns are there.
    """
    return list(json.loads(mark)) if mark else [key for key in given if key in columns]


def same_types(table: str, known: Mapping[str, str], given: Mapping[str, str]) -> None:
    """Raises ConfigError where a column would change its type."""
    for name, kind in given.items():
        if known.get(name, kind) != kind:
            raise ConfigError(
                f"table {table} has a column {name} of type {known[name]}, and now it would be {kind}: columns are "
                "added, not changed;"
                " declare it as it was, or write to a table of another name"
            )
