"""What loaded idle topics cost a broker, measured in a process of its own: `python -m
tests.region_node.topics.serving.idle_topics`.

What other tests left in a process grows by leaps of its tables, which are no topic's.
"""

from __future__ import annotations

import asyncio
import gc
import random
import tracemalloc
from collections import Counter
from typing import Any

from geo_tests.sim.simulation import Simulation
from heliograph.kv.in_process_store import EmbeddedStore
from heliograph.model.configuration.configuration_records import RegionInfo
from region_node.schemas.schema_registry import SchemaRegistry
from region_node.topics.policies.policy_book import PolicyBook
from region_node.topics.serving.bulk_creation import create_topics
from region_node.topics.serving.loaded_topics import Loaded, TopicsHere
from region_node.topics.serving.topic_service import OwnBundles, TopicService
from storage.ledger.writing.ledger_handle import LedgerHandle
from tests.region_node.topics.fake_storage import FakeRegion, FakeView, NotedLinks
from tests.storage.managed_ledger.world import Broker, Region

COUNT = 300
OBJECTS_MAX = 40
BYTES_MAX = 3_750
"""Of them some 350 are the metadata's and the world's of this measure; the others are a broker's, which is to need no
more than 4 KiB a topic.
"""
INFO = RegionInfo(name="us", number=1)


class _Counted:
    """What this process has, before and after."""

    def __init__(self, loop: Any) -> None:
        gc.collect()
        things = gc.get_objects()
        self.tasks = len(asyncio.all_tasks())
        self.futures = sum(isinstance(thing, asyncio.Future) for thing in things)
        self.timers = sum(isinstance(thing, asyncio.TimerHandle) and not thing.cancelled() for thing in things)
        self.open_ledgers = sum(isinstance(thing, LedgerHandle) for thing in things)
        self.objects = Counter(type(thing).__name__ for thing in things if type(thing) is not tuple)
        del things  # as large as what other tests left in this process, and larger by leaps
        self.bytes = tracemalloc.get_traced_memory()[0]


def names(first: int, count: int) -> list[str]:
    return [f"persistent://public/default/orders-{number:06d}" for number in range(first, first + count)]


def measure() -> None:
    async def main(sim: Simulation) -> None:
        region = Region(sim)
        await region.start()
        meta = EmbeddedStore(region.machine)
        broker = Broker(region, meta)
        await broker.pool.ready()
        view = FakeView()
        service = TopicService(
            region=FakeRegion(INFO),
            factory=broker.factory,
            links=NotedLinks(),
            meta=meta,
            schemas=SchemaRegistry(meta, lambda: 1, sim.clock()),
            here=TopicsHere(Loaded(), PolicyBook(meta, view, {}), view),
            bundles=OwnBundles(owns=lambda topic: True),
            clock=sim.clock(),
            rng=random.Random(1),
        )
        assert await create_topics(meta, names(0, COUNT + 10), INFO, random.Random(2)) == COUNT + 10
        for name in names(COUNT, 10):  # what is made once for all
            await service.get(name, create=False)
        await asyncio.sleep(5)
        tracemalloc.start()
        try:
            before = _Counted(sim.loop)
            for name in names(0, COUNT):
                await service.get(name, create=False)
            await asyncio.sleep(5)  # whatever loading left behind has come to its end
            after = _Counted(sim.loop)
        finally:
            tracemalloc.stop()
        assert after.tasks == before.tasks and after.futures == before.futures and after.timers == before.timers
        assert after.open_ledgers == before.open_ledgers
        more = after.objects - before.objects
        assert more.total() < OBJECTS_MAX * COUNT, more.most_common(20)
        assert after.bytes - before.bytes < BYTES_MAX * COUNT, (after.bytes - before.bytes) / COUNT
        await service.close()

    with Simulation(1) as sim:
        sim.run(main(sim), limit_s=600)


if __name__ == "__main__":
    measure()
