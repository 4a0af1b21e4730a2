"""CacheGeneration: the blocks that are in the journal but in no entry log yet.

Is: per ledger, blocks in entry order; look-up; the order in which a flush writes them. Isn't: a bound (the bookie keeps
that), or durability.
Invariants: nothing is stored an entry; a frozen generation never changes, so the flush may walk it on another thread.
No entry is there twice: what comes again takes the place of what was there, also under other cuts, and the rest of that
is cut.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator

from heliograph.wire.run import COUNT_MAX
from storage.bookie.entry_log.block_cutting import cut_block

NEVER = 1 << 63
"""Stands for an entry that is never reached: it is greater than every entry id."""
BLOCK_OVERHEAD_BYTES = 256
"""What a block costs beside its bytes: views, numbers, list slots."""


class LedgerTail:
    """One ledger's blocks, ascending by first entry."""

    __slots__ = ("blocks", "counts", "firsts")

    def __init__(self) -> None:
        self.firsts: list[int] = []
        self.counts: list[int] = []
        self.blocks: list[memoryview] = []

    def insert(self, first: int, count: int, block: memoryview) -> bool:
        """False where this very block is there already."""
        firsts = self.firsts
        if not firsts or first >= firsts[-1] + self.counts[-1]:
            firsts.append(first)
            self.counts.append(count)
            self.blocks.append(block)
            return True
        return self._lay_over(first, count, block)

    def _lay_over(self, first: int, count: int, block: memoryview) -> bool:
        firsts, counts, blocks, end = self.firsts, self.counts, self.blocks, first + count
        low, high = bisect_right(firsts, first) - 1, bisect_left(firsts, end)
        if low < 0 or firsts[low] + counts[low] <= first:
            low += 1
        new = [(first, count, block)]
        if low < high:
            if high - low == 1 and (firsts[low], counts[low]) == (first, count) and blocks[low] == block:
                return False
            if firsts[low] < first:
                new.insert(0, (firsts[low], first - firsts[low], cut_block(blocks[low], firsts[low], first)))
            behind = firsts[high - 1] + counts[high - 1]
            if behind > end:
                new.append((end, behind - end, cut_block(blocks[high - 1], end, behind)))
        firsts[low:high], counts[low:high], blocks[low:high] = (  # type: ignore[assignment]
            [row[column] for row in new] for column in range(3)
        )
        return True

    def next_start(self, entry: int) -> int:
        """The first entry of the first block behind `entry`; NEVER where there is none."""
        at = bisect_right(self.firsts, entry)
        return self.firsts[at] if at < len(self.firsts) else NEVER

    def find(self, entry: int) -> int:
        """Index of a block that holds `entry`, or -1."""
        return find_run(self.firsts, self.counts, entry, 0, len(self.firsts))


class CacheGeneration:
    """Filled, frozen, flushed, dropped. `size_bytes` and `entries` are of all that was put in, also of what was there
    already: the journal holds it too.
    """

    __slots__ = ("entries", "size_bytes", "tails", "touched")

    def __init__(self) -> None:
        self.size_bytes = self.entries = 0
        self.tails: dict[int, LedgerTail] = {}
        self.touched: dict[int, None] = {}
        """Ledgers whose LAC or fence is to be written down with this generation, in the order of their first change."""

    def insert(self, ledger: int, first: int, count: int, block: memoryview) -> None:
        tail = self.tails.get(ledger)
        if tail is None:
            tail = self.tails[ledger] = LedgerTail()
            self.touched[ledger] = None
        tail.insert(first, count, block)
        self.size_bytes += len(block) + BLOCK_OVERHEAD_BYTES
        self.entries += count

    def drop(self, ledger: int) -> None:
        self.tails.pop(ledger, None)
        self.touched.pop(ledger, None)

    def ordered(self) -> Iterator[tuple[int, LedgerTail]]:
        for ledger in sorted(self.tails):
            yield ledger, self.tails[ledger]


def find_run(firsts: list[int], counts: list[int], entry: int, low: int, high: int) -> int:
    """Index in [low, high) of a run that holds `entry`, or -1. A run is at most COUNT_MAX long, so the search backwards
    is bounded.
    """
    at = bisect_right(firsts, entry, low, high) - 1
    while at >= low and firsts[at] > entry - COUNT_MAX:
        if firsts[at] + counts[at] > entry:
            return at
        at -= 1
    return -1
