"""Starts file: the numbers of a member's starts and of the others', as far as it has heard, beside its log.

Is: writing and reading it. Isn't: what follows from the numbers (`starts`).
Invariants: a full disk keeps the file as it is: then the member comes with the same number again. A log without this
file was made by an earlier version.

    u8 version (1), u64 own start, members and their starts as the lives in messages, the stage being 1: confirmed, 2:
    not; as `checksummed_file` keeps it
"""

from __future__ import annotations

import struct

from heliograph.model.errors import CorruptData, PeerError
from heliograph.raft.disk import checksummed_file
from heliograph.raft.disk.snapshot_file import is_full
from heliograph.raft.messages import decode_lives, encode_lives
from heliograph.raft.starts import StartsRecord
from heliograph.runtime.disk import Disk

STARTS = "starts"
_VERSION = 1
_CONFIRMED, _UNCONFIRMED = 1, 2
_BODY = struct.Struct(">BQ")


def begin(disk: Disk, chance: int) -> StartsRecord:
    """A start of this member, durable when it returns, or the one before again where the disk is full. Blocking. Raises
    OSError, CorruptData.
    """
    before = read(disk)
    record = before.begun(chance)
    return record if record == before or write(disk, record) else before


def write(disk: Disk, record: StartsRecord) -> bool:
    """Durable when it returns; False: the disk is full, and nothing is changed. Blocking. Raises OSError."""
    stage = _CONFIRMED if record.confirmed else _UNCONFIRMED
    try:
        checksummed_file.replace(disk, STARTS, _BODY.pack(_VERSION, record.own) + encode_lives(stage, record.others))
    except OSError as error:
        if not is_full(error):
            raise
        return False
    return True


def read(disk: Disk) -> StartsRecord:
    """What lies there, empty where nothing does; blocking. Raises OSError, CorruptData."""
    try:
        body = checksummed_file.read(disk, STARTS)
        if body is None:
            return StartsRecord()
        version, own = _BODY.unpack_from(body)
        if version != _VERSION:
            raise CorruptData(f"the file {STARTS} is of version {version}")
        stage, others = decode_lives(body, _BODY.size)
    except (CorruptData, PeerError, struct.error) as error:
        raise CorruptData(
            f"{error}: empty the folder of this member, and it learns from the others what it was"
        ) from None
    return StartsRecord(own, stage == _CONFIRMED, others)
