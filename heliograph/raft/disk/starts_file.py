"""Starts file: the numbers of a member's starts and of the others', as far as it has heard, beside its log.

Is: writing and reading it. Isn't: what follows from the numbers (`starts`).
Invariants: a full disk keeps the file as it is: then the member comes with the same number again. A log without this
file was made by an earlier version.

    numbers as `checksummed_file` keeps them: the own start, and the others'; stage 1: confirmed, 2: not
"""

from __future__ import annotations

from heliograph.raft.disk import checksummed_file
from heliograph.raft.starts import StartsRecord
from heliograph.runtime.disk import Disk, is_transient

STARTS = "starts"
_CONFIRMED, _UNCONFIRMED = 1, 2


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
        checksummed_file.replace_numbers(disk, STARTS, record.own, stage, record.others)
    except (OSError, MemoryError) as error:
        if not is_transient(error):
            raise
        return False
    return True


def read(disk: Disk) -> StartsRecord:
    """What lies there, empty where nothing does; blocking. Raises OSError, CorruptData."""
    if (found := checksummed_file.read_numbers(disk, STARTS)) is None:
        return StartsRecord()
    own, stage, others = found
    return StartsRecord(own, stage == _CONFIRMED, others)
