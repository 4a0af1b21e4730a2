"""Frames between a broker and a bookie: one head for all, and the buffer that cuts them from a connection.

Is: the layout, the codes and the errors they mean, bounded cutting. Isn't: I/O, or a look into a block
(`heliograph.wire.block`).
Invariants: a frame is accepted or raises PeerError; no frame is larger than the limit; bytes are copied at most once,
where a frame meets the end of a slab. An ADD frame is also what a journal record and its replay are made of, so its
layout is a file format as well.

A frame, big endian:

    0  u32 size, of everything     8  u64 ledger           32 u32 request, comes back in the ANSWER
    4  u8  version (1)             16 i64 entry            36 body
    5  u8  kind                    24 i64 value
    6  u16 number

    kind             number  entry   value    body                        answer
    1 ADD            count   first   LAC      block                       ACKS, later; or LOST, once
                     request: the writer, a number that rises with each writer opened on this connection
    2 ADD_RECOVERY   count   first   LAC      block                       ANSWER; allowed on a fenced ledger
    4 READ           parts   first   last     u32 bytes                   ANSWER, body: blocks
                     parts 1: as many ANSWERs as the bookie likes, value 1 in all but the last, which may be empty; in
                     those entry: behind the last one that all of them hold, if none is bad; 0: it does not say
    5 FENCE          -       -       -        -                           ANSWER, entry: last held, value: LAC known
    6 WRITE_LAC      -       -       LAC      -                           none
    7 READ_LAC       wait ms known   -        -                           ANSWER, value: LAC known; with a wait, once
                                                                          it is above `entry`, or then
                                              i64 first, i64 last         ANSWER, value: LAC known, entry: behind what
                                                                          was looked at (0: it does not say), body:
                                                                          what is held of these, `encode_ranges`
    8 DELETE         -       -       -        -                           ANSWER
    9 LEDGERS        -       above   -        -                           ANSWER, body: u64 ledgers above `entry`
                                                                          (-1: all), value: 1 where there are more
    65 LOST          code    -       -        text                        of the bookie: the first ADD of the writer
                     request: the writer                                  `request` that was refused; none that it
                                                                          sent is taken or acknowledged any more
    66 ANSWER        code    entry   value    what was asked, or text
    67 ACKS          -       -       -        (u64 ledger, u32 writer,    of the bookie: every ADD of that writer to
                                              i64 through)*               `ledger` up to `through` is durable

Kinds 3 and 64 are those of versions whose writers had no number: each side refuses them, as it does any kind that it
does not know.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Iterable
from enum import IntEnum
from functools import partial
from sys import getrefcount

from heliograph.model.buffer_reuse import UNSHARED
from heliograph.model.errors import (
    BookieUnavailable,
    DiskFailed,
    LedgerFenced,
    NoSuchEntry,
    NoSuchLedger,
    PeerError,
    StorageError,
)

VERSION = 1
FRAME_BYTES_MAX = 16 << 20
HEAD = struct.Struct(">IBBHQqqI")
"""(size, version, kind, number, ledger, entry, value, request)."""
ACK = struct.Struct(">QIq")
"""Packs (ledger, writer, the last entry that is acknowledged)."""
RANGE = struct.Struct(">qq")
"""Packs (first entry, last entry), both included."""

_SLAB_SMALL, _SLAB_LARGE = 1 << 16, 1 << 20
_SLAB_SIZES = 4
"""Between a power of two and the next: at most a fifth of a slab stays unused, and a pool has few sizes, whatever
comes.
"""
_SLAB_REST = 1 << 12
"""A slab with less room than this is not read into any more."""


class Kind(IntEnum):
    ADD = 1
    ADD_RECOVERY = 2
    READ = 4
    FENCE = 5
    WRITE_LAC = 6
    READ_LAC = 7
    DELETE = 8
    LEDGERS = 9
    LOST = 65
    ANSWER = 66
    ACKS = 67


class BookieCode(IntEnum):
    OK = 0
    NO_SUCH_LEDGER = 1
    NO_SUCH_ENTRY = 2
    FENCED = 3
    UNKNOWN = 4
    """The bookie cannot say (limbo, a block with a wrong checksum): says nothing about the entry."""
    READ_ONLY = 5
    DISK_FAILED = 6
    EARLIER_LIFE = 7
    """The ledger is older than this life of the bookie: what it has not of it, it may have lost, and will never know.
    An earlier version takes this for UNKNOWN.
    """


_ERRORS: dict[int, Callable[[str], StorageError]] = {
    BookieCode.NO_SUCH_LEDGER: NoSuchLedger,
    BookieCode.NO_SUCH_ENTRY: NoSuchEntry,
    BookieCode.FENCED: LedgerFenced,
    BookieCode.UNKNOWN: BookieUnavailable,
    BookieCode.READ_ONLY: BookieUnavailable,
    BookieCode.DISK_FAILED: DiskFailed,
    BookieCode.EARLIER_LIFE: partial(BookieUnavailable, forgotten=True),
}


def error_of(code: int, text: str) -> StorageError:
    """The error that a code other than OK means; an unknown code says nothing about the entry."""
    return _ERRORS.get(code, BookieUnavailable)(text)


def encode(
    kind: Kind,
    *,
    body_bytes: int = 0,
    number: int = 0,
    ledger: int = 0,
    entry: int = 0,
    value: int = 0,
    request: int = 0,
) -> bytes:
    """The head of a frame whose body of `body_bytes` follows."""
    return HEAD.pack(HEAD.size + body_bytes, VERSION, kind, number, ledger, entry, value, request)


def encode_acks(acks: Iterable[tuple[tuple[int, int], int]]) -> bytes:
    """One ACKS frame for ((ledger, writer), through) of any number of writers."""
    body = b"".join([ACK.pack(ledger, writer, through) for (ledger, writer), through in acks])
    return encode(Kind.ACKS, body_bytes=len(body)) + body


def decode_acks(frame: memoryview) -> Iterable[tuple[int, int, int]]:
    """(ledger, writer, through) of each. Raises PeerError where the last one is torn."""
    body = frame[HEAD.size :]
    if len(body) % ACK.size:
        raise PeerError("bookie frame: a list of acks with a torn end")
    return ACK.iter_unpack(body)


def encode_ranges(ranges: Iterable[tuple[int, int]]) -> bytes:
    """(first entry, last entry) of each, one behind another."""
    return b"".join([RANGE.pack(first, last) for first, last in ranges])


def decode_ranges(body: memoryview) -> list[tuple[int, int]]:
    """Raises PeerError where they are torn, empty, not ascending, or not apart."""
    if len(body) % RANGE.size:
        raise PeerError("bookie frame: a list of ranges with a torn end")
    ranges: list[tuple[int, int]] = []
    behind = 0
    for first, last in RANGE.iter_unpack(body):
        if not behind <= first <= last:
            raise PeerError(f"bookie frame: the range {first} to {last} behind entry {behind - 1}")
        ranges.append((first, last))
        behind = last + 2
    return ranges


def split_blocks(body: memoryview) -> list[memoryview]:
    """The blocks that lie one behind another in `body`; each says its size itself. Raises PeerError."""
    blocks: list[memoryview] = []
    at, end = 0, len(body)
    while at < end:
        size = int.from_bytes(body[at + 4 : at + 8], "big")
        if size < 8 or at + size > end:
            raise PeerError("bookie frame: a block beyond the end of its frame")
        blocks.append(body[at : at + size])
        at += size
    return blocks


class SlabPool:
    """Large slabs that are used again once the last view of them is gone: fresh memory costs more than everything else
    that happens to a frame.

    A slab is free when nobody but the pool refers to it; views refer to it, also those that a transport or a write
    still holds.
    """

    __slots__ = ("_slabs", "_taken")

    def __init__(self) -> None:
        self._slabs: dict[int, deque[bytearray]] = {}  # by size; those taken longest ago first
        self._taken: dict[int, None] = {}

    def take(self, size_bytes: int = _SLAB_LARGE) -> memoryview:
        """A slab of that size; what it holds is not cleared. Frames of about one size share slabs."""
        step = (1 << (size_bytes - 1).bit_length() - 1) // _SLAB_SIZES
        whole = -(-size_bytes // step) * step
        self._taken[whole] = None
        slabs = self._slabs.get(whole)
        if slabs is None:
            slabs = self._slabs[whole] = deque()
        for _ in range(min(4, len(slabs))):
            slab = slabs.popleft()
            slabs.append(slab)
            if getrefcount(slab) == UNSHARED:
                return memoryview(slab)[:size_bytes]
        slab = bytearray(whole)
        slabs.append(slab)
        return memoryview(slab)[:size_bytes]

    def trim(self) -> None:
        """Gives free slabs back to the system, of sizes of which none was taken since the last call."""
        for size in [size for size in self._slabs if size not in self._taken]:
            self._slabs[size] = deque([slab for slab in self._slabs[size] if getrefcount(slab) != UNSHARED])
            if not self._slabs[size]:
                del self._slabs[size]
        self._taken.clear()

    def __len__(self) -> int:
        return sum(map(len, self._slabs.values()))


class FrameBuffer:
    """Reads a connection into slabs, and cuts whole frames from them as views: nothing is copied but what crosses the
    end of a slab.

    A slab lives as long as a view of it. An idle connection keeps at most a small one; one whose reads fill the slab
    gets large ones; a frame that is large for a slab gets one of its own, of exactly its size.
    """

    __slots__ = ("_end", "_limit", "_pool", "_slab", "_start", "_wide")

    def __init__(self, frame_bytes_max: int = FRAME_BYTES_MAX, pool: SlabPool | None = None) -> None:
        self._limit, self._pool = frame_bytes_max, pool
        self._slab: memoryview | None = None
        self._start = self._end = 0  # of what is not cut yet
        self._wide = False

    def get_buffer(self) -> memoryview:
        """Where the next read goes; never empty."""
        if self._slab is None:
            self._slab = self._new_slab()
            self._start = self._end = 0
        return self._slab[self._end :]

    def received(self, size_bytes: int) -> tuple[memoryview, list[int]]:
        """Takes note of `size_bytes` more bytes in the buffer given last.

        Returns the whole frames as one view, and the end of each within it. Raises PeerError at a wrong size or
        version.
        """
        slab = self._slab
        assert slab is not None
        self._end = end = self._end + size_bytes
        self._wide = end == len(slab)
        at = start = self._start
        need = HEAD.size
        ends: list[int] = []
        while end - at >= 5:
            size = int.from_bytes(slab[at : at + 4], "big")
            if not HEAD.size <= size <= self._limit or slab[at + 4] != VERSION:
                raise PeerError(
                    f"bookie frame: version {slab[at + 4]}, size {size}; this side speaks version {VERSION}, "
                    f"{HEAD.size} to {self._limit} bytes"
                )
            if end - at < size:
                need = size
                break
            at += size
            ends.append(at - start)
        self._start = at
        if at == end:
            if len(slab) - end < _SLAB_REST:
                self._slab = None
        elif at + need > len(slab):
            self._move(slab, need)
        return slab[start:at], ends

    def _move(self, slab: memoryview, need: int) -> None:
        """Takes the beginning of a frame that does not end in this slab to a new one."""
        size = self._end - self._start
        roomy = _SLAB_LARGE if self._wide else _SLAB_SMALL
        if 2 * need <= roomy:
            self._slab = self._new_slab()
        elif self._pool is not None and 2 * need > _SLAB_LARGE:
            self._slab = self._pool.take(need)
        else:
            self._slab = memoryview(bytearray(need))
        self._slab[:size] = slab[self._start : self._end]
        self._start, self._end = 0, size

    def _new_slab(self) -> memoryview:
        if not self._wide:
            return memoryview(bytearray(_SLAB_SMALL))
        return self._pool.take() if self._pool is not None else memoryview(bytearray(_SLAB_LARGE))
