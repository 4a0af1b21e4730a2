"""What a region says it may lack of another one that has fallen silent, and has closed no connection."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest

from geo_tests.sim.region_stories import TOPIC, Story, given
from region_node.dr.operations import namespace_facts

CUT_S = 15.0
"""From the cut to the question: three times what a link takes for a lost connection."""
SLACK_S = 3.0
"""Heartbeats go once a second, and one may be on its way."""


@dataclass(frozen=True, slots=True)
class Told:
    """What eu says of us, and how many messages it really lacks."""

    lacks: dict[str, Any]
    link: dict[str, Any]
    back: dict[str, Any]
    """The link that goes back to us."""
    missing: int


@pytest.fixture(scope="module")
def told() -> Told:
    """us confirms 40 messages while nothing that it sends reaches eu any more; no connection is closed."""
    heard: list[Told] = []

    async def tell(story: Story) -> None:
        await story.publish("us", TOPIC, (b"before %d" % i for i in range(20)))
        await asyncio.sleep(5)
        held = len(await story.bodies("eu", TOPIC))
        assert held == 20, "all is well at first"
        story.sim.network.cut("us", "eu")
        at = story.sim.now()
        await story.publish("us", TOPIC, (b"after %d" % i for i in range(40)))
        await asyncio.sleep(at + CUT_S - story.sim.now())
        (node,) = (node for region, name, node, _ in story.probes.owners() if (region, name) == ("eu", TOPIC))
        role: Any = node.roles[0]
        topic = namespace_facts.topic_facts(role.topics.loaded[TOPIC], role.links, node.machine.clock.wall_ms())
        lacks = namespace_facts.lacking({"topics": {TOPIC: topic}, "missing": []}, "us")
        missing = len(await story.bodies("us", TOPIC)) - len(await story.bodies("eu", TOPIC))
        heard.append(Told(lacks, topic["lacks"]["us"], topic["links"]["us"], missing))

    Story.play(tell, "us", "eu")
    with given():
        assert heard[0].missing == 40
    return heard[0]


@pytest.mark.slow
def test_a_region_of_which_nothing_is_heard_is_named_silent(told: Told) -> None:
    """Numbers of another region are as old as the last word from it, so whoever reads them is told how long ago that
    was: else a failover would be offered for no loss at all, while 40 confirmed messages are in the lost region alone.
    """
    assert told.lacks["messages"] >= told.missing or told.lacks["silent_s"] >= CUT_S - SLACK_S, told


@pytest.mark.slow
def test_a_link_on_which_nothing_comes_is_not_called_connected(told: Told) -> None:
    """A link is connected while something is heard on it, at both of its ends, whether its connection was closed or
    not.
    """
    assert not told.link["connected"] and not told.back["connected"], told


@pytest.mark.slow
def test_what_may_be_missing_grows_older_with_the_silence(told: Told) -> None:
    """`age_s_max` is how old the oldest message may be that is not here, as objectives of loss are measured by."""
    assert told.link["age_s_max"] >= CUT_S - SLACK_S, told
