"""Small files beside a member's log: a few bytes with their checksum, replaced whole or not at all.

Is: writing, reading, and removing one, each durably. Isn't: what is in it (`life_file`, `lost_log`, `other_voters`).
Invariants: whatever happens in between, the file is the old one or the new one.

    body, u32 crc32c of it, big endian
"""

from __future__ import annotations

import crc32c

from heliograph.model.errors import CorruptData
from heliograph.runtime.disk import Disk

_CRC_BYTES = 4


def replace(disk: Disk, name: str, body: bytes) -> None:
    """Durable when it returns. Blocking. Raises OSError."""
    new = f"{name}.new"
    file = disk.open(new, create=True)
    file.truncate(0)
    file.pwritev([body + crc32c.crc32c(body).to_bytes(_CRC_BYTES, "big")], 0)
    file.datasync()
    file.close()
    disk.rename(new, name)
    disk.sync_directory()


def read(disk: Disk, name: str, size_bytes: int | None = None) -> bytes | None:
    """The body, or None where there is no such file. Blocking. Raises OSError; CorruptData where it is not of that
    size (None: of any), or damaged.
    """
    if name not in disk.names():
        return None
    file = disk.open(name)
    raw = file.pread((file.size_bytes() if size_bytes is None else size_bytes) + _CRC_BYTES + 1, 0)
    file.close()
    body = raw[:-_CRC_BYTES]
    if (size_bytes is not None and len(body) != size_bytes) or crc32c.crc32c(body) != int.from_bytes(
        raw[-_CRC_BYTES:], "big"
    ):
        raise CorruptData(f"the file {name} is damaged")
    return body


def remove(disk: Disk, name: str) -> None:
    """Removes the file durably, where it is there. Blocking. Raises OSError."""
    if name in disk.names():
        disk.remove(name)
        disk.sync_directory()
