"""ByteBudget: who is held, and when they are let go."""

from __future__ import annotations

import random

import pytest

from heliograph.runtime.byte_budget import ByteBudget


def test_who_brings_more_than_fits_is_held_until_half_is_free() -> None:
    said: list[tuple[str, bool]] = []
    budget: ByteBudget[str] = ByteBudget(100, lambda who, hold: said.append((who, hold)))
    budget.take("a", 100)
    assert not said, "all of it may be used"
    budget.take("b", 1)
    budget.take("b", 5)
    budget.take("c", 5)
    assert said == [("b", True), ("c", True)] and budget.held == 2, "once each"
    budget.forget("c")
    budget.give(60)
    assert budget.held == 1
    budget.give(1)
    assert said[2:] == [("b", False)] and budget.used == 50 and not budget.held


def test_who_waits_for_it_to_be_empty_is_told() -> None:
    empty: list[int] = []
    budget: ByteBudget[str] = ByteBudget(100, lambda who, hold: None)
    budget.take("a", 7)
    budget.on_empty = lambda: empty.append(budget.used)
    budget.give(3)
    assert not empty
    budget.give(4)
    assert empty == [0]


@pytest.mark.parametrize("seed", range(50))
def test_what_is_in_flight_stays_within_the_budget_and_one_read_of_each(seed: int) -> None:
    rng, held, flying = random.Random(seed), set[int](), list[tuple[int, int]]()
    budget: ByteBudget[int] = ByteBudget(1000, lambda who, hold: held.add(who) if hold else held.discard(who))
    for _ in range(500):
        who = rng.randrange(5)
        if who not in held and rng.random() < 0.6:
            flying.append((who, rng.randrange(1, 300)))
            budget.take(*flying[-1])
        elif flying:
            budget.give(flying.pop(rng.randrange(len(flying)))[1])
        assert budget.used == sum(size for _, size in flying) <= 1000 + 5 * 300
        assert budget.held == len(held) and (budget.used * 2 > 1000 or not held)
    for _, size in flying:
        budget.give(size)
    assert not held and not budget.used
