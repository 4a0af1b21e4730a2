"""A configuration that is restored brings back the tombstone of a topic that was purged and made again since."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from geo_tests.sim.region import CONFIG_PORT
from geo_tests.sim.simulation import Machine
from global_config.backup import restored_rows
from heliograph.kv.metadata_client import MetaClient
from region_node.topics.serving.deferred_deletion import Tombstone, tombstone
from tests.known_faults.region_stories import TOPIC, Story

DAY_MS = 86_400_000
REGIONS = ("us", "eu")


@pytest.mark.slow
@pytest.mark.xfail(
    strict=True,
    raises=AssertionError,
    reason="a tombstone that a restore brought back purges the topic that was made under its name since",
)
def test_a_topic_that_was_made_again_outlives_the_tombstone_of_the_one_before_it() -> None:
    """What a deletion purges is what was there when it was made. A topic that came under the same name later is another
    one.

    A tombstone names the topic and a time, and whoever finds its grace period over purges whatever has that name. One
    from a backup of six days ago is over at once: all regions lose the new topic. Right would be that a purge names the
    incarnation, or spares what was created after the deletion, and that a tombstone that comes out of a restore asks
    first.
    """
    bodies = [b"message %d" % number for number in range(30)]
    left: dict[str, bool] = {}
    """Region -> whether it has anything of the topic, in use or waiting for an answer."""

    async def tell(story: Story) -> None:
        await story.publish("us", TOPIC, bodies)
        await asyncio.sleep(5)
        for region in REGIONS:
            assert await story.bodies(region, TOPIC) == bodies
        nodes = [node for region in story.regions.values() for node in region.brokers]
        for node in nodes:
            node.kill()
        await story.sim.call("us-client", restore, story.sim.machine("us-client"))
        await asyncio.sleep(5)  # every region has it
        await story.begin_anew(nodes)
        await asyncio.sleep(30)
        for node in nodes:
            role: Any = node.roles[0]
            left[node.region.name] = await node.machine.ask(role.topics.exists, TOPIC)

    async def restore(machine: Machine) -> None:
        """What of a backup that holds the tombstone alone comes into the configuration."""
        now = machine.clock.wall_ms()
        old = Tombstone(
            topic=TOPIC, regions=REGIONS, since_ms=now - 7 * DAY_MS, until_ms=now - 6 * DAY_MS, by="somebody"
        )
        store = MetaClient([f"us-meta:{CONFIG_PORT}"], clock=machine.clock, rng=machine.rng)
        for key, value in restored_rows([(tombstone(TOPIC), (old.encode(), 1, 0))]):
            await store.put(key, value)
        store.close()

    Story.play(tell, *REGIONS)
    assert left == dict.fromkeys(REGIONS, True), left
