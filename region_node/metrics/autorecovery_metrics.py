"""Metrics of auto-recovery, in BookKeeper's names: what the auditor has found, and what this broker's worker has
copied.

Is: numbers of `storage.ledger.repair.autorecovery`, which runs in brokers. Isn't: bookies' own numbers
(`region_node.bookie.http_face`).
Invariants: what the auditor finds is of the whole region, and is shown by the one broker that is it; a broker that is
not has no series of it.
"""

from __future__ import annotations

from collections.abc import Iterator

from region_node.runtime.prometheus_text import Sample, summary
from storage.ledger.repair.autorecovery import AutoRecovery


def samples(region: str, recovery: AutoRecovery) -> Iterator[Sample]:
    labels = {"cluster": region}
    if recovery.auditor:
        yield "auditor_NUM_UNDER_REPLICATED_LEDGERS", "gauge", labels, recovery.repairs
        yield "auditor_NUM_LEDGERS_NOT_ADHERING_TO_PLACEMENT_POLICY", "gauge", labels, recovery.misplaced_count
        yield "auditor_NUM_LEDGERS_CHECKED", "counter", labels, recovery.check.checked
        yield "auditor_NUM_LEDGERS_HAVING_NO_REPLICA_OF_AN_ENTRY", "gauge", labels, recovery.check.nowhere
        yield "heliograph_unreadable_ledgers", "gauge", labels, recovery.unreadable
    repair = recovery.repair
    yield "replication_worker_NUM_BYTES_WRITTEN", "counter", labels, repair.copied_bytes
    yield "replication_worker_NUM_FULL_OR_PARTIAL_LEDGERS_REPLICATED", "counter", labels, repair.copied_fragments
    yield from summary("replication_worker_rereplicate", labels, repair.took_ms)
