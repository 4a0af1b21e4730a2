"""What a ledger directory says of itself: the checkpoint (what is in entry logs), and the metadata that garbage is
judged by.

Is: small files, each replaced whole, by rename. Isn't: anything that grows with entries.
Invariant: a checkpoint names only logs that were synced before it.

Each is u32 crc32c, then a version byte and msgpack of a list. `checkpoint` is a Checkpoint, `metadata` a KnownMetadata
(version 2; version 1 had the instance id alone).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import crc32c

from heliograph.model.errors import CorruptData
from heliograph.model.ledger_metadata import FORMAT, pack, unpack
from heliograph.runtime.disk import Disk
from storage.bookie.journal.journal import Fork

_CHECKPOINT, _METADATA = "checkpoint", "metadata"
_METADATA_VERSION = 2
NEW = ".new"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """flushed_through: sequence, in this directory's journal, up to which `logs` hold everything of it. start: number
    of the last start of the process.
    """

    flushed_through: int = 0
    start: int = 0
    next_log: int = 0
    logs: tuple[int, ...] = ()
    dead: tuple[tuple[int, int], ...] = ()
    """Ranges of deleted ledgers: first and last id, both included."""
    forks: tuple[Fork, ...] = field(default=())


def load_checkpoint(disk: Disk) -> Checkpoint:
    """The default where there is none yet. Raises OSError, CorruptData."""
    found = read_small(disk, _CHECKPOINT)
    if found is None:
        return Checkpoint()
    through, start, next_log, logs, dead, forks = found[1]
    return Checkpoint(
        through, start, next_log, tuple(logs), tuple((a, b) for a, b in dead), tuple((a, b, c) for a, b, c in forks)
    )


def save_checkpoint(disk: Disk, point: Checkpoint) -> None:
    """Blocking; durable when it returns. Raises OSError."""
    write_small(
        disk, _CHECKPOINT, [point.flushed_through, point.start, point.next_log, point.logs, point.dead, point.forks]
    )


@dataclass(frozen=True, slots=True)
class KnownMetadata:
    """What a bookie knows of the region's metadata."""

    instance: str = ""
    """Its id; "" before the first contact."""
    seen: int = 0
    """The version of this bookie's mark there (local_meta.metadata_age); 0: it has none yet."""
    doubt: str = ""
    """Why it deletes nothing until an operator confirms, whatever the mark says."""


def load_known_metadata(disk: Disk) -> KnownMetadata:
    """The default where none is known yet. Raises OSError, CorruptData."""
    found = read_small(disk, _METADATA, (FORMAT, _METADATA_VERSION))
    return KnownMetadata(*found[1]) if found else KnownMetadata()


def save_known_metadata(disk: Disk, known: KnownMetadata) -> None:
    """Blocking; durable when it returns. Raises OSError."""
    write_small(disk, _METADATA, [known.instance, known.seen, known.doubt], version=_METADATA_VERSION)


def read_small(disk: Disk, name: str, versions: Sequence[int] = (FORMAT,)) -> tuple[int, list[Any]] | None:
    """(version, fields) of a small file, or None where there is none. Raises OSError, CorruptData."""
    try:
        file = disk.open(name)
    except FileNotFoundError:
        return None
    try:
        data = file.pread(file.size_bytes(), 0)
    finally:
        file.close()
    if len(data) < 5:
        raise CorruptData(f"{name}: too short")
    if data[4] not in versions:
        raise CorruptData(f"{name}: format {data[4]}")
    if crc32c.crc32c(data[4:]) != int.from_bytes(data[:4], "big"):
        raise CorruptData(f"{name}: checksum mismatch")
    return data[4], unpack(name, bytes([FORMAT]) + data[5:])


def write_small(disk: Disk, name: str, fields: Sequence[Any], *, version: int = FORMAT) -> None:
    """Blocking; durable when it returns. Raises OSError."""
    packed = bytes([version]) + pack(list(fields))[1:]
    file = disk.open(name + NEW, create=True)
    try:
        file.truncate(0)
        file.pwritev([crc32c.crc32c(packed).to_bytes(4, "big"), packed], 0)
        file.datasync()
    finally:
        file.close()
    disk.rename(name + NEW, name)
    disk.sync_directory()
