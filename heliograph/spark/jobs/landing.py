"""A micro-batch's files come into their tables: all of one table's at once, and once however often the micro-batch runs.

Is: renames in a folder, and Delta's log through the package `deltalake`. Isn't: what stands in the files (`tables`), or Spark.
How: tasks write below `_staging/QUERY/BATCH/TABLE`. What comes into a table of parquet files is that folder, renamed to `TABLE/batch=BATCH-QUERY`; into a Delta
table its files, and one commit which names (query, batch), so that the next attempt sees that it is done.
Invariants: a table has a batch whole or not at all; a batch that runs again replaces what it had landed, also where it no longer has rows for a table; columns
are added, never changed, and before anything lands. Not synced to the disk: what a machine loses with its power may be files that the checkpoint believes in.
Source: docs/spark.md, "ETL".
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from heliograph.model.errors import ConfigError
from heliograph.spark.stores.rows import same_types, types_of

STAGING, _COLUMNS = "_staging", "_columns.json"


@dataclass(frozen=True, slots=True)
class Staged:
    """One file that a task wrote. name: within its table's staging folder; columns: name and type, in their order."""

    table: str
    name: str
    rows: int
    schema: pa.Schema


class Landing:
    """The tables below `root`. `delta`: Delta tables, not plain parquet."""

    def __init__(self, root: Path, *, delta: bool) -> None:
        self._root, self._delta = root, delta

    def staging(self, query: str, batch: int, table: str) -> Path:
        """Made where it is not there."""
        folder = self._root / STAGING / query / str(batch) / table
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def land(self, query: str, batch: int, staged: Sequence[Staged]) -> None:
        """Once, however often it is called for a batch. Raises ConfigError where a column would change its type."""
        tables: dict[str, list[Staged]] = {}
        for each in staged:
            tables.setdefault(each.table, []).append(each)
        schemas = {table: _merged(table, [each.schema for each in files]) for table, files in tables.items()}
        if self._delta:
            for table, files in tables.items():
                self._append(query, batch, table, files, schemas[table])
        else:
            self._rename(query, batch, tables, schemas)
        shutil.rmtree(self._root / STAGING / query, ignore_errors=True)

    # -- parquet ---------------------------------------------------------------------------------------------------------------------------

    def _rename(self, query: str, batch: int, tables: Mapping[str, list[Staged]], schemas: Mapping[str, pa.Schema]) -> None:
        for table, schema in schemas.items():
            self._widen(table, schema)
        name = f"batch={batch:010d}-{query[:8]}"
        for table in self._intended(query, batch, list(tables)):
            shutil.rmtree(self._root / table / name, ignore_errors=True)
        for table, files in tables.items():
            ready, target = self.staging(query, batch, table), self._root / table / name
            wanted = {each.name for each in files}
            for path in ready.iterdir():
                if path.name not in wanted:  # of an attempt that failed
                    path.unlink()
            with suppress(FileNotFoundError):
                target.rename(self._root / STAGING / query / f"{batch}-{table}-before")
            ready.rename(target)

    def _intended(self, query: str, batch: int, tables: list[str]) -> list[str]:
        """Tables into which an earlier attempt of this batch may have landed, and which it has no rows for now. Writes down what will be."""
        folder = self._root / STAGING / "_intended"
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{query}.json"
        earlier = json.loads(path.read_text()) if path.is_file() else {}
        gone = [table for table in earlier.get("tables", []) if table not in tables] if earlier.get("batch") == batch else []
        _write(path, {"batch": batch, "tables": sorted({*tables, *gone})})
        return gone

    def _widen(self, table: str, schema: pa.Schema) -> None:
        path = self._root / table / _COLUMNS
        known: dict[str, str] = json.loads(path.read_text()) if path.is_file() else {}
        given = types_of(schema)
        same_types(table, known, given)
        if not given.keys() <= known.keys():
            path.parent.mkdir(parents=True, exist_ok=True)
            _write(path, known | given)

    # -- Delta -----------------------------------------------------------------------------------------------------------------------------

    def _append(self, query: str, batch: int, table: str, files: list[Staged], schema: pa.Schema) -> None:
        from deltalake import CommitProperties, DeltaTable, Schema, Transaction  # type: ignore[import-not-found, unused-ignore]
        from deltalake.transaction import AddAction, RemoveAction  # type: ignore[import-not-found, unused-ignore]

        folder = self._root / table
        found = DeltaTable(str(folder)) if DeltaTable.is_deltatable(str(folder)) else DeltaTable.create(str(folder), schema)
        done = found.transaction_version(query)
        if done is not None and done >= batch:
            return
        known, given = found.schema().fields, Schema.from_arrow(schema).fields
        same_types(table, *({field.name: str(field.type) for field in fields} for fields in (known, given)))
        names = {field.name for field in known}
        if new := [field for field in given if field.name not in names]:
            found.alter.add_columns(new)
            found = DeltaTable(str(folder))
        ready = self.staging(query, batch, table)
        actions: list[AddAction | RemoveAction] = []
        for number, each in enumerate(files):
            target = folder / f"batch-{batch:010d}-{query[:8]}-{number:04d}.parquet"  # one that an attempt moved and did not commit is replaced
            (ready / each.name).rename(target)
            now_ms = int(time.time() * 1000)
            actions.append(AddAction(target.name, target.stat().st_size, {}, now_ms, True, json.dumps({"numRecords": each.rows})))
        mark = CommitProperties(app_transactions=[Transaction(query, batch)])
        found.create_write_transaction(actions, "append", found.schema(), [], commit_properties=mark)


def _merged(table: str, schemas: Sequence[pa.Schema]) -> pa.Schema:
    try:
        return pa.unify_schemas(schemas)
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise ConfigError(f"topics that go into the table {table} have different columns: {error}; give each a table of its own") from error


def _write(path: Path, value: Any) -> None:
    new = path.with_suffix(".new")
    new.write_text(json.dumps(value))
    new.replace(path)
