"""Steps: what a link has read of its topic and is not done with, in order, and how much of it is in flight.

Is: the bookkeeping between reading and the cursor. Isn't: what is sent (`replicator.sending.link_sender`).
Invariants: the end of a step is passed only when each step before it is satisfied; what is in flight of one origin does
not wait for receipts of another; steps that wait for another region's delivery (*held*) are one a stretch, so that a
long wait takes no room.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from heliograph.model.coordinates import Origin
from heliograph.model.positions import Position
from replicator.coordinates.published_totals import Totals

_COMPACT_FROM = 256


class Step(NamedTuple):
    """`origin` and `through`: what the target must hold, None: nothing. totals: of what was first published here, up to
    `end`.
    """

    end: Position
    origin: Origin | None
    through: Position
    totals: Totals
    held: bool


class Steps:
    """Keeps the steps of one attempt of one link; another attempt begins with none."""

    def __init__(self) -> None:
        self._steps: deque[Step] = deque()
        self._flight: dict[Origin, deque[tuple[Position, int]]] = {}
        self._compact_at = _COMPACT_FROM
        self.in_flight_bytes = 0

    def __len__(self) -> int:
        return len(self._steps)

    @property
    def last(self) -> Step:
        return self._steps[-1]

    @property
    def in_flight(self) -> bool:
        return bool(self._flight)

    def clear(self) -> None:
        self._steps.clear()
        self._flight.clear()
        self._compact_at, self.in_flight_bytes = _COMPACT_FROM, 0

    def passed_over(self, end: Position, totals: Totals) -> None:
        """Nothing is to be sent up to `end`: that waits for nothing but what was read before."""
        if self._steps:
            self._steps[-1] = self._steps[-1]._replace(end=end, totals=totals)
        else:
            self._steps.append(Step(end, None, end, totals, False))

    def sent(self, end: Position, origin: Origin, through: Position, totals: Totals, size_bytes: int) -> None:
        self._flight.setdefault(origin, deque()).append((through, size_bytes))
        self.in_flight_bytes += size_bytes
        self._steps.append(Step(end, origin, through, totals, False))

    def held(self, end: Position, origin: Origin, through: Position, totals: Totals) -> None:
        """Another region delivers it, or this one will once the target is so far."""
        if self._steps and self._steps[-1].held and self._steps[-1].origin == origin:
            self._steps[-1] = self._steps[-1]._replace(end=end, through=through, totals=totals)
        else:
            self._steps.append(Step(end, origin, through, totals, True))

    def shift(self, drift: Totals) -> None:
        """What the totals said was off by so much."""
        self._steps = deque(step._replace(totals=added(step.totals, drift)) for step in self._steps)

    def advance(self, prefix: Callable[[Origin], Position]) -> tuple[Position, Totals] | None:
        """prefix: what the target holds of an origin. Returns the end of the last step that is done with, and its
        totals; None: as before.
        """
        for origin in list(self._flight):
            have, flight = prefix(origin), self._flight[origin]
            while flight and flight[0][0] <= have:
                self.in_flight_bytes -= flight.popleft()[1]
            if not flight:
                del self._flight[origin]
        passed: tuple[Position, Totals] | None = None
        steps = self._steps
        while steps and (steps[0].origin is None or prefix(steps[0].origin) >= steps[0].through):
            step = steps.popleft()
            if passed is None or step.end > passed[0]:
                passed = (step.end, step.totals)
        if len(steps) > self._compact_at:
            self._compact(prefix)
        return passed

    def _compact(self, prefix: Callable[[Origin], Position]) -> None:
        """What is satisfied behind a step that is not, belongs to that."""
        kept: deque[Step] = deque()
        for step in self._steps:
            if kept and (step.origin is None or prefix(step.origin) >= step.through):
                kept[-1] = kept[-1]._replace(end=step.end, totals=step.totals)
            elif kept and step.held and kept[-1].held and kept[-1].origin == step.origin:
                kept[-1] = step
            else:
                kept.append(step)
        self._steps = kept
        self._compact_at = _COMPACT_FROM + 2 * len(kept)


def added(a: Totals, b: Totals) -> Totals:
    return (a[0] + b[0], a[1] + b[1], a[2] + b[2])
