"""Backup files: one consistent image of a metadata store, and the snapshot that a restore makes of it.

Is: the file's layout, writing and verifying it record by record, and what every restore does to an image whatever lies
in it.
Isn't: the network (heliograph.kv.backup_client), ciphers and keys (storage.sealing.backup_seal), or rules about
particular keys (local_meta.backup, global_config.backup).
Invariants: a file is read only whole: cut off, damaged, reordered, or with something behind its end it is refused
before anything is written.
A restored store begins at an index above every one that the old store can have reached, and each key has that index as
its version: what anybody knew of the old store (a version to compare with, a lease, a session, the place of a watch) is
of no use with the new one.

A backup file, big endian: u32 magic "HMB1", u8 version (1; 2: sealed), u8 store (1 local metadata, 2 global
configuration), u16 reserved (0), then records:

    0  u32 size of the body
    4  u32 crc32c of the file's head, the record's number (u64, the first is 0), and the body
    8  body

    first    msgpack map: region, made_ms (wall time), index, program
    others   the pieces of a snapshot (heliograph.kv.engine.table_image), in order

In a sealed one a record in clear stands before these, with what a `RecordSeal` says of itself, and their bodies are as
it has sealed them, each by its number, bound to the file's head and that record.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

import crc32c
import msgpack

from heliograph.kv.engine.table_image import PART_BYTES, PART_ROWS, Head, Reading, part, rows_part
from heliograph.kv.engine.table_image import VERSION as SNAPSHOT_VERSION
from heliograph.kv.engine.table_rows import Row
from heliograph.model.errors import CorruptData
from heliograph.raft.messages import Config
from heliograph.runtime.disk import File

VERSION, SEALED = 1, 2
_MAGIC = b"HMB1"
_HEAD = struct.Struct(">4sBBH")
_RECORD = struct.Struct(">II")
_RECORD_BYTES_MAX = 16 << 20
_ENTRIES_A_SECOND = 24
"""An index is above every index of the old store if it is above the seconds since 1970 shifted by this: 2**24 entries a
second are never written.
"""
RESTORED_TERM = 1


class BackedUpStore(IntEnum):
    LOCAL = 1
    GLOBAL = 2


@dataclass(frozen=True, slots=True)
class Info:
    """What a backup says about itself. made_ms: wall time. region: where it was made."""

    store: BackedUpStore
    region: str
    made_ms: int
    index: int
    program: str


class RecordSeal(Protocol):
    """`about`: what stands in clear, by which the seal is found again."""

    about: bytes

    def sealed(self, number: int, body: bytes, bound: bytes) -> bytes: ...

    def opened(self, number: int, body: bytes, bound: bytes) -> bytes:
        """Raises what `BackupReader` raises for another key, CorruptData."""


class BackupWriter:
    """Writes a backup into an empty file. seal: None: in clear. Blocking."""

    def __init__(self, file: File, seal: RecordSeal | None = None) -> None:
        self._file, self._at, self._number, self._head = file, 0, 0, b""
        self._seal = seal

    @property
    def size_bytes(self) -> int:
        return self._at

    def begin(self, info: Info) -> None:
        about = {"region": info.region, "made_ms": info.made_ms, "index": info.index, "program": info.program}
        self._head = _HEAD.pack(_MAGIC, VERSION if self._seal is None else SEALED, info.store, 0)
        self._write(self._head)
        if self._seal is not None:
            self._put(self._seal.about)
        self.add(msgpack.packb(about))

    def add(self, body: bytes) -> None:
        """Writes the next piece of the image as one record, with its checksum."""
        if self._seal is not None:
            body = self._seal.sealed(self._number, body, self._head + self._seal.about)
        self._put(body)

    def _put(self, body: bytes) -> None:
        self._write(_RECORD.pack(len(body), _checksum(self._head, self._number, body)) + body)
        self._number += 1

    def _write(self, raw: bytes) -> None:
        self._file.pwritev([raw], self._at)
        self._at += len(raw)


def _in_clear(about: bytes) -> RecordSeal:
    raise CorruptData("the backup is sealed, and no key is given")


class BackupReader:
    """Reads one. `rows` may be called again. Blocking. Raises OSError, CorruptData."""

    def __init__(self, file: File, seal_of: Callable[[bytes], RecordSeal] = _in_clear) -> None:
        """seal_of: finds the seal of a sealed one by what it says of it, and raises what is to be said where there is
        none.
        """
        self._file, self._size_bytes = file, file.size_bytes()
        raw = self._head = file.pread(_HEAD.size, 0)
        if len(raw) < _HEAD.size or raw[:4] != _MAGIC:
            raise CorruptData("this is no backup of heliograph's metadata")
        _, version, store, _ = _HEAD.unpack(raw)
        if version not in (VERSION, SEALED):
            raise CorruptData(f"the backup has version {version}; this program reads versions {VERSION} and {SEALED}")
        self._seal: RecordSeal | None = None
        if version == SEALED:
            self._seal = seal_of(next((body for _, _, body in self._stored()), b""))
        try:
            _, about = next(self._records())
            fields = msgpack.unpackb(about)
            self.info = Info(
                BackedUpStore(store),
                str(fields["region"]),
                int(fields["made_ms"]),
                int(fields["index"]),
                str(fields["program"]),
            )
        except StopIteration:
            raise CorruptData("the backup is cut off") from None
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptData(f"the backup's head is not readable: {error}") from error
        self.sealed = version == SEALED
        self.head = Head(0)
        """What it holds beside the rows, once some were read."""

    def rows(self, progress: Callable[[int, int], None] = lambda done, total: None) -> Iterator[tuple[str, Row]]:
        """Every row, in order. Raises CorruptData at the latest behind the last one, where the file is not whole.
        progress: bytes read, bytes in all.
        """
        reading, records = Reading(), self._records()
        next(records)
        for number, (end, body) in enumerate(records):
            at = 4
            if number == 0:
                if body[:1] != bytes([SNAPSHOT_VERSION]):
                    raise CorruptData("the backup holds a snapshot of a version that is not known here")
                at = 5
            if len(body) < at or int.from_bytes(body[at - 4 : at], "big") != len(body) - at:
                raise CorruptData("the backup holds a piece of another size than it says")
            yield from reading.add(memoryview(body)[at:])
            self.head = reading.head or self.head
            progress(end, self._size_bytes)
        reading.finish()

    def _records(self) -> Iterator[tuple[int, bytes]]:
        """Yields (where it ends, body) of each record, opened. Raises CorruptData, and what the seal raises."""
        for number, end, body in self._stored():
            if self._seal is None:
                yield end, body
            elif number:
                yield end, self._seal.opened(number, body, self._head + self._seal.about)

    def _stored(self) -> Iterator[tuple[int, int, bytes]]:
        """Yields (number, where it ends, body) of each record as it lies there. Raises CorruptData."""
        at, number = _HEAD.size, 0
        while at < self._size_bytes:
            raw = self._file.pread(_RECORD.size, at)
            if len(raw) < _RECORD.size:
                raise CorruptData("the backup is cut off")
            size, crc = _RECORD.unpack(raw)
            if size > _RECORD_BYTES_MAX:
                raise CorruptData(f"the backup is damaged at byte {at}")
            body = self._file.pread(size, at + len(raw))
            if len(body) < size:
                raise CorruptData("the backup is cut off")
            if _checksum(self._head, number, body) != crc:
                raise CorruptData(f"the backup is damaged at byte {at}")
            at += len(raw) + size
            yield number, at, body
            number += 1


def restored_index(index: int, wall_s: float) -> int:
    """Where a store that is restored at this wall time begins. index: of the backup."""
    return max(index + 1, int(wall_s) << _ENTRIES_A_SECOND)


def restored_pieces(
    index: int, counters: Iterable[tuple[str, int]], rows: Iterable[tuple[str, bytes]]
) -> Iterator[bytes]:
    """The pieces of the snapshot of a restored store: no leases, no sessions, `index` as the version of every key."""
    yield bytes([SNAPSHOT_VERSION]) + part([index, sorted(counters), [], []])
    count = size = 0
    waiting: list[tuple[str, Row]] = []
    for key, value in rows:
        waiting.append((key, (value, index, 0)))
        count += 1
        size += len(key) + len(value)
        if len(waiting) >= PART_ROWS or size >= PART_BYTES:
            yield rows_part(waiting)
            waiting, size = [], 0
    if waiting:
        yield rows_part(waiting)
    yield part([count])


def group_of(voters: Iterable[str]) -> Config:
    """The group that a restored snapshot names; every voter begins with the same snapshot."""
    return Config(tuple(sorted(set(voters))))


def _checksum(head: bytes, number: int, body: bytes) -> int:
    return crc32c.crc32c(body, crc32c.crc32c(head + number.to_bytes(8, "big")))
