"""Backoff: pauses double up to the longest, and stay within their spread."""

from __future__ import annotations

import random

import pytest

from heliograph.runtime.backoff import Backoff


def test_pauses_double_up_to_the_longest() -> None:
    backoff = Backoff(0.1, 1.0)
    assert [backoff.pause_s(failures, None) for failures in (1, 2, 3, 4, 5, 6, 1_000_000)] == pytest.approx(
        [0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 1.0]
    )


@pytest.mark.parametrize("spread", [(0.5, 1.0), (0.25, 1.0), (0.5, 1.5)])
def test_they_are_spread_within_their_bounds_and_over_all_of_them(spread: tuple[float, float]) -> None:
    backoff, rng = Backoff(0.2, 3.0, spread), random.Random(3)
    for failures in range(1, 12):
        whole = backoff.pause_s(failures, None)
        found = [backoff.pause_s(failures, rng) / whole for _ in range(300)]
        assert spread[0] <= min(found) < spread[0] + 0.05 and spread[1] - 0.05 < max(found) <= spread[1]


def test_the_same_seed_gives_the_same_pauses() -> None:
    backoff = Backoff(0.2, 3.0)
    one, other = random.Random(1), random.Random(1)
    assert [backoff.pause_s(n, one) for n in range(1, 9)] == [backoff.pause_s(n, other) for n in range(1, 9)]
