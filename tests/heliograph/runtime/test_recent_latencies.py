"""Recent: the newest of something, its quantiles, and what was added since."""

from __future__ import annotations

import random

from heliograph.runtime.recent_latencies import Recent


def test_it_keeps_the_newest_and_counts_all() -> None:
    recent = Recent(4)
    assert recent.quantiles([0.5]) == [] and recent.since(0) == []
    for took in range(10):
        recent.add(took)
    assert (recent.count, recent.sum) == (10, 45.0)
    assert recent.since(0) == [6.0, 7.0, 8.0, 9.0] and recent.since(8) == [8.0, 9.0] and recent.since(10) == []
    assert recent.quantiles([0.0, 0.5, 0.99, 1.0]) == [6.0, 8.0, 9.0, 9.0]


def test_its_quantiles_are_those_of_the_newest() -> None:
    rng, recent, all_of_them = random.Random(1), Recent(), list[float]()
    for _ in range(2000):
        all_of_them.append(rng.random())
        recent.add(all_of_them[-1])
    newest = sorted(all_of_them[-512:])
    assert recent.quantiles([0.5, 0.9]) == [newest[256], newest[460]]
