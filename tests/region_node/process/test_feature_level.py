"""A region's feature level rises once all its brokers, bookies, and metadata nodes speak it, never falls, and is
refused by whoever is too old for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from functools import partial
from typing import Any

import msgpack
import pytest

from global_config.admin import ConfigAdmin
from global_config.view import ConfigView
from heliograph.kv.in_process_store import EmbeddedStore
from heliograph.model.configuration.configuration_records import RegionInfo
from heliograph.model.errors import ConfigError, NotAllowed
from heliograph.model.feature_levels import AUTHENTICATED_SEALS, LEVEL, SEALED_RUNS, SPLIT_BUNDLES
from local_meta import keys
from region_node.placement.ownership.broker_records import BrokerRecord
from region_node.process.feature_level import RegionLevel


class World:
    """A region whose brokers and bookies speak what a test says."""

    def __init__(self) -> None:
        self.meta, config = EmbeddedStore(), EmbeddedStore()
        self.admin, self.view = ConfigAdmin(config), ConfigView(config)
        self.brokers: list[BrokerRecord] = []
        self.metadata = {"m0": LEVEL}

    async def begin(self) -> RegionLevel:
        await self.view.ready()
        await self.admin.ensure_region(RegionInfo(name="us", number=1))
        return RegionLevel("us", self.meta, self.view, self.admin, lambda: self.brokers, self.ask)

    async def ask(self) -> dict[str, int]:
        return self.metadata

    async def stored(self) -> int:
        for _ in range(5):
            await asyncio.sleep(0)
        found = self.view.region("us")
        assert found is not None
        return found.feature_level


def run(body: Coroutine[Any, Any, None]) -> None:
    asyncio.run(body)


def test_it_rises_once_the_last_older_process_is_gone() -> None:
    async def main() -> None:
        world = World()
        level = await world.begin()
        await level.upkeep()
        assert await world.stored() == 1, "nobody is there: nobody speaks anything"
        world.brokers = [BrokerRecord("b0"), BrokerRecord("b1", level=1)]
        await world.meta.put(keys.bookie("k0"), msgpack.packb({"host": "h"}))
        await level.upkeep()
        assert await world.stored() == 1
        with pytest.raises(NotAllowed, match="b1, k0 run an older version"):
            await level.reach(SPLIT_BUNDLES, "splitting a bundle")
        world.brokers[1] = BrokerRecord("b1")
        await level.upkeep()
        assert await world.stored() == 1 and level.spoken() == {"b0": LEVEL, "b1": LEVEL, "k0": 1}
        await world.meta.put(keys.bookie("k0"), msgpack.packb({"host": "h", "level": LEVEL}))
        await world.stored()
        await level.reach(SPLIT_BUNDLES, "splitting a bundle")
        assert await world.stored() == SPLIT_BUNDLES, "no higher than what is wanted"
        await level.upkeep()
        assert await world.stored() == LEVEL
        world.brokers.append(BrokerRecord("b2", level=1))
        await level.upkeep()
        await world.admin.ensure_region(RegionInfo(name="us", number=1, service_url="pulsar://x:1"))
        assert await world.stored() == LEVEL, "also where an instance is started anew, and says nothing of it"
        level.check_own()

    run(main())


def test_a_metadata_node_of_an_older_version_holds_the_level_down() -> None:
    async def main() -> None:
        world = World()
        level = await world.begin()
        world.brokers = [BrokerRecord("b0")]
        world.metadata |= {"m1": SPLIT_BUNDLES - 1}
        await level.upkeep()
        assert await world.stored() == 1
        with pytest.raises(NotAllowed, match="m1 run an older version"):
            await level.reach(SPLIT_BUNDLES, "splitting a bundle")
        world.metadata["m1"] = SPLIT_BUNDLES
        await level.upkeep()
        assert await world.stored() == SPLIT_BUNDLES, "as far as the oldest of them"
        world.metadata["m1"] = LEVEL
        await level.upkeep()
        assert await world.stored() == LEVEL

    run(main())


def test_the_newest_form_is_reached_where_everybody_speaks_it_and_an_older_one_else() -> None:
    async def main() -> None:
        world = World()
        level = await world.begin()
        world.brokers = [BrokerRecord("b0"), BrokerRecord("b1", level=1)]
        paused = False
        reach = partial(level.reach_if_spoken, AUTHENTICATED_SEALS, SEALED_RUNS, "encryption at rest", lambda: paused)
        with pytest.raises(NotAllowed, match=f"wants feature level {SEALED_RUNS} of region us, but b1 run an older"):
            await reach()
        for spoken, reached in (
            (SEALED_RUNS, SEALED_RUNS),
            (AUTHENTICATED_SEALS - 1, SEALED_RUNS),
        ):
            world.brokers[1] = BrokerRecord("b1", level=spoken)
            await reach()
            assert await world.stored() == reached
        world.brokers.pop()
        for paused, reached in ((True, SEALED_RUNS), (False, AUTHENTICATED_SEALS)):  # noqa: B007
            await reach()
            assert await world.stored() == reached, "who is upgraded next is away while it is paused"

    run(main())


def test_a_process_that_is_too_old_for_its_region_says_what_to_do() -> None:
    async def main() -> None:
        world = World()
        level = await world.begin()
        await world.admin.raise_level("us", LEVEL + 1)
        await world.stored()
        with pytest.raises(
            ConfigError,
            match=f"is at feature level {LEVEL + 1}, and this version speaks {LEVEL}: start the newer version",
        ):
            level.check_own()

    run(main())


def test_a_record_of_an_earlier_version_speaks_the_first_level() -> None:
    fields = msgpack.unpackb(BrokerRecord("b").encode())
    assert fields.pop("level") == LEVEL
    assert BrokerRecord.decode("b", msgpack.packb(fields)).level == 1


def test_a_broker_that_was_away_when_the_level_rose_above_it_serves_no_longer() -> None:
    async def main() -> None:
        world = World()
        level = await world.begin()
        ending = asyncio.ensure_future(level.outgrown())
        await world.admin.raise_level("us", LEVEL)
        await world.stored()
        assert not ending.done()
        await world.admin.raise_level("us", LEVEL + 1)
        await world.stored()
        with pytest.raises(ConfigError, match="start the newer version here"):
            await ending

    run(main())
