"""Striping: which places of an ensemble hold which entries of a ledger.

Is: arithmetic. Entries lie in *stripes* of `stride` consecutive ids; stripe s lies on the `write_quorum` places s, s +
1, ... modulo the ensemble's width: its *write set*. Where ensemble and write quorum are equally wide, every place holds
every entry, and there is one stripe without end.
Isn't: aware of bookies; a bookie that replaces another takes its place.
Invariants: every entry has exactly `write_quorum` places; they depend on its id and the ensemble's width only.
"""

from __future__ import annotations

STRIDE = 64
END = (1 << 63) - 1
"""Stands for the last entry of a stripe without end."""


class Striping:
    """width: bookies of the ensemble. sets: the write sets, in turn."""

    __slots__ = ("_stride", "sets", "width", "write_quorum")

    def __init__(self, width: int, write_quorum: int, stride: int = STRIDE) -> None:
        assert 1 <= write_quorum <= width and stride > 0
        self.width, self.write_quorum = width, write_quorum
        self._stride = stride if width > write_quorum else 0
        starts = range(width if self._stride else 1)
        self.sets = [tuple((start + i) % width for i in range(write_quorum)) for start in starts]

    def places(self, entry: int) -> tuple[int, ...]:
        """The write set of `entry`, as places of the ensemble."""
        return self.sets[entry // self._stride % self.width] if self._stride else self.sets[0]

    def holds(self, place: int, entry: int) -> bool:
        return not self._stride or (place - entry // self._stride) % self.width < self.write_quorum

    def last(self, entry: int) -> int:
        """The last entry of its stripe."""
        return entry - entry % self._stride + self._stride - 1 if self._stride else END

    def others(self, place: int) -> list[list[int]]:
        """Returns, for each write set that this place belongs to, the other places of it."""
        return [[other for other in places if other != place] for places in self.sets if place in places]
