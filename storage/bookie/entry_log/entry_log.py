"""Entry logs: blocks sorted by (ledger, first entry), sealed by a footer that is their index.

Is: the writing of one log in one go, its columns in memory, look-up. Isn't: which logs exist (the checkpoint says),
reading ahead, compaction.
Invariants: a log is written once, synced, and never changed; a footer holds nothing per entry but what a block of one
entry needs.

A log is a file `log-NNNNNNNNNNNN`, little endian:

    0   4s "HLOG", u8 version (1), 3 zero bytes, u64 number of the log
    16  blocks (`heliograph.wire.block`), one behind another
    F   groups, by ledger:  u64 ledgers, i64 LACs, u32 fenced, u32 runs of each      (columns, one behind another)
        runs, in file order: i64 firsts, u32 sizes, u16 counts
    end u64 F, u32 groups, u32 runs, u64 number of the log, 3s "HLF", u8 version (1), u32 crc32c of everything from F on
    but itself
"""

from __future__ import annotations

import struct
import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

import crc32c

from heliograph.model.errors import CorruptData
from heliograph.runtime.disk import Buffer, Disk, File
from heliograph.wire.run import COUNT_MAX
from storage.bookie.entry_log.write_cache import NEVER, CacheGeneration

VERSION = 1
_HEAD = struct.Struct("<4sB3xQ")
_TRAILER = struct.Struct("<QIIQ3sBI")
_MAGIC, _END_MAGIC = b"HLOG", b"HLF"
_PAGE = 4096
_WRITE_BYTES = 1 << 20
_AROUND_BYTES = 768 << 10
"""A piece of a long read that is so large needs nobody to read ahead, and a cache of it costs more than the read."""


@dataclass(frozen=True, slots=True)
class LedgerMark:
    """What a log says of a ledger beside its blocks."""

    ledger: int
    lac: int
    fenced: bool


class EntryLog:
    """One sealed log: its index in columns, and its file once something is read."""

    __slots__ = (
        "_counts",
        "_file",
        "_firsts",
        "_group_ends",
        "_in_sequence",
        "_ledgers",
        "_offsets",
        "entries",
        "fenced",
        "lacs",
        "number",
    )

    def __init__(
        self,
        number: int,
        marks: Sequence[LedgerMark],
        run_counts: Sequence[int],
        firsts: array[int],
        sizes: array[int],
        counts: array[int],
    ):
        self.number = number
        self._ledgers = array("Q", [m.ledger for m in marks])
        self.lacs = array("q", [m.lac for m in marks])
        self.fenced = bytes(m.fenced for m in marks)
        self._group_ends = array("Q", accumulate(run_counts))
        self._firsts, self._counts = firsts, counts
        self.entries = sum(counts)
        """In all blocks; one that lies in two of them is counted twice."""
        self._offsets = array("Q", accumulate(sizes, initial=_HEAD.size))
        self._file: File | None = None
        self._in_sequence = False

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

    def group_bytes(self, group: int) -> int:
        """The bytes of the blocks that the ledger at `group` has in this log."""
        low, high = self._range(group)
        return self._offsets[high] - self._offsets[low]

    def bytes_of(self, ledger: int) -> int:
        group = self.group_of(ledger)
        return 0 if group < 0 else self.group_bytes(group)

    @property
    def block_bytes(self) -> int:
        """The bytes of all blocks in this log, without its head and footer."""
        return self._offsets[-1] - self._offsets[0]

    def runs(self, group: int) -> Iterator[tuple[int, int, int, int]]:
        """(offset, size, first entry, count) of each block of the ledger at `group`, in file order."""
        for at in range(*self._range(group)):
            yield self._offsets[at], self._offsets[at + 1] - self._offsets[at], self._firsts[at], self._counts[at]

    def group_of(self, ledger: int) -> int:
        """-1 where the log knows nothing of the ledger."""
        group = bisect_left(self._ledgers, ledger)
        return group if group < len(self._ledgers) and self._ledgers[group] == ledger else -1

    def find(self, ledger: int, entry: int) -> tuple[int, int, int] | None:
        """(offset, size, entry behind it) of a block that holds `entry`."""
        group = self.group_of(ledger)
        if group < 0:
            return None
        low, high = self._range(group)
        at = bisect_right(self._firsts, entry, low, high) - 1
        while at >= low and self._firsts[at] > entry - COUNT_MAX:
            behind = self._firsts[at] + self._counts[at]
            if behind > entry:
                return self._offsets[at], self._offsets[at + 1] - self._offsets[at], behind
            at -= 1
        return None

    def next_start(self, ledger: int, entry: int) -> int:
        """The first entry of the first block behind `entry`; NEVER where there is none."""
        group = self.group_of(ledger)
        if group < 0:
            return NEVER
        low, high = self._range(group)
        at = bisect_right(self._firsts, entry, low, high)
        return self._firsts[at] if at < high else NEVER

    def first_entry(self, group: int) -> int:
        """The first entry of the ledger at `group`; NEVER where there is none."""
        low, high = self._range(group)
        return self._firsts[low] if low < high else NEVER

    def read(self, disk: Disk, offset: int, size_bytes: int, goes_on: bool = False) -> Buffer:
        """Blocking; raises OSError. goes_on: the system may bring what lies behind it too, or need not keep it."""
        file = self._opened(disk)
        if goes_on and size_bytes >= _AROUND_BYTES:
            return file.pread_around(size_bytes, offset)
        if self._in_sequence != goes_on:
            self._in_sequence = goes_on
            if goes_on:
                file.expect_sequence()
            else:
                file.expect_scattered()
        return file.pread(size_bytes, offset)

    def _opened(self, disk: Disk) -> File:
        if self._file is None:
            self._file = disk.open(name_of(self.number))
            self._in_sequence = False
            # the system's own megabytes ahead would lie before the next sync of a journal on the same disk
            self._file.expect_scattered()
        return self._file

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _range(self, group: int) -> tuple[int, int]:
        return self._group_ends[group - 1] if group else 0, self._group_ends[group]


def name_of(number: int) -> str:
    return f"log-{number:012d}"


def write(disk: Disk, number: int, generation: CacheGeneration, marks: Sequence[LedgerMark]) -> EntryLog:
    """Writes one log and syncs it and its directory. Blocking; raises OSError. `marks`: ascending by ledger, every
    ledger of the generation.
    """
    writer = LogWriter(disk, number)
    try:
        for mark in marks:
            writer.begin(mark)
            tail = generation.tails.get(mark.ledger)
            if tail is not None:
                writer.put_all(tail.firsts, tail.counts, tail.blocks)
        return writer.finish()
    finally:
        writer.close()


class LogWriter:
    """A new log: `begin` a ledger, `put` its blocks, then the next, ascending; `finish` makes it durable. Blocking;
    everything raises OSError.
    """

    def __init__(self, disk: Disk, number: int) -> None:
        self._disk, self.number = disk, number
        self.ledger = -1
        """The last one that was begun."""
        self._marks: list[LedgerMark] = []
        self._run_counts = array("I")
        self._firsts, self._sizes, self._counts = array("q"), array("I"), array("H")
        self._file: File | None = None
        self._out: _PageWriter | None = None

    def begin(self, mark: LedgerMark) -> None:
        self.ledger = mark.ledger
        self._marks.append(mark)
        self._run_counts.append(0)

    def put(self, first: int, count: int, block: Buffer) -> None:
        self.put_all((first,), (count,), (block,))

    def put_all(self, firsts: Sequence[int], counts: Sequence[int], blocks: Sequence[Buffer]) -> None:
        out = self._open()
        self._run_counts[-1] += len(firsts)
        self._firsts.extend(firsts)
        self._counts.extend(counts)
        for block in blocks:
            self._sizes.append(len(block))
            out.put(block)

    def finish(self) -> EntryLog:
        """Durable when it returns, directory included."""
        out, marks = self._open(), self._marks
        footer_at = out.end
        columns = [
            array("Q", [m.ledger for m in marks]),
            array("q", [m.lac for m in marks]),
            array("I", [m.fenced for m in marks]),
            self._run_counts,
            self._firsts,
            self._sizes,
            self._counts,
        ]
        footer = b"".join(_little(column) for column in columns)
        trailer = _TRAILER.pack(footer_at, len(marks), len(self._firsts), self.number, _END_MAGIC, VERSION, 0)[:-4]
        crc = crc32c.crc32c(trailer, crc32c.crc32c(footer))
        out.put(footer)
        out.put(trailer)
        out.put(crc.to_bytes(4, "little"))
        out.finish()
        assert self._file is not None
        self._file.datasync()
        self.close()
        self._disk.sync_directory()
        return EntryLog(self.number, marks, self._run_counts, self._firsts, self._sizes, self._counts)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = self._out = None

    def abandon(self) -> None:
        """Takes the file away again."""
        begun = self._file is not None
        self.close()
        if begun:
            self._disk.remove(name_of(self.number))

    def _open(self) -> _PageWriter:
        if self._out is None:
            self._file = self._disk.open(name_of(self.number), create=True)
            self._file.truncate(0)
            self._out = _PageWriter(self._file)
            self._out.put(_HEAD.pack(_MAGIC, VERSION, self.number))
        return self._out


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
    for code, count in (
        ("Q", groups),
        ("q", groups),
        ("I", groups),
        ("I", groups),
        ("q", runs),
        ("I", runs),
        ("H", runs),
    ):
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
    """Appends to a new file in large writes of whole pages, the last one excepted, so that they may go around the page
    cache.
    """

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
