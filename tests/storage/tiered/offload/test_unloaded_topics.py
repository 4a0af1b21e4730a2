"""Offloading topics that nobody has loaded: found by a bounded walk, moved by their owner alone, and given back."""

from __future__ import annotations

import asyncio

from geo_tests.sim.simulation import Simulation
from heliograph.model.errors import NotFound
from storage.managed_ledger.log.managed_ledger import ManagedLedger
from storage.tiered.offload.offload_plan import OffloadPolicy
from storage.tiered.offload.offloader import Tiering
from storage.tiered.offload.unloaded_topics import BORROWED_MAX, TopicSweep
from tests.storage.managed_ledger.world import Names, Region, read_all
from tests.storage.tiered.world import AT_ONCE, OFF, FakeStore, TierBroker, simulated, until

PREFIX = "persistent://public/default/"


class Shelf:
    """Loads topics of one broker, and notes how many are out at once."""

    def __init__(self, broker: TierBroker, refuses: str = "") -> None:
        self.broker, self.refuses = broker, refuses
        self.out: dict[str, ManagedLedger] = {}
        self.most, self.loads, self.asked = 0, list[str](), list[str]()

    def lends(self, topic: str) -> bool:
        self.asked.append(topic)
        return topic not in self.out and topic != PREFIX + "not-mine"

    async def load(self, topic: str) -> bool:
        if topic == self.refuses:
            raise NotFound("deleted a moment ago")
        self.out[topic] = await self.broker.factory.open(topic, Names(), (2, 2, 2), create=False)
        self.loads.append(topic)
        self.most = max(self.most, len(self.out))
        return True

    async def give_back(self, topic: str) -> None:
        await self.out.pop(topic).close()


async def written(region: Region, store: FakeStore, count: int) -> None:
    """Topics with one closed ledger each, and nobody who has them loaded."""
    writer = TierBroker(region, store)
    await writer.pool.ready()
    for number in range(count):
        name = "not-mine" if number == 1 else f"t{number:03}"
        ledger = await writer.factory.open(PREFIX + name, Names(), (2, 2, 2), create=True)
        writer.append(ledger, f"{name}-a", f"{name}-b")
        await ledger.close()


def swept(broker: TierBroker, shelf: Shelf, topics_a_step: int) -> TopicSweep:
    tiering: Tiering = broker.tiering
    tiering.sweep = TopicSweep(
        broker.factory.context.meta, shelf, tiering.due, tiering._running.__contains__, topics_a_step
    )
    return tiering.sweep


def test_topics_that_nobody_has_loaded_are_offloaded_and_given_back() -> None:
    async def work(sim: Simulation, region: Region) -> None:
        store = FakeStore({})
        count = 3 * BORROWED_MAX
        await written(region, store, count)
        broker = TierBroker(region, store, AT_ONCE)
        await broker.pool.ready()
        shelf = Shelf(broker, refuses=PREFIX + "t007")
        sweep = swept(broker, shelf, topics_a_step=20)
        await broker.tiering.start()
        await until(lambda: sweep.passes >= 3 and not shelf.out, limit_s=600)
        assert sorted(shelf.loads) == sorted(
            PREFIX + f"t{number:03}" for number in range(count) if number not in (1, 7)
        ), "each once: then nothing is due"
        assert shelf.most <= BORROWED_MAX and not broker.factory.opened
        for name in ("t000", "t047"):
            ledger = await broker.factory.open(PREFIX + name, Names(), (2, 2, 2), create=False)
            info = ledger.ledgers()[0]
            assert info.offload is not None and info.offload.state.name == "LOCAL_GONE"
            assert [found for *_, found in await read_all(ledger)] == [f"{name}-a", f"{name}-b"]
            await ledger.close()
        await broker.tiering.stop()

    simulated(work)


def test_a_step_looks_at_a_bounded_number_of_topics_and_loads_none_that_has_nothing_due() -> None:
    async def work(sim: Simulation, region: Region) -> None:
        store = FakeStore({})
        await written(region, store, 30)
        for policy in (OFF, OffloadPolicy(threshold_s=10**6)):
            broker = TierBroker(region, store, policy)
            await broker.pool.ready()
            shelf = Shelf(broker)
            sweep = swept(broker, shelf, topics_a_step=12)
            seen = []
            for _ in range(4):
                before = len(shelf.asked)
                await sweep.step()
                seen.append(len(shelf.asked) - before)
            assert seen == [12, 12, 6, 12] and sweep.passes == 1 and not shelf.loads
            await asyncio.sleep(0)

    simulated(work)
