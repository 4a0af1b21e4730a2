"""Who asks for held transactions hears of each topic that has some."""

from __future__ import annotations

from typing import Any

from region_node.transactions.participants.holding_topics import HoldingTopics


def test_a_topic_that_comes_before_its_follower_is_not_lost() -> None:
    held, first, second = HoldingTopics[Any](), *[object() for _ in range(2)]
    topics: list[Any] = [first, second]
    tell = held.add  # as a topic has it that was loaded early
    tell(topics[0])
    heard: list[object] = []
    held.follow(heard.append)
    assert heard == [first]
    tell(topics[1])
    assert heard == [first, second]
