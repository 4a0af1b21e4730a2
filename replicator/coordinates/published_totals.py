"""PublishedTotals: how much this region has published, by position, so that each link knows its backlog and the age of
it at any time.

Is: running totals of what was first published here, and a bounded number of points (position, totals, broker time).
Isn't: a list of entries.
Invariants: points ascend; the newest runs have points of their own, older ones share them; a backlog counted from a
position is exact there where that position is a point, and otherwise too large by less than one point; an age is never
too small.
Source: docs/protocols/links.md, "Backlog and age".
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Any

from heliograph.model.positions import BEFORE_ALL, Position

POINTS_MAX = 1024
DUMPED_MAX = 64

Totals = tuple[int, int, int]
"""(entries, messages, bytes), counted from the first publish of the topic in this region."""
NOTHING: Totals = (0, 0, 0)
Point = tuple[Position, Position, Totals, int]
"""(first position, last position, totals up to there, broker time in ms of the first run): one local run, or several
that share a point.
"""


class PublishedTotals:
    """What was first published in this region, of one topic."""

    __slots__ = ("_points", "totals")

    def __init__(self) -> None:
        self.totals: Totals = NOTHING
        self._points: list[Point] = []

    def add(self, ledger: int, first: int, count: int, messages: int, size_bytes: int, time_ms: int) -> None:
        """A local run is durable at (ledger, first)."""
        entries, before, size = self.totals
        self.totals = totals = (entries + count, before + messages, size + size_bytes)
        self._points.append(((ledger, first), (ledger, first + count - 1), totals, time_ms))
        if len(self._points) > POINTS_MAX:
            self._points = _thin(self._points, POINTS_MAX // 2)

    def at(self, position: Position) -> Totals:
        """Totals up to the last point at or below `position`."""
        index = bisect_right(self._points, position, key=_last)
        return self._points[index - 1][2] if index else NOTHING

    def last_at(self, position: Position) -> Position:
        """The last position at or below `position` that was first published here, or may have been; BEFORE_ALL."""
        index = bisect_right(self._points, position, key=_last)
        if index < len(self._points) and self._points[index][0] <= position:
            return position  # inside of what shares a point
        return self._points[index - 1][1] if index else BEFORE_ALL

    def last_before(self, time_ms: int) -> Position:
        """The end of the last point of which everything was published before `time_ms`; BEFORE_ALL: there is none.
        Never too late.
        """
        index = bisect_right(self._points, time_ms, key=lambda point: point[3])  # the next one begins later
        return self._points[index - 2][1] if index >= 2 else BEFORE_ALL

    def oldest_ms(self, done: Totals) -> int:
        """Broker time of the first entry beyond `done`; 0 where there is none."""
        index = bisect_right(self._points, done[0], key=lambda point: point[2][0])
        return self._points[index][3] if index < len(self._points) else 0

    def dump(self) -> list[Any]:
        points = self._points
        while len(points) > DUMPED_MAX:
            points = _thin(points, len(points))
        return [self.totals, points]

    def load(self, dumped: list[Any]) -> None:
        totals, points = dumped
        self.totals = (totals[0], totals[1], totals[2])
        self._points = [((a[0], a[1]), (b[0], b[1]), (t[0], t[1], t[2]), time_ms) for a, b, t, time_ms in points]


def _last(point: Point) -> Position:
    return point[1]


def _thin(points: list[Point], upto: int) -> list[Point]:
    """Every two of the first `upto` points become one: the later totals, the earlier time."""
    upto -= upto % 2
    older = [(a[0], b[1], b[2], a[3]) for a, b in zip(points[0:upto:2], points[1:upto:2], strict=True)]
    return older + points[upto:]
