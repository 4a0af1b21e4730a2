"""BookieLatency: how long something that bookies do takes, lately: a read, an ack.

Is: a percentile of the newest samples. Isn't: a clock, or a decision.
Invariants: a percentile is computed once in `_WINDOW` / 8 samples, not with each.
"""

from __future__ import annotations

from heliograph.runtime.recent_latencies import Recent

_WINDOW = 256


class BookieLatency(Recent):
    """In seconds."""

    def __init__(self) -> None:
        super().__init__(_WINDOW)
        self._sorted: list[float] = []
        self._sorted_at = 0

    def percentile(self, fraction: float) -> float:
        """0 while too few samples are known."""
        if self.count - self._sorted_at >= _WINDOW // 8:
            self._sorted, self._sorted_at = sorted(self._ring), self.count
        return self._sorted[int(fraction * len(self._sorted))] if self._sorted else 0.0


class ReadLatency(BookieLatency):
    def __init__(self) -> None:
        super().__init__()
        self.second_reads = 0
        """How often a second copy was read because the first was late."""
