"""The ways to cut a bundle, and which bundles are due: topics on both sides, a heavy one apart, patience before and
rest after.
"""

from __future__ import annotations

import random

import pytest

from heliograph.model.errors import ConfigError, NotAllowed
from region_node.placement.balance.bundle_splitting import FLOW, POSITIONS, RANGE, TOPIC_COUNT, Splitter, Weighed, cuts
from region_node.placement.balance.load_score import BundleTraffic, LoadBook
from region_node.placement.balance.settings import SplitSettings

BOUNDS = (1000, 9000)
BUNDLE = ("t/n", 3)


def test_the_range_is_halved_whatever_lies_in_it() -> None:
    assert cuts(RANGE, BOUNDS, []) == [5000]


@pytest.mark.parametrize("seed", range(50))
def test_halves_have_as_many_topics_and_none_is_parted_from_its_hash(seed: int) -> None:
    rng = random.Random(seed)
    topics = [Weighed(rng.randrange(*BOUNDS), rng.random()) for _ in range(rng.randrange(2, 60))] + [
        Weighed(1000, 1.0),
        Weighed(8999, 1.0),
    ]
    (cut,) = cuts(TOPIC_COUNT, BOUNDS, topics)
    low = sum(topic.hash < cut for topic in topics)
    assert 0 < low < len(topics) and BOUNDS[0] < cut < BOUNDS[1]
    most_of_one_hash = max(sum(other.hash == topic.hash for other in topics) for topic in topics)
    assert abs(2 * low - len(topics)) <= most_of_one_hash


@pytest.mark.parametrize("seed", range(50))
def test_traffic_is_halved_as_well_as_topics_allow(seed: int) -> None:
    rng = random.Random(seed)
    topics = [Weighed(h, rng.paretovariate(1.1)) for h in rng.sample(range(*BOUNDS), 20)] + [
        Weighed(rng.randrange(*BOUNDS), 0.0) for _ in range(30)
    ]
    (cut,) = cuts(FLOW, BOUNDS, topics)
    total = sum(topic.weight for topic in topics)
    low = sum(topic.weight for topic in topics if topic.hash < cut)
    assert 0 < low < total
    assert abs(low - total / 2) <= max(topic.weight for topic in topics) / 2 + 1e-9


def test_what_cannot_be_divided_says_what_else_to_do() -> None:
    same = [Weighed(2000, 1.0)] * 3
    with pytest.raises(NotAllowed, match="one hash"):
        cuts(TOPIC_COUNT, BOUNDS, same)
    with pytest.raises(NotAllowed, match="more partitions"):
        cuts(FLOW, BOUNDS, [Weighed(2000, 5.0), Weighed(3000, 0.0)])
    with pytest.raises(NotAllowed, match="splitBoundaries"):
        cuts(POSITIONS, BOUNDS, [], [1000, 9000, 12])
    with pytest.raises(NotAllowed, match="topic_count_equally_divide"):
        cuts("by_colour", BOUNDS, same)
    assert cuts(POSITIONS, BOUNDS, [], [7000, 2000, 7000, 1]) == [2000, 7000]


def after(splitter: Splitter, one: BundleTraffic, load: float = 0.0, *, count: int = 4, now: float = 0.0) -> list[str]:
    return [due.way for due in splitter.due({BUNDLE: one}, {BUNDLE: load}, lambda namespace: count, now)]


@pytest.mark.parametrize(
    ("one", "load", "way"),
    [
        (BundleTraffic(topics=1001), 0.0, TOPIC_COUNT),
        (BundleTraffic(topics=2, sessions=1001), 0.0, TOPIC_COUNT),
        (BundleTraffic(messages_s=30_001, topics=2), 0.0, FLOW),
        (BundleTraffic(bytes_s=101e6, topics=2), 0.0, FLOW),
        (BundleTraffic(topics=2), 0.26, FLOW),
        (BundleTraffic(messages_s=90_000, bytes_s=9e9, topics=1, sessions=5000), 0.9, ""),
        (BundleTraffic(topics=1000, sessions=1000, messages_s=29_999, bytes_s=99e6), 0.25, ""),
    ],
)
def test_a_limit_counts_once_three_reports_in_a_row_say_so(one: BundleTraffic, load: float, way: str) -> None:
    splitter = Splitter(SplitSettings())
    assert after(splitter, one, load) == after(splitter, one, load) == []
    assert after(splitter, one, load) == ([way] if way else [])
    assert after(splitter, BundleTraffic(), 0.0) == [], "one report below it begins the count anew"
    assert after(splitter, one, load) == after(splitter, one, load) == []


def test_a_namespace_with_enough_bundles_and_a_bundle_that_was_split_are_left_alone() -> None:
    splitter, heavy = Splitter(SplitSettings(reports=1, rest_s=60)), BundleTraffic(topics=5000)
    assert after(splitter, heavy, count=128) == []
    assert after(splitter, heavy) == [TOPIC_COUNT]
    splitter.done(BUNDLE, 0.0)
    assert after(splitter, heavy, now=59.0) == []
    assert after(splitter, heavy, now=61.0) == [TOPIC_COUNT]
    assert after(Splitter(SplitSettings(enabled=False, reports=1)), heavy) == []
    with pytest.raises(ConfigError, match="bundles_max"):
        SplitSettings(bundles_max=0)


def test_one_report_splits_so_many_bundles() -> None:
    heavy = {("t/n", number): BundleTraffic(topics=5000) for number in range(3)}
    splitter = Splitter(SplitSettings(reports=1, per_report=2))
    assert len(splitter.due(heavy, dict.fromkeys(heavy, 0.0), lambda namespace: 4, 0.0)) == 2


def test_the_load_goes_with_the_parts() -> None:
    book = LoadBook()
    book.sample(0.0, 0.8, {BUNDLE: BundleTraffic(messages_s=100), ("t/n", 0): BundleTraffic(messages_s=100)})
    book.divided(BUNDLE, {BUNDLE: 0.75, ("t/n", 9): 0.25})
    parts = {
        BUNDLE: BundleTraffic(messages_s=75),
        ("t/n", 9): BundleTraffic(messages_s=25),
        ("t/n", 0): BundleTraffic(messages_s=100),
    }
    carried = book.sample(1.0, 0.8, parts)
    assert dict(carried.bundles) == pytest.approx({BUNDLE: 0.3, ("t/n", 9): 0.1, ("t/n", 0): 0.4})
    assert carried.load == pytest.approx(0.8)


def test_what_is_set_aside_counts_at_the_least() -> None:
    carried = LoadBook().sample(0.0, 0.3, {BUNDLE: BundleTraffic(messages_s=1)}, {BUNDLE: 0.2, ("t/n", 5): 0.4})
    assert dict(carried.bundles) == pytest.approx({BUNDLE: 0.3, ("t/n", 5): 0.4})
    assert carried.load == pytest.approx(0.7)


def test_what_connections_take_goes_with_producers_and_consumers() -> None:
    traffic = {BUNDLE: BundleTraffic(messages_s=1000, sessions=10), ("t/n", 5): BundleTraffic(sessions=30)}
    assert dict(LoadBook().sample(0.0, 0.8, traffic, by_sessions=True).bundles) == pytest.approx(
        {BUNDLE: 0.2, ("t/n", 5): 0.6}
    )
    assert dict(LoadBook().sample(0.0, 0.8, traffic).bundles) == pytest.approx({BUNDLE: 0.8})
