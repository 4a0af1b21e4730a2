"""An idle topic costs memory and nothing else: no task, timer, future, or open ledger, and few objects."""

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
from region_node.topics.serving.bulk_creation import create_topics
from region_node.topics.serving.topic_service import TopicService
from replicator.dedup.producer_dedup import DedupSettings
from replicator.log.topic_state import TopicState
from storage.ledger.writing.ledger_handle import LedgerHandle
from tests.region_node.topics.fake_storage import FakeLinks, FakeView
from tests.storage.managed_ledger.world import Broker, Region

COUNT = 300
OBJECTS_MAX = 40
BYTES_MAX = 3_750
"""Of them some 350 are the metadata's and the world's of this test; the others are a broker's, which is to need no more than 4 KiB a topic."""
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


def test_an_idle_topic_has_no_task_timer_future_or_open_ledger() -> None:
    async def main(sim: Simulation) -> None:
        region = Region(sim)
        await region.start()
        meta = EmbeddedStore(region.machine)
        broker = Broker(region, meta)
        await broker.pool.ready()
        view = FakeView()
        service = TopicService(
            region=lambda: INFO, factory=broker.factory, view=view, links=FakeLinks(), meta=meta, owns=lambda topic: True,
            clock=sim.clock(), rng=random.Random(1),
        )  # fmt: skip
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
        assert after.open_ledgers == before.open_ledgers, "what other tests left in this process is in both"
        more = after.objects - before.objects
        assert more.total() < OBJECTS_MAX * COUNT, more.most_common(20)
        assert after.bytes - before.bytes < BYTES_MAX * COUNT, (after.bytes - before.bytes) / COUNT
        await service.close()

    with Simulation(1) as sim:
        sim.run(main(sim), limit_s=600)


def test_topics_made_in_bulk_are_those_that_were_not_there() -> None:
    async def main(sim: Simulation) -> None:
        region = Region(sim)
        await region.start()
        meta = EmbeddedStore(region.machine)
        broker = Broker(region, meta)
        made = await broker.open(names(7, 1)[0])
        await made.close()
        metadata = await meta.range("/ml/", "/mm")
        assert await create_topics(meta, names(0, 1200), INFO, random.Random(2)) == 1199
        assert len(await broker.factory.names("public/default")) == 1200
        assert [row for row in await meta.range("/ml/", "/mm") if row in metadata] == metadata  # it was left alone
        assert await create_topics(meta, names(1000, 300), INFO, random.Random(3)) == 100
        state = TopicState(region=1, epoch=1, rng=random.Random(4), deduplication=False, settings=DedupSettings())
        opened = await broker.factory.open(names(1250, 1)[0], state, (2, 2, 2), create=False)
        assert opened.last_confirmed == (-1, -1) and state.origin[:2] == (1, 1) and state.origin[2] > 0
        await opened.close()

    with Simulation(1) as sim:
        sim.run(main(sim), limit_s=600)
