"""Segments of a Raft log: files full of zeros, which records are written into.

Is: what is known of one, and making one. Isn't: records (`log_records`), or which segments are kept (`log_storage`).
Invariants: a segment is whole and durable before its first record, so that a full disk shows where one is made, and not
in the middle of a record.
"""

from __future__ import annotations

from dataclasses import dataclass

from heliograph.runtime.disk import Disk, File

_ZEROS = bytes(64 << 10)


@dataclass(slots=True)
class Segment:
    number: int
    file: File
    size_bytes: int  # as filled with zeros
    end: int = 0  # where the next record goes
    index_max: int = 0  # no entry or reset above it
    head_sequence: int = 0


def segment_name(number: int) -> str:
    return f"log-{number:010d}"


def make_segment(disk: Disk, number: int, size_bytes: int) -> Segment:
    """Creates one, durably. Blocking. Raises OSError; then nothing of it is left."""
    name = segment_name(number)
    file = disk.open(name, create=True)
    try:
        for offset in range(0, size_bytes, len(_ZEROS)):
            file.pwritev([memoryview(_ZEROS)[: min(len(_ZEROS), size_bytes - offset)]], offset)
        file.datasync()
    except (OSError, MemoryError):
        file.close()
        disk.remove(name)
        raise
    disk.sync_directory()
    return Segment(number, file, size_bytes)
