"""PublishedTotals: how much this region has published, by position, so that each link knows its backlog and the age of
it at any time.

Is: running totals of what was first published here, and a bounded number of points (position, totals, broker time).
Isn't: a list of entries.
Bounds: `POINTS_MAX` points while a link has something to send, `REST_MAX` where there is no link (one that is made
later may begin at a time) or every link has everything.
Invariants: points ascend; the newest runs have points of their own, older ones share them; a backlog counted from a
position is exact there where that position is a point, and otherwise too large by less than one point; an age is never
too small.
Source: docs/protocols/links.md, "Backlog and age".
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import Any

from heliograph.model.positions import BEFORE_ALL, Position

POINTS_MAX = 1024
"""With 64 the age of what is at risk was told up to three seconds too old where a link is made anew under load."""
DUMPED_MAX = 64
"""What is stored of it with the topic's state."""
REST_MAX = 16
"""A point takes about 0.4 KB, and there may be tens of thousands of topics."""

Totals = tuple[int, int, int]
"""(entries, messages, bytes), counted from the first publish of the topic in this region."""
NOTHING: Totals = (0, 0, 0)
Point = tuple[Position, Position, Totals, int]
"""(first position, last position, totals up to there, broker time in ms of the first run): one local run, or several
that share a point.
"""


class PublishedTotals:
    """What was first published in this region, of one topic."""

    __slots__ = ("_points", "_points_max", "totals")

    def __init__(self) -> None:
        self.totals: Totals = NOTHING
        self._points: list[Point] = []
        self._points_max = REST_MAX

    def follow(self, yes: bool) -> None:
        """Whether there are links that follow it."""
        self._points_max = POINTS_MAX if yes else REST_MAX
        if not yes:
            self.rest()

    @property
    def fine(self) -> bool:
        """Whether there are more points than at rest."""
        return len(self._points) > REST_MAX

    def rest(self) -> None:
        """Nobody has anything of it to send."""
        self._points = _thinned(self._points, REST_MAX)

    def add(self, ledger: int, first: int, count: int, messages: int, size_bytes: int, time_ms: int) -> None:
        """A local run is durable at (ledger, first)."""
        entries, before, size = self.totals
        self.totals = totals = (entries + count, before + messages, size + size_bytes)
        self._points.append(((ledger, first), (ledger, first + count - 1), totals, time_ms))
        if len(self._points) > self._points_max:
            self._points = _thin(self._points, self._points_max)

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

    def last_before(self, time_ms: int, since: Position = BEFORE_ALL) -> Position:
        """The end of the last point behind `since` of which everything was published before `time_ms`; BEFORE_ALL:
        there is none. Never too late, also where times do not ascend, as behind a clock that was wrong for a while: it
        looks no further than to the first that is not before.
        """
        index = first = bisect_left(self._points, since, key=_last)
        while index < len(self._points) and self._points[index][3] <= time_ms:
            index += 1  # most often none is: what is old goes at once
        return self._points[index - 2][1] if index - first >= 2 else BEFORE_ALL  # the next one begins later

    def oldest_ms(self, done: Totals) -> int:
        """Broker time of the first entry beyond `done`; 0 where there is none."""
        index = bisect_right(self._points, done[0], key=lambda point: point[2][0])
        return self._points[index][3] if index < len(self._points) else 0

    def beyond(self, done: Totals) -> tuple[Totals, int]:
        """((entries, messages, bytes) beyond `done`, broker time in ms of the first; 0: there is none)."""
        now = self.totals
        left = (max(0, now[0] - done[0]), max(0, now[1] - done[1]), max(0, now[2] - done[2]))
        return left, self.oldest_ms(done) if left[0] else 0

    def dump(self) -> list[Any]:
        return [self.totals, _thinned(self._points, DUMPED_MAX)]

    def load(self, dumped: list[Any]) -> None:
        totals, points = dumped
        self.totals = (totals[0], totals[1], totals[2])
        self._points = [((a[0], a[1]), (b[0], b[1]), (t[0], t[1], t[2]), time_ms) for a, b, t, time_ms in points]


def _last(point: Point) -> Position:
    return point[1]


def _thinned(points: list[Point], count_max: int) -> list[Point]:
    """Returns them with the older ones joined, until there are at most `count_max`."""
    while len(points) > count_max:
        points = _thin(points, len(points))
    return points


def _thin(points: list[Point], count_max: int) -> list[Point]:
    """At most three quarters of `count_max`, or half of what there was.

    The newest quarter stays as it is; older ones become one while they hold together at most half of what came behind
    them.
    """
    end, start = points[-1][2][0], len(points) - count_max // 4
    merged: list[Point] = []  # from the newest on
    group = points[start - 1]
    for index in range(start - 2, -1, -1):
        point = points[index]
        before = points[index - 1][2][0] if index else 0
        if 2 * (group[2][0] - before) <= end - group[2][0]:
            group = (point[0], group[1], group[2], point[3])
        else:
            merged.append(group)
            group = point
    merged = [group, *reversed(merged)]
    if (over := min(2 * (len(merged) - count_max // 2), len(merged) // 2 * 2)) > 0:
        pairs = zip(merged[0:over:2], merged[1:over:2], strict=True)
        merged = [*((a[0], b[1], b[2], a[3]) for a, b in pairs), *merged[over:]]
    return merged + points[start:]
