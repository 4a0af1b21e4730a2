"""Metadata of a region that is lost without a backup and begins empty, beside bookies that hold what was there."""

from __future__ import annotations

import asyncio

import pytest

from geo_tests.sim.region import NAMESPACE
from geo_tests.sim.region_stories import Story, given

OLD = [f"persistent://{NAMESPACE}/old-{number}" for number in range(4)]
NEW = [f"persistent://{NAMESPACE}/new-{number}" for number in range(4)]


@pytest.mark.slow
def test_a_new_topic_holds_nothing_of_an_older_one_after_its_metadata_was_made_anew() -> None:
    """A topic holds what was published to it, and nothing else. Metadata that is made anew without a backup needs no
    step of an operator.

    The bookies still hold old ledgers: entries, how far they are confirmed, and fences. With an id of one of them,
    whoever took a new topic over would be told the old one's end, and close the ledger with the old one's entries
    behind the new.
    """
    found: dict[str, list[bytes]] = {}
    wanted = {topic: [f"{topic} {number}".encode() for number in range(3)] for topic in NEW}

    async def tell(story: Story) -> None:
        region = story.regions["us"]
        for topic in OLD:
            await story.publish("us", topic, (f"{topic} {number}".encode() for number in range(40)))
        for node in [*region.brokers, region.metadata]:
            node.kill()
        lost = region.metadata.machine.disk("data/meta")
        assert lost.names()
        for name in lost.names():
            lost.remove(name)
        await story.begin_anew([region.metadata, *region.brokers])
        for topic, bodies in wanted.items():
            await story.publish("us", topic, bodies)
        region.brokers[0].kill()
        await asyncio.sleep(10)
        await story.begin_anew(region.brokers)
        for topic in NEW:
            found[topic] = await story.bodies("us", topic)

    Story.play(tell, "us")
    with given():
        assert list(found) == NEW
    assert found == wanted, {topic: bodies for topic, bodies in found.items() if bodies != wanted[topic]}
