"""A configuration that is restored brings back the tombstone of a topic that was purged and made again since."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from geo_tests.sim.region import CONFIG_PORT
from geo_tests.sim.region_stories import TOPIC, Story
from geo_tests.sim.simulation import Machine
from global_config.backup import restored_rows
from heliograph.kv.metadata_client import MetaClient
from heliograph.kv.metadata_store import ABSENT
from heliograph.model.configuration.tombstones import Tombstone, tombstone

DAY_MS = 86_400_000
REGIONS = ("us", "eu")


@pytest.mark.slow
@pytest.mark.parametrize("way", ("from-a-backup", "by-a-volume"))
def test_a_topic_that_was_made_again_outlives_the_tombstone_of_the_one_before_it(way: str) -> None:
    """What a deletion purges is what was there when it was made. A topic that came under the same name later is another
    one: whether the tombstone was restored from a backup, or the volumes of the configuration went back unseen.
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
            assert "made after" in asks(role) if way == "by-a-volume" else "backup" in asks(role)
        for region in REGIONS:
            assert await story.bodies(region, TOPIC) == bodies, "it can be used meanwhile"

    async def restore(machine: Machine) -> None:
        """What of a backup that holds the tombstone alone comes into the configuration."""
        now = machine.clock.wall_ms()
        old = Tombstone(
            topic=TOPIC, regions=REGIONS, since_ms=now - 7 * DAY_MS, until_ms=now - 6 * DAY_MS, by="somebody"
        )
        store = MetaClient([f"us-meta:{CONFIG_PORT}"], clock=machine.clock, rng=machine.rng)
        rows = [(tombstone(TOPIC), (old.encode(), 1, 0))]
        for key, value in restored_rows(rows, now) if way == "from-a-backup" else [(tombstone(TOPIC), old.encode())]:
            await store.put(key, value, expected=ABSENT)
        store.close()

    def asks(role: Any) -> str:
        return str(role.tombstones.known[TOPIC][0].asks)

    Story.play(tell, *REGIONS)
    assert left == dict.fromkeys(REGIONS, True), left
