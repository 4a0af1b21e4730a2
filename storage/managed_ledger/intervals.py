"""Intervals: a set of entry ids, as few half-open ranges as can be.

Is: the acknowledged entries of one ledger above a cursor's mark-delete position. Isn't: aware of ledgers, or of what exists.
Invariants: ranges are sorted, not empty, and never touch; `count` is the number of ids in them.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator


class Intervals:
    """Each call costs one binary search, and the ranges that it swallows."""

    __slots__ = ("_starts", "_stops", "count")

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._stops: list[int] = []
        self.count = 0

    def add(self, start: int, stop: int) -> int:
        """Adds [start, stop); returns how many ids are new."""
        if start >= stop:
            return 0
        low = bisect_left(self._stops, start)
        high = bisect_right(self._starts, stop)
        held = 0
        if low < high:
            held = sum(self._stops[i] - self._starts[i] for i in range(low, high))
            start, stop = min(start, self._starts[low]), max(stop, self._stops[high - 1])
        self._starts[low:high] = [start]
        self._stops[low:high] = [stop]
        self.count += stop - start - held
        return stop - start - held

    def remove_below(self, limit: int) -> int:
        """Forgets every id below `limit`; returns how many."""
        whole = bisect_right(self._stops, limit)
        removed = sum(self._stops[i] - self._starts[i] for i in range(whole))
        del self._starts[:whole], self._stops[:whole]
        if self._starts and self._starts[0] < limit:
            removed += limit - self._starts[0]
            self._starts[0] = limit
        self.count -= removed
        return removed

    def end_of(self, entry: int) -> int:
        """The first id at or after `entry` that is not in the set."""
        at = bisect_right(self._starts, entry) - 1
        return max(entry, self._stops[at]) if at >= 0 else entry

    def __contains__(self, entry: int) -> bool:
        return self.end_of(entry) != entry

    def gaps(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """The ranges of [start, stop) that are not in the set."""
        at = bisect_right(self._stops, start)
        while start < stop:
            if at == len(self._starts) or self._starts[at] >= stop:
                yield start, stop
                return
            if start < self._starts[at]:
                yield start, self._starts[at]
            start = self._stops[at]
            at += 1

    def pairs(self) -> Iterator[tuple[int, int]]:
        """Its ranges, in order."""
        return zip(self._starts, self._stops, strict=True)

    def __len__(self) -> int:
        """How many ranges."""
        return len(self._starts)
