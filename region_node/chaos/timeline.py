"""What happened in each second of a run, by name and region: counts, latencies, levels.

Is: buckets of a second. Isn't: a clock: times come from outside, in seconds since the run began.
"""

from __future__ import annotations

import threading

from heliograph.cli.messaging.latency_histogram import Histogram


class Timeline:
    """Told by the threads of clients. A series has a value for each second in which something was said."""

    def __init__(self) -> None:
        self._counts: dict[str, dict[str, dict[int, int]]] = {}
        self._latencies: dict[str, dict[int, Histogram]] = {}
        self._levels: dict[str, dict[str, dict[int, float]]] = {}
        self._lock = threading.Lock()

    def count(self, what: str, region: str, at_s: float) -> None:
        """One more of `what`, as of messages that were sent."""
        with self._lock:
            row = self._counts.setdefault(what, {}).setdefault(region, {})
            row[int(at_s)] = row.get(int(at_s), 0) + 1

    def latency(self, region: str, at_s: float, seconds: float) -> None:
        with self._lock:
            self._latencies.setdefault(region, {}).setdefault(int(at_s), Histogram()).add(seconds * 1000)

    def level(self, what: str, region: str, at_s: float, value: float) -> None:
        """What is so in that second, as of messages at risk; the highest that was said."""
        with self._lock:
            row = self._levels.setdefault(what, {}).setdefault(region, {})
            row[int(at_s)] = max(value, row.get(int(at_s), value))

    def series(self) -> dict[str, dict[str, list[list[float]]]]:
        """Name -> region, or link -> [second, value], ascending. Latencies in milliseconds, as two names: the median,
        and what 99 of 100 took no longer than. Counts are a second's, 0 in between.
        """
        with self._lock:
            found: dict[str, dict[str, list[list[float]]]] = {
                what: {region: _filled(row) for region, row in sorted(rows.items())}
                for what, rows in sorted(self._counts.items())
            }
            for percent in (50, 99):
                rows = {
                    region: [[float(at), row[at].percentile(percent)] for at in sorted(row)]
                    for region, row in sorted(self._latencies.items())
                }
                if rows:
                    found[f"latency_ms_p{percent}"] = rows
            for what, levels in sorted(self._levels.items()):
                found[what] = {
                    name: [[float(at), row[at]] for at in sorted(row)] for name, row in sorted(levels.items())
                }
            return found


def _filled(row: dict[int, int]) -> list[list[float]]:
    return [[float(at), float(row.get(at, 0))] for at in range(min(row), max(row) + 1)]
