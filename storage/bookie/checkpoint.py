"""What a bookie's directories say of themselves: the cookie (whose they are), the checkpoint (what is in entry logs), and the metadata they know.

Is: three small files, each replaced whole, by rename. Isn't: anything that grows with entries.
Invariants: a directory with a wrong cookie is never written to; a checkpoint names only logs that were synced before it.

Both are u32 crc32c, then a version byte and msgpack (`heliograph.model.ledgers.pack`). A cookie is `cookie`, a checkpoint `checkpoint`;
`metadata` is the instance id of the region's metadata that garbage is judged by.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import crc32c

from heliograph.model.errors import ConfigError, CorruptData
from heliograph.model.ledgers import FORMAT, pack, unpack
from heliograph.runtime.clock import Rng
from heliograph.runtime.disk import Disk
from storage.bookie.journal import Fork

_COOKIE, _CHECKPOINT, _METADATA, _NEW = "cookie", "checkpoint", "metadata", ".new"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """flushed_through: journal sequence up to which `logs` hold everything. start: number of the last start of the process."""

    flushed_through: int = 0
    start: int = 0
    next_log: int = 0
    logs: tuple[int, ...] = ()
    dead: tuple[tuple[int, int], ...] = ()
    """Ranges of deleted ledgers: first and last id, both included."""
    forks: tuple[Fork, ...] = field(default=())


def load_checkpoint(disk: Disk) -> Checkpoint:
    """The default where there is none yet. Raises OSError, CorruptData."""
    fields = _read(disk, _CHECKPOINT)
    if fields is None:
        return Checkpoint()
    through, start, next_log, logs, dead, forks = fields
    return Checkpoint(through, start, next_log, tuple(logs), tuple((a, b) for a, b in dead), tuple((a, b, c) for a, b, c in forks))


def save_checkpoint(disk: Disk, point: Checkpoint) -> None:
    """Blocking; durable when it returns. Raises OSError."""
    _write(disk, _CHECKPOINT, [point.flushed_through, point.start, point.next_log, point.logs, point.dead, point.forks])


def load_metadata_instance(disk: Disk) -> str:
    """"" where none is known yet. Raises OSError, CorruptData."""
    fields = _read(disk, _METADATA)
    return str(fields[0]) if fields else ""


def save_metadata_instance(disk: Disk, instance: str) -> None:
    """Blocking; durable when it returns. Raises OSError."""
    _write(disk, _METADATA, [instance])


def load_cookie(disk: Disk) -> tuple[str, str, int] | None:
    """(instance, bookie, salt), or None where there is none. Raises OSError, CorruptData."""
    fields = _read(disk, _COOKIE)
    return None if fields is None else (str(fields[0]), str(fields[1]), int(fields[2]))


def claim(disks: Sequence[tuple[str, Disk]], instance: str, bookie: str, rng: Rng) -> int:
    """Makes sure that all `disks` (what each is for, and the disk) belong to this bookie, and returns their salt.

    Empty ones become this bookie's. Raises ConfigError in one sentence where one is another's, of another format, or has lost its fellow.
    """
    cookies = [_cookie(what, disk, instance, bookie) for what, disk in disks]
    known = [salt for salt in cookies if salt is not None]
    if any(salt != known[0] for salt in known):
        raise ConfigError(f"bookie {bookie}: the directories belong to two different lives of this bookie; give it those that belong together")
    missing = [(what, disk) for (what, disk), salt in zip(disks, cookies, strict=True) if salt is None]
    if missing:
        for what, disk in disks:
            if foreign := [name for name in disk.names() if name not in (_COOKIE, _COOKIE + _NEW)]:
                raise ConfigError(
                    f"bookie {bookie}: the {missing[0][0]} directory has no cookie, but the {what} directory holds {foreign[0]!r}; "
                    "give it the directory it had, or empty ones"
                )
        salt = known[0] if known else rng.getrandbits(32)
        for _, disk in missing:
            _write(disk, _COOKIE, [instance, bookie, salt])
        return salt
    return known[0]


def _cookie(what: str, disk: Disk, instance: str, bookie: str) -> int | None:
    try:
        fields = _read(disk, _COOKIE)
    except CorruptData as error:
        raise ConfigError(f"bookie {bookie}: the {what} directory is of another format ({error}); this version reads format {FORMAT}") from error
    if fields is None:
        return None
    owner_instance, owner, salt = fields
    if (owner_instance, owner) != (instance, bookie):
        raise ConfigError(f"bookie {bookie} of {instance}: the {what} directory belongs to bookie {owner} of {owner_instance}; give it its own")
    return int(salt)


def _read(disk: Disk, name: str) -> list[Any] | None:
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
    if data[4] != FORMAT:
        raise CorruptData(f"{name}: format {data[4]}")
    if crc32c.crc32c(data[4:]) != int.from_bytes(data[:4], "big"):
        raise CorruptData(f"{name}: checksum mismatch")
    return unpack(name, data[4:])


def _write(disk: Disk, name: str, fields: list[Any]) -> None:
    packed = pack(fields)
    file = disk.open(name + _NEW, create=True)
    try:
        file.truncate(0)
        file.pwritev([crc32c.crc32c(packed).to_bytes(4, "big"), packed], 0)
        file.datasync()
    finally:
        file.close()
    disk.rename(name + _NEW, name)
    disk.sync_directory()
