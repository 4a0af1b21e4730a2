"""Metrics of lookups, over Pulsar's protocol and HTTP, and of topics that are being loaded, in Pulsar's names.

Is: what is counted of lookups, and its samples. Isn't: the answer (`region_node.placement.ownership`).
Invariants: every lookup that has ended is one of answers, redirects, and failures.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from heliograph.runtime.recent_latencies import Recent
from region_node.runtime.prometheus_text import Sample, summary


class LookupCounts:
    """Counts one broker's lookups since its start."""

    __slots__ = ("answers", "failures", "pending", "redirects")

    def __init__(self) -> None:
        self.answers = self.redirects = self.failures = self.pending = 0

    @contextmanager
    def one(self) -> Iterator[LookupCounts]:
        """Around one lookup: whatever is raised inside is a failure; whoever gets out calls `found`."""
        self.pending += 1
        try:
            yield self
        except BaseException:
            self.failures += 1
            raise
        finally:
            self.pending -= 1

    def found(self, redirect: bool) -> None:
        if redirect:
            self.redirects += 1
        else:
            self.answers += 1

    def samples(self, region: str) -> Iterator[Sample]:
        labels = {"cluster": region}
        numbers = (
            ("", self.answers + self.redirects + self.failures),
            ("_answers", self.answers),
            ("_redirects", self.redirects),
            ("_failures", self.failures),
            ("_pending_requests", self.pending),
        )
        for name, value in numbers:
            yield f"pulsar_broker_lookup{name}", "gauge", labels, value


def assignment_samples(region: str, took_ms: Recent) -> Iterator[Sample]:
    """took_ms: of bundles that this broker took."""
    yield from summary("pulsar_broker_load_manager_bundle_assignment", {"cluster": region}, took_ms)


def loading_samples(region: str, took_ms: Recent, under_way: int) -> Iterator[Sample]:
    """took_ms: of topics that were loaded."""
    yield "pulsar_broker_topic_load_pending_requests", "gauge", {"cluster": region}, under_way
    yield from summary("pulsar_topic_load_times", {"cluster": region}, took_ms)
