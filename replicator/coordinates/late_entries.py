"""LateMap: where in this region's copy of a topic those entries lie that came behind higher ones of their origin.

Is: by origin, rows (coordinates from, to, local positions from, to): what an audit has appended once, because it was
lost here without a place, lies between them. Isn't: what came in its order (`replicator.coordinates.position_map` knows
where), or a repair (`replicator.audit.audit_repair`).
Invariants: a late entry that the topic still has lies in some row of its origin; rows ascend in their local positions.
Neighbours become one row, and beyond ROWS_MAX of an origin the two oldest do: a row names too much, never too little.
Source: docs/protocols/links.md, "Where a coordinate lies".
"""

from __future__ import annotations

from typing import Any, NamedTuple

from heliograph.model.coordinates import Origin, Range
from heliograph.model.empty_dict import NOTHING, own
from heliograph.model.positions import Position
from heliograph.wire.run import Run

ROWS_MAX = 256


class _Row(NamedTuple):
    """Coordinates [low, high] lie somewhere in the local positions [first, last], with others between."""

    low: Position
    high: Position
    first: Position
    last: Position


class LateMap:
    """Holds the late rows of one topic, by origin; false where there are none."""

    __slots__ = ("_of",)

    def __init__(self) -> None:
        self._of: dict[Origin, list[_Row]] = NOTHING

    def __bool__(self) -> bool:
        return bool(self._of)

    def add(self, run: Run, ledger: int, first: int) -> None:
        """A late run is durable at (ledger, first). What is known already (replayed again) is passed over."""
        assert run.origin is not None
        self._of = own(self._of)
        rows = self._of.setdefault(run.origin, [])
        row = _Row(run.coordinate(0), run.coordinate(run.count - 1), (ledger, first), (ledger, first + run.count - 1))
        if rows and row.last <= rows[-1].last:
            return
        if rows and rows[-1].last == (ledger, first - 1):
            rows[-1] = _both(rows[-1], row)
        else:
            rows.append(row)
        if len(rows) > ROWS_MAX:
            rows[:2] = [_both(rows[0], rows[1])]

    def between(self, origin: Origin, after: Position, through: Position) -> list[tuple[Position, Position]]:
        """Local positions [first, last] between which coordinates in (after, through] may lie, besides where they lie
        in their order.
        """
        return [(row.first, row.last) for row in self._of.get(origin, ()) if row.high > after and row.low <= through]

    def coordinates(self, origin: Origin, after: Position, through: Position | None = None) -> list[Range]:
        """Ranges of coordinates that may lie late in the local positions (after, through]; None: to the end."""
        return [
            ((row.low[0], row.low[1] - 1), row.high)
            for row in self._of.get(origin, ())
            if row.last > after and (through is None or row.first <= through)
        ]

    def only(self, origin: Origin) -> LateMap:
        """Copies the rows of one origin, as they are now: who reads while rows come and grow together goes by that."""
        found = LateMap()
        if origin in self._of:
            found._of = {origin: list(self._of[origin])}
        return found

    def covers(self, origin: Origin, position: Position, coordinate: Position) -> bool:
        """Whether what lies at the local `position` under `coordinate` is, or may be, late."""
        return any(
            row.first <= position <= row.last and row.low <= coordinate <= row.high for row in self._of.get(origin, ())
        )

    def prune(self, first: Position) -> None:
        """Nothing before the local position `first` is there any more."""
        for origin, rows in list(self._of.items()):
            kept = [row for row in rows if row.last >= first]
            if kept:
                self._of[origin] = kept
            else:
                del self._of[origin]

    def dump(self) -> list[Any]:
        return [
            [*origin, [number for row in rows for at in row for number in at]]
            for origin, rows in sorted(self._of.items())
        ]

    def load(self, dumped: list[Any]) -> None:
        for region, epoch, incarnation, flat in dumped:
            at = [(flat[i], flat[i + 1]) for i in range(0, len(flat), 2)]
            self._of = own(self._of)
            self._of[region, epoch, incarnation] = [_Row(*at[i : i + 4]) for i in range(0, len(at), 4)]


def _both(one: _Row, other: _Row) -> _Row:
    return _Row(min(one.low, other.low), max(one.high, other.high), one.first, other.last)
