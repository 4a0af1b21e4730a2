"""Debt: what a member that has lost its log has said is durable: a small file beside its log.

Is: writing it, reading it, and removing it, each durably. Isn't: what follows from it (`core`), or when it is paid.
Invariants: it is durable before the log is begun anew, and goes only after as much is durable here again.

    u8 version (1), u64 term, u64 index of the last entry, u32 crc32c; big endian
"""

from __future__ import annotations

import struct

import crc32c

from heliograph.model.errors import CorruptData
from heliograph.runtime.disk import Disk

DEBT = "debt"
_NEW = "debt.new"
_VERSION = 1
_BODY = struct.Struct(">BQQ")


def owe(disk: Disk, term: int, index: int) -> None:
    """Blocking. Raises OSError."""
    body = _BODY.pack(_VERSION, term, index)
    file = disk.open(_NEW, create=True)
    file.pwritev([body + crc32c.crc32c(body).to_bytes(4, "big")], 0)
    file.datasync()
    file.close()
    disk.rename(_NEW, DEBT)
    disk.sync_directory()


def owed(disk: Disk) -> tuple[int, int] | None:
    """(term, index), or None. Blocking. Raises OSError, CorruptData."""
    if DEBT not in disk.names():
        return None
    file = disk.open(DEBT)
    raw = file.pread(_BODY.size + 4, 0)
    file.close()
    if len(raw) != _BODY.size + 4 or raw[0] != _VERSION or crc32c.crc32c(raw[:-4]) != int.from_bytes(raw[-4:], "big"):
        raise CorruptData(f"the file {DEBT} cannot be read: put a fresh member in the place of this one with `heliograph meta replace OLD NEW HOST:PORT`")
    _, term, index = _BODY.unpack_from(raw)
    return term, index


def pay(disk: Disk) -> None:
    """Blocking. Raises OSError."""
    if DEBT in disk.names():
        disk.remove(DEBT)
        disk.sync_directory()
