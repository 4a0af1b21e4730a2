"""Latencies: how long transactions were open, how long they took to begin, and participants to hear of their end.

Is: Pulsar's buckets of `pulsar_txn_execution_latency`. Isn't: a metric's name or labels
(`region_node.metrics.transaction_metrics`).
"""

from __future__ import annotations

from bisect import bisect_left

from heliograph.runtime.recent_latencies import Recent

BUCKETS_MS = (10, 20, 50, 100, 500, 1000, 5000, 15000, 30000, 60000, 300000, 1500000, 3000000)


class Latencies:
    """Counts what one coordinator did since it was loaded. `counts`: how long transactions were open, one count for
    each of BUCKETS_MS, and one beyond the last.
    """

    __slots__ = (
        "aborts_ms",
        "begin_s",
        "begins",
        "commits_ms",
        "count",
        "counts",
        "failed_aborts",
        "failed_commits",
        "sum_ms",
    )

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKETS_MS) + 1)
        self.sum_ms = self.count = 0
        self.begin_s, self.begins = 0.0, 0
        self.commits_ms, self.aborts_ms = Recent(), Recent()
        """Until one participant had its end."""
        self.failed_commits = self.failed_aborts = 0
        """Of one participant: tried again."""

    def begun(self, seconds: float) -> None:
        self.begin_s += seconds
        self.begins += 1

    def told(self, commit: bool, took_ms: float, *, well: bool) -> None:
        """One participant was told the end."""
        if well:
            (self.commits_ms if commit else self.aborts_ms).add(took_ms)
        elif commit:
            self.failed_commits += 1
        else:
            self.failed_aborts += 1

    def ended(self, open_ms: int) -> None:
        """open_ms: from its beginning until every participant had its end."""
        self.counts[bisect_left(BUCKETS_MS, open_ms)] += 1
        self.count += 1
        self.sum_ms += open_ms
