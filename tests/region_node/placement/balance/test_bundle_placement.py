"""Where a bundle goes that nobody has."""

from __future__ import annotations

import random

import pytest

from region_node.placement.balance.bundle_placement import choose


def test_placement_prefers_the_emptier_ones_and_takes_no_full_one() -> None:
    rng = random.Random(3)
    chosen = [choose(["a", "b", "c", "d"], {"a": 0.9, "b": 0.5, "c": 0.1}, rng) for _ in range(1000)]
    assert chosen.count("a") == chosen.count("b") == 0 and chosen.count("d") > chosen.count("c") > 200
    same = [choose(["a", "b"], {}, rng) for _ in range(1000)]
    assert 400 < same.count("a") < 600


@pytest.mark.parametrize("seed", range(40))
def test_whoever_is_chosen_is_below_the_average_or_as_good_as_it(seed: int) -> None:
    rng = random.Random(seed)
    names = [f"b{number}" for number in range(rng.randrange(1, 8))]
    loads = {name: rng.random() for name in names if rng.random() < 0.8}
    average = sum(loads.values()) / len(names)
    eligible = {name for name in names if loads.get(name, 0.0) < average + 0.02}
    found = {choose(names, loads, rng) for _ in range(600)}
    assert found <= eligible and min(names, key=lambda name: loads.get(name, 0.0)) in found


def test_the_emptier_the_likelier_and_by_how_much() -> None:
    rng = random.Random(5)
    loads = {"a": 0.2, "b": 0.4, "c": 0.9}  # 0.5 on average: 0.32 and 0.12 below it, with the margin
    chosen = [choose(["a", "b", "c"], loads, rng) for _ in range(4400)]
    assert "c" not in chosen and 3000 < chosen.count("a") < 3400


def test_brokers_that_differ_by_less_than_the_margin_share_and_a_silent_one_counts_as_empty() -> None:
    rng = random.Random(7)
    near = [choose(["a", "b"], {"a": 0.5, "b": 0.53}, rng) for _ in range(1000)]
    assert 20 < near.count("b") < near.count("a")
    assert {choose(["a", "b"], {"a": 0.3}, rng) for _ in range(200)} == {"b"}
    assert choose(["alone"], {"alone": 1.0}, rng) == "alone"
