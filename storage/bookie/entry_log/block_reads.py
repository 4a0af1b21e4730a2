"""Fetching: blocks of one answer, from memory and from entry logs.

Is: which blocks answer a read, the job that brings them, and which entries there are. Isn't: the answer, or a thread.
Invariants: every block that comes from a disk is verified; an answer stops before the first that is bad, and is an
error where that is the first.
"""

from __future__ import annotations

from collections.abc import Sequence

from heliograph.model.errors import CorruptData
from heliograph.runtime.disk import Buffer
from heliograph.wire.block import verify_block
from storage.bookie.entry_log.block_cutting import cut_block
from storage.bookie.entry_log.entry_log import EntryLog
from storage.bookie.entry_log.ledger_table import LedgerTable
from storage.bookie.entry_log.open_logs import OpenLogs
from storage.bookie.entry_log.write_cache import NEVER, CacheGeneration

Piece = memoryview | tuple[EntryLog, int, int] | tuple[EntryLog, int, int, int, int]
"""A block in memory, or (log, offset, size), or (log, offset, size, low, high): of that block entries [low, high)
alone.
"""


def choose(
    generations: Sequence[CacheGeneration], table: LedgerTable, ledger: int, first: int, last: int, bytes_max: int
) -> tuple[list[Piece], int]:
    """(blocks that cover the ledger from `first` on, the entry behind them), up to a hole, `last`, or the bound, but at
    least one where there is one.

    generations: the newest first. Of entries that were stored more than once, what was stored last.
    """
    pieces: list[Piece] = []
    find = _find_newest if ledger in table.mixed else _find
    at, size = first, 0
    while at <= last and (found := find(generations, table, ledger, at)) is not None:
        piece, piece_bytes, behind = found
        if pieces and size + piece_bytes > bytes_max:
            break
        pieces.append(piece)
        size += piece_bytes
        at = behind
    return pieces, at


def held(
    generations: Sequence[CacheGeneration], table: LedgerTable, ledger: int, first: int, last: int, looks_max: int
) -> tuple[list[tuple[int, int]], int]:
    """([first, last] of what the index has of these entries, ascending and apart; the entry behind what was looked at:
    it stops after so many looks).
    """
    ranges: list[tuple[int, int]] = []
    at = first
    while at <= last and looks_max:
        looks_max -= 1
        found = _find(generations, table, ledger, at)
        if found is None:
            starts = [tail.next_start(at) for one in generations if (tail := one.tails.get(ledger)) is not None]
            starts += [log.next_start(ledger, at) for log in table.logs_of(ledger)]
            at = min([*starts, last + 1])
            continue
        behind = min(found[2], last + 1)
        begin = ranges.pop()[0] if ranges and ranges[-1][1] == at - 1 else at
        ranges.append((begin, behind - 1))
        at = behind
    return ranges, at


def _find(
    generations: Sequence[CacheGeneration], table: LedgerTable, ledger: int, entry: int
) -> tuple[Piece, int, int] | None:
    """(where a block with `entry` lies, its bytes, the entry behind it)."""
    for generation in generations:
        tail = generation.tails.get(ledger)
        if tail is not None and (at := tail.find(entry)) >= 0:
            return tail.blocks[at], len(tail.blocks[at]), tail.firsts[at] + tail.counts[at]
    found = table.find(ledger, entry)
    if found is None:
        return None
    log, offset, size, behind = found
    return (log, offset, size), size, behind


def _find_newest(
    generations: Sequence[CacheGeneration], table: LedgerTable, ledger: int, entry: int
) -> tuple[Piece, int, int] | None:
    """The same; a block of which newer ones hold a part is cut before that."""
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
    for log in table.logs_of(ledger):
        if (run := log.find(ledger, entry)) is not None:
            offset, size, behind = run
            if limit < behind:
                return (log, offset, size, entry, limit), size, limit
            return (log, offset, size), size, behind
        limit = min(limit, log.next_start(ledger, entry))
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
