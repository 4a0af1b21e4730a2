"""Meter: counters as rates; and times as statistics show them.

Is: ticked by the broker's one timer. Isn't: anything that is done an entry.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

_STILL = (0.0, 0.0)
_NOTHING = (0, 0)
"""Of every topic that is idle: they share these."""


def iso_time(wall_ms: int) -> str:
    """As Pulsar's statistics write a time: 2026-01-31T12:00:00.000Z."""
    return datetime.fromtimestamp(wall_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class Meter:
    """`rates`: per second, in the order of the counters given to `tick`, between the last two ticks."""

    __slots__ = ("_last", "_now", "rates")

    def __init__(self, counters: int) -> None:
        self.rates: Sequence[float] = _STILL if counters == len(_STILL) else (0.0,) * counters
        self._last: tuple[int, ...] = _NOTHING if counters == len(_NOTHING) else (0,) * counters
        self._now = 0.0

    def tick(self, now: float, *values: int) -> None:
        elapsed = now - self._now
        if values == self._last and not any(self.rates):
            self._now = now
            return
        if self._now and elapsed > 0:
            self.rates = [(value - last) / elapsed for value, last in zip(values, self._last, strict=True)]
        self._now, self._last = now, values
