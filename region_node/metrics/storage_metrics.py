"""Metrics of appends and reads, in Pulsar's names: latencies and sizes by namespace, and how long the newest appends
took.

Is: what `storage.managed_ledger.append_counts` counts, as text in pieces, and the broker's part of it as samples.
Isn't: a row of one topic (`topic_metrics`).
Invariants: as many series as there are namespaces that something was appended to, times a constant; no piece takes
long. Buckets are apart, as
Pulsar's are: each counts what is above the bound before it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from region_node.runtime.prometheus_text import Sample, escaped, summary
from storage.ledger.known_losses import KnownLosses
from storage.managed_ledger.append_counts import LATENCIES_S, SIZES, AppendCounts, Appends

_ROWS = 200
"""Namespaces in one piece of text."""


def _ranges(name: str, bounds: Sequence[float]) -> list[tuple[str, str, str]]:
    within = [
        (f"pulsar_ml_{name}", "counter", f',quantile="{low:.1f}_{high:.1f}"') for low, high in pairwise((0.0, *bounds))
    ]
    return [*within, (f"pulsar_ml_{name}_OVERFLOW", "gauge", "")]


def _histogram(name: str, bounds: str) -> list[tuple[str, str, str]]:
    return [
        (f"pulsar_{name}_{part}", "counter", "")
        for part in (*(f"le_{bound}" for bound in bounds.split()), "count", "sum")
    ]


_LATENCIES_MS = [bound * 1000 for bound in LATENCIES_S]
COLUMNS = (
    *_histogram("storage_write_latency", "0_5 1 5 10 20 50 100 200 1000 overflow"),
    *_histogram("entry_size", "128 512 1_kb 2_kb 4_kb 16_kb 100_kb 1_mb overflow"),
    ("pulsar_storage_write_rate", "gauge", ""),
    ("pulsar_ml_AddEntryMessagesRate", "gauge", ""),
    ("pulsar_ml_AddEntryBytesRate", "gauge", ""),
    ("pulsar_ml_AddEntryWithReplicasBytesRate", "gauge", ""),
    ("pulsar_ml_AddEntrySucceed", "gauge", ""),
    ("pulsar_ml_AddEntryErrors", "gauge", ""),
    ("pulsar_storage_read_rate", "gauge", ""),
    ("pulsar_ml_ReadEntriesRate", "gauge", ""),
    ("pulsar_ml_ReadEntriesBytesRate", "gauge", ""),
    ("pulsar_ml_ReadEntriesSucceeded", "gauge", ""),
    ("pulsar_ml_ReadEntriesErrors", "gauge", ""),
    *_ranges("AddEntryLatencyBuckets", _LATENCIES_MS),
    *_ranges("LedgerAddEntryLatencyBuckets", _LATENCIES_MS),  # the same: an append never waits before its ledger has it
    *_ranges("EntrySizeBuckets", SIZES),
    *_ranges("LedgerSwitchLatencyBuckets", _LATENCIES_MS),
)
"""(name, kind, label that comes besides)."""


def numbers(counts: AppendCounts, now: float) -> list[float]:
    """In the order of COLUMNS."""
    latencies, sizes, switches, entries = counts.latencies, counts.sizes, counts.switches, counts.entries
    rates = counts.rates(now)
    histograms = (*latencies, entries, counts.sum_s * 1000, *sizes, entries, counts.size_bytes)
    appended, read = rates[:3], rates[3:]
    totals = [rates[0], *appended, entries, counts.errors, rates[3], *read, counts.reads, counts.read_errors]
    return [*histograms, *totals, *latencies, *latencies, *sizes, *switches]


def pieces(region: str, appends: Appends, now: float) -> Iterator[str]:
    """The text of every namespace, one family behind the other."""
    rows: list[tuple[str, list[float]]] = []
    for namespace, counts in sorted(appends.namespaces.items()):
        rows.append((f'cluster="{escaped(region)}",namespace="{escaped(namespace)}"', numbers(counts, now)))
        if not len(rows) % _ROWS:
            yield ""
    before = ""
    for at, (name, kind, more) in enumerate(COLUMNS if rows else ()):
        if name != before:
            yield f"# TYPE {name} {kind}\n"
            before = name
        for start in range(0, len(rows), _ROWS):
            yield "".join([f"{name}{{{labels}{more}}} {row[at]:.17g}\n" for labels, row in rows[start : start + _ROWS]])


def samples(region: str, appends: Appends, now: float) -> Iterator[Sample]:
    """Yields the whole broker's samples: entries a second, written and read, and latencies in milliseconds."""
    for name, at in (("write", 0), ("read", 3)):
        rate = sum(counts.rates(now)[at] for counts in appends.namespaces.values())
        yield f"pulsar_broker_storage_{name}_rate", "gauge", {"cluster": region}, rate
    yield from summary("pulsar_broker_publish_latency", {"cluster": region}, appends.newest, 1000)


def loss_samples(region: str, losses: KnownLosses) -> Iterator[Sample]:
    """What readers of this broker have found to be lost."""
    labels = {"cluster": region}
    yield "heliograph_lost_entries", "gauge", labels, losses.entries
    yield "heliograph_lost_ranges", "gauge", labels, len(losses)
