"""PositionMap: by origin, a sparse list of which coordinate lies where in this region's copy of a topic.

Is: points (coordinate, local position), one each 1,024 entries or 4 MiB of an origin, or 16 MiB of whatever the topic
stores, and between which two of them something must lie.
Isn't: the entries between two points; whoever wants one of them reads there (`replicator.log.coordinate_lookup`). Own
origins need none: a coordinate of theirs is its position, but for what other regions have brought back of earlier
epochs.
Invariants: points are true (that coordinate lies there, or lay there before it was trimmed) and ascend in both; the
first point of an origin is its first entry that was ever stored here, or one below everything retained; the newest
entry of each origin is known exactly. Thinning, and a restart, only widen what lies between two points.
Bounds: `points_max` points a topic in memory, `dumped_max` in the stored state, and one for each origin at least.
Source: docs/protocols/links.md, "Where a coordinate lies".
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from typing import Any, ClassVar

from heliograph.model.coordinates import Origin
from heliograph.model.empty_dict import NOTHING, own
from heliograph.model.positions import AFTER_ALL, BEFORE_ALL, Position
from heliograph.wire.run import Run

EVERY_ENTRIES = 1024
EVERY_BYTES = 4 << 20
EVERY_LOG_BYTES = 16 << 20
"""An origin that publishes little has a point each so many bytes of the topic: what lies between is read over."""
POINTS_MAX = 4096
DUMPED_MAX = 128


class _Points:
    """The points of one origin: two columns of the same length, and the newest entry."""

    __slots__ = ("coordinates", "entries", "grown", "last", "last_local", "locals", "previous", "size_bytes")

    def __init__(self) -> None:
        self.coordinates: list[Position] = []
        self.locals: list[Position] = []
        self.last = self.last_local = BEFORE_ALL
        self.entries = self.size_bytes = self.grown = 0
        """Since the last point; `grown`: how many bytes the topic had stored then."""
        self.previous: dict[Position, Position] = NOTHING
        """Local position of a point that the topic's growth made -> the coordinate of the entry before it."""

    def thin(self) -> None:
        """Every second point of the older half goes, but never the first."""
        half = len(self.locals) // 2
        del self.coordinates[1:half:2], self.locals[1:half:2]
        self._forget()

    def prune(self, first: Position) -> None:
        """Keeps one point below the first position that is retained: what came before that point is gone as well."""
        below = bisect_left(self.locals, first)
        if below > 1:
            del self.coordinates[: below - 1], self.locals[: below - 1]
            self._forget()

    def _forget(self) -> None:
        if self.previous:
            self.previous = {at: self.previous[at] for at in self.locals if at in self.previous} or NOTHING


class PositionMap:
    """Leads from coordinates to local positions in one topic. `add` fills it as runs become durable, or are
    replayed.
    """

    every_entries: ClassVar[int] = EVERY_ENTRIES
    every_log_bytes: ClassVar[int] = EVERY_LOG_BYTES
    points_max: ClassVar[int] = POINTS_MAX
    dumped_max: ClassVar[int] = DUMPED_MAX
    __slots__ = ("_grown", "_of", "first")

    def __init__(self) -> None:
        self._of: dict[Origin, _Points] = NOTHING
        self._grown = 0
        """Bytes that the topic has stored since it was opened."""
        self.first: Callable[[], Position] = lambda: BEFORE_ALL
        """The first position that the topic still has; set by whoever opened it."""

    def add_own(self, size_bytes: int) -> None:
        """A run of this region is durable."""
        self._grown += size_bytes

    def add(self, run: Run, ledger: int, first: int) -> bool:
        """A run of another region is durable at (ledger, first). What is known already (replayed again) is passed over.

        True: it lies behind higher ones of its origin, and this map does not lead to it
        (`replicator.coordinates.late_entries` does).
        """
        assert run.origin is not None
        points = self._of.get(run.origin)
        self._grown += run.size_bytes
        if points is None:
            self._of = own(self._of)
            points = self._of[run.origin] = _Points()
        start, end = run.coordinate(0), run.coordinate(run.count - 1)
        if end <= points.last:
            return (ledger, first) > points.last_local
        points.entries += run.count
        points.size_bytes += run.size_bytes
        sparse = self._grown - points.grown >= self.every_log_bytes
        if start > points.last and (
            not points.locals or points.entries >= self.every_entries or points.size_bytes >= EVERY_BYTES or sparse
        ):
            if sparse and points.locals:
                points.previous = own(points.previous)
                points.previous[ledger, first] = points.last
            points.grown = self._grown
            points.coordinates.append(start)
            points.locals.append((ledger, first))
            points.entries = points.size_bytes = 0
            if len(points.locals) > 2 and self.count > self.points_max:
                self._shrink(self.points_max)
        points.last, points.last_local = end, (ledger, first + run.count - 1)
        return False

    @property
    def count(self) -> int:
        """How many points are in memory, of all origins."""
        return sum(len(points.locals) for points in self._of.values())

    def _shrink(self, limit: int) -> None:
        first = self.first()
        for points in self._of.values():
            points.prune(first)
        while self.count > limit:
            largest = max(self._of.values(), key=lambda points: len(points.locals))
            if len(largest.locals) < 4:
                return
            largest.thin()

    # -- questions -----------------------------------------------------------------------------------------------------

    def around(self, origin: Origin, coordinate: Position) -> tuple[Position, Position | None]:
        """(low, high): if `coordinate` is here, it lies in [low, high], and so does the first entry of `origin` behind
        it, if there is one.

        low: BEFORE_ALL where no point is at or below it. high: None where nothing is known of `origin`.
        """
        points = self._of.get(origin)
        if points is None:
            return BEFORE_ALL, None
        first = self.first()
        points.prune(first)
        index = bisect_right(points.coordinates, coordinate)
        low = points.locals[index - 1] if index else BEFORE_ALL
        if index < len(points.locals) and points.locals[index] < first:
            index += 1
        return low, points.locals[index] if index < len(points.locals) else points.last_local

    def behind(self, origin: Origin, coordinate: Position) -> Position:
        """No entry of `origin` above `coordinate` lies before this position."""
        low, _ = self.around(origin, coordinate)
        if (points := self._of.get(origin)) is not None:
            index = bisect_right(points.coordinates, coordinate)
            if not index:
                return points.locals[0] if points.locals else low
            if index < len(points.locals) and points.previous.get(points.locals[index], AFTER_ALL) <= coordinate:
                return points.locals[index]
        return low

    def before(self, origin: Origin, local: Position) -> tuple[Position, Position, bool]:
        """(coordinate, its position, whether it is the last one of `origin` at or before `local`). BEFORE_ALL: no point
        is there.
        """
        points = self._of.get(origin)
        if points is None:
            return BEFORE_ALL, BEFORE_ALL, False
        if points.last_local <= local:
            return points.last, points.last_local, True
        index = bisect_right(points.locals, local)
        if not index:
            return BEFORE_ALL, BEFORE_ALL, False
        return points.coordinates[index - 1], points.locals[index - 1], points.locals[index - 1] == local

    def newest(self) -> Position:
        """The last position of an entry that came from another region; BEFORE_ALL: there is none."""
        return max((points.last_local for points in self._of.values()), default=BEFORE_ALL)

    # -- storing -------------------------------------------------------------------------------------------------------

    def dump(self) -> list[Any]:
        out = []
        share = max(2, self.dumped_max // max(1, len(self._of)))
        first = self.first()
        for origin, points in sorted(self._of.items()):
            kept = _Points()
            kept.coordinates, kept.locals = list(points.coordinates), list(points.locals)
            kept.prune(first)
            while len(kept.locals) > max(share, 3):
                kept.thin()
            flat = [number for c, p in zip(kept.coordinates, kept.locals, strict=True) for number in (*c, *p)]
            out.append([*origin, *points.last, *points.last_local, points.entries, points.size_bytes, flat])
        return out

    def load(self, dumped: list[Any]) -> None:
        for region, epoch, incarnation, a, b, c, d, entries, size_bytes, flat in dumped:
            self._of = own(self._of)
            points = self._of[region, epoch, incarnation] = _Points()
            points.last, points.last_local = (a, b), (c, d)
            points.entries, points.size_bytes = entries, size_bytes
            points.coordinates = [(flat[i], flat[i + 1]) for i in range(0, len(flat), 4)]
            points.locals = [(flat[i + 2], flat[i + 3]) for i in range(0, len(flat), 4)]
