"""Topics come into tiers by their traffic, the same ones each time, none twice and none left out."""

from __future__ import annotations

import random

import pytest

from heliograph.model.errors import ConfigError
from heliograph.spark.jobs.tiers import Group, packed, plan


def tiers(groups: list[Group]) -> dict[str, tuple[str, ...]]:
    return {group.name: group.topics for group in groups}


def test_light_topics_share_and_heavy_ones_do_not() -> None:
    loads = {"a": 50.0, "b": 1e6, "c": 2e7, "d": 0.0, "e": 3e6, "f": 6e6, "g": 9e6}
    made = plan(loads)
    assert tiers(made) == {"heavy-0": ("c",), "middle-0": ("b", "g"), "middle-1": ("e", "f"), "light": ("a", "d")}
    assert [(group.trigger, group.bytes_s) for group in made if group.tier != "middle"] == [("0 seconds", 2e7), ("60 seconds", 50.0)]
    assert plan({}) == [] and tiers(plan({"x": 0.0})) == {"light": ("x",)}


@pytest.mark.parametrize("seed", range(20))
def test_every_topic_is_in_one_group_and_groups_are_even(seed: int) -> None:
    rng = random.Random(seed)
    loads = {f"t{n}": rng.paretovariate(0.6) * 1000 for n in range(rng.randrange(1, 300))}
    most = rng.choice((1, 2, 3, 20))
    made = plan(loads, queries_max=most)
    assert sorted(topic for group in made for topic in group.topics) == sorted(loads)
    assert len(made) <= most and all(group.topics for group in made)
    assert made == plan(dict(reversed(loads.items())), queries_max=most)


def test_packing_is_by_bytes_not_by_number() -> None:
    loads = {"big": 100.0, **{f"s{n:02}": 10.0 for n in range(10)}}
    assert packed(list(loads), loads, 2) == [["big"], [f"s{n:02}" for n in range(10)]]


def test_limits_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ConfigError, match="at most"):
        plan({}, light_bytes_s=2, heavy_bytes_s=1)
