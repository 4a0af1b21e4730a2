"""Files of a micro-batch into a Delta table, by the package `deltalake`, or an Iceberg table, by `pyiceberg`: one
commit, which names (query, batch).

Is: for the ETL, appends of files that are there. Isn't: merges by key (`heliograph.spark.stores`), compaction, vacuum,
expiry: those are the tables' owner's.
Invariants: a commit that names a batch is not made twice, nor behind one of a later batch; files get their final names,
made of the batch, before it, and one that an attempt moved and did not commit is replaced. Delta: the transaction of
the application QUERY. Iceberg: the table's property `heliograph.batch.QUERY`, in the same change of the catalogue.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from heliograph.spark.stores.iceberg import catalog_of, trying
from heliograph.spark.stores.micro_batches import is_in
from heliograph.spark.stores.rows import same_types, types_of


@dataclass(frozen=True, slots=True)
class Added:
    """A parquet file that is to come into a table."""

    path: Path
    rows: int


class Lake(Protocol):
    """Raises ConfigError where a column would change its type, or the table has a later batch of the query."""

    def append(
        self, query: str, batch: int, table: str, files: Sequence[Added], schema: pa.Schema, stem: str
    ) -> None: ...

    def close(self) -> None: ...


def _moved(files: Sequence[Added], folder: Path, stem: str) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    return [each.path.rename(folder / f"{stem}-{number:04d}.parquet") for number, each in enumerate(files)]


class DeltaTables:
    """A table a folder below `root`."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def append(self, query: str, batch: int, table: str, files: Sequence[Added], schema: pa.Schema, stem: str) -> None:
        from deltalake import (  # type: ignore[import-not-found, unused-ignore]
            CommitProperties,
            DeltaTable,
            Schema,
            Transaction,
        )
        from deltalake.transaction import AddAction, RemoveAction  # type: ignore[import-not-found, unused-ignore]

        folder = self._root / table
        found = (
            DeltaTable(str(folder)) if DeltaTable.is_deltatable(str(folder)) else DeltaTable.create(str(folder), schema)
        )
        if is_in(table, found.transaction_version(query), batch):
            return
        known, given = found.schema().fields, Schema.from_arrow(schema).fields
        same_types(table, *({field.name: str(field.type) for field in fields} for fields in (known, given)))
        names = {field.name for field in known}
        if new := [field for field in given if field.name not in names]:
            found.alter.add_columns(new)
            found = DeltaTable(str(folder))
        actions: list[AddAction | RemoveAction] = []
        for each, path in zip(files, _moved(files, folder, stem), strict=True):
            now_ms = int(time.time() * 1000)
            actions.append(
                AddAction(path.name, path.stat().st_size, {}, now_ms, True, json.dumps({"numRecords": each.rows}))
            )
        mark = CommitProperties(app_transactions=[Transaction(query, batch)])
        found.create_write_transaction(actions, "append", found.schema(), [], commit_properties=mark)

    def close(self) -> None:
        """Nothing is open between tables."""


class IcebergTables:
    """Files below `root`, which has a catalogue of its own unless pyiceberg's properties of another one are given."""

    def __init__(self, root: Path, database: str, catalog: Mapping[str, str]) -> None:
        self._root, self._database = root, database
        self._catalog: Any = catalog_of(root, catalog)

    def append(self, query: str, batch: int, table: str, files: Sequence[Added], schema: pa.Schema, stem: str) -> None:
        self._catalog.create_namespace_if_not_exists(self._database)
        found = self._catalog.create_table_if_not_exists((self._database, table), schema)
        mark = f"heliograph.batch.{query}"
        if is_in(table, int(found.properties.get(mark, -1)), batch):
            return
        same_types(table, _plain(types_of(found.schema().as_arrow())), _plain(types_of(schema)))
        paths = _moved(files, self._root / table / "data", stem)
        trying(lambda: self._commit(table, mark, batch, paths, schema))

    def close(self) -> None:
        self._catalog.close()

    def _commit(self, table: str, mark: str, batch: int, paths: Sequence[Path], schema: pa.Schema) -> None:
        found = self._catalog.load_table((self._database, table))
        if is_in(table, int(found.properties.get(mark, -1)), batch):
            return
        with found.transaction() as change:
            if set(schema.names) - set(found.schema().column_names):
                with change.update_schema() as wider:
                    wider.union_by_name(schema)
            change.add_files([f"file://{path}" for path in paths], check_duplicate_files=False)
            change.set_properties({mark: str(batch)})


def _plain(types: Mapping[str, str]) -> dict[str, str]:
    """As Iceberg knows them: it has no small integers, and gives text as large."""
    return {name: re.sub(r"\bint(8|16)\b", "int32", kind.replace("large_", "")) for name, kind in types.items()}
