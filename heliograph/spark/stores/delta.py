"""Wide tables as Delta tables, by the package `deltalake`: one merge a batch.

Is: MERGE by the keys, in a commit that names query and batch. Isn't: compaction or vacuum of the table, which are its
owner's.
Invariants: a batch is one commit, or none; a commit that names the batch is not made twice. Where another writer's
commit comes in between, ours fails, and is tried anew.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa

from heliograph.model.errors import ConfigError
from heliograph.spark.stores.micro_batches import is_in
from heliograph.spark.stores.rows import KEYS, Upsert, keys_of, same_keys, same_types

_TRIES = 10


class DeltaStore:
    """root: a folder, one table below it for each name."""

    def __init__(self, root: Path) -> None:
        try:
            import deltalake  # noqa: F401
        except ImportError as error:
            raise ConfigError(
                "store delta wants the package deltalake; run: pip install 'deltalake>=1.6,<2'"
            ) from error
        self._root = root

    def upsert(self, given: Upsert) -> None:
        from deltalake.exceptions import CommitFailedError

        for left in reversed(range(_TRIES)):
            try:
                self._merge(given)
                return
            except CommitFailedError:
                if not left:
                    raise

    def close(self) -> None:
        """Nothing is open between batches."""

    def _merge(self, given: Upsert) -> None:
        from deltalake import CommitProperties, DeltaTable, Schema, Transaction

        place = str(self._root / given.table)
        table = DeltaTable(place) if DeltaTable.is_deltatable(place) else _created(place, given)
        same_keys(
            given.table,
            keys_of(
                table.metadata().configuration.get(KEYS), [field.name for field in table.schema().fields], given.keys
            ),
            given.keys,
        )
        if is_in(given.table, table.transaction_version(given.query), given.batch):
            return
        table = _widened(table, given, Schema.from_arrow(given.rows.schema).fields)
        marks = [Transaction(given.query, given.batch)] if given.batch is not None else []
        source, target = "given", "kept"
        same = " AND ".join(f"{target}.{_name(key)} = {source}.{_name(key)}" for key in given.keys)
        own = {_name(name): f"{source}.{_name(name)}" for name in given.values}
        every = {_name(name): f"{source}.{_name(name)}" for name in given.rows.column_names}
        rows = pa.table(given.rows)
        mark = CommitProperties(app_transactions=marks)
        merge = table.merge(rows, same, source_alias=source, target_alias=target, commit_properties=mark)
        merge = merge.when_not_matched_insert(every)
        (merge.when_matched_update(own) if own else merge).execute()


def _created(place: str, given: Upsert) -> Any:
    from deltalake import DeltaTable

    return DeltaTable.create(
        place,
        given.rows.schema,
        mode="ignore",
        configuration={KEYS: json.dumps(given.keys)},
        raise_if_key_not_exists=False,
    )


def _widened(table: Any, given: Upsert, fields: list[Any]) -> Any:
    known = {field.name: str(field.type) for field in table.schema().fields}
    same_types(given.table, known, {field.name: str(field.type) for field in fields})
    if new := [field for field in fields if field.name not in known]:
        table.alter.add_columns(new)
        return type(table)(table.table_uri)
    return table


def _name(column: str) -> str:
    return f"`{column}`"
