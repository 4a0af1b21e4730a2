"""Meter: counters as rates; and times as statistics show them.

Is: ticked by the broker's one timer. Isn't: anything that is done an entry.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

_STILL = (0.0, 0.0)
_NOTHING = (0, 0)
"""The counts of every meter of two counters to which nothing has happened yet: they share this one."""


def iso_time(wall_ms: int) -> str:
    """As Pulsar's statistics write a time: 2026-01-31T12:00:00.000Z."""
    return datetime.fromtimestamp(wall_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class Meter:
    """`rates`: per second, in the order of the counters given to `tick`, between the last two ticks of the broker."""

    __slots__ = ("_last", "rates")

    def __init__(self, counters: int) -> None:
        self.rates: Sequence[float] = _STILL if counters == len(_STILL) else (0.0,) * counters
        self._last: tuple[int, ...] = _NOTHING if counters == len(_NOTHING) else (0,) * counters

    def tick(self, elapsed_s: float, *values: int) -> bool:
        """elapsed_s: since the broker's last tick; a meter may miss any at which nothing had changed. Returns whether
        any rate is above 0.
        """
        if values == self._last:
            if any(self.rates):
                self.rates = _STILL if len(values) == len(_STILL) else (0.0,) * len(values)
            return False
        if elapsed_s > 0:
            self.rates = [(value - last) / elapsed_s for value, last in zip(values, self._last, strict=True)]
        self._last = values
        return True
