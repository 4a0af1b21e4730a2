"""Policies about what is stored of cursors and of deduplication: how often, and what happens where it is too much."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from geo_tests.sim.simulation import Simulation
from heliograph.kv.in_process_store import EmbeddedStore
from heliograph.kv.metadata_store import Op, Put
from local_meta import keys
from region_node.subscriptions.consumer import SubscriptionType
from region_node.subscriptions.subscription import Rules
from storage.managed_ledger.cursors.cursor import CursorSettings
from storage.managed_ledger.log.managed_ledger import ManagedLedger
from tests.region_node.faces.pulsar.harness import TOPIC, Broker, obey, tick, with_broker
from tests.region_node.subscriptions.dispatch_world import World, run
from tests.storage.managed_ledger.world import TOPIC as STORED
from tests.storage.managed_ledger.world import Broker as Storage
from tests.storage.managed_ledger.world import Region, until


class Counting(EmbeddedStore):
    """How many writes held a cursor."""

    def __init__(self, region: Region) -> None:
        super().__init__(region.machine)
        self.cursor_writes = self.record_writes = 0

    async def txn(self, ops: Sequence[Op]) -> int:
        self.cursor_writes += any(isinstance(op, Put) and op.key.startswith(keys.cursors(STORED)) for op in ops)
        self.record_writes += any(isinstance(op, Put) and op.key == keys.managed_ledger(STORED) for op in ops)
        return await super().txn(ops)


async def with_entries(storage: Storage, count: int) -> ManagedLedger:
    ledger = await storage.open()
    storage.append(ledger, *[f"e{i}" for i in range(count)])
    await until(lambda: len(storage.done) >= count)
    return ledger


def test_cursors_are_written_no_more_often_than_the_rate_says() -> None:
    async def main() -> None:
        await region.start()
        store = Counting(region)
        storage = Storage(region, store)
        ledger = await with_entries(storage, 200)
        cursor = await ledger.open_cursor("c", (-1, -1))

        async def acks(first: int) -> int:
            before = store.cursor_writes
            for entry in range(first, first + 50):
                cursor.ack([(ledger.last_confirmed[0], entry)])
                await asyncio.sleep(0.1)
            return store.cursor_writes - before

        assert await acks(0) >= 40
        ledger.set_mark_delete_rate(0.5)
        assert 2 <= await acks(50) <= 4  # five seconds
        before = store.cursor_writes
        cursor.ack([(ledger.last_confirmed[0], 100)])
        await asyncio.wait_for(cursor.flushed(), 0.5)  # whoever waits is not kept waiting
        assert store.cursor_writes > before
        cursor.ack([(ledger.last_confirmed[0], 101)])
        before = store.cursor_writes
        ledger.set_mark_delete_rate(0)
        await asyncio.sleep(0.5)
        assert store.cursor_writes == before + 1  # what waited by the old rate
        assert await acks(102) >= 40

    with Simulation(seed="pace") as sim:
        region = Region(sim)
        sim.run(main(), limit_s=600)


def test_a_checkpoint_is_written_where_something_was_appended() -> None:
    async def main() -> None:
        await region.start()
        store = Counting(region)
        storage = Storage(region, store)
        ledger = await with_entries(storage, 5)
        await asyncio.sleep(1)
        for wanted in (1, 0):
            before = store.record_writes
            ledger.checkpoint()
            await asyncio.sleep(1)
            assert store.record_writes - before == wanted
        again = Storage(region)
        await again.open()
        assert again.state.seen == ["e0", "e1", "e2", "e3", "e4"] and again.state.replayed == 0

    with Simulation(seed="checkpoint") as sim:
        region = Region(sim)
        sim.run(main(), limit_s=600)


def test_a_cursor_says_whether_all_of_it_was_stored() -> None:
    async def main() -> None:
        await region.start()
        ledger = await with_entries(Storage(region, cursor_settings=CursorSettings(acked_bytes_max=100)), 100)
        number = ledger.last_confirmed[0]
        cursor = await ledger.open_cursor("c", (-1, -1))
        for entry in range(1, 100, 4):
            cursor.ack([(number, entry)])
        await cursor.flushed()
        assert not cursor.fits
        cursor.ack_cumulative((number, 80))
        await cursor.flushed()
        assert cursor.fits

    with Simulation(seed="fits") as sim:
        region = Region(sim)
        sim.run(main(), limit_s=600)


@pytest.mark.parametrize("kind", list(SubscriptionType), ids=lambda kind: kind.label)
def test_dispatch_pauses_while_acknowledgements_cannot_be_stored(kind: SubscriptionType) -> None:
    async def test(w: World) -> None:
        w.subscription.obey(Rules(pausing=True))
        w.append(4)
        consumer = w.join(kind, 100)
        await w.settle()
        w.cursor.fits = False
        w.append(4)
        await w.settle()
        assert sorted(w.entries(consumer)) == [0, 1, 2, 3]
        if kind in (SubscriptionType.SHARED, SubscriptionType.KEY_SHARED):
            w.subscription.redeliver(consumer, [(10, 1)])  # what is out may come again: so its gaps can close
            await w.settle()
            assert sorted(w.entries(consumer)) == [0, 1, 1, 2, 3]
        w.cursor.fits = True
        w.subscription.tick(1.0)
        await w.settle()
        assert sorted(set(w.entries(consumer))) == list(range(8))
        w.cursor.fits = False
        w.subscription.obey(Rules())
        w.append(2)
        await w.settle()
        assert sorted(set(w.entries(consumer))) == list(range(10))

    run(test)


def test_both_policies_hold_on_a_live_topic() -> None:
    async def test(broker: Broker) -> None:
        await broker.topics.get(TOPIC, create=True)
        ledger = broker.ledger()
        persistence = {
            "bookkeeperEnsemble": 2,
            "bookkeeperWriteQuorum": 2,
            "bookkeeperAckQuorum": 2,
            "managedLedgerMaxMarkDeleteRate": 3.0,
        }
        obey(
            broker,
            persistence=persistence,
            deduplication=True,
            deduplicationSnapshotInterval=5,
            dispatcherPauseOnAckStatePersistent=True,
        )
        assert ledger.mark_delete_rate == 3.0
        topic = await broker.topics.get(TOPIC, create=False)
        assert (await topic.subscription("s", initial=(-1, -1))).rules.pausing
        await tick(broker)
        await tick(broker, 4)
        assert ledger.checkpoints == 0
        await tick(broker, 1)
        await tick(broker, 100)
        assert ledger.checkpoints == 1, "nothing has happened on it since"
        topic.touch()
        await tick(broker, 1)
        await tick(broker, 4)
        assert ledger.checkpoints == 1
        await tick(broker, 1)
        assert ledger.checkpoints == 2
        obey(broker, deduplicationSnapshotInterval=5)  # nothing is deduplicated
        await tick(broker, 20)
        assert ledger.checkpoints == 2 and ledger.mark_delete_rate == 0

    with_broker(test)
