"""Fetching: blocks of one answer, from memory and from entry logs.

Is: which blocks answer a read, the job that brings them, and which entries there are. Isn't: the answer, or a thread.
Invariants: every block that comes from a disk is verified; an answer stops before the first that is bad, and is an
error where that is the first.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from typing import TypeVar

from heliograph.model.errors import CorruptData
from heliograph.runtime.disk import Buffer
from heliograph.wire.block import verify_block
from storage.bookie.entry_log.block_cutting import cut_block
from storage.bookie.entry_log.entry_log import EntryLog
from storage.bookie.entry_log.ledger_table import LedgerTable
from storage.bookie.entry_log.log_index import IndexPage
from storage.bookie.entry_log.open_logs import OpenLogs
from storage.bookie.entry_log.write_cache import NEVER, CacheGeneration

T = TypeVar("T")
Need = tuple[EntryLog, int]
"""A page of that log's index."""
Steps = Generator[Need, IndexPage, T]
"""A look-up: yields what it needs, and is sent that."""
Piece = memoryview | tuple[EntryLog, int, int] | tuple[EntryLog, int, int, int, int]
"""A block in memory, or (log, offset, size), or (log, offset, size, low, high): of that block entries [low, high)
alone.
"""


def choose(
    generations: Sequence[CacheGeneration], table: LedgerTable, ledger: int, first: int, last: int, bytes_max: int
) -> Steps[tuple[list[Piece], int]]:
    """(blocks that cover the ledger from `first` on, the entry behind them), up to a hole, `last`, or the bound, but at
    least one where there is one.

    generations: the newest first. Of entries that were stored more than once, what was stored last.
    """
    pieces: list[Piece] = []
    at, size = first, 0
    while at <= last:
        if ledger in table.mixed:
            newest = yield from _find_newest(generations, table, ledger, at)
            if newest is None or (pieces and size + newest[1] > bytes_max):
                break
            pieces.append(newest[0])
            size += newest[1]
            at = newest[2]
            continue
        found = _find_cached(generations, ledger, at)
        if found is not None:
            block, behind = found
            if pieces and size + len(block) > bytes_max:
                break
            pieces.append(block)
            size += len(block)
            at = behind
            continue
        log = table.log_at(ledger, at)
        if log is None:
            break
        page = yield log, log.page_of(ledger)
        places, behind = page.follow(ledger, at, last, bytes_max - size, bool(pieces))
        if not places:
            break
        pieces += [(log, *place) for place in places]
        size += sum(place[1] for place in places)
        at = behind
    return pieces, at


def choose_ranges(
    generations: Sequence[CacheGeneration],
    table: LedgerTable,
    ledger: int,
    ranges: Iterable[tuple[int, int]],
    bytes_max: int,
) -> Steps[tuple[list[Piece], int]]:
    """As `choose`, of these [first, last], ascending and apart: up to a hole in one of them."""
    pieces: list[Piece] = []
    behind = 0
    for first, last in ranges:
        found, behind = yield from choose(generations, table, ledger, first, last, bytes_max)
        pieces += found
        bytes_max -= bytes_of(found)
        if behind <= last or bytes_max <= 0:
            break
    return pieces, behind


def bytes_of(pieces: Sequence[Piece]) -> int:
    return sum(len(piece) if isinstance(piece, memoryview) else piece[2] for piece in pieces)


def held(
    generations: Sequence[CacheGeneration], table: LedgerTable, ledger: int, first: int, last: int, looks_max: int
) -> Steps[tuple[list[tuple[int, int]], int]]:
    """([first, last] of what the index has of these entries, ascending and apart; the entry behind what was looked at:
    it stops after so many looks).
    """
    ranges: list[tuple[int, int]] = []
    at = first
    while at <= last and looks_max > 0:
        looks_max -= 1
        starts = [tail.next_start(at) for one in generations if (tail := one.tails.get(ledger)) is not None]
        found = _find_cached(generations, ledger, at)
        behind = -1 if found is None else found[1]
        if found is None:
            for log in _may_hold(table, ledger, at):
                page = yield log, log.page_of(ledger)
                if (run := page.find(ledger, at)) is not None:
                    behind = run[2]
                    break
                starts.append(page.next_start(ledger, at))
        if behind < 0:
            at = min([*starts, table.first_above(ledger, at), last + 1])
            continue
        behind = min(behind, last + 1)
        begin = ranges.pop()[0] if ranges and ranges[-1][1] == at - 1 else at
        ranges.append((begin, behind - 1))
        at = behind
    return ranges, at


def block_at(log: EntryLog, ledger: int, offset: int) -> Steps[tuple[int, int, int, int] | None]:
    """(offset, size, first entry, count) of the block of that ledger that lies there."""
    page = yield log, log.page_of(ledger)
    return next((run for run in page.runs(page.group_of(ledger)) if run[0] == offset), None)


def longest_at(log: EntryLog, ledger: int, first: int) -> Steps[int]:
    """How many entries the longest block has that begins with that one; 0: none does."""
    page = yield log, log.page_of(ledger)
    return max((count for _, _, begins, count in page.runs(page.group_of(ledger)) if begins == first), default=0)


def _may_hold(table: LedgerTable, ledger: int, entry: int) -> list[EntryLog]:
    if ledger in table.mixed:
        return [log for log, first in table.logs_of(ledger) if first <= entry]
    log = table.log_at(ledger, entry)
    return [] if log is None else [log]


def _find_cached(generations: Sequence[CacheGeneration], ledger: int, entry: int) -> tuple[memoryview, int] | None:
    """(the block with `entry`, the entry behind it)."""
    for generation in generations:
        tail = generation.tails.get(ledger)
        if tail is not None and (at := tail.find(entry)) >= 0:
            return tail.blocks[at], tail.firsts[at] + tail.counts[at]
    return None


def _find_newest(
    generations: Sequence[CacheGeneration], table: LedgerTable, ledger: int, entry: int
) -> Steps[tuple[Piece, int, int] | None]:
    """(where a block with `entry` lies, its bytes, the entry behind it); a block of which newer ones hold a part is cut
    before that.
    """
    limit = NEVER
    for generation in generations:
        tail = generation.tails.get(ledger)
        if tail is None:
            continue
        if (at := tail.find(entry)) >= 0:
            block, behind = tail.blocks[at], tail.firsts[at] + tail.counts[at]
            if limit < behind:
                block, behind = cut_block(block, entry, limit), limit
            return block, len(block), behind
        limit = min(limit, tail.next_start(entry))
    for log, first in table.logs_of(ledger):
        if first > entry:
            limit = min(limit, first)
            continue
        page = yield log, log.page_of(ledger)
        if (run := page.find(ledger, entry)) is not None:
            offset, size, behind = run
            if limit < behind:
                return (log, offset, size, entry, limit), size, limit
            return (log, offset, size), size, behind
        limit = min(limit, page.next_start(ledger, entry))
    return None


def fetch(files: OpenLogs, pieces: Sequence[Piece], goes_on: bool = False) -> list[Buffer]:
    """The blocks, in order; neighbours in a log are read at once. Blocking; raises OSError, CorruptData where the first
    is bad.

    goes_on: what lies behind them will be read next, and nobody minds if the disk brings it meanwhile.
    """
    blocks: list[Buffer] = []
    index = 0
    while index < len(pieces):
        piece = pieces[index]
        index += 1
        if isinstance(piece, memoryview):
            blocks.append(piece)
            continue
        log, offset, size = piece[:3]
        near: list[tuple[EntryLog, int, int] | tuple[EntryLog, int, int, int, int]] = [piece]
        while (
            index < len(pieces)
            and isinstance(following := pieces[index], tuple)
            and following[:2] == (log, offset + size)
        ):
            near.append(following)
            size += following[2]
            index += 1
        try:
            view = memoryview(files.read(log, offset, size, goes_on))
            for one in near:
                block = view[one[1] - offset : one[1] - offset + one[2]]
                verify_block(block)
                blocks.append(block if len(one) == 3 else cut_block(block, one[3], one[4]))
        except (OSError, CorruptData):
            if not blocks:
                raise
            return blocks
    return blocks
