"""Cutting: where the same entries were stored twice, the newest counts; of the older block the rest is a block of its
own.

Is: a block of a range of another one's entries, and which ranges of older blocks newer ones leave over. Isn't: which
block is newer (`ledger_table`).
Invariants: an entry's content and all that its run says of it are those of the block it is cut from. Entries are seldom
stored twice: by a writer that was cut off, a recovery, a repair; so nothing here is on the way of an ordinary add or
read.
"""

from __future__ import annotations

from heliograph.runtime.disk import Buffer
from heliograph.wire.block import decode_block, encode_block


def cut_block(block: Buffer, low: int, high: int) -> memoryview:
    """Entries [low, high) of a block, which must hold them. Raises CorruptData where it is bad."""
    ledger, first, run = decode_block(block)
    return memoryview(b"".join(encode_block(run.cut(low - first, high - first), ledger, low)))


class Covered:
    """Which entries of one ledger are there already, newest first: `take` says what of an older block is left."""

    def __init__(self) -> None:
        self._ranges: list[tuple[int, int]] = []  # half-open, ascending, apart

    def take(self, first: int, count: int) -> list[tuple[int, int]]:
        """The ranges of [first, first + count) that nobody has taken; from now on all of it is taken."""
        left: list[tuple[int, int]] = []
        at, end = first, first + count
        low, high = first, end
        kept: list[tuple[int, int]] = []
        for start, stop in self._ranges:
            if stop < first or start > end:
                kept.append((start, stop))
                continue
            if start > at:
                left.append((at, min(start, end)))
            at = max(at, stop)
            low, high = min(low, start), max(high, stop)
        if at < end:
            left.append((at, end))
        kept.append((low, high))
        kept.sort()
        self._ranges = kept
        return left
