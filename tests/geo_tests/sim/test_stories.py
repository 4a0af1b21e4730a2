"""Worlds in which more goes on beside their topics: transactions, compactions, the upgrade of a region; and wrong rules
that only these find.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from geo_tests.sim.soak_record import RARE
from geo_tests.sim.stories import STORIES
from geo_tests.sim.world import World, WorldSettings, run_seed
from tests.seeds import LARGE_WORLDS, STORY_WORLDS

SMALL = WorldSettings(regions=("us", "eu", "ap"), messages=16, chaos_s=5.0, faults=4, topics=1)
SETTINGS = replace(SMALL, stories=tuple(STORIES))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(STORY_WORLDS))
def test_worlds_hold(seed: int) -> None:
    verdict = run_seed(seed, SETTINGS)
    kinds = Counter(verdict.kinds)
    assert verdict.transactions > 0 and kinds["transaction committed"] > 0
    assert kinds["compaction"] > 0 and kinds["upgrade"] == 1


def test_a_part_of_all_worlds_has_each_and_some_have_none() -> None:
    found = Counter(World(seed).stories.names for seed in range(6 * LARGE_WORLDS))
    for name in STORIES:
        some = sum(count for names, count in found.items() if name in names)
        assert 1.5 * RARE < some / found.total() < 0.5, (name, found)
    assert found[()] > RARE * found.total()


def test_a_world_whose_regions_are_named_has_none_unless_it_says_so() -> None:
    assert not World(0, SMALL).stories.names
    assert World(0, SETTINGS).stories.names == tuple(STORIES)
