"""A shadow's topics: as many as the namespace has, cut as those are, and the same whoever names them."""

from __future__ import annotations

import random

import pytest

from heliograph.model.topic_names import TopicName
from region_node.dr.rehearsal.shadow_topics import ShadowTopics


@pytest.mark.parametrize("seed", range(50))
def test_as_many_and_cut_the_same_way_within_the_bound(seed: int) -> None:
    rng = random.Random(seed)
    names = [f"persistent://t/n/plain-{index}" for index in range(rng.randrange(40))]
    for topic in range(rng.randrange(6)):
        names += [f"persistent://t/n/parted-{topic}-partition-{index}" for index in range(rng.randrange(1, 20))]
    rng.shuffle(names)
    most = rng.randrange(1, 120)
    found = ShadowTopics.like(names, most)
    made = found.names("t/n-drill-1")
    assert len(made) == len(set(made)) == found.count == max(1, min(len(names), most)) and found.of == len(names)
    assert all(TopicName.parse(name).namespace == "t/n-drill-1" for name in made)
    assert ShadowTopics.told(found.telling()) == found and ShadowTopics.like(sorted(names), most) == found
    if most >= len(names) > 0:
        parts = found.partitions("t/n-drill-1", made)
        assert sum(parts.values()) == sum("-partition-" in name for name in names)
        assert len(parts) == len({name.partition("-partition-")[0] for name in names if "-partition-" in name})


def test_a_namespace_without_topics_has_a_shadow_with_one() -> None:
    found = ShadowTopics.like([], 5)
    assert (found.count, found.of, len(found.names("t/n-drill-1"))) == (1, 0, 1)
    assert found.text() == "0 of 0 topics"


def test_some_are_taken_from_all_over() -> None:
    found = ShadowTopics.like([f"persistent://t/n/{index:03d}" for index in range(100)], 1000)
    names = found.names("t/s")
    assert found.some("t/s", 4) == [names[0], names[25], names[50], names[75]] and found.some("t/s", 200) == names
