"""Intervals that become bits early, in small chunks: so few ids reach every edge."""

from __future__ import annotations

from storage.managed_ledger.cursors.ack_intervals import Intervals


def small_intervals(ranges_max: int, chunk: int) -> type[Intervals]:
    """Ranges up to `ranges_max`; above, chunks of so many bits."""

    class SmallIntervals(Intervals):
        __slots__ = ()
        RANGES_MAX = ranges_max
        CHUNK = chunk

    return SmallIntervals
