"""Latencies in buckets: percentiles against the sorted truth, and when messages are due."""

from __future__ import annotations

import math
import random

import pytest

from heliograph.cli.messaging.latency_histogram import Histogram, due_times
from heliograph.cli.resources.policies import parsed


@pytest.mark.parametrize("seed", range(40))
def test_percentiles_are_the_true_ones_to_two_digits_and_never_below(seed: int) -> None:
    rng = random.Random(seed)
    values = [rng.lognormvariate(rng.uniform(-3, 4), 1.5) for _ in range(rng.randrange(1, 2000))]
    whole, halves = Histogram(), [Histogram(), Histogram()]
    for index, value in enumerate(values):
        whole.add(value)
        halves[index % 2].add(value)
    halves[0].merge(halves[1])
    values.sort()
    for percent in (0.1, 25.0, 50.0, 90.0, 99.0, 99.9, 100.0):
        true = values[max(0, math.ceil(len(values) * percent / 100) - 1)]
        found = whole.percentile(percent)
        assert true - 1e-9 <= found <= max(true * 1.1001, 0.001001), (percent, true, found)
        assert halves[0].percentile(percent) == found
    assert whole.count == len(values) and whole.largest == values[-1] and whole.percentile(100) == values[-1]
    assert math.isclose(whole.mean, sum(values) / len(values)) and len(whole._buckets) < 1000
    assert sum(int(line.split()[-1]) for line in whole.plot()) == len(values)


def test_nothing_was_counted() -> None:
    assert Histogram().percentile(99) == 0.0 and Histogram().plot() == [] and Histogram().as_json()["count"] == 0


@pytest.mark.parametrize(
    ("rate", "seconds", "burst"), [(1000, 1, 1), (7, 3, 1), (33.3, 10, 1), (1000, 2, 10), (90_000, 1, 3)]
)
def test_messages_are_due_at_their_rate(rate: float, seconds: float, burst: float) -> None:
    due = due_times(rate, seconds, burst)
    wanted = rate * seconds * (1 + (burst - 1) / 10 if burst > 1 else 1)
    assert abs(sum(count for _, count in due) - wanted) <= max(2, wanted * 0.02)
    assert all(0 <= at < seconds and count > 0 for at, count in due) and [at for at, _ in due] == sorted(
        at for at, _ in due
    )
    if burst > 1:
        most = max(count for _, count in due)
        assert most >= rate / 100 * burst * 0.9 and all(
            0.45 * seconds <= at < 0.55 * seconds for at, count in due if count > rate / 100 * 2
        )


def test_values_as_people_write_them() -> None:
    assert (
        parsed("5") == 5 and parsed("true") is True and parsed("FULL") == "FULL" and parsed('["Shared"]') == ["Shared"]
    )
    assert parsed("limitSize=10,policy=producer_exception") == {"limitSize": 10, "policy": "producer_exception"}
