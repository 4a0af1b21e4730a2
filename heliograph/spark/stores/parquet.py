"""Wide tables as parquet files: one file a period, replaced as a whole.

    TABLE/bucket=2026-01-31-12/part.parquet     the rows of one period, and in the file's metadata which batches they
                                                hold, of each query

Is: read, put together, write, rename; one writer at a time by a lock on the table's folder. Isn't: for readers of other
formats; Hive's metastore (`hive`).
Invariants: a reader sees a period before a batch or after it, never half; each file says itself which batch it has, so
that no step can be done without saying so. A file is synced before it gets its name. Formats: metadata keys
`heliograph.batches`, JSON {query: batch}, and `heliograph.keys`.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from heliograph.model.errors import ConfigError
from heliograph.spark.stores.micro_batches import is_in
from heliograph.spark.stores.rows import KEYS, PERIOD, Upsert, keys_of, merged, same_keys

BUCKET = "bucket"
_BATCHES, _KEYS = b"heliograph.batches", KEYS.encode()


class ParquetStore:
    """root: a folder that every driver of the query reaches, with locks that hold (not every NFS has such)."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def upsert(self, given: Upsert) -> None:
        self.replace(given)

    def replace(self, given: Upsert) -> list[str]:
        """The names of all buckets that the rows belong to, also of those that had them already."""
        folder = self._root / given.table
        folder.mkdir(parents=True, exist_ok=True)
        periods = pc.unique(given.rows[PERIOD]).sort()
        with locked(folder):
            for period in periods:
                rows = given.rows.filter(pc.equal(given.rows[PERIOD], period))
                self._bucket(folder / f"{BUCKET}={bucket(period.as_py())}" / "part.parquet", given, rows)
        return [bucket(period) for period in periods.to_pylist()]

    def close(self) -> None:
        """Nothing is open between batches."""

    def _bucket(self, path: Path, given: Upsert, rows: pa.Table) -> None:
        known, marks = _read(path)
        batches: dict[str, int] = json.loads(marks.get(_BATCHES, b"{}"))
        if known is not None:
            same_keys(given.table, keys_of(marks.get(_KEYS, b"").decode(), known.schema.names, given.keys), given.keys)
        if is_in(given.table, batches.get(given.query), given.batch):
            return
        if given.batch is not None:
            batches[given.query] = given.batch
        made = merged(known, Upsert(given.table, given.keys, rows, given.writer, given.query, given.batch))
        made = made.replace_schema_metadata(
            {_BATCHES: json.dumps(batches).encode(), _KEYS: json.dumps(given.keys).encode()}
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_name(".part.new")  # a name that readers leave alone
        with new.open("wb") as file:
            pq.write_table(made, file)
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
        _sync(path.parent)
        if known is None:  # the folders may be new, too
            _sync(path.parent.parent)
            _sync(self._root)


def bucket(period: datetime) -> str:
    """Names a period by its start, to the minute, which is the shortest that a table may count by."""
    at = period.astimezone(UTC)
    return at.strftime("%Y-%m-%d-%H" if at.minute == 0 else "%Y-%m-%d-%H-%M")


def _read(path: Path) -> tuple[pa.Table | None, dict[bytes, bytes]]:
    """Its rows, and its metadata."""
    try:
        found = pq.ParquetFile(path)
    except FileNotFoundError:
        return None, {}
    except pa.ArrowInvalid as error:
        raise ConfigError(
            f"{path} is no parquet file: {error}; put it aside, and write its period again from the topics"
        ) from error
    with found:
        table = found.read()
    return table.replace_schema_metadata(None), dict(table.schema.metadata or {})


@contextmanager
def locked(folder: Path, name: str = ".lock") -> Iterator[None]:
    """By its file of that name: writers of several queries read and replace the same files."""
    with (folder / name).open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _sync(folder: Path) -> None:
    held = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(held)
    finally:
        os.close(held)
