"""Metrics of the metadata stores, in Pulsar's names: how long a broker's requests took, and how many bytes it wrote.

Is: counts of the requests of one broker to the region's metadata and to the global configuration. Isn't: what those
stores do inside (each process of them has metrics of its own).
Invariants: as many series as there are buckets, whatever is stored.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from itertools import accumulate

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
