"""AckSetBudget: what the ack sets of all cursors that share it take in memory.

Is: a sum of the large ones, and which of them gives up some. Isn't: the bound of one cursor, or what is stored.
Invariants: the cursors of a topic that is closed have given up theirs, and count no more; those that hold no more than
COUNTED_BYTES give up nothing.
"""

from __future__ import annotations

from typing import Protocol
from weakref import WeakSet

ACK_SETS_BYTES_MAX = 256 << 20
"""All together: those of 64 cursors that have as much as one may have."""
COUNTED_BYTES = 64 << 10
"""A cursor with more than that is counted; all are looked at anew whenever one has taken in so much more."""


class AckSetHolder(Protocol):
    """A cursor, as the budget sees it."""

    @property
    def ack_set_bytes(self) -> int: ...

    def give_up_ack_sets(self, bytes_max: int) -> None:
        """Keeps no more than that, the newest."""
        ...


class AckSetBudget:
    """bytes_max: what all that are counted may have. Whoever holds most gives up half of its own first."""

    __slots__ = ("_holders", "bytes_max")

    def __init__(self, bytes_max: int = ACK_SETS_BYTES_MAX) -> None:
        self.bytes_max = bytes_max
        self._holders = WeakSet[AckSetHolder]()

    def grown(self, holder: AckSetHolder) -> None:
        """It has taken in COUNTED_BYTES since it said so last: all that are counted are looked at."""
        self._holders.add(holder)
        sizes = {each: size for each in self._holders if (size := each.ack_set_bytes) > COUNTED_BYTES}
        self._holders.intersection_update(sizes)
        total = sum(sizes.values())
        while total > self.bytes_max and sizes:
            largest = max(sizes, key=lambda each: sizes[each])
            total -= sizes.pop(largest)
            largest.give_up_ack_sets(largest.ack_set_bytes // 2)
            total += largest.ack_set_bytes
