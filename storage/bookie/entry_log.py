"""Entry logs: blocks sorted by (ledger, first entry), sealed by a footer that is their index.

Is: the writing of one log in one go, its columns in memory, look-up. Isn't: which logs exist (the checkpoint says), reading ahead, compaction.
Invariants: a log is written once, synced, and never changed; a footer holds nothing per entry but what a block of one entry needs.

A log is a file `log-NNNNNNNNNNNN`, little endian:

    0   4s "HLOG", u8 version (1), 3 zero bytes, u64 number of the log
    16  blocks (`heliograph.wire.run`), one behind another
    F   groups, by ledger:  u64 ledgers, i64 LACs, u32 fenced, u32 runs of each      (columns, one behind another)
        runs, in file order: i64 firsts, u32 sizes, u16 counts
    end u64 F, u32 groups, u32 runs, u64 number of the log, 3s "HLF", u8 version (1), u32 crc32c of everything from F on but itself
"""

from __future__ import annotations

import struct
import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import crc32c

from heliograph.model.errors import CorruptData
from heliograph.runtime.disk import Buffer, Disk, File
from heliograph.wire.run import COUNT_MAX
from storage.bookie.write_cache import Generation

VERSION = 1
_HEAD = struct.Struct("<4sB3xQ")
_TRAILER = struct.Struct("<QIIQ3sBI")
_MAGIC, _END_MAGIC = b"HLOG", b"HLF"
_PAGE = 4096
_WRITE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class LedgerMark:
    """What a log says of a ledger beside its blocks."""

    ledger: int
    lac: int
    fenced: bool


class EntryLog:
    """One sealed log: its index in columns, and its file once something is read."""

    __slots__ = ("_counts", "_file", "_firsts", "_group_ends", "_ledgers", "_offsets", "fenced", "lacs", "number")

    def __init__(self, number: int, marks: Sequence[LedgerMark], run_counts: Sequence[int], firsts: array[int], sizes: array[int], counts: array[int]):
        self.number = number
        self._ledgers = array("Q", [m.ledger for m in marks])
        self.lacs = array("q", [m.lac for m in marks])
        self.fenced = bytes(m.fenced for m in marks)
        self._group_ends = array("Q", accumulate(run_counts))
        self._firsts, self._counts = firsts, counts
        self._offsets = array("Q", accumulate(sizes, initial=_HEAD.size))
        self._file: File | None = None

    @property
    def ledgers(self) -> Sequence[int]:
        """Ascending; also those of which the log holds only a mark."""
        return self._ledgers

    def last_entry(self, group: int) -> int:
        """The last entry of the ledger at `group`, or -1. Runs of other cuts that begin earlier may end later."""
        low, high = self._range(group)
        last = -1
        for at in range(high - 1, low - 1, -1):
            if self._firsts[at] + COUNT_MAX <= last:
                break
            last = max(last, self._firsts[at] + self._counts[at] - 1)
        return last

    def find(self, ledger: int, entry: int) -> tuple[int, int, int] | None:
        """(offset, size, entry behind it) of a block that holds `entry`."""
        group = bisect_left(self._ledgers, ledger)
        if group == len(self._ledgers) or self._ledgers[group] != ledger:
            return None
        low, high = self._range(group)
        at = bisect_right(self._firsts, entry, low, high) - 1
        while at >= low and self._firsts[at] > entry - COUNT_MAX:
            behind = self._firsts[at] + self._counts[at]
            if behind > entry:
                return self._offsets[at], self._offsets[at + 1] - self._offsets[at], behind
            at -= 1
        return None

    def read(self, disk: Disk, offset: int, size_bytes: int) -> bytes:
        """Blocking; raises OSError."""
        if self._file is None:
            self._file = disk.open(name_of(self.number))
        return self._file.pread(size_bytes, offset)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _range(self, group: int) -> tuple[int, int]:
        return self._group_ends[group - 1] if group else 0, self._group_ends[group]


def name_of(number: int) -> str:
    return f"log-{number:012d}"


def write(disk: Disk, number: int, generation: Generation, marks: Sequence[LedgerMark]) -> EntryLog:
    """Writes one log and syncs it and its directory. Blocking; raises OSError. `marks`: ascending by ledger, every ledger of the generation."""
    file = disk.open(name_of(number), create=True)
    firsts, sizes, counts, run_counts = array("q"), array("I"), array("H"), array("I")
    try:
        file.truncate(0)
        out = _PageWriter(file)
        out.put(_HEAD.pack(_MAGIC, VERSION, number))
        for mark in marks:
            tail = generation.tails.get(mark.ledger)
            if tail is None:
                run_counts.append(0)
                continue
            run_counts.append(len(tail.firsts))
            firsts.extend(tail.firsts)
            counts.extend(tail.counts)
            for block in tail.blocks:
                sizes.append(len(block))
                out.put(block)
        footer_at = out.end
        columns = [
            array("Q", [m.ledger for m in marks]),
            array("q", [m.lac for m in marks]),
            array("I", [m.fenced for m in marks]),
            run_counts,
            firsts,
            sizes,
            counts,
        ]
        footer = b"".join(_little(column) for column in columns)
        trailer = _TRAILER.pack(footer_at, len(marks), len(firsts), number, _END_MAGIC, VERSION, 0)[:-4]
        crc = crc32c.crc32c(trailer, crc32c.crc32c(footer))
        out.put(footer)
        out.put(trailer)
        out.put(crc.to_bytes(4, "little"))
        out.finish()
        file.datasync()
    finally:
        file.close()
    disk.sync_directory()
    return EntryLog(number, marks, run_counts, firsts, sizes, counts)


def load(disk: Disk, number: int) -> EntryLog:
    """Reads a footer. Blocking; raises OSError, CorruptData."""
    file = disk.open(name_of(number))
    try:
        size = file.size_bytes()
        if size < _HEAD.size + _TRAILER.size:
            raise CorruptData(f"{name_of(number)}: too short to be sealed")
        trailer = file.pread(_TRAILER.size, size - _TRAILER.size)
        footer_at, groups, runs, named, magic, version, crc = _TRAILER.unpack(trailer)
        expected = groups * 24 + runs * 14
        if (magic, version, named) != (_END_MAGIC, VERSION, number) or footer_at + expected + _TRAILER.size != size:
            raise CorruptData(f"{name_of(number)}: not sealed, or of another format")
        footer = file.pread(expected, footer_at)
        if crc32c.crc32c(trailer[:-4], crc32c.crc32c(footer)) != crc:
            raise CorruptData(f"{name_of(number)}: checksum mismatch in the footer")
    finally:
        file.close()
    at = 0
    columns: list[array[int]] = []
    for code, count in (("Q", groups), ("q", groups), ("I", groups), ("I", groups), ("q", runs), ("I", runs), ("H", runs)):
        column = array(code)
        column.frombytes(footer[at : at + count * column.itemsize])
        at += count * column.itemsize
        if sys.byteorder == "big":
            column.byteswap()
        columns.append(column)
    ledgers, lacs, fenced, run_counts, firsts, sizes, counts = columns
    marks = [LedgerMark(ledger, lac, bool(flag)) for ledger, lac, flag in zip(ledgers, lacs, fenced, strict=True)]
    return EntryLog(number, marks, run_counts, firsts, sizes, counts)


class _PageWriter:
    """Appends to a new file in large writes of whole pages, the last one excepted, so that they may go around the page cache."""

    def __init__(self, file: File) -> None:
        self._file = file
        self._buffers: list[Buffer] = []
        self._written = self._waiting = 0

    @property
    def end(self) -> int:
        return self._written + self._waiting

    def put(self, buffer: Buffer) -> None:
        self._buffers.append(buffer)
        self._waiting += len(buffer)
        if self._waiting >= _WRITE_BYTES:
            over = self._waiting % _PAGE  # of the last buffer, or more where that is smaller
            rest: list[Buffer] = []
            while over:
                last = memoryview(self._buffers.pop())
                keep = min(over, len(last))
                rest.insert(0, last[len(last) - keep :])
                if keep < len(last):
                    self._buffers.append(last[: len(last) - keep])
                over -= keep
            self._written += self._file.pwritev(self._buffers, self._written)
            self._buffers = rest
            self._waiting = sum(map(len, rest))

    def finish(self) -> None:
        self._written += self._file.pwritev(self._buffers, self._written)
        self._buffers, self._waiting = [], 0


def _little(column: array[int]) -> bytes:
    if sys.byteorder == "big":
        column = array(column.typecode, column)
        column.byteswap()
    return column.tobytes()
