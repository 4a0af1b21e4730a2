"""Lookups are counted whatever becomes of them, and summaries show what is there."""

from __future__ import annotations

import asyncio

import pytest

from heliograph.model.errors import NotFound
from heliograph.runtime.recent_latencies import Recent
from region_node.metrics.lookup_metrics import LookupCounts, loading_samples
from region_node.runtime import prometheus_text


def numbers(counts: LookupCounts) -> list[float]:
    return [value for _, _, _, value in counts.samples("us")]


def test_every_lookup_that_ended_is_an_answer_a_redirect_or_a_failure() -> None:
    counts = LookupCounts()
    with counts.one(), counts.one() as inner:
        assert numbers(counts) == [0, 0, 0, 0, 2]
        inner.found(redirect=True)
    assert numbers(counts) == [1, 0, 1, 0, 0], "the outer one never told what it found"
    for redirect in (False, False, True):
        with counts.one() as one:
            one.found(redirect=redirect)
    for error in (NotFound("x"), asyncio.CancelledError()):
        with pytest.raises(type(error)), counts.one():
            raise error
    assert numbers(counts) == [6, 2, 2, 2, 0]


def test_a_summary_is_one_family() -> None:
    took = Recent()
    empty = prometheus_text.render(loading_samples("us", took, 3)).decode()
    assert empty.splitlines() == [
        "# TYPE pulsar_broker_topic_load_pending_requests gauge",
        'pulsar_broker_topic_load_pending_requests{cluster="us"} 3',
        "# TYPE pulsar_topic_load_times summary",
        'pulsar_topic_load_times_sum{cluster="us"} 0',
        'pulsar_topic_load_times_count{cluster="us"} 0',
    ]
    for took_ms in range(1, 101):
        took.add(took_ms)
    lines = prometheus_text.render(loading_samples("us", took, 0)).decode().splitlines()
    assert (
        'pulsar_topic_load_times{cluster="us",quantile="0.5"} 51' in lines
        and 'pulsar_topic_load_times{cluster="us",quantile="0.99"} 100' in lines
    )
    assert lines[-2:] == [
        'pulsar_topic_load_times_sum{cluster="us"} 5050',
        'pulsar_topic_load_times_count{cluster="us"} 100',
    ]
    assert sum(line.startswith("# TYPE pulsar_topic_load_times") for line in lines) == 1
