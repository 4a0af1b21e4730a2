"""A process that is told to end while the metadata is away, as where a whole region is taken down at once, does not
wait for it: in simulated regions, in virtual time.
"""

from __future__ import annotations

import asyncio

import pytest

from geo_tests.sim.region import META_PORT, Node
from geo_tests.sim.region_stories import TOPIC, Story
from geo_tests.sim.simulation import Machine, Simulation
from heliograph.kv.metadata_client import MetaClient
from heliograph.kv.metadata_store import rows_under
from local_meta import keys
from region_node.process.role_process import STOP_TIMEOUT_S
from region_node.process.role_runtime import AWAY_S, without_absent
from tests.heliograph.kv.group import Group, simulate

pytestmark = pytest.mark.slow
SOON_S = AWAY_S + 3.0
"""One wait for the metadata, and what else is done to end."""


async def took_s(story: Story, node: Node) -> float:
    """Until the process has ended all of its roles."""
    began = story.sim.now()
    for role in reversed(node.roles):
        await node.machine.ask(role.stop, limit_s=10 * STOP_TIMEOUT_S)
    return story.sim.now() - began


@pytest.mark.parametrize("silent", [False, True])
@pytest.mark.parametrize("before_s", [0.0, 60.0])
def test_what_ends_after_the_metadata_ends_soon(before_s: float, silent: bool) -> None:
    """silent: nothing says that it is not there. before_s: since when it is away."""
    ended: dict[str, float] = {}

    async def tell(story: Story) -> None:
        await story.publish("us", TOPIC, [b"message %d" % number for number in range(30)])
        await asyncio.sleep(5)
        region = story.regions["us"]
        gone = [*region.voters, *region.bookies[1:]]
        for node in gone:
            if silent:
                node.machine.stop()
            else:
                node.kill()
        await asyncio.sleep(before_s)
        left = [*region.brokers, region.bookies[0]]
        took = await asyncio.gather(*(took_s(story, node) for node in left))
        ended.update(zip((node.name for node in left), took, strict=True))

    Story.play(tell, "us", "eu")
    assert ended and max(ended.values()) < SOON_S < STOP_TIMEOUT_S, ended


def test_metadata_that_comes_back_in_time_is_handed_everything() -> None:
    before: list[str] = []
    after: list[str] = []

    async def owners(machine: Machine) -> list[str]:
        store = MetaClient([f"us-meta:{META_PORT}"], clock=machine.clock, rng=machine.rng)
        found = [key for prefix in (keys.BROKERS, keys.OWNERS) for key, _, _ in await rows_under(store, prefix)]
        store.close()
        return found

    async def tell(story: Story) -> None:
        await story.publish("us", TOPIC, [b"message %d" % number for number in range(30)])
        await asyncio.sleep(5)
        region = story.regions["us"]
        metadata, client = region.voters[0], story.sim.machine("us-client")
        before.extend(await story.sim.call("us-client", owners, client))
        metadata.kill()
        ending = asyncio.ensure_future(took_s(story, region.brokers[0]))
        await asyncio.sleep(AWAY_S / 2)
        metadata.revive()
        await ending
        after.extend(await story.sim.call("us-client", owners, client))

    Story.play(tell, "us", "eu")
    assert before and after == [], "no lease had to run out"


@pytest.mark.parametrize("begin_s", [1.0, 0.1])
def test_metadata_whose_words_lie_unread_is_not_away(begin_s: float) -> None:
    """The process stood still, before it is told to end, or meanwhile."""
    found: list[str] = []

    async def main(sim: Simulation, group: Group) -> None:
        client, machine = group.client("c"), sim.machine("c")
        client.watch("/", lambda key, value, version: None)
        await client.synced("/")
        await asyncio.sleep(5)

        async def end() -> None:
            await asyncio.sleep(begin_s)
            async with without_absent([client], machine.clock):
                await asyncio.sleep(2)
                found.append((await client.status())["leader"])

        ending = asyncio.ensure_future(machine.ask(end, limit_s=100))
        await asyncio.sleep(0.5)
        life = machine.stop()
        assert life is not None
        await asyncio.sleep(AWAY_S * 0.9)
        sim.network.reset("c", "m0")  # so that it is heard again only by another connection
        await asyncio.sleep(AWAY_S)
        sim.loop.go_on(life)
        await ending

    simulate(main)
    assert found == ["m0"]
