"""Metrics of offloading by topic, in Pulsar's names: rates, failures, and how long reads from the store took.

Is: what `storage.tiered` counts of each topic, as samples; rates are those since about the last scrape. Isn't: numbers
of the whole broker (`region_node.tiering.broker_tier`).
Invariants: a topic of which nothing was offloaded or read has no series.
"""

from __future__ import annotations

from collections.abc import Iterator

from heliograph.model.topic_names import TopicName
from heliograph.runtime.clock import Clock
from region_node.runtime.prometheus_text import Sample, summary
from storage.tiered.offload.offloader import Tiering
from storage.tiered.reading.cold_reader import ColdReader

_PERIOD_S = 1.0


class TierMetrics:
    """Makes the samples of one broker's topics; keeps the counts that its rates were last taken from."""

    def __init__(self, tiering: Tiering, reader: ColdReader, clock: Clock) -> None:
        self._tiering, self._reader, self._clock = tiering, reader, clock
        self._rated_at = clock.monotonic()
        self._before: dict[tuple[str, str], int] = {}
        self._rates: dict[tuple[str, str], float] = {}

    def samples(self, region: str) -> Iterator[Sample]:
        statuses, read = self._tiering.statuses(), self._reader.topics
        offloaded = {topic: status.offloaded_bytes for topic, status in statuses.items() if status.offloaded_bytes}
        written = {("offload_rate", topic): size for topic, size in offloaded.items()}
        self._rate(written | {("read_offload_rate", topic): counts.read_bytes for topic, counts in read.items()})
        for topic, status in statuses.items():
            if status.errors:
                yield "pulsar_ledgeroffloader_offload_error", "counter", _labels(region, topic), status.errors
                yield (
                    "pulsar_ledgeroffloader_write_storage_error",
                    "counter",
                    _labels(region, topic),
                    status.store_errors,
                )
        for topic, read_ms in self._tiering.read_ms.items():
            yield from summary("pulsar_ledgeroffloader_read_ledger_latency", _labels(region, topic), read_ms)
        for topic, count in self._tiering.collector.deleted.items() if self._tiering.collector is not None else ():
            yield "pulsar_ledgeroffloader_delete_offload_ops", "counter", _labels(region, topic), count
        for (name, topic), rate in self._rates.items():
            yield f"pulsar_ledgeroffloader_{name}", "gauge", _labels(region, topic), rate
        for topic, counts in read.items():
            labels = _labels(region, topic)
            yield "pulsar_ledgeroffloader_read_offload_error", "counter", labels, counts.errors
            yield from summary("pulsar_ledgeroffloader_read_offload_index_latency", labels, counts.index_ms)
            yield from summary("pulsar_ledgeroffloader_read_offload_data_latency", labels, counts.data_ms)

    def _rate(self, counts: dict[tuple[str, str], int]) -> None:
        """Takes new rates, in bytes a second, where the last ones are old enough."""
        now = self._clock.monotonic()
        if now - self._rated_at < _PERIOD_S:
            return
        elapsed, self._rated_at = now - self._rated_at, now
        self._rates = {key: max(0, count - self._before.get(key, 0)) / elapsed for key, count in counts.items()}
        self._before = counts


def _labels(region: str, topic: str) -> dict[str, str]:
    """topic: "": those that are not counted apart."""
    return {"cluster": region, "namespace": TopicName.parse(topic).namespace if topic else "", "topic": topic}
