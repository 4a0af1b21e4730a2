"""Metrics of transaction coordinators, in Pulsar's names: how many began, how they ended, how long they took.

Is: numbers of the coordinators that run on this broker. Isn't: what a topic holds of transactions (`topic_metrics`).
"""

from __future__ import annotations

from collections.abc import Iterator

from region_node.runtime.prometheus_text import Sample, summary
from region_node.transactions.coordinators.transaction_latency import BUCKETS_MS
from region_node.transactions.coordinators.transaction_service import Transactions


def samples(region: str, transactions: Transactions) -> Iterator[Sample]:
    arrivals = transactions.arrivals
    yield "heliograph_transactions_held", "gauge", {"cluster": region}, arrivals.held
    yield "heliograph_transactions_shown_alone_total", "counter", {"cluster": region}, arrivals.shown_alone
    for number, kept in sorted(transactions.loaded.items()):
        labels, core = {"cluster": region, "coordinator_id": str(number)}, kept.core
        yield "pulsar_txn_active_count", "gauge", labels, len(core.open)
        counters = (
            ("created_total", core.created),
            ("committed_total", core.committed),
            ("aborted_total", core.aborted),
            ("timeout_total", core.timed_out),
            ("append_log_total", kept.writes),
            ("tb_client_commit_failed_total", kept.latencies.failed_commits),
            ("tb_client_abort_failed_total", kept.latencies.failed_aborts),
        )
        for name, value in counters:
            yield f"pulsar_txn_{name}", "counter", labels, value
        for bound, count in zip((*map(str, BUCKETS_MS), "overflow"), kept.latencies.counts, strict=True):
            yield f"pulsar_txn_execution_latency_le_{bound}", "counter", labels, count
        yield "pulsar_txn_execution_latency_sum", "counter", labels, kept.latencies.sum_ms
        yield "pulsar_txn_execution_latency_count", "counter", labels, kept.latencies.count
        yield from summary("pulsar_txn_tb_client_commit_latency", labels, kept.latencies.commits_ms)
        yield from summary("pulsar_txn_tb_client_abort_latency", labels, kept.latencies.aborts_ms)
