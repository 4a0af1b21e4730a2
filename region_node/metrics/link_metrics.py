"""Metrics of links: how old messages are when another region has them, clocks, and how often links were made anew, and
why.

Is: numbers of the whole broker, by region. Isn't: a link of one topic (`region_node.faces.admin.brokers.brokers`), or a
text format (`region_node.runtime.prometheus_text`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from region_node.runtime.prometheus_text import Sample
from replicator.audit.audit_findings import Fault
from replicator.audit.auditor import Auditor
from replicator.manager.link_manager import LinkManager


def samples(links: LinkManager) -> Iterator[Sample]:
    labels = {"cluster": links.region}
    for (target, cause), count in sorted(links.restarts.items()):
        yield (
            "heliograph_replication_link_restarts_total",
            "counter",
            {**labels, "remote_cluster": target, "cause": str(cause)},
            count,
        )
    parked = Counter((link.target, str(link.parked.cause)) for link in links.parked if link.parked is not None)
    for target in links.budgets.traffic.keys() - {target for target, _ in parked}:
        parked[target, ""] = (
            0  # a series that is there from the beginning: an alert sees it fall back to nothing, and not vanish
        )
    for (target, why), number in sorted(parked.items()):
        yield "heliograph_replication_parked_links", "gauge", {**labels, "remote_cluster": target, "cause": why}, number
    for target, traffic in sorted(links.budgets.traffic.items()):
        yield (
            "heliograph_replication_run_bytes_total",
            "counter",
            {**labels, "remote_cluster": target},
            traffic.run_bytes,
        )
        yield (
            "heliograph_replication_wire_bytes_total",
            "counter",
            {**labels, "remote_cluster": target},
            traffic.wire_bytes,
        )
    for source, heard in sorted(links.incoming.regions.items()):
        of = {**labels, "remote_cluster": source}
        for bound, count in heard.latency.cumulative():
            yield (
                "heliograph_replication_latency_seconds_bucket",
                "counter",
                {**of, "le": "+Inf" if bound == float("inf") else f"{bound:g}"},
                count,
            )
        yield "heliograph_replication_latency_seconds_sum", "counter", of, heard.latency.sum_ms / 1000
        yield "heliograph_replication_latency_seconds_count", "counter", of, heard.latency.messages
        yield "heliograph_replication_refused_claims_total", "counter", of, heard.refused_claims
        yield "heliograph_replication_clock_offset_seconds", "gauge", of, heard.clock_offset_ms / 1000
        yield "heliograph_replication_round_trip_seconds", "gauge", of, heard.rtt_ms / 1000
        yield "heliograph_replication_silent_seconds", "gauge", of, heard.silent_s
    waits = [log.waits for log in links.logs.values() if log.waits is not None]
    yield "heliograph_durability_degraded_topics", "gauge", labels, sum(one.degraded for one in waits)
    yield "heliograph_durability_affected_messages", "gauge", labels, sum(one.affected_messages for one in waits)
    yield from audit_samples(links.auditor, labels)


def audit_samples(auditor: Auditor, labels: dict[str, str]) -> Iterator[Sample]:
    for name, value in (
        ("passes", auditor.passes),
        ("failed_passes", auditor.failed),
        ("ranges", auditor.ranges),
        ("entries", auditor.entries),
    ):
        yield f"heliograph_audit_{name}_total", "counter", labels, value
    yield "heliograph_audit_bytes_total", "counter", labels, auditor.size_bytes
    for fault in Fault:
        of = {**labels, "fault": str(fault)}
        yield "heliograph_audit_found_total", "counter", of, auditor.found[str(fault)]
        yield "heliograph_audit_repaired_total", "counter", of, auditor.repaired[str(fault)]
    yield "heliograph_audit_left_entries", "gauge", labels, sum(report.left for report in auditor.reports.values())
