"""Recent: how long the newest of something took.

Is: a ring of the newest measurements, their count and sum since the start, and quantiles of the ring. Isn't: a clock,
or a metric's name.
Invariants: memory does not grow; to add one costs the same whatever there is; what sorts is only who asks for
quantiles.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable

_KEPT = 512


class Recent:
    """In whatever unit the caller measures. kept: so many of the newest."""

    __slots__ = ("_kept", "_ring", "count", "sum")

    def __init__(self, kept: int = _KEPT) -> None:
        self.count = 0
        self.sum = 0.0
        self._kept, self._ring = kept, array("d")

    def add(self, took: float) -> None:
        ring = self._ring
        if len(ring) < self._kept:
            ring.append(took)
        else:
            ring[self.count % self._kept] = took
        self.count += 1
        self.sum += took

    def since(self, count: int) -> list[float]:
        """What was added behind the first `count`, in order; of more than are kept the newest."""
        first = max(count, self.count - len(self._ring))
        return [self._ring[index % self._kept] for index in range(first, self.count)]

    def quantiles(self, wanted: Iterable[float]) -> list[float]:
        """Takes quantiles of those that are kept, by nearest rank. wanted: 0 to 1. [] where there is none."""
        ordered = sorted(self._ring)
        return [ordered[min(int(quantile * len(ordered)), len(ordered) - 1)] for quantile in wanted] if ordered else []
