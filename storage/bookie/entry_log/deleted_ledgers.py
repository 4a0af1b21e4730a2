"""DeadLedgers: the ids of ledgers that were deleted on a bookie, kept for ever.

Is: a set of integers as sorted, disjoint ranges. Isn't: what still lies in entry logs.
Why for ever: a writer that was paused may add to its ledger long after a recovery closed it and retention deleted it. A
bookie that had forgotten the ledger would take the add for a new one and acknowledge it, and the writer would confirm
what nobody can read. Ids are never reused, and neighbours merge, so that the set stays small.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable


class DeadLedgers:
    """`ranges()`: (first, last) pairs, both included, ascending."""

    __slots__ = ("_first", "_last")

    def __init__(self, ranges: Iterable[tuple[int, int]] = ()) -> None:
        self._first: list[int] = []
        self._last: list[int] = []
        for first, last in ranges:
            self._first.append(first)
            self._last.append(last)

    @classmethod
    def union(cls, ranges: Iterable[tuple[int, int]]) -> DeadLedgers:
        """Makes a set of (first, last) ranges of ids, inclusive, in any order; they may overlap."""
        merged: list[tuple[int, int]] = []
        for first, last in sorted(ranges):
            if merged and first <= merged[-1][1] + 1:
                merged[-1] = merged[-1][0], max(merged[-1][1], last)
            else:
                merged.append((first, last))
        return cls(merged)

    def __contains__(self, ledger: int) -> bool:
        at = bisect_right(self._first, ledger) - 1
        return at >= 0 and ledger <= self._last[at]

    def add(self, ledger: int) -> None:
        if ledger in self:
            return
        at = bisect_right(self._first, ledger)
        joins_left = at > 0 and self._last[at - 1] == ledger - 1
        joins_right = at < len(self._first) and self._first[at] == ledger + 1
        if joins_left and joins_right:
            self._last[at - 1] = self._last.pop(at)
            del self._first[at]
        elif joins_left:
            self._last[at - 1] = ledger
        elif joins_right:
            self._first[at] = ledger
        else:
            self._first.insert(at, ledger)
            self._last.insert(at, ledger)

    def highest(self) -> int:
        """The highest id of them; -1 where there is none."""
        return self._last[-1] if self._last else -1

    def ranges(self) -> tuple[tuple[int, int], ...]:
        return tuple(zip(self._first, self._last, strict=True))
