"""Small files of a directory, each replaced whole, by rename.

Is: one file's bytes: u32 crc32c, then a version byte and msgpack of a list. Isn't: anything that grows with entries.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import crc32c

from heliograph.model.errors import CorruptData
from heliograph.model.ledger_metadata import FORMAT, pack, unpack
from heliograph.runtime.disk import Disk

NEW = ".new"


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
