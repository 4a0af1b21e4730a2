"""Wide tables as Iceberg tables, by the package `pyiceberg`: the touched periods are written anew, in one change a
batch.

Is: any catalogue that pyiceberg knows; without one, an SQLite file beside the data. Isn't: expiry of snapshots and old
files, which are the table's owner's.
Invariants: a batch is its rows and the property that names it, in one change of the catalogue, or nothing. Another
writer's change in between makes ours
fail: it is tried anew from what is there then.
Properties of a table: `heliograph.batch.QUERY`, the last batch of that query; `heliograph.keys`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from heliograph.model.errors import ConfigError
from heliograph.spark.stores.micro_batches import is_in
from heliograph.spark.stores.rows import KEYS, PERIOD, Upsert, keys_of, merged, plain, same_keys

_TRIES = 10
_SAME = {pa.large_string(): pa.string(), pa.large_binary(): pa.binary(), pa.int8(): pa.int32(), pa.int16(): pa.int32()}
"""It knows no small integers, and gives text as large."""


class IcebergStore:
    """root: of the catalogue without a server; namespace: of the tables; catalog: pyiceberg's properties (`type`,
    `uri`, `warehouse`, ...) of another.
    """

    def __init__(self, root: Path | None, namespace: str, catalog: Mapping[str, str]) -> None:
        self._catalog, self._namespace = catalog_of(root, catalog), namespace

    def upsert(self, given: Upsert) -> None:
        given = replace(given, rows=plain(given.rows, _SAME))
        trying(lambda: self._write(given))

    def close(self) -> None:
        self._catalog.close()

    def _write(self, given: Upsert) -> None:
        self._catalog.create_namespace_if_not_exists(self._namespace)
        table = self._catalog.create_table_if_not_exists(
            (self._namespace, given.table), given.rows.schema, properties={KEYS: json.dumps(given.keys)}
        )
        same_keys(given.table, keys_of(table.properties.get(KEYS), table.schema().column_names, given.keys), given.keys)
        mark = f"heliograph.batch.{given.query}"
        if is_in(given.table, int(table.properties.get(mark, -1)), given.batch):
            return
        periods = [at.isoformat() for at in pc.unique(given.rows[PERIOD]).to_pylist()]
        touched = f"{PERIOD} IN ('" + "', '".join(periods) + "')"
        known = plain(table.scan(row_filter=touched).to_arrow(), _SAME)
        made = merged(known, given)
        with table.transaction() as change:
            if set(made.schema.names) - set(table.schema().column_names):
                with change.update_schema() as schema:
                    schema.union_by_name(made.schema)
            if known.num_rows:
                change.delete(touched)
            change.append(made)
            if given.batch is not None:
                change.set_properties({mark: str(given.batch)})


def catalog_of(root: Path | None, catalog: Mapping[str, str]) -> Any:
    """root: where a catalogue without a server lies, unless `catalog` says otherwise. Raises ConfigError without
    pyiceberg.
    """
    try:
        from pyiceberg.catalog import load_catalog
    except ImportError as error:
        raise ConfigError("iceberg wants the package pyiceberg; run: pip install 'pyiceberg[sql-sqlite]<1'") from error
    if root is not None:
        root.mkdir(parents=True, exist_ok=True)
        catalog = {"type": "sql", "uri": f"sqlite:///{root / 'catalog.db'}", "warehouse": f"file://{root}", **catalog}
    return load_catalog("heliograph", **dict(catalog))


def trying(change: Callable[[], None]) -> None:
    """Anew where another writer's change came in between."""
    from pyiceberg.exceptions import CommitFailedException

    for left in reversed(range(_TRIES)):
        try:
            change()
            return
        except CommitFailedException:
            if not left:
                raise
