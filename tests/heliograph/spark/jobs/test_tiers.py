"""Topics come into tiers by their traffic, the same ones each time, none twice and none left out."""

from __future__ import annotations

import random

import pytest

from heliograph.model.errors import ConfigError
from heliograph.spark.jobs.tiers import TierLimits, TopicGroup, packed, plan, replanned


def tiers(groups: list[TopicGroup]) -> dict[str, tuple[str, ...]]:
    return {group.name: group.topics for group in groups}


def test_light_topics_share_and_heavy_ones_do_not() -> None:
    loads = {"a": 50.0, "b": 1e6, "c": 2e7, "d": 0.0, "e": 3e6, "f": 6e6, "g": 9e6}
    made = plan(loads, TierLimits())
    assert tiers(made) == {"heavy-0": ("c",), "middle-0": ("b", "g"), "middle-1": ("e", "f"), "light": ("a", "d")}
    assert [(group.trigger, group.bytes_s) for group in made if group.tier != "middle"] == [
        ("0 seconds", 2e7),
        ("60 seconds", 50.0),
    ]
    assert plan({}, TierLimits()) == [] and tiers(plan({"x": 0.0}, TierLimits())) == {"light": ("x",)}


@pytest.mark.parametrize("seed", range(20))
def test_every_topic_is_in_one_group_and_groups_are_even(seed: int) -> None:
    rng = random.Random(seed)
    loads = {f"t{n}": rng.paretovariate(0.6) * 1000 for n in range(rng.randrange(1, 300))}
    most = rng.choice((1, 2, 3, 20))
    made = plan(loads, TierLimits(queries_max=most))
    assert sorted(topic for group in made for topic in group.topics) == sorted(loads)
    assert len(made) <= most and all(group.topics for group in made)
    assert made == plan(dict(reversed(loads.items())), TierLimits(queries_max=most))


def test_packing_is_by_bytes_not_by_number() -> None:
    loads = {"big": 100.0, **{f"s{n:02}": 10.0 for n in range(10)}}
    assert packed(list(loads), loads, 2) == [["big"], [f"s{n:02}" for n in range(10)]]


def test_limits_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ConfigError, match="at most"):
        TierLimits(light_bytes_s=2, heavy_bytes_s=1)


@pytest.mark.parametrize("seed", range(40))
def test_a_new_plan_moves_only_what_has_changed(seed: int) -> None:
    rng = random.Random(seed)
    limits = TierLimits(light_bytes_s=100, heavy_bytes_s=1000, middle_bytes_s=2000, queries_max=rng.choice((4, 20)))
    loads = {f"t{n}": rng.paretovariate(0.5) * 20 for n in range(rng.randrange(1, 80))}
    now = plan(loads, limits)
    assert tiers(replanned(now, loads, limits)) == tiers(now), "nothing has changed"
    for _ in range(30):
        changed = rng.choice((*loads, f"new{rng.randrange(9)}"))
        loads[changed] = rng.choice((0.0, 60.0, 300.0, 700.0, 5000.0))
        if rng.random() < 0.2 and len(loads) > 1:
            del loads[rng.choice(sorted(loads))]
        made = replanned(now, loads, limits)
        names = [group.name for group in made]
        assert len(set(names)) == len(names) <= limits.queries_max
        assert sorted(topic for group in made for topic in group.topics) == sorted(loads)
        assert all(group.topics for group in made) and all(
            len(group.topics) == 1 for group in made if group.tier == "heavy"
        )
        assert tiers(replanned(made, loads, limits)) == tiers(made), "and then it holds"
        now = made


def test_who_is_near_a_limit_stays() -> None:
    limits = TierLimits(light_bytes_s=100, heavy_bytes_s=1000)
    now = plan({"a": 1.0, "b": 150.0, "c": 1200.0, "d": 2000.0}, limits)
    assert tiers(now) == {"heavy-0": ("d",), "heavy-1": ("c",), "middle-0": ("b",), "light": ("a",)}
    same = replanned(now, {"a": 99.0, "b": 60.0, "c": 3000.0, "d": 600.0}, limits)
    assert tiers(same) == tiers(now)
    moved = replanned(now, {"a": 100.0, "b": 40.0, "c": 1200.0, "d": 400.0}, limits)
    assert tiers(moved) == {"heavy-1": ("c",), "middle-0": ("a", "d"), "light": ("b",)}
