"""Generation: the blocks that are in the journal but in no entry log yet.

Is: per ledger, blocks in entry order; look-up; the order in which a flush writes them. Isn't: a bound (the bookie keeps that), or durability.
Invariants: nothing is stored an entry; a frozen generation never changes, so the flush may walk it on another thread.
The same entries may be there twice under different cuts; a look-up finds one block that holds the entry, whichever.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator

from heliograph.wire.run import COUNT_MAX

BLOCK_OVERHEAD_BYTES = 256
"""What a block costs beside its bytes: views, numbers, list slots."""


class Tail:
    """One ledger's blocks, ascending by first entry."""

    __slots__ = ("blocks", "counts", "firsts")

    def __init__(self) -> None:
        self.firsts: list[int] = []
        self.counts: list[int] = []
        self.blocks: list[memoryview] = []

    def insert(self, first: int, count: int, block: memoryview) -> bool:
        """False where this very cut is there already."""
        firsts = self.firsts
        if not firsts or first > firsts[-1]:
            firsts.append(first)
            self.counts.append(count)
            self.blocks.append(block)
            return True
        at = bisect_right(firsts, first)
        while at and firsts[at - 1] == first:
            at -= 1
            if self.counts[at] >= count:
                return False
        firsts.insert(at, first)
        self.counts.insert(at, count)
        self.blocks.insert(at, block)
        return True

    def find(self, entry: int) -> int:
        """Index of a block that holds `entry`, or -1."""
        return find_run(self.firsts, self.counts, entry, 0, len(self.firsts))


class Generation:
    """Filled, frozen, flushed, dropped. `size_bytes` counts what was put in, also what turned out to be there already: the journal holds it too."""

    __slots__ = ("size_bytes", "tails", "touched")

    def __init__(self) -> None:
        self.size_bytes = 0
        self.tails: dict[int, Tail] = {}
        self.touched: dict[int, None] = {}
        """Ledgers whose LAC or fence is to be written down with this generation, in the order of their first change."""

    def insert(self, ledger: int, first: int, count: int, block: memoryview) -> None:
        tail = self.tails.get(ledger)
        if tail is None:
            tail = self.tails[ledger] = Tail()
            self.touched[ledger] = None
        tail.insert(first, count, block)
        self.size_bytes += len(block) + BLOCK_OVERHEAD_BYTES

    def drop(self, ledger: int) -> None:
        self.tails.pop(ledger, None)
        self.touched.pop(ledger, None)

    def ordered(self) -> Iterator[tuple[int, Tail]]:
        for ledger in sorted(self.tails):
            yield ledger, self.tails[ledger]


def find_run(firsts: list[int], counts: list[int], entry: int, low: int, high: int) -> int:
    """Index in [low, high) of a run that holds `entry`, or -1. A run is at most COUNT_MAX long, so the search backwards is bounded."""
    at = bisect_right(firsts, entry, low, high) - 1
    while at >= low and firsts[at] > entry - COUNT_MAX:
        if firsts[at] + counts[at] > entry:
            return at
        at -= 1
    return -1
