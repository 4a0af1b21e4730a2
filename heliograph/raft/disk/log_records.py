"""Records of the Raft log: their bytes, and what makes one whole.

Is: encoding, and reading one where it should begin. Isn't: segments, their order, or what a record means for the log
(`log_storage`).
Invariants: a record is whole only where it was written: its checksum knows the segment and the offset.

Files: log-{number}; snapshots as in `snapshot_file`. All numbers big endian. A segment holds records, then zeros. A
record:

    0  u32 magic "HRL1"           12 u32 crc32c of segment number, offset, the head without this field, and the body
    4  u8  version (1)            16 u64 sequence: one more than that of the record before
    5  u8  kind                   24 u64 every record through this sequence was durable when this one was written
    6  u16 reserved (0)           32 u64 entries through this index are committed, as this member knew behind this
    8  u32 size of the body              record; never falls
                                  40 body

    1 hard state   u64 term, u8 size, vote                     also the first record of each segment
    2 entries      u64 first index, entries as in messages     replaces everything from the first index on
    3 reset        u64 index, u64 term                         the log is empty behind a snapshot of that index
    4 closed       -                                           clean end: everything before is durable
    5 commit       -                                           the commit index of its head, where nothing else was to
                                                               be written for a while
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import crc32c

VERSION = 1
MAGIC = b"HRL1"
HEAD = struct.Struct(">4sBBHIIQQQ")
_SEED = struct.Struct(">QQ")
HARD_STATE = struct.Struct(">QB")
FIRST = struct.Struct(">Q")
RESET = struct.Struct(">QQ")
KIND_HARD_STATE, KIND_ENTRIES, KIND_RESET, KIND_CLOSED, KIND_COMMIT = 1, 2, 3, 4, 5


@dataclass(slots=True)
class RaftRecord:
    kind: int
    sequence: int
    synced: int
    commit: int
    body: bytes


def _checksum(number: int, offset: int, head: bytes, body: bytes) -> int:
    return crc32c.crc32c(body, crc32c.crc32c(head, crc32c.crc32c(_SEED.pack(number, offset))))


def hard_state_body(term: int, vote: str) -> bytes:
    name = vote.encode()
    return HARD_STATE.pack(term, len(name)) + name


def encode_record(number: int, offset: int, record: RaftRecord) -> bytes:
    kind, size, rest = record.kind, len(record.body), (record.sequence, record.synced, record.commit)
    crc = _checksum(number, offset, HEAD.pack(MAGIC, VERSION, kind, 0, size, 0, *rest), record.body)
    return HEAD.pack(MAGIC, VERSION, kind, 0, size, crc, *rest) + record.body


def read_record(number: int, raw: bytes, offset: int) -> RaftRecord | None:
    """The whole record at `offset`, or None."""
    if offset + HEAD.size > len(raw):
        return None
    magic, version, kind, reserved, size, crc, sequence, synced, commit = HEAD.unpack_from(raw, offset)
    start = offset + HEAD.size
    if magic != MAGIC or version != VERSION or reserved or size > len(raw) - start:
        return None
    body = raw[start : start + size]
    if _checksum(number, offset, HEAD.pack(magic, version, kind, 0, size, 0, sequence, synced, commit), body) != crc:
        return None
    return RaftRecord(kind, sequence, synced, commit, body)
