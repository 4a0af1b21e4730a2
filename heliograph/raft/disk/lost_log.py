"""Debt: what a member that has lost its log has said is durable: a small file beside its log.

Is: writing it, reading it, and removing it, each durably. Isn't: what follows from it (`core`), or when it is paid.
Invariants: it is durable before the log is begun anew, and goes only after as much is durable here again.

    u8 version (1), u64 term, u64 index of the last entry; as `checksummed_file` keeps it
"""

from __future__ import annotations

import struct

from heliograph.model.errors import CorruptData
from heliograph.raft.disk import checksummed_file
from heliograph.runtime.disk import Disk

DEBT = "debt"
_VERSION = 1
_BODY = struct.Struct(">BQQ")


def owe(disk: Disk, term: int, index: int) -> None:
    """Keeps durably that this member has said the log is durable up to `index`. Blocking. Raises OSError."""
    checksummed_file.replace(disk, DEBT, _BODY.pack(_VERSION, term, index))


def owed(disk: Disk) -> tuple[int, int] | None:
    """(term, index), or None. Blocking. Raises OSError, CorruptData."""
    try:
        body = checksummed_file.read(disk, DEBT, _BODY.size)
        if body is not None and body[0] != _VERSION:
            raise CorruptData(f"the file {DEBT} is of version {body[0]}")
    except CorruptData as error:
        raise CorruptData(
            f"{error}: put a fresh member in the place of this one with `heliograph meta replace OLD NEW HOST:PORT`"
        ) from None
    if body is None:
        return None
    _, term, index = _BODY.unpack(body)
    return term, index


def pay(disk: Disk) -> None:
    """Removes the note of `owe` durably, where there is one. Blocking. Raises OSError."""
    checksummed_file.remove(disk, DEBT)
