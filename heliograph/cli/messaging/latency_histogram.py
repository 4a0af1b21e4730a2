"""Latencies: counted in buckets of two significant digits, so that a run of any length needs the same memory. A core.

Is: percentiles, and their plot in text. Isn't: a clock. What is given is what is counted: whether a latency begins when
a message was due or when it was sent is the caller's to say (`perf` takes when it was due: coordinated omission is
counted).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

PERCENTILES = (50.0, 75.0, 90.0, 95.0, 99.0, 99.9, 99.99)
_PER_DECADE = 90
"""Buckets 1.0, 1.1 ... 9.9 of each power of ten."""


class Histogram:
    """Counts latencies in milliseconds. `count`, `largest`, and `total` are exact; percentiles have two digits and are
    never below the true value.
    """

    def __init__(self) -> None:
        self._buckets: dict[int, int] = {}
        self.count, self.total, self.largest = 0, 0.0, 0.0

    def add(self, milliseconds: float, times: int = 1) -> None:
        key = _key(milliseconds)
        self._buckets[key] = self._buckets.get(key, 0) + times
        self.count += times
        self.total += milliseconds * times
        self.largest = max(self.largest, milliseconds)

    def merge(self, other: Histogram) -> None:
        for key, times in other._buckets.items():
            self._buckets[key] = self._buckets.get(key, 0) + times
        self.count, self.total, self.largest = (
            self.count + other.count,
            self.total + other.total,
            max(self.largest, other.largest),
        )

    @property
    def mean(self) -> float:
        return self.total / self.count if self.count else 0.0

    def percentile(self, percent: float) -> float:
        """The latency that so many of a hundred stay at or below; 0 where nothing was counted."""
        wanted, seen = math.ceil(self.count * percent / 100), 0
        for key in sorted(self._buckets):
            seen += self._buckets[key]
            if seen >= wanted:
                return min(_upper(key), self.largest)
        return 0.0

    def as_json(self) -> dict[str, float]:
        found = {f"p{percent:g}": round(self.percentile(percent), 4) for percent in PERCENTILES}
        return found | {"mean": round(self.mean, 4), "max": round(self.largest, 4), "count": self.count}

    def plot(self, width: int = 50) -> list[str]:
        """Lines: latency, a bar, how many; a line for each fifth of a power of ten that has any."""
        steps: dict[int, int] = {}
        for key, times in self._buckets.items():
            step = math.floor(math.log10(_upper(key)) * 5)
            steps[step] = steps.get(step, 0) + times
        if not steps:
            return []
        most = max(steps.values())
        lines = []
        for step in range(min(steps), max(steps) + 1):
            times = steps.get(step, 0)
            bar = "█" * math.ceil(width * times / most) if times else ""
            lines.append(f"{10 ** ((step + 1) / 5):>10.2f} ms  {bar:<{width}} {times}")
        return lines


def _key(milliseconds: float) -> int:
    """Buckets go on upwards by value; below a microsecond all is one."""
    value = max(milliseconds, 0.001)
    decade = math.floor(math.log10(value) + 1e-12)
    return decade * _PER_DECADE + min(_PER_DECADE - 1, max(0, math.ceil(value / 10.0**decade * 10 - 1e-9) - 10))


def _upper(key: int) -> float:
    decade, at = divmod(key, _PER_DECADE)
    return float((at + 10) / 10 * 10.0**decade)


def due_times(rate: float, seconds: float, burst: float = 1.0) -> Sequence[tuple[float, int]]:
    """[(second, messages due in the hundredth of a second that begins there)]: the rate, and `burst` times it in the
    middle tenth.
    """
    slots, out, owed = round(seconds * 100), [], 0.0
    for slot in range(slots):
        in_burst = burst > 1 and 0.45 <= slot / slots < 0.55
        owed += rate / 100 * (burst if in_burst else 1.0)
        whole = int(owed + 1e-9)
        owed -= whole
        if whole:
            out.append((slot / 100, whole))
    return out
