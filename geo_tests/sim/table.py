"""SimTable: a table store on a simulated disk, for power cuts at any step.

Is: heliograph.kv.engine.table_store.TableStore as one file of batches, each with a checksum, that is read again from
its beginning. Isn't: small, or for anything but simulations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import crc32c
import msgpack

from heliograph.kv.engine.table_rows import MemoryRows, Row
from heliograph.kv.engine.table_store import Done, StoredTable, TableBatch
from heliograph.runtime.disk import Disk, File

NAME = "table"


class SimTable:
    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._file: File | None = None
        self._end = 0
        self._rows, self._new = MemoryRows(), MemoryRows()
        self._added: list[tuple[str, Row]] = []
        self.kept = StoredTable()
        self.commits = 0

    def open_soon(self, done: Callable[[StoredTable | None, BaseException | None], None]) -> None:
        self._disk.submit(self._open, done)

    def _open(self) -> StoredTable:
        file = self._file = self._disk.open(NAME, create=True)
        self._disk.sync_directory()
        raw = file.pread(file.size_bytes(), 0)
        while self._end + 8 <= len(raw):
            size, crc = (int.from_bytes(raw[self._end + at : self._end + at + 4], "big") for at in (0, 4))
            body = raw[self._end + 8 : self._end + 8 + size]
            if not size or len(body) < size or crc32c.crc32c(body) != crc:
                break
            self._take(*msgpack.unpackb(body))
            self._end += 8 + size
        file.truncate(self._end)
        file.datasync()
        return StoredTable(self.kept.mark, dict(self.kept.counts))

    def _take(self, rows: list[Any], counts: dict[str, int], mark: bytes, replaces: bool) -> None:
        if replaces:
            self._rows, self.kept.counts = MemoryRows(), {}
        for key, row in rows:
            if row is not None:
                self._rows.set(key, tuple(row))
            elif self._rows.get(key) is not None:
                self._rows.remove(key)
        for prefix, count in counts.items():
            if count:
                self.kept.counts[prefix] = count
            else:
                self.kept.counts.pop(prefix, None)
        self.kept.mark = mark

    def get(self, key: str) -> Row | None:
        return self._rows.get(key)

    def items(self, start: str, end: str) -> Iterator[tuple[str, Row]]:
        return self._rows.items(start, end)

    def commit(self, batch: TableBatch, done: Done) -> None:
        rows = [*self._added, *batch.rows.items()] if batch.replaces else list(batch.rows.items())
        fields = (rows, dict(batch.counts), batch.mark, batch.replaces)
        body = msgpack.packb(fields)

        def job() -> None:
            assert self._file is not None
            self._file.pwritev(
                [len(body).to_bytes(4, "big") + crc32c.crc32c(body).to_bytes(4, "big") + body], self._end
            )
            self._file.datasync()

        def stored(_: None, error: BaseException | None) -> None:
            if error is None:
                self._end += 8 + len(body)
                self.commits += 1
                self._take(*fields)
            elif self._file is not None:
                self._file = self._disk.open(NAME)
            done(error)

        self._disk.submit(job, stored)

    def clear(self, done: Done) -> None:
        self._added = []
        self._disk.submit(lambda: None, lambda _, error: done(error))

    def add(self, rows: Sequence[tuple[str, Row]], done: Done) -> None:
        self._added += rows
        self._disk.submit(lambda: None, lambda _, error: done(error))

    def close(self) -> None:
        self._disk.close()
