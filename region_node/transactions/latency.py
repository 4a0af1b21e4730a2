"""Latencies: how long transactions were open, and how long they took to begin, as counts by bucket.

Is: Pulsar's buckets of `pulsar_txn_execution_latency`. Isn't: a metric's name or labels (`transaction_metrics`).
"""

from __future__ import annotations

from bisect import bisect_left

BUCKETS_MS = (10, 20, 50, 100, 500, 1000, 5000, 15000, 30000, 60000, 300000, 1500000, 3000000)


class Latencies:
    """Of one coordinator since it was loaded. `counts`: one for each bucket, and one beyond the last."""

    __slots__ = ("begin_s", "begins", "count", "counts", "sum_ms")

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKETS_MS) + 1)
        self.sum_ms = self.count = 0
        self.begin_s, self.begins = 0.0, 0

    def begun(self, seconds: float) -> None:
        self.begin_s += seconds
        self.begins += 1

    def ended(self, open_ms: int) -> None:
        """open_ms: from its beginning until every participant had its end."""
        self.counts[bisect_left(BUCKETS_MS, open_ms)] += 1
        self.count += 1
        self.sum_ms += open_ms
