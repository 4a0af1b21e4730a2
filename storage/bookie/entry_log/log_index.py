"""LogIndex: where the blocks of one entry log lie, in columns, and the pages that it is kept in.

Is: look-up in a whole index, as a footer has it, or in one page of it. Isn't: a file (`entry_log`), or which pages are
in memory (`index_pages`).
Invariants: a page holds whole groups, so that all that a log has of a ledger is in one of them; nothing is kept per
entry but what a block of one entry needs.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import TypeAlias

from heliograph.wire.run import COUNT_MAX
from storage.bookie.entry_log.write_cache import NEVER

_SHORT = 1 << 32
PAGE_OVERHEAD_BYTES = 600
"""What a page costs beside its columns: five arrays, and its place in a dictionary."""


Columns: TypeAlias = "tuple[array[int], array[int], array[int], array[int], array[int]]"
"""Those of a page, as its footer has them: ledgers, run counts, firsts, sizes, counts."""


class IndexPage:
    """The groups of some ledgers, ascending, and the blocks of each in file order."""

    __slots__ = ("_counts", "_ends", "_firsts", "_ledgers", "_offsets", "rebuilt")

    def __init__(self, columns: Columns, begin: int) -> None:
        """begin: where the first block lies."""
        self._ledgers, run_counts, self._firsts, sizes, self._counts = columns
        self._ends = array("I", accumulate(run_counts))
        offsets = list(accumulate(sizes, initial=begin))
        self._offsets = array("I" if offsets[-1] < _SHORT else "Q", offsets)
        self.rebuilt = False
        """Whether it was made of the blocks themselves: groups without a block are not in it."""

    @property
    def ledgers(self) -> Sequence[int]:
        """Ascending; also those of which the log holds only a mark."""
        return self._ledgers

    @property
    def size_bytes(self) -> int:
        """What it takes of memory."""
        columns = (self._ledgers, self._ends, self._firsts, self._counts, self._offsets)
        return PAGE_OVERHEAD_BYTES + sum(column.itemsize * len(column) for column in columns)

    @property
    def blocks(self) -> int:
        return len(self._firsts)

    def group_of(self, ledger: int) -> int:
        """-1 where it knows nothing of the ledger."""
        group = bisect_left(self._ledgers, ledger)
        return group if group < len(self._ledgers) and self._ledgers[group] == ledger else -1

    def last_entry(self, group: int) -> int:
        """The last entry of the ledger at `group`, or -1. Runs of other cuts that begin earlier may end later."""
        low, high = self._range(group)
        last = -1
        for at in range(high - 1, low - 1, -1):
            if self._firsts[at] + COUNT_MAX <= last:
                break
            last = max(last, self._firsts[at] + self._counts[at] - 1)
        return last

    def first_entry(self, group: int) -> int:
        """The first entry of the ledger at `group`; NEVER where there is none."""
        low, high = self._range(group)
        return self._firsts[low] if low < high else NEVER

    def group_bytes(self, group: int) -> int:
        """The bytes of the blocks that the ledger at `group` has in this log."""
        low, high = self._range(group)
        return self._offsets[high] - self._offsets[low]

    def runs(self, group: int) -> Iterator[tuple[int, int, int, int]]:
        """(offset, size, first entry, count) of each block of the ledger at `group`, in file order; none for -1."""
        for at in range(*self._range(group)) if group >= 0 else ():
            yield self._offsets[at], self._offsets[at + 1] - self._offsets[at], self._firsts[at], self._counts[at]

    def find(self, ledger: int, entry: int) -> tuple[int, int, int] | None:
        """(offset, size, entry behind it) of a block that holds `entry`."""
        low, high = self._range_of(ledger)
        at = self._find(entry, low, high)
        if at < 0:
            return None
        return self._offsets[at], self._offsets[at + 1] - self._offsets[at], self._firsts[at] + self._counts[at]

    def follow(
        self, ledger: int, entry: int, last: int, bytes_max: int, begun: bool
    ) -> tuple[list[tuple[int, int]], int]:
        """([(offset, size)] of the blocks that hold the entries from `entry` on, the entry behind them): up to a hole,
        `last`, or the bound. begun: others come before them; else there is at least one.
        """
        firsts, counts, offsets = self._firsts, self._counts, self._offsets
        low, high = self._range_of(ledger)
        at = self._find(entry, low, high)
        found: list[tuple[int, int]] = []
        taken = 0
        while 0 <= at < high and entry <= last:
            if found and firsts[at] != entry:
                break
            offset = offsets[at]
            size = offsets[at + 1] - offset
            if taken + size > bytes_max and (found or begun):
                break
            taken += size
            found.append((offset, size))
            entry = firsts[at] + counts[at]
            at += 1
        return found, entry

    def next_start(self, ledger: int, entry: int) -> int:
        """The first entry of the first block behind `entry`; NEVER where there is none."""
        low, high = self._range_of(ledger)
        at = bisect_right(self._firsts, entry, low, high)
        return self._firsts[at] if at < high else NEVER

    def _find(self, entry: int, low: int, high: int) -> int:
        firsts, counts = self._firsts, self._counts
        at = bisect_right(firsts, entry, low, high) - 1
        while at >= low and firsts[at] > entry - COUNT_MAX:
            if firsts[at] + counts[at] > entry:
                return at
            at -= 1
        return -1

    def _range(self, group: int) -> tuple[int, int]:
        return self._ends[group - 1] if group else 0, self._ends[group]

    def _range_of(self, ledger: int) -> tuple[int, int]:
        group = self.group_of(ledger)
        return self._range(group) if group >= 0 else (0, 0)


class LogIndex:
    """All of a log's index, with what it says of each ledger beside its blocks. Held only while its log is written or
    loaded.
    """

    __slots__ = ("_columns", "_ends", "_offsets", "all", "fenced", "lacs")

    def __init__(self, columns: Columns, lacs: array[int], fenced: Iterable[int], begin: int) -> None:
        self.all = IndexPage(columns, begin)
        self.lacs, self.fenced = lacs, bytes(map(bool, fenced))
        self._columns = columns
        _, run_counts, _, sizes, _ = columns
        self._ends = array("Q", accumulate(run_counts, initial=0))
        self._offsets = array("Q", accumulate(sizes, initial=begin))

    @property
    def block_bytes(self) -> int:
        return self._offsets[-1] - self._offsets[0]

    @property
    def entries(self) -> int:
        """In all blocks; one that lies in two of them is counted twice."""
        return sum(self._columns[4])

    @property
    def run_counts(self) -> Sequence[int]:
        """How many blocks each group has."""
        return self._columns[1]

    def run_start(self, group: int) -> int:
        return self._ends[group]

    def offset_at(self, run: int) -> int:
        return self._offsets[run]

    def columns_of(self, groups: slice, runs: slice) -> Columns:
        ledgers, run_counts, firsts, sizes, counts = self._columns
        return ledgers[groups], run_counts[groups], firsts[runs], sizes[runs], counts[runs]
