"""Holes of one audit's pass: where this region's copy cannot be read, and which entries may have lain there.

Is: the holes in the order of their positions, and for one entry which of them may be its place. Isn't: what is lost
(`replicator.audit.audit_pass`), or what is put there (`replicator.audit.audit_repair`).
Invariants: an origin's coordinates ascend with the positions, and so do the ends of its holes, so those that an entry
may have lain in stand beside each other, and are found by bisection; of more holes than a pass keeps the last one
stands for all behind it, so nothing that may have lain there is taken for lost without a place.
Source: docs/protocols/links.md, "Audit".
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right

from heliograph.model.coordinates import Origin
from heliograph.model.positions import AFTER_ALL, BEFORE_ALL, Position


class Hole:
    """Positions [first, last] of a ledger that cannot be read, and between which coordinates of each origin they
    lie.
    """

    __slots__ = ("after", "before", "first", "index", "last", "ledger", "open", "time_ms")

    def __init__(self, ledger: int, first: int, before: dict[Origin, Position], time_ms: int, index: int) -> None:
        self.ledger, self.first, self.last = ledger, first, first
        self.before = before
        """Origin -> its last coordinate in front of the hole."""
        self.after: dict[Origin, Position] = {}
        """Origin -> its first coordinate behind the hole, where there is one."""
        self.time_ms, self.index = time_ms, index
        self.open = False
        """There are more behind it that are not kept: it may hold all that they may."""

    def may_hold(self, origin: Origin, at: Position) -> bool:
        return self.before.get(origin, BEFORE_ALL) < at and (origin not in self.after or at < self.after[origin])

    def positions(self) -> list[Position]:
        return [(self.ledger, entry) for entry in range(self.first, self.last + 1)]


class Holes:
    """Those of one pass, as it meets them. `around` is asked once all are known."""

    def __init__(self, holes_max: int) -> None:
        self.all: list[Hole] = []
        self._holes_max = holes_max
        self._ends: dict[Origin, tuple[list[Position], list[Position]]] = {}
        """Origin -> (`after`, `before`) of each hole."""

    def note(self, ledger: int, entry: int, seen: dict[Origin, Position], time_ms: int, index: int) -> None:
        """seen: origin -> its last coordinate so far."""
        last = self.all[-1] if self.all else None
        if last is not None and (last.ledger, last.last + 1) == (ledger, entry) and not last.after:
            last.last = entry
        elif last is None or not last.open:
            self.all.append(Hole(ledger, entry, dict(seen), time_ms, index))
            self.all[-1].open = len(self.all) > self._holes_max

    def note_behind(self, origin: Origin, at: Position) -> None:
        """The next coordinate of an origin was read."""
        for hole in reversed(self.all):
            if hole.open:
                continue
            if origin in hole.after:
                break
            hole.after[origin] = at

    def around(self, origin: Origin, at: Position) -> range:
        """Which of `all` may hold it."""
        ends = self._ends.get(origin)
        if ends is None:
            ends = self._ends[origin] = (
                [hole.after.get(origin, AFTER_ALL) for hole in self.all],
                [hole.before.get(origin, BEFORE_ALL) for hole in self.all],
            )
        return range(bisect_right(ends[0], at), bisect_left(ends[1], at))

    @property
    def more(self) -> bool:
        """Whether there are more than are kept."""
        return bool(self.all) and self.all[-1].open
