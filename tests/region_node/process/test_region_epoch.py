"""A broker serves topics only under an epoch that stands for its metadata, and ends where that was replaced under
it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from global_config import keys as config_keys
from global_config.admin import ConfigAdmin
from global_config.view import ConfigView
from heliograph.kv.in_process_store import EmbeddedStore
from heliograph.model.configuration.configuration_records import RegionInfo
from heliograph.model.errors import ConfigError, MetadataUnavailable
from local_meta import keys
from region_node.process.region_epoch import RegionEpoch


class World:
    """One region's metadata, as EmbeddedStores, and the configuration that outlives it."""

    def __init__(self) -> None:
        self.config = EmbeddedStore()
        self.admin = ConfigAdmin(self.config)

    async def begin(self) -> None:
        self.seen = ConfigView(self.config)
        await self.seen.ready()

    async def broker(self, meta: EmbeddedStore, seed: int = 1) -> RegionEpoch:
        put_back = asyncio.get_running_loop().create_future()
        made = RegionEpoch("us", meta, self.seen, self.admin, random.Random(seed), put_back)
        await made.start()
        return made


async def until(true: Callable[[], bool]) -> None:
    for _ in range(500):
        if true():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it did not come true within 5 s")


def answers(broker: RegionEpoch) -> bool:
    try:
        broker.info()
    except MetadataUnavailable:
        return False
    return True


def run(main: Callable[[World], object]) -> None:
    async def body() -> None:
        world = World()
        await world.begin()
        await main(world)  # type: ignore[misc]

    asyncio.run(body())


def test_the_epoch_rises_with_another_metadata_and_only_then() -> None:
    async def main(world: World) -> None:
        first = EmbeddedStore()
        early = await world.broker(first)
        with pytest.raises(MetadataUnavailable, match="create it as a cluster"):
            early.info()
        await world.admin.create_region("us")
        await until(
            lambda: getattr(world.seen.region("us"), "metadata_instance", "") != ""
        )  # though no topic asked for it
        assert early.info().epoch == 1
        again = await world.broker(first, 2)
        assert again.info().epoch == 1
        instances = {early.info().metadata_instance}
        for epoch in (2, 3):
            broker = await world.broker(EmbeddedStore(), epoch)
            with pytest.raises(MetadataUnavailable, match="restored or rebuilt"):
                broker.info()
            await until(lambda broker=broker: answers(broker))  # type: ignore[misc]
            assert broker.info().epoch == epoch
            instances.add(broker.info().metadata_instance)
        assert len(instances) == 3
        with pytest.raises(MetadataUnavailable):
            early.info()
        with pytest.raises(
            ConfigError, match="begins anew"
        ):  # though its own metadata is as it was: another one holds the region
            async with asyncio.timeout(5):
                await early.replaced()
        await asyncio.sleep(0.1)
        assert world.seen.region("us").epoch == 3  # type: ignore[union-attr]

    run(main)


def test_what_others_write_about_a_region_leaves_its_metadata_alone() -> None:
    async def main(world: World) -> None:
        broker = await world.broker(EmbeddedStore())
        made = await world.admin.create_region("us")
        await until(lambda: answers(broker) and broker.info().metadata_instance != "")
        known = broker.info().metadata_instance
        ensured = await world.admin.ensure_region(RegionInfo(name="us", number=made.number, service_url="pulsar://x"))
        updated = await world.admin.update_region("us", lambda old: replace(old, service_url="pulsar://y"))
        assert ensured.metadata_instance == updated.metadata_instance == known
        await until(lambda: world.seen.region("us").service_url == "pulsar://y")  # type: ignore[union-attr]
        assert broker.info().epoch == 1

    run(main)


def test_a_broker_whose_metadata_was_replaced_ends_and_raises_nothing() -> None:
    """It is still there, connected to the restored metadata, and must not raise the epoch again for the old one."""

    async def main(world: World) -> None:
        meta = EmbeddedStore()
        old = await world.broker(meta)
        await world.admin.create_region("us")
        await until(lambda: answers(old) and old.info().metadata_instance != "")
        await meta.put(keys.INSTANCE, b"restored")
        new = await world.broker(meta, 2)
        await until(lambda: answers(new))
        assert new.info().epoch == 2
        assert not answers(old)
        with pytest.raises(ConfigError, match="begins anew"):
            async with asyncio.timeout(5):
                await old.replaced()
        await old._agree()
        await asyncio.sleep(0)
        assert new.info().epoch == 2 and answers(new)

    run(main)


def test_a_region_that_is_made_again_in_a_restored_configuration_goes_on_with_its_metadata() -> None:
    """The backup was older than the region: what is made again stands for no metadata yet."""

    async def main(world: World) -> None:
        await world.admin.create_region("us", number=3)
        broker = await world.broker(EmbeddedStore())
        await until(lambda: answers(broker) and broker.info().metadata_instance != "")
        for key in (config_keys.region_number(3), config_keys.region("us")):
            await world.config.delete(key)
        await until(lambda: not answers(broker))
        await world.admin.create_region("us", number=3)
        await until(lambda: answers(broker) and broker.info().metadata_instance != "")
        assert (broker.info().number, broker.info().epoch) == (3, 1)
        waiting = asyncio.ensure_future(broker.replaced())
        await asyncio.sleep(0)
        assert not waiting.done(), "its metadata is the one that it was"
        waiting.cancel()
        await broker.stop()

    run(main)
