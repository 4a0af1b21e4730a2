"""LmdbStore: a table in an LMDB environment, a folder of its own.

Is: rows, counts, and the mark of the last batch, in a B-tree that is written by copying pages, so that a crash leaves
the state of the last commit. Isn't: the log (which holds what was not committed yet), or layers in memory.
Invariants: a batch is one transaction, synced on the thread of the given disk, never on the event loop; the loop reads
from one read transaction, which is renewed when a batch is done; a map that is full is made twice as large, and the
batch begun again; every row carries a checksum, for LMDB has none.

Databases: `about` (one row), and two of `rows-{0|1}` and `counts-{0|1}`, of which `about` says which is read; the other
one takes a table from elsewhere until it is whole. Big endian:

    about   "about"         u8 version (1), u8 which, u16 reserved (0),
                            u32 crc32c of what follows and the first two bytes, the mark
    rows    the key         u32 crc32c of key and what follows, u64 version, u64 lease, the value
            its first 500 bytes and 0xff, where it is longer: msgpack [[the rest of the key, a row as above], ...], in
            order: LMDB's keys end at 511 bytes
    counts  the prefix      u64 count
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import crc32c
import lmdb
import msgpack

from heliograph.kv.engine.table_rows import Row
from heliograph.kv.engine.table_store import Done, StoredTable, TableBatch
from heliograph.model.errors import CorruptData
from heliograph.runtime.disk import Disk

VERSION = 1
MAP_BYTES = 256 << 20
"""At the start; doubled where it is full. Address space, not disk."""
_DATA = "data.mdb"
_LOCK = "lock.mdb"
_IN_USE = "in-use"
"""Is there while a process has the table open, and after one that was killed."""
DAMAGED = "data.mdb.damaged"
"""What a table that was damaged is called once it is set aside."""
_KEY_BYTES_MAX = 500
_LONG = b"\xff"  # no byte of UTF-8
_ABOUT = struct.Struct(">BBHI")
_ROW = struct.Struct(">IQQ")
_COUNT = struct.Struct(">Q")
_ROOM_BYTES = 1 << 20
ROWS_AT_ONCE = 1000


class LmdbStore:
    """Implements heliograph.kv.engine.table_store.TableStore."""

    def __init__(
        self,
        disk: Disk,
        folder: str,
        *,
        map_bytes: int = MAP_BYTES,
        check: Callable[[str], None] | None = None,
        rows_at_once: int = ROWS_AT_ONCE,
    ) -> None:
        """disk: for its thread; not the log's, whose syncs must not wait for a batch. folder: of the environment; made
        where it is not there.

        check: of that folder, before it is opened, where it was not closed in order; raises CorruptData. Blocking; on
        the disk's thread. rows_at_once: so many are encoded between two calls that let other threads run.
        """
        self._check, self._rows_at_once = check, rows_at_once
        self._suspect = False
        """Damage was met: the next start is to look at everything, however this one ends."""
        self._disk, self._folder, self._map_bytes = disk, folder, map_bytes
        self._env: Any = None
        self._reader: Any = None
        self._rows: list[Any] = []
        self._counts: list[Any] = []
        self._about: Any = None
        self._current = 0  # which of the two is read

    # -- life ---------------------------------------------------------------------------------------------------------

    def open_soon(self, done: Callable[[StoredTable | None, BaseException | None], None]) -> None:
        def opened(kept: StoredTable | None, error: BaseException | None) -> None:
            if error is None:
                self._reader = self._env.begin()
            done(kept, error)

        self._disk.submit(self._guarded(self._open), opened)

    def _open(self) -> StoredTable:
        in_use = Path(self._folder, _IN_USE)
        if self._check is not None and in_use.exists() and Path(self._folder, _DATA).exists():
            self._check(self._folder)
        env = self._env = lmdb.open(self._folder, map_size=self._map_bytes, max_dbs=8, readahead=False)
        _check_size(self._folder, env)
        in_use.touch()
        env.reader_check()  # those of processes that were killed
        env.set_mapsize(max(env.info()["map_size"], self._map_bytes))
        self._about = env.open_db(b"about")
        self._rows = [env.open_db(b"rows-%d" % number) for number in range(2)]
        self._counts = [env.open_db(b"counts-%d" % number) for number in range(2)]
        with env.begin() as reading:
            found = reading.get(b"about", db=self._about)
            if found is None:
                return StoredTable()
            self._current, mark = _opened(found)
            counts = {
                prefix.decode(): _COUNT.unpack(count)[0]
                for prefix, count in reading.cursor(self._counts[self._current])
            }
        return StoredTable(mark, counts)

    def discard_soon(self, done: Done) -> None:
        def opened(_: StoredTable | None, error: BaseException | None) -> None:
            if error is None:
                self._reader = self._env.begin()
            done(error)

        if self._reader is not None:
            self._reader.abort()
            self._reader = None
        self._disk.submit(self._guarded(self._set_aside), opened)

    def _set_aside(self) -> StoredTable:
        if self._env is not None:
            self._env.close()
            self._env = None
        data = Path(self._folder, _DATA)
        if data.exists():
            data.rename(data.with_name(DAMAGED))  # the one before it goes
        Path(self._folder, _LOCK).unlink(missing_ok=True)
        self._current, self._suspect = 0, False
        return self._open()

    def close(self) -> None:
        self._disk.close()
        if self._reader is not None:
            self._reader.abort()
            self._reader = None
        if self._env is not None:
            self._env.close()
            self._env = None
            if not self._suspect:
                Path(self._folder, _IN_USE).unlink(missing_ok=True)

    # -- reads --------------------------------------------------------------------------------------------------------

    def get(self, key: str) -> Row | None:
        try:
            return self._get(key.encode())
        except CorruptData:
            self._suspect = True
            raise

    def _get(self, raw: bytes) -> Row | None:
        try:
            found = self._reader.get(
                raw if len(raw) <= _KEY_BYTES_MAX else raw[:_KEY_BYTES_MAX] + _LONG, db=self._rows[self._current]
            )
        except lmdb.Error as error:
            raise damaged(error) from error
        if found is None:
            return None
        if len(raw) <= _KEY_BYTES_MAX:
            return _row(raw, found)
        return dict(_long_rows(raw[:_KEY_BYTES_MAX], found)).get(raw)

    def items(self, start: str, end: str) -> Iterator[tuple[str, Row]]:
        try:
            yield from self._items(start, end)
        except CorruptData:
            self._suspect = True
            raise

    def _items(self, start: str, end: str) -> Iterator[tuple[str, Row]]:
        first, behind = start.encode(), end.encode()
        try:
            cursor = self._reader.cursor(self._rows[self._current])
            if not cursor.set_range(first if len(first) <= _KEY_BYTES_MAX else first[:_KEY_BYTES_MAX] + _LONG):
                return
            for raw, found in cursor:
                if raw[-1:] == _LONG:
                    for long_key, row in _long_rows(raw[:-1], found):
                        if first <= long_key < behind:
                            yield long_key.decode(), row
                elif raw >= behind:
                    return
                else:
                    yield raw.decode(), _row(raw, found)
                if raw >= behind:
                    return
        except lmdb.Error as error:
            raise damaged(error) from error

    # -- writes -------------------------------------------------------------------------------------------------------

    def commit(self, batch: TableBatch, done: Done) -> None:
        def committed() -> None:
            if batch.replaces:
                self._current = 1 - self._current

        self._write(partial(self._put_batch, batch), committed, done)

    def _put_batch(self, batch: TableBatch, txn: Any) -> None:
        which = 1 - self._current if batch.replaces else self._current
        _put_rows(txn, self._rows[which], batch.rows, self._rows_at_once)
        for prefix, count in batch.counts.items():
            if count:
                txn.put(prefix.encode(), _COUNT.pack(count), db=self._counts[which])
            else:
                txn.delete(prefix.encode(), db=self._counts[which])
        txn.put(b"about", _about(which, batch.mark), db=self._about)
        if batch.replaces:
            for database in (self._rows[1 - which], self._counts[1 - which]):
                txn.drop(database, delete=False)

    def clear(self, done: Done) -> None:
        def clear(txn: Any) -> None:
            for databases in (self._rows, self._counts):
                txn.drop(databases[1 - self._current], delete=False)

        self._write(clear, lambda: None, done)

    def add(self, rows: Sequence[tuple[str, Row]], done: Done) -> None:
        def put(txn: Any) -> None:
            _put_rows(txn, self._rows[1 - self._current], dict(rows), self._rows_at_once)

        self._write(put, lambda: None, done)

    def _write(self, work: Callable[[Any], None], committed: Callable[[], None], done: Done) -> None:
        """One transaction on the disk's thread; where the map is full, again with a larger one."""

        def job() -> bool:
            """Returns whether the map was large enough."""
            try:
                with self._env.begin(write=True) as txn:
                    work(txn)
            except lmdb.MapFullError:
                return False
            return True

        def ran(fits: bool | None, error: BaseException | None) -> None:
            if error is None and not fits:
                try:
                    self._grow()
                except (lmdb.Error, MemoryError) as refused:
                    done(
                        OSError(errno.ENOSPC, f"the table's map cannot grow beyond {self._map_bytes} bytes: {refused}")
                    )
                    return
                self._write(work, committed, done)
                return
            if error is None:
                self._reader.abort()
                self._reader = self._env.begin()
                committed()
            done(error)

        self._disk.submit(self._guarded(job), ran)

    def _grow(self) -> None:
        """Nobody writes just now, and who reads begins anew."""
        self._reader.abort()
        try:
            self._env.set_mapsize(2 * self._env.info()["map_size"])
        finally:
            self._reader = self._env.begin()
            self._map_bytes = self._env.info()["map_size"]

    def _guarded(self, job: Callable[[], Any]) -> Callable[[], Any]:
        """LMDB's errors as those of the port."""

        def guarded() -> Any:
            try:
                return job()
            except CorruptData:
                self._suspect = True
                raise
            except (lmdb.DiskError, lmdb.MemoryError) as error:
                raise OSError(errno.ENOSPC, f"the table in {self._folder} cannot be written: {error}") from error
            except (
                lmdb.InvalidError,
                lmdb.CorruptedError,
                lmdb.PageNotFoundError,
                lmdb.PanicError,
                lmdb.VersionMismatchError,
            ) as error:
                self._suspect = True
                raise damaged(error) from error
            except lmdb.Error as error:
                if self._disk.free_bytes() < _ROOM_BYTES:  # a write that a full disk cuts short is an I/O error to LMDB
                    raise OSError(
                        errno.ENOSPC, f"the table in {self._folder} cannot be written: the disk is full ({error})"
                    ) from error
                raise OSError(errno.EIO, f"the table in {self._folder}: {error}") from error

        return guarded


def _check_size(folder: str, env: Any) -> None:
    """A file that is shorter than its last page would end the process (SIGBUS) at the first read behind its end."""
    size = Path(folder, _DATA).stat().st_size
    needed = (env.info()["last_pgno"] + 1) * env.stat()["psize"]
    if env.info()["last_txnid"] and size < needed:
        raise damaged(f"{_DATA} is cut off: {size} bytes where {needed} were written")


def check_all(folder: str) -> None:
    """Reads everything. Raises CorruptData, lmdb.Error; or ends the process: see `lmdb_check`."""
    with lmdb.open(folder, readonly=True, lock=False, max_dbs=8) as env:
        _check_size(folder, env)
        with env.begin() as reading:
            names = [name for name, _ in reading.cursor()]
        for name in names:
            database = env.open_db(name, create=False)
            with env.begin() as reading:
                for raw, found in reading.cursor(database):
                    if name == b"about":
                        _opened(found)
                    elif not name.startswith(b"rows-"):
                        _COUNT.unpack(found)
                    elif raw[-1:] == _LONG:
                        _long_rows(raw[:-1], found)
                    else:
                        _row(raw, found)


# -- bytes ------------------------------------------------------------------------------------------------------------


def damaged(error: object) -> CorruptData:
    return CorruptData(
        f"the table of the metadata is damaged ({error}): where there are other voters, start a fresh member and put "
        "it in the place of this one with "
        "`heliograph meta replace OLD NEW HOST:PORT`; where this is the only one, restore a backup into an empty "
        "folder with `heliograph restore`"
    )


def _about(which: int, mark: bytes) -> bytes:
    return _ABOUT.pack(VERSION, which, 0, crc32c.crc32c(mark, crc32c.crc32c(bytes([VERSION, which])))) + mark


def _opened(about: bytes) -> tuple[int, bytes]:
    if not about or about[0] != VERSION:
        raise CorruptData(
            f"the table of the metadata has version {about[0] if about else 'none'}; this program knows version "
            f"{VERSION}"
        )
    mark = about[_ABOUT.size :]
    if len(about) < _ABOUT.size or _about(about[1], mark) != about:
        raise damaged("its description")
    return about[1], mark


def _packed(key: bytes, row: Row) -> bytes:
    value, version, lease = row
    numbers = _ROW.pack(0, version, lease)[4:]
    return crc32c.crc32c(value, crc32c.crc32c(numbers, crc32c.crc32c(key))).to_bytes(4, "big") + numbers + value


def _row(key: bytes, found: bytes) -> Row:
    if len(found) < _ROW.size or crc32c.crc32c(found[4:], crc32c.crc32c(key)) != int.from_bytes(found[:4], "big"):
        raise damaged(f"the row of {key[:200]!r}")
    _, version, lease = _ROW.unpack_from(found)
    return found[_ROW.size :], version, lease


def _long_rows(beginning: bytes, found: bytes) -> list[tuple[bytes, Row]]:
    try:
        return [(beginning + rest, _row(beginning + rest, packed)) for rest, packed in msgpack.unpackb(found)]
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise damaged(error) from error


def _put_rows(txn: Any, database: Any, rows: Mapping[str, Row | None], at_once: int) -> None:
    """In order: neighbours share pages."""
    puts: list[tuple[bytes, bytes]] = []
    long: dict[bytes, dict[bytes, Row | None]] = {}
    with txn.cursor(database) as cursor:
        for key in sorted(rows):
            row, raw = rows[key], key.encode()
            if len(raw) > _KEY_BYTES_MAX:
                long.setdefault(raw[:_KEY_BYTES_MAX], {})[raw[_KEY_BYTES_MAX:]] = row
            elif row is None:
                txn.delete(raw, db=database)
            else:
                puts.append((raw, _packed(raw, row)))
                if len(puts) >= at_once:
                    cursor.putmulti(puts)
                    puts = []
        cursor.putmulti(puts)
    for beginning, changes in long.items():
        _put_long(txn, database, beginning, changes)


def _put_long(txn: Any, database: Any, beginning: bytes, changes: Mapping[bytes, Row | None]) -> None:
    found = txn.get(beginning + _LONG, db=database)
    held: dict[bytes, Row | None] = (
        {} if found is None else {key[_KEY_BYTES_MAX:]: row for key, row in _long_rows(beginning, found)}
    )
    held.update(changes)
    left = [(rest, _packed(beginning + rest, row)) for rest, row in sorted(held.items()) if row is not None]
    if left:
        txn.put(beginning + _LONG, msgpack.packb(left), db=database)
    else:
        txn.delete(beginning + _LONG, db=database)
