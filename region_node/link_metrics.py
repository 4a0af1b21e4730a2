"""Metrics of links: how old messages are when another region has them, clocks, and how often links were made anew, and why.

Is: numbers of the whole broker, by region. Isn't: a link of one topic (`region_node.admin.brokers`), or a text format (`region_node.metrics`).
"""

from __future__ import annotations

from collections.abc import Iterator

from region_node.metrics import Sample
from replicator.manager import LinkManager


def samples(links: LinkManager) -> Iterator[Sample]:
    labels = {"cluster": links.region}
    for (target, cause), count in sorted(links.restarts.items()):
        yield "heliograph_replication_link_restarts_total", "counter", {**labels, "remote_cluster": target, "cause": str(cause)}, count
    for source, heard in sorted(links.incoming.regions.items()):
        of = {**labels, "remote_cluster": source}
        for bound, count in heard.latency.cumulative():
            yield "heliograph_replication_latency_seconds_bucket", "counter", {**of, "le": "+Inf" if bound == float("inf") else f"{bound:g}"}, count
        yield "heliograph_replication_latency_seconds_sum", "counter", of, heard.latency.sum_ms / 1000
        yield "heliograph_replication_latency_seconds_count", "counter", of, heard.latency.messages
        yield "heliograph_replication_clock_offset_seconds", "gauge", of, heard.clock_offset_ms / 1000
        yield "heliograph_replication_round_trip_seconds", "gauge", of, heard.rtt_ms / 1000
