"""A redelivery is told from a message that was stored twice; what was acknowledged does not come again."""

from __future__ import annotations

import pytest

from region_node.chaos.regions import eventually
from region_node.chaos.streams import NumberedStream
from region_node.chaos.subscriptions import LoadSubscription, ReadHistory
from tests.region_node.chaos.memory_regions import Faulty, MemoryRegions

TOPIC = "persistent://public/chaos/t"


def test_the_same_place_is_a_redelivery_another_one_a_copy() -> None:
    history = ReadHistory()
    assert history.came("us", 0, "1:0") and history.came("us", 1, "1:1")
    assert not history.came("us", 0, "1:0")
    assert history.came("us", 1, "1:9") and not history.came("us", 1, "1:9")
    assert (history.again, history.count("us"), history.count("eu")) == (2, 2, 0)
    assert list(history.numbers("us")) == [0, 1, 1] and not history.numbers("eu")


def test_what_is_not_of_this_run_is_not_counted() -> None:
    history = ReadHistory("run-")
    assert not history.came("us", 10**15, "1:0") and not history.came("another one's", -1, "1:1")
    assert history.came("run-us", 0, "1:2") and (history.again, history.count("us")) == (0, 0)


@pytest.mark.slow
@pytest.mark.parametrize("forgets", [False, True])
def test_what_was_acknowledged_comes_again_only_where_that_was_forgotten(forgets: bool) -> None:
    regions = MemoryRegions(["us"], Faulty(forgets=forgets), deduplication=True)
    came: list[str] = []
    subscription = LoadSubscription(regions, "us", TOPIC, "s", came=came.append)
    stream = NumberedStream(regions, "us", TOPIC)
    stream.publish(20)
    eventually(lambda: subscription.has({"us": 20}), "all of it came")
    assert came == ["us"] * 20 and list(subscription.history.numbers("us")) == list(range(20))
    assert subscription.opened_again(0.5) == (20 if forgets else 0)
    subscription.close()
    assert ("us", "s") not in regions.acked


@pytest.mark.slow
def test_it_begins_behind_what_is_there_and_stays_where_it_is_wanted() -> None:
    regions = MemoryRegions(["us"], deduplication=True)
    stream = NumberedStream(regions, "us", TOPIC)
    stream.publish(3)
    subscription = LoadSubscription(regions, "us", TOPIC, "s")
    assert subscription.began.entry_id() == 2
    stream.publish(2)
    eventually(lambda: subscription.history.count("us") == 2, "what was published since came")
    assert list(subscription.history.numbers("us")) == [3, 4]
    subscription.close(keep=True)
    assert regions.acked["us", "s"] == 5
