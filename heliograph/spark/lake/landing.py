"""A micro-batch's files come into their tables: all of one table's at once, and once however often the micro-batch
runs.

Is: renames in a folder; what Delta's or Iceberg's log is told is `lake_commits`. Isn't: what stands in the files
(`tables_sink`), Hive's metastore (`metastore`), or Spark.
How: tasks write below `_staging/QUERY/BATCH/TABLE`. What comes into a table of parquet files is that folder, renamed to
`TABLE/batch=BATCH-QUERY`; into a Delta or Iceberg table its files, and one commit which names (query, batch), so that
the next attempt sees that it is done. For Hive, which is told later, a note of what landed comes into
`_staging/_landed`, behind the renames and before Spark hears that the batch is done.
Invariants: a table has a batch whole or not at all; a batch that runs again replaces what it had landed, also where it
no longer has rows for a table; columns are added, never changed, and before anything lands. A batch is on the disk
before Spark hears that it is done: tasks sync what they staged, the driver what it renamed, each once for all files
together.
Several queries may land in a table at once. Source: docs/spark.md, "ETL".
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from heliograph.model.errors import ConfigError, MetadataUnavailable
from heliograph.spark.lake.lake_commits import Added, DeltaTables, IcebergTables
from heliograph.spark.stores.hive import kind_of
from heliograph.spark.stores.micro_batches import older
from heliograph.spark.stores.parquet import locked
from heliograph.spark.stores.rows import same_types, types_of

STAGING, _COLUMNS, _NAMED, _REPLACED = "_staging", "_columns.json", "_named.json", "_replaced"
FORMATS = ("parquet", "delta", "iceberg", "hive")
PARTITION = "batch"
"""What the folders of a table of parquet files are a column of, to whoever reads them as a table."""
_TABLE, _TABLE_BYTES = re.compile(r"[^/\x00._][^/\x00]*"), 200


@dataclass(frozen=True, slots=True)
class Staged:
    """One file that a task wrote. name: within its table's staging folder; named: what its rule calls the table, where
    the format may call it otherwise.
    """

    table: str
    name: str
    rows: int
    schema: pa.Schema
    named: str = ""


class Landing:
    """Lands micro-batches in the tables below `root`."""

    def __init__(
        self,
        root: Path,
        kind: str = "parquet",
        *,
        label: str = "",
        database: str = "default",
        catalog: Mapping[str, str] | None = None,
    ) -> None:
        """kind: one of FORMATS. label: by which its driver knows the query; "": by its id alone. database, catalog:
        where Iceberg's tables are.
        """
        self._root, self._kind, self._label = root, kind, label
        self._database, self._catalog = database, catalog or {}

    def table(self, name: str) -> str:
        """What a table of that name is called here. Hive knows small letters, digits, and _ alone."""
        return re.sub(r"[^0-9a-z_]", "_", name.lower()) if self._kind == "hive" else name

    def refused(self, table: str, schema: pa.Schema, named: str = "") -> str:
        """Why rows of these columns cannot come into a table of that name; "": they can, as far as is known before the
        batch lands. named: as of Staged.
        """
        if _TABLE.fullmatch(table) is None or len(table.encode()) > _TABLE_BYTES:
            return (
                f"{table[:80]!r} is no name of a table, which is a folder's, without / and not beginning with . or _: "
                "say `name` in the rule of its topic"
            )
        try:
            self._check(table, schema, named)
        except (ConfigError, TypeError) as error:
            return str(error)
        return ""

    def _check(self, table: str, schema: pa.Schema, named: str) -> None:
        """Raises ConfigError where rows of these columns cannot come into the table."""
        if self._kind in ("parquet", "hive") and PARTITION in map(str.lower, schema.names):
            raise ConfigError(reserved(table))
        if self._kind == "hive":
            for field in schema:
                kind_of(field)
        path, owner = self._types(table), self._owner(table)
        if owner.is_file():
            _same_name(table, json.loads(owner.read_text()), named)
        self._fits(table, json.loads(path.read_text()) if path.is_file() else {}, schema)

    def _fits(self, table: str, known: Mapping[str, str], schema: pa.Schema) -> None:
        """Raises ConfigError. known: columns that the table has."""
        same_types(table, known, types_of(schema))
        if self._kind in ("delta", "hive"):
            _no_two_alike(table, known, schema)

    def staging(self, query: str, batch: int, table: str) -> Path:
        """Made where it is not there."""
        folder = self._staged(query, batch, table)
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def _staged(self, query: str, batch: int, table: str) -> Path:
        return self._root / STAGING / query / str(batch) / table

    def land(self, query: str, batch: int, staged: Sequence[Staged]) -> None:
        """Once, however often it is called for a batch. Raises ConfigError where a column would change its type."""
        tables: dict[str, list[Staged]] = {}
        for each in staged:
            tables.setdefault(each.table, []).append(each)
        for each in sorted(staged, key=lambda each: (each.table, each.name)):
            self._claim(each.table, each.named)
            self._widen(
                each.table, each.schema
            )  # of two that differ the first one decides, and tasks park the other when the batch comes again
        schemas = {table: _merged(table, [each.schema for each in files]) for table, files in tables.items()}
        name = f"{batch:010d}-{query[:8]}"
        with self._alone(query):
            if self._kind in ("delta", "iceberg"):
                self._commit(query, batch, name, tables, schemas)
            else:
                gone = self._rename(query, batch, name, tables)
                if self._kind == "hive":
                    self._note(name, schemas, gone)
            self._finish(query)

    def _finish(self, query: str) -> None:
        if self._root.is_dir():  # else there has never been a row
            sync(self._root)
        shutil.rmtree(self._root / STAGING / query, ignore_errors=True)

    def _commit(
        self, query: str, batch: int, name: str, tables: Mapping[str, list[Staged]], schemas: Mapping[str, pa.Schema]
    ) -> None:
        self._check_staged(query, batch, tables)
        self._intended(query, batch, list(tables))
        lake = (
            DeltaTables(self._root)
            if self._kind == "delta"
            else IcebergTables(self._root, self._database, self._catalog)
        )
        for table, files in tables.items():
            ready = self._staged(query, batch, table)
            lake.append(
                query,
                batch,
                table,
                [Added(ready / each.name, each.rows) for each in files],
                schemas[table],
                f"batch-{name}",
            )
        lake.close()

    def _check_staged(self, query: str, batch: int, tables: Mapping[str, list[Staged]]) -> None:
        """Raises MetadataUnavailable where files of these tables are not there."""
        for table, files in tables.items():
            folder = self._staged(query, batch, table)
            there = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
            if missing := {each.name for each in files} - there:
                raise MetadataUnavailable(
                    f"{len(missing)} files that tasks wrote for the table {table} are not in {self._root / STAGING}: "
                    "is `path` the same folder on driver and"
                    " workers, and does no other driver run this job?"
                )

    def note_parked(self, query: str, batch: int, rows: Mapping[tuple[str, str], int]) -> None:
        """rows: by topic and reason, what a batch has in the quarantine; the driver says it."""
        folder = self._root / STAGING / "_parked"
        folder.mkdir(parents=True, exist_ok=True)
        _write(
            folder / f"{batch:010d}-{query}.json", [[topic, reason, count] for (topic, reason), count in rows.items()]
        )

    def sync_staged(self) -> None:
        """What this machine has staged; before it is told to whom lands it."""
        sync(self._root)

    def retire(self) -> None:
        """The query of this label never comes again."""
        for kind in ("json", "lock"):
            for path in self._intent("").parent.glob(f"{self._label}-????????.{kind}"):
                path.unlink(missing_ok=True)

    def _rename(self, query: str, batch: int, name: str, tables: Mapping[str, list[Staged]]) -> list[str]:
        """Returns the tables that an earlier attempt had rows for, and this one has not."""
        self._check_staged(query, batch, tables)
        name, gone = f"{PARTITION}={name}", self._intended(query, batch, list(tables))
        for table in gone:
            shutil.rmtree(self._root / table / name, ignore_errors=True)
        befores = self._root / STAGING / _REPLACED / name  # where no other driver's end removes it
        for table, files in tables.items():
            self._check_staged(query, batch, {table: files})  # another driver may have landed it, if no lock holds here
            ready, target, before = self._staged(query, batch, table), self._root / table / name, befores / table
            wanted = {each.name for each in files}
            for path in ready.iterdir():
                if path.name not in wanted:  # of an attempt that failed
                    path.unlink()
            replaces = target.exists()
            if replaces:
                shutil.rmtree(before, ignore_errors=True)  # of an attempt that ended right here
                befores.mkdir(parents=True, exist_ok=True)
                target.rename(before)
            try:
                ready.rename(target)
            except OSError:
                if replaces:
                    before.rename(target)
                raise
        shutil.rmtree(befores, ignore_errors=True)
        return gone

    def _intended(self, query: str, batch: int, tables: list[str]) -> list[str]:
        """Tables into which an earlier attempt of this batch may have landed, and which it has no rows for now. Writes
        down what will be. Raises ConfigError where that is a later batch of the query already.
        """
        path = self._intent(self._labelled(query))
        path.parent.mkdir(parents=True, exist_ok=True)
        earlier = json.loads(path.read_text()) if path.is_file() else {}
        if earlier.get("batch", batch) > batch:
            raise ConfigError(older(f"the tables at {self._root}", batch, earlier["batch"]))
        gone = (
            [table for table in earlier.get("tables", []) if table not in tables]
            if earlier.get("batch") == batch
            else []
        )
        _write(path, {"batch": batch, "tables": sorted({*tables, *gone})})
        return gone

    @contextmanager
    def _alone(self, query: str) -> Iterator[None]:
        """No other driver lands what this query has meanwhile, as far as locks of the folder hold."""
        folder = self._intent("").parent
        folder.mkdir(parents=True, exist_ok=True)
        with locked(folder, f"{self._labelled(query)}.lock"):
            yield

    def _labelled(self, query: str) -> str:
        return f"{self._label}-{query[:8]}" if self._label else query

    def _intent(self, query: str) -> Path:
        return self._root / STAGING / "_intended" / f"{query}.json"

    def _note(self, name: str, schemas: Mapping[str, pa.Schema], gone: Sequence[str]) -> None:
        folder = self._root / STAGING / "_landed"
        folder.mkdir(parents=True, exist_ok=True)
        columns = {table: {field.name: kind_of(field) for field in schema} for table, schema in schemas.items()}
        _write(folder / f"{name}.{time.time_ns():020d}.json", {"batch": name, "tables": columns, "gone": list(gone)})

    def _types(self, table: str) -> Path:
        """Columns and their types. In no folder of a Delta or Iceberg table, where it would be a stranger."""
        return (
            self._root / STAGING / "_types" / f"{table}.json"
            if self._kind in ("delta", "iceberg")
            else self._root / table / _COLUMNS
        )

    def _owner(self, table: str) -> Path:
        """What the rule of its topics calls a table of Hive."""
        return self._root / table / _NAMED

    def _claim(self, table: str, named: str) -> None:
        """Gives a table whose name Hive cannot tell from others' to the first that lands. Raises ConfigError for the
        others.
        """
        if self._kind != "hive" or not named:
            return
        path = self._owner(table)
        path.parent.mkdir(parents=True, exist_ok=True)
        with locked(path.parent):
            if path.is_file():
                _same_name(table, json.loads(path.read_text()), named)
            else:
                _write(path, named)

    def _widen(self, table: str, schema: pa.Schema) -> None:
        path, given = self._types(table), types_of(schema)
        path.parent.mkdir(parents=True, exist_ok=True)
        with locked(path.parent):
            known: dict[str, str] = json.loads(path.read_text()) if path.is_file() else {}
            self._fits(table, known, schema)
            if not given.keys() <= known.keys():
                _write(path, known | given)


def reserved(what: str) -> str:
    return (
        f"{what} has a column {PARTITION}, which readers of its folders have already: leave it out, or take format "
        "delta or iceberg"
    )


def _same_name(table: str, owner: str, named: str) -> None:
    """Raises ConfigError where the table belongs to another name."""
    if named and named != owner:
        raise ConfigError(
            f"the table {table} is that of {owner!r}, which Hive cannot tell from {named!r}: say another `name` in "
            "the rule of its topic"
        )


def _no_two_alike(table: str, known: Mapping[str, str], schema: pa.Schema) -> None:
    """Raises ConfigError where these columns bring one that differs from another in small and capital letters alone:
    Delta and Hive take them for one.
    """
    seen = {name.lower(): name for name in known}
    for field in schema:
        if field.name not in known:
            other = seen.setdefault(field.name.lower(), field.name)
            first, second = (other, field.name) if other != field.name else _alike(field.type)
            if first != second:
                raise ConfigError(
                    f"table {table} would have the columns {first} and {second}, which differ in small and capital "
                    "letters alone: take one away"
                )


def _alike(kind: pa.DataType) -> tuple[str, str]:
    """Two such fields of a struct, wherever it is in the type; twice "" where there are none."""
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _alike(kind.value_type)
    if pa.types.is_map(kind):
        return _alike(kind.item_type)
    seen: dict[str, str] = {}
    for field in kind if pa.types.is_struct(kind) else ():
        if seen.setdefault(field.name.lower(), field.name) != field.name:
            return seen[field.name.lower()], field.name
        if (found := _alike(field.type)) != ("", ""):
            return found
    return "", ""


def sync(folder: Path) -> None:
    """The file system of the folder as a whole: a thousand files by themselves would take a thousand times as long."""
    held = os.open(folder, os.O_RDONLY)
    try:
        call = getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None)
        if call is None:
            os.sync()
        elif call(held):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(folder))
    finally:
        os.close(held)


def _merged(table: str, schemas: Sequence[pa.Schema]) -> pa.Schema:
    try:
        return pa.unify_schemas(schemas)
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise ConfigError(
            f"topics that go into the table {table} have different columns: {error}; give each a table of its own"
        ) from error


def _write(path: Path, value: Any) -> None:
    new = path.with_suffix(".new")
    new.write_text(json.dumps(value))
    new.replace(path)
