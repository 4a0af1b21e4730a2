"""Wide tables in ClickHouse: over HTTP to a server, or in a folder by the engine of the package `chdb` (`embedded`).

    NAME_rows       ReplacingMergeTree(version), by (keys, writer): what each writer has of a key, in its own columns
    NAME_batches    ReplacingMergeTree(version), by (writer, query): the newest batch that is in
    NAME            a view: of each key all writers' columns beside each other

Is: SQL that servers since 2018 understand. Isn't: a cluster's replicated tables: make those yourself, under the same
names, and they are used.
Invariants: nothing is read and written back, so writers never see each other; rows of a batch have one version, above
all before it, and one that died before its mark writes the same again under the same version. Source: ClickHouse's
documentation, "ReplacingMergeTree", "HTTP interface".
"""

from __future__ import annotations

import http.client
import re
import urllib.parse
from collections.abc import Iterator
from datetime import UTC, date, datetime
from itertools import pairwise
from typing import Any, Protocol

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from heliograph.model.errors import ConfigError, MetadataUnavailable
from heliograph.spark.stores.micro_batches import is_in
from heliograph.spark.stores.rows import Upsert, same_keys, same_types

_ROWS, _TRIES = 10_000, 5
_MONTHS = 100
"""Bounds the months in one INSERT: a partition is a month, and servers refuse more in a block
(`max_partitions_per_insert_block`).
"""
_FIRST, _LAST_DATE, _LAST_TIME = date(1970, 1, 1), date(2149, 6, 6), date(2106, 2, 6)
_PLAIN = re.compile(r"[A-Za-z_][0-9A-Za-z_]*")
_KINDS: dict[pa.DataType, str] = {
    **{
        kind: name
        for name, kind in {"Int8": pa.int8(), "Int16": pa.int16(), "Int32": pa.int32(), "Int64": pa.int64()}.items()
    },
    pa.float32(): "Float32",
    pa.float64(): "Float64",
    pa.bool_(): "UInt8",
    pa.string(): "String",
    pa.date32(): "Date",
}


class Engine(Protocol):
    """data: of an INSERT, the lines behind its FORMAT. Raises ConfigError with what ClickHouse says,
    MetadataUnavailable where nobody answers.

    release: between batches, lets others have what is open; the next `run` opens it again. close: for good.
    """

    def run(self, sql: str, data: bytes = b"") -> bytes: ...

    def release(self) -> None: ...

    def close(self) -> None: ...


class HttpEngine:
    """url: http://user:password@host:8123/?database=name, or https."""

    def __init__(self, url: str) -> None:
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(
                f"store clickhouse: url begins {parts.scheme!r}; it is http://user:password@host:8123/?database=name, "
                "or https"
            )
        self._at = (parts.scheme, parts.hostname, parts.port)
        self._given = dict(urllib.parse.parse_qsl(parts.query))
        self._headers = {"X-ClickHouse-User": urllib.parse.unquote(parts.username)} if parts.username else {}
        if parts.password:
            self._headers["X-ClickHouse-Key"] = urllib.parse.unquote(parts.password)

    def run(self, sql: str, data: bytes = b"") -> bytes:
        scheme, host, port = self._at
        kind = http.client.HTTPSConnection if scheme == "https" else http.client.HTTPConnection
        connection = kind(host, port, timeout=300)
        body = sql.encode() + (
            b"\n" + data if data else b""
        )  # an address has no room for the names of some hundred columns
        try:
            connection.request("POST", f"/?{urllib.parse.urlencode(self._given)}", body, self._headers)
            answer = connection.getresponse()
            found = answer.read()
        except (OSError, http.client.HTTPException) as error:
            raise MetadataUnavailable(
                f"ClickHouse at {host} does not answer: {error}; the batch is delivered again"
            ) from error
        finally:
            connection.close()
        if answer.status != 200:
            raise ConfigError(f"ClickHouse refuses: {found[:500].decode(errors='replace').strip()}")
        return found

    def release(self) -> None:
        """Each request has its connection."""

    def close(self) -> None:
        """Does nothing: each statement has a connection of its own."""


class ClickHouseStore:
    """Tables of the database that the engine's address names."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def upsert(self, given: Upsert) -> None:
        try:
            self._upsert(given)
        finally:
            self._engine.release()

    def _upsert(self, given: Upsert) -> None:
        _check_times(given)
        self._prepared(given)
        done, newest = self._marks(given)
        if is_in(given.table, done, given.batch):
            return
        version = newest + 1
        names = [*given.rows.column_names, "_writer", "_version"]
        insert = f"INSERT INTO {_quoted(f'{given.table}_rows')} ({', '.join(map(_quoted, names))}) FORMAT JSONEachRow"
        encoder = msgspec.json.Encoder(decimal_format="number")  # as text, servers of 2018 do not read it
        for block in _blocks(given):
            rows = [{**_plain(row), "_writer": given.writer, "_version": version} for row in block.to_pylist()]
            self._engine.run(insert, encoder.encode_lines(rows))
        mark = {
            "writer": given.writer,
            "query": given.query,
            "batch": -1 if given.batch is None else given.batch,
            "version": version,
        }
        self._engine.run(
            f"INSERT INTO {_quoted(f'{given.table}_batches')} (writer, query, batch, version) FORMAT JSONEachRow",
            msgspec.json.encode(mark),
        )

    def close(self) -> None:
        self._engine.close()

    def _marks(self, given: Upsert) -> tuple[int | None, int]:
        """(this query's newest batch, the writer's newest version)."""
        places = f"FROM {_quoted(f'{given.table}_batches')} WHERE writer = {_text(given.writer)}"
        newest = self._engine.run(f"SELECT max(version) {places} FORMAT TabSeparated").split()
        batches = self._engine.run(
            f"SELECT max(batch) {places} AND query = {_text(given.query)} GROUP BY query FORMAT TabSeparated"
        ).split()
        return (int(batches[0]) if batches else None), (int(newest[0]) if newest else 0)

    def _prepared(self, given: Upsert) -> None:
        """Until nothing is left to be done: another writer may add its columns, or make the view, at the same time, and
        one of both is refused.
        """
        if not given.table or _PLAIN.fullmatch(given.table) is None:
            raise ConfigError(f"table {given.table!r}: ClickHouse's tables have names of letters, digits, and _")
        for left in reversed(range(_TRIES)):
            try:
                if not self._prepare(given):
                    return
            except ConfigError:
                if not left:
                    raise
        raise MetadataUnavailable(
            f"table {given.table}: other writers change it all the time; the batch is delivered again"
        )

    def _prepare(self, given: Upsert) -> bool:
        """Tables, columns, and the view, where they are not there. Each step finds by itself whether it was done.
        Returns whether anything changed.
        """
        changed = False
        rows, batches = f"{given.table}_rows", f"{given.table}_batches"
        kinds = {field.name: _kind(field, key=field.name in given.keys) for field in given.rows.schema}
        keys = ", ".join(f"{_quoted(key)} {kinds[key]}" for key in given.keys)
        order = ", ".join(map(_quoted, [*given.keys, "_writer"]))
        self._engine.run(
            f"CREATE TABLE IF NOT EXISTS {_quoted(rows)} ({keys}, `_writer` String, `_version` UInt64)"
            f" ENGINE = ReplacingMergeTree(`_version`) PARTITION BY toYYYYMM({_quoted(given.keys[0])}) ORDER BY "
            f"({order})"
        )
        self._engine.run(
            f"CREATE TABLE IF NOT EXISTS {_quoted(batches)} (writer String, query String, batch Int64, version UInt64)"
            " ENGINE = ReplacingMergeTree(version) ORDER BY (writer, query)"
        )
        known = self._columns(rows)
        same_keys(given.table, [name for name in self._columns(rows, sorting=True) if name != "_writer"], given.keys)
        same_types(given.table, known, kinds)
        for name in kinds:
            if name not in known:
                changed = True
                self._engine.run(f"ALTER TABLE {_quoted(rows)} ADD COLUMN {_quoted(name)} {kinds[name]}")
        values = [
            name
            for name in [*known, *(name for name in kinds if name not in known)]
            if name not in given.keys and name not in ("_writer", "_version")
        ]
        wanted = [*given.keys, *values]
        if list(self._columns(given.table)) != wanted:
            changed = True
            self._refuse_what_is_no_view(given.table)
            self._engine.run(f"DROP TABLE IF EXISTS {_quoted(given.table)}")
            keys = ", ".join(map(_quoted, given.keys))
            inner = "".join(
                f", {_quoted(name)} AS `_{number}`" for number, name in enumerate(values)
            )  # an aggregate's argument may not be named as itself
            outer = "".join(f", any(`_{number}`) AS {_quoted(name)}" for number, name in enumerate(values))
            newest = f"SELECT {keys}{inner} FROM {_quoted(rows)} FINAL"
            self._engine.run(
                f"CREATE VIEW {_quoted(given.table)} AS SELECT {keys}{outer} FROM ({newest}) GROUP BY {keys}"
            )
        return changed

    def _refuse_what_is_no_view(self, table: str) -> None:
        """Somebody's own table, with their rows, is not ours to make anew. Raises ConfigError."""
        engine = self._engine.run(
            f"SELECT engine FROM system.tables WHERE database = currentDatabase() AND name = {_text(table)}"
            f" AND (engine != 'View' OR position(create_table_query, {_text(f'{table}_rows')}) = 0) FORMAT TabSeparated"
        )
        if engine:
            raise ConfigError(
                f"the database has a {engine.decode().strip()} named {table} that this job did not make: take another "
                "name, or another database"
            )

    def _columns(self, table: str, *, sorting: bool = False) -> dict[str, str]:
        """sorting: of the sorting key alone."""
        which = " AND is_in_sorting_key" if sorting else ""
        found = self._engine.run(
            "SELECT name, type FROM system.columns WHERE database = currentDatabase() AND table = "
            f"{_text(table)}{which} FORMAT TabSeparated"
        ).decode()
        return {name: kind.replace("\\'", "'") for name, kind in (line.split("\t") for line in found.splitlines())}


def _blocks(given: Upsert) -> Iterator[pa.RecordBatch]:
    """By period, cut where one more month would be too many."""
    rows = given.rows.sort_by(given.keys[0])
    at = rows[given.keys[0]].combine_chunks()
    ends = pc.run_end_encode(pc.add(pc.multiply(pc.year(at), 12), pc.month(at))).run_ends.to_pylist()
    for begin, end in pairwise(sorted({0, *ends[_MONTHS - 1 :: _MONTHS], rows.num_rows})):
        yield from rows.slice(begin, end - begin).to_batches(_ROWS)


def _kind(field: pa.Field, *, key: bool) -> str:
    kind = "DateTime('UTC')" if pa.types.is_timestamp(field.type) and key else _KINDS.get(field.type)
    if kind is None and pa.types.is_timestamp(field.type):
        kind = "DateTime64(6, 'UTC')"
    if kind is None and pa.types.is_decimal(field.type):
        kind = f"Decimal({field.type.precision}, {field.type.scale})"
    if kind is None:
        raise ConfigError(
            f"column {field.name} is {field.type}, which has no like in ClickHouse here: cast it, in its expression, "
            "to a number, text, or time"
        )
    return kind if key else f"Nullable({kind})"


def _check_times(given: Upsert) -> None:
    """What ClickHouse would store as another time is refused. Raises ConfigError."""
    for field in given.rows.schema:
        key, column = field.name in given.keys, given.rows[field.name]
        dates = pa.types.is_date32(field.type)
        if not dates and not (key and pa.types.is_timestamp(field.type)):
            continue
        bounds = pc.min_max(column).as_py()
        low, high = (
            (each if type(each) is date else each.date()) if each is not None else _FIRST
            for each in (bounds["min"], bounds["max"])
        )
        if low < _FIRST or high > (_LAST_DATE if dates else _LAST_TIME):
            raise ConfigError(
                f"column {field.name} has {low} to {high}, and ClickHouse's {'dates' if dates else 'times'} of it "
                "begin 1970: cast it to text"
            )
        if not dates and pc.any(pc.not_equal(pc.floor_temporal(column, unit="second"), column)).as_py():
            raise ConfigError(
                f"the key {field.name} has fractions of seconds, which a key in ClickHouse has not: use "
                "date_trunc('second', ...), or cast it to text"
            )


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    return {name: _json(value) for name, value in row.items()}


def _json(value: Any) -> Any:
    """Times as ClickHouse reads text in UTC, whole seconds where they are."""
    if isinstance(value, datetime):
        return value.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.%f").removesuffix(".000000")
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, date):
        return str(value)
    return value


def _quoted(name: str) -> str:
    return "`" + name.replace("\\", "\\\\").replace("`", "\\`") + "`"


def _text(value: str) -> str:
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
