"""Metrics of the metadata stores, in Pulsar's names: how long a broker's requests took, and how many bytes it wrote.

Is: counts of the requests of one broker to the region's metadata and to the global configuration, and what a member of
them reports. Isn't: what those stores do inside (each process of them has metrics of its own).
Invariants: as many series as there are buckets, whatever is stored.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from itertools import accumulate
from typing import Any

from heliograph.kv.metadata_client import MetaClient
from region_node.runtime.prometheus_text import Sample

BOUNDS_MS = (1, 3, 5, 10, 20, 50, 100, 200, 500, 1000)


class StoreCounts:
    """Counts the requests of `client` from now on: it takes the client's `on_done`. name: the store's, as Pulsar calls
    it.
    """

    def __init__(self, name: str, client: MetaClient) -> None:
        self.name = name
        self.put_bytes = 0
        self._counts: dict[tuple[str, str], list[int]] = {}
        self._sums: dict[tuple[str, str], float] = {}
        client.on_done = self.add

    def add(self, write: bool, size_bytes: int, seconds: float, answered: bool) -> None:
        kind, took_ms = ("put" if write else "get", "success" if answered else "fail"), seconds * 1000
        counts = self._counts.get(kind)
        if counts is None:
            counts = self._counts[kind] = [0] * (len(BOUNDS_MS) + 1)
        counts[bisect_left(BOUNDS_MS, took_ms)] += 1
        self._sums[kind] = self._sums.get(kind, 0.0) + took_ms
        if write and answered:
            self.put_bytes += size_bytes

    def samples(self, region: str) -> Iterator[Sample]:
        labels = {"cluster": region, "name": self.name}
        for (kind, status), counts in sorted(self._counts.items()):
            of = labels | {"type": kind, "status": status}
            for bound, count in zip((*map(str, BOUNDS_MS), "+Inf"), accumulate(counts), strict=True):
                yield "pulsar_metadata_store_ops_latency_bucket", "counter", of | {"le": bound}, count
            yield "pulsar_metadata_store_ops_latency_sum", "counter", of, self._sums[kind, status]
            yield "pulsar_metadata_store_ops_latency_count", "counter", of, sum(counts)
        yield "pulsar_metadata_store_put_bytes_total", "counter", labels, self.put_bytes


def member_samples(labels: dict[str, str], report: dict[str, Any]) -> Iterator[Sample]:
    """What a member's report says of its group: who leads it, how far others are behind, how long writes take."""
    yield (
        "heliograph_metadata_leader",
        "gauge",
        {**labels, "leader": report["leader"] or ""},
        int(report["leader"] is not None),
    )
    yield "heliograph_metadata_voters", "gauge", labels, sum(row["role"] == "voter" for row in report["members"])
    for quantile in ("p50", "p99"):
        taken_ms = report["writes"][f"{quantile}_ms"]
        if taken_ms is not None:
            yield (
                "heliograph_metadata_write_seconds",
                "gauge",
                {**labels, "quantile": f"0.{quantile[1:]}"},
                taken_ms / 1000,
            )
    for row in report["members"]:
        if row["behind"] is not None:
            yield "heliograph_metadata_member_lag_entries", "gauge", {**labels, "member": row["member"]}, row["behind"]
        if row["silent_s"] is not None:
            silent_s = row["silent_s"]
            yield "heliograph_metadata_member_silent_seconds", "gauge", {**labels, "member": row["member"]}, silent_s
