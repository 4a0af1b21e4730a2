"""Entry logs: blocks sorted by (ledger, first entry), sealed by a footer that is their index.

Is: the writing of one log in one go, its footer, and the pages that the index in it is read by. Isn't: look-up
(`log_index`), which logs exist (the checkpoint says), reading ahead, compaction.
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
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import crc32c

from heliograph.model.errors import CorruptData
from heliograph.runtime.disk import Buffer, Disk, File, is_transient
from heliograph.wire.block import HEAD_BYTES, peek_block, verify_block
from storage.bookie.entry_log.log_index import IndexPage, LogIndex
from storage.bookie.entry_log.write_cache import CacheGeneration

VERSION = 1
_HEAD = struct.Struct("<4sB3xQ")
_TRAILER = struct.Struct("<QIIQ3sBI")
_MAGIC, _END_MAGIC = b"HLOG", b"HLF"
_PAGE = 4096
_WRITE_BYTES = 1 << 20
_PAGE_ROWS = 1024
"""Groups and blocks in a page of the index: some 14 KB. To read one again costs little more than to read a block."""
_AROUND_BYTES = 768 << 10
"""A piece of a long read that is so large needs nobody to read ahead, and a cache of it costs more than the read."""


@dataclass(frozen=True, slots=True)
class LedgerMark:
    """What a log says of a ledger beside its blocks."""

    ledger: int
    lac: int
    fenced: bool


class EntryLog:
    """One sealed log: where the pages of its index begin, and its file once something is read. A few bytes for each
    page.
    """

    __slots__ = ("_file", "_in_sequence", "_page_ledgers", "_page_starts", "block_bytes", "entries", "number")

    def __init__(self, number: int, index: LogIndex) -> None:
        self.number = number
        self.entries = index.entries
        """In all blocks; one that lies in two of them is counted twice."""
        self.block_bytes = index.block_bytes
        """The bytes of all blocks in this log, without its head and footer."""
        self._page_ledgers = array("Q")
        self._page_starts = array("Q")  # group, run, offset, checksum of each page, and behind the last one
        self._file: File | None = None
        self._in_sequence = False
        for groups in _page_groups(index.run_counts):
            runs = slice(index.run_start(groups.start), index.run_start(groups.stop))
            self._page_ledgers.append(index.all.ledgers[groups.start])
            checksum = _checksum(index.columns_of(groups, runs))
            self._page_starts.extend((groups.start, runs.start, index.offset_at(runs.start), checksum))
        self._page_starts.extend((len(index.run_counts), index.all.blocks, index.offset_at(index.all.blocks), 0))

    @property
    def pages(self) -> int:
        return len(self._page_ledgers)

    def page_of(self, ledger: int) -> int:
        """The one that holds the ledger, if any does."""
        return max(0, bisect_right(self._page_ledgers, ledger) - 1)

    def pages_of(self, index: LogIndex) -> Iterator[IndexPage]:
        """All of them, of the index that it was made with."""
        for at in range(self.pages):
            group, run, begin, _, after, behind = self._page_starts[4 * at : 4 * at + 6]
            yield IndexPage(index.columns_of(slice(group, after), slice(run, behind)), begin)

    def read_page(self, read: Callable[[int, int], Buffer], at: int) -> IndexPage:
        """read(offset, size): of this log. Blocking; raises OSError, CorruptData."""
        group, run, begin, checksum, after, behind = self._page_starts[4 * at : 4 * at + 6]
        groups, runs = self._page_starts[-4:-2]
        footer = _HEAD.size + self.block_bytes
        beyond = footer + 24 * groups
        columns: list[array[int]] = []
        for code, start, low, high in (
            ("Q", footer, group, after),
            ("I", footer + 20 * groups, group, after),
            ("q", beyond, run, behind),
            ("I", beyond + 8 * runs, run, behind),
            ("H", beyond + 12 * runs, run, behind),
        ):
            column = array(code)
            if high > low:
                column.frombytes(read(start + low * column.itemsize, (high - low) * column.itemsize))
            if sys.byteorder == "big":
                column.byteswap()
            columns.append(column)
        if _checksum(columns) != checksum:
            raise CorruptData(f"{name_of(self.number)}: checksum mismatch in page {at} of the index")
        ledgers, run_counts, firsts, sizes, counts = columns
        return IndexPage((ledgers, run_counts, firsts, sizes, counts), begin)

    def rebuild_page(self, read: Callable[[int, int], Buffer], at: int) -> IndexPage:
        """The same, where the footer cannot be read, of the blocks themselves: without the ledgers that have none.
        A block that is bad, too, counts as what its head says where all of the page then agrees with its checksum.
        Blocking; raises OSError, CorruptData.
        """
        _, _, begin, checksum, _, _, end, _ = self._page_starts[4 * at : 4 * at + 8]
        ledgers, run_counts = array("Q"), array("I")
        firsts, sizes, counts = array("q"), array("I"), array("H")
        columns = [ledgers, run_counts, firsts, sizes, counts]
        offset, bad = begin, -1
        while offset < end:
            head = read(offset, HEAD_BYTES)
            size = int.from_bytes(memoryview(head)[4:8], "big")
            if size < HEAD_BYTES or offset + size > end:
                raise CorruptData(f"{name_of(self.number)}: the footer cannot be read, nor the block at {offset}")
            try:
                verify_block(read(offset, size))
            except (OSError, CorruptData) as error:
                if is_transient(error):
                    raise
                bad = offset
            try:
                ledger, first, count = peek_block(head)
                firsts.append(first)
            except (OverflowError, struct.error) as error:  # of a head that is bad
                raise CorruptData(
                    f"{name_of(self.number)}: the footer cannot be read, nor the block at {offset}"
                ) from error
            if not ledgers or ledgers[-1] != ledger:
                ledgers.append(ledger)
                run_counts.append(0)
            run_counts[-1] += 1
            sizes.append(size)
            counts.append(count)
            offset += size
        if bad >= 0 and _checksum(columns) != checksum:
            raise CorruptData(f"{name_of(self.number)}: the footer cannot be read, nor the block at {bad}")
        page = IndexPage((ledgers, run_counts, firsts, sizes, counts), begin)
        page.rebuilt = True
        return page

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


NewLog = tuple[EntryLog, LogIndex]
"""A log that was just written or loaded, and its whole index."""


def _page_groups(run_counts: Sequence[int]) -> Iterator[slice]:
    """The groups of each page: about `_PAGE_ROWS` of them and their blocks, or a single one."""
    start = rows = 0
    for group, runs in enumerate(run_counts):
        if rows and rows + runs + 1 > _PAGE_ROWS:
            yield slice(start, group)
            start, rows = group, 0
        rows += runs + 1
    if rows:
        yield slice(start, len(run_counts))


def _checksum(columns: Sequence[array[int]]) -> int:
    checksum = 0
    for column in columns:
        checksum = crc32c.crc32c(_little(column), checksum)
    return checksum


def name_of(number: int) -> str:
    return f"log-{number:012d}"


def write(disk: Disk, number: int, generation: CacheGeneration, marks: Sequence[LedgerMark]) -> NewLog:
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

    def finish(self) -> NewLog:
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
        return _indexed(self.number, columns)

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


def load(disk: Disk, number: int) -> NewLog:
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
    return _indexed(number, columns)


def _indexed(number: int, columns: Sequence[array[int]]) -> NewLog:
    ledgers, lacs, fenced, run_counts, firsts, sizes, counts = columns
    index = LogIndex((ledgers, run_counts, firsts, sizes, counts), lacs, fenced, _HEAD.size)
    return EntryLog(number, index), index


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
