"""Small files beside a member's log: a few bytes with their checksum, replaced whole or not at all.

Is: writing, reading, and removing one, each durably; and the one shape of those that hold a number of this member and
one of each other. Isn't: what is in it (`life_file`, `starts_file`, `lost_log`, `other_voters`).
Invariants: whatever happens in between, the file is the old one or the new one.

    body, u32 crc32c of it, big endian

    numbers: u8 version (1), u64 of this member, those of members as the lives in messages, with a stage
"""

from __future__ import annotations

import struct

import crc32c

from heliograph.model.errors import CorruptData, PeerError
from heliograph.raft.messages import Lives, decode_lives, encode_lives
from heliograph.runtime.disk import Disk

_CRC_BYTES = 4
_NUMBERS_VERSION = 1
_NUMBERS = struct.Struct(">BQ")


def replace(disk: Disk, name: str, body: bytes) -> None:
    """Durable when it returns. Blocking. Raises OSError."""
    new = f"{name}.new"
    file = disk.open(new, create=True)
    try:
        file.truncate(0)
        file.pwritev([body + crc32c.crc32c(body).to_bytes(_CRC_BYTES, "big")], 0)
        file.datasync()
    finally:
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


def replace_numbers(disk: Disk, name: str, own: int, stage: int, others: Lives) -> None:
    """stage: what the file's owner means by it. Durable when it returns. Blocking. Raises OSError."""
    replace(disk, name, _NUMBERS.pack(_NUMBERS_VERSION, own) + encode_lives(stage, others))


def read_numbers(disk: Disk, name: str) -> tuple[int, int, Lives] | None:
    """(own, stage, others), or None where there is no such file. Blocking. Raises OSError, CorruptData."""
    try:
        if (body := read(disk, name)) is None:
            return None
        version, own = _NUMBERS.unpack_from(body)
        if version != _NUMBERS_VERSION:
            raise CorruptData(f"the file {name} is of version {version}")
        stage, others = decode_lives(body, _NUMBERS.size)
    except (CorruptData, PeerError, struct.error) as error:
        raise CorruptData(
            f"{error}: empty the folder of this member, and it learns from the others what it was"
        ) from None
    return own, stage, others
