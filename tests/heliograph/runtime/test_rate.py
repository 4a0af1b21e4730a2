"""Rate: what is spent is paid off by time, and idleness earns nothing beyond its bound."""

from __future__ import annotations

import random

import pytest

from heliograph.runtime.rate import Rate


def test_a_debt_is_paid_off_by_time() -> None:
    rate = Rate(100.0)
    assert rate.wait_s(10.0) == 0.0
    rate.spend(50, 10.0)
    assert rate.wait_s(10.0) == pytest.approx(0.5) and rate.wait_s(10.4) == pytest.approx(0.1)
    rate.spend(100, 10.4)
    assert rate.wait_s(10.4) == pytest.approx(1.1), "behind what was spent before"
    assert rate.wait_s(20.0) == 0.0


def test_who_was_idle_has_credit_for_so_many_seconds_and_no_more() -> None:
    rate = Rate(100.0, at_once_s=0.1)
    rate.spend(10, 5.0)
    assert rate.wait_s(5.0) == pytest.approx(0.0)
    rate.spend(10, 5.0)
    assert rate.wait_s(5.0) == pytest.approx(0.1)
    fresh = Rate(100.0, at_once_s=0.1, now=5.0)
    fresh.spend(10, 5.0)
    assert fresh.wait_s(5.0) == pytest.approx(0.1), "made just now, it was not idle"


def test_it_may_be_held_and_changed_and_what_was_spent_stays_spent() -> None:
    rate = Rate(100.0)
    rate.spend(100, 1.0)
    rate.per_s = 1000.0
    assert rate.wait_s(1.0) == pytest.approx(1.0)
    rate.spend(100, 1.0)
    assert rate.wait_s(1.0) == pytest.approx(1.1)
    rate.hold(5.0)
    rate.hold(2.0)
    assert rate.wait_s(1.0) == 4.0


@pytest.mark.parametrize("seed", range(30))
def test_over_any_time_no_more_goes_than_the_rate_and_one_piece(seed: int) -> None:
    rng = random.Random(seed)
    rate, now, begun, gone, most = Rate(1000.0, at_once_s=0.05), 3.0, 3.0, 0.0, 0.0
    for _ in range(300):
        wait_s = rate.wait_s(now)
        now += wait_s if rng.random() < 0.7 else wait_s + rng.uniform(0, 0.3)
        size = rng.uniform(1, 200)
        rate.spend(size, now)
        gone, most = gone + size, max(most, size)
        assert gone <= 1000.0 * (now - begun + 0.05) + most + 1e-6
