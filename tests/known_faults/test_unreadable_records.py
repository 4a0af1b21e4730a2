"""Metadata with one record that cannot be read: of a later version, or damaged by a tool."""

from __future__ import annotations

import asyncio

import pytest

from geo_tests.sim.simulation import Simulation
from heliograph.model.errors import CorruptData
from local_meta import keys
from storage.ledger.reading.ledger_reader import ledger_metadata
from storage.ledger.repair.autorecovery import AutoRecovery
from storage.ledger.repair.lost_bookies import AutoRecoverySettings
from storage.ledger.writing.ledger_creation import create_ledger
from storage.managed_ledger.retention.orphan_ledgers import OrphanCollector
from tests.known_faults.storage_worlds import Broken, promised
from tests.storage.ledger.writers import Writer
from tests.storage.ledger.writers import scenario as with_writer
from tests.storage.managed_ledger.world import TOPIC, Broker, Region, run_of, scenario, until
from tests.storage.tiered.world import AT_ONCE, FakeStore, TierBroker, filled, settled, simulated

UNREADABLE = b"\xffno record"
QUICK = AutoRecoverySettings(lost_after_s=0.5, scan_s=2.0, check_s=2.0, rescan_s=0.5, tick_s=0.1)
OTHER = "persistent://public/default/other"


@pytest.mark.xfail(
    strict=True,
    raises=Broken,
    reason="one ledger record that cannot be read keeps all others of the region from being repaired",
)
def test_ledgers_behind_an_unreadable_record_get_their_copies_again() -> None:
    """Every ledger that lacks a copy gets it again as long as there is a bookie to hold it.

    The auditor's scan ends at the record that it cannot read, each time, and marks nothing behind it. Right: it reports
    that one, and goes on.
    """

    async def work(region: Region, writer: Writer) -> None:
        broken, _ = await create_ledger(writer.context, 2, 2, 2)
        await writer.context.meta.put(keys.ledger(broken.ledger), UNREADABLE)
        handle = await writer.open((2, 2))
        handle.append_run(run_of("a"))
        await writer.reach(0)
        closed = await handle.close()
        lost = closed.fragments[0][1][0]
        recovery = AutoRecovery(writer.context, "node", QUICK)
        await recovery.start()
        await asyncio.sleep(2.0)
        region.bookies[lost].crash()
        await region.bookies[lost].unregister(writer.context.meta)
        await asyncio.sleep(20.0)
        await recovery.stop()
        now = await ledger_metadata(writer.context, handle.ledger)
        promised(lost not in now.fragments[0][1], f"twenty seconds later its copy is still to be on {lost}")

    with_writer(work, bookies=4)


@pytest.mark.xfail(
    strict=True,
    raises=CorruptData,
    reason="one ledger record that cannot be read keeps all orphans of the region",
)
def test_orphans_beside_an_unreadable_ledger_go() -> None:
    """A ledger that no topic names goes after its grace.

    The sweep ends at the record that it cannot read, each time. Right: it reports that one, leaves it where it is, and
    goes on.
    """

    async def work(region: Region) -> None:
        broker = Broker(region)
        context = broker.factory.context
        await broker.open()
        broken, _ = await create_ledger(context, 2, 2, 2, topic=OTHER, owner=1)
        orphan, _ = await create_ledger(context, 2, 2, 2, topic=OTHER, owner=1)
        await context.meta.put(keys.ledger(broken.ledger), UNREADABLE)
        collector = OrphanCollector(context, 60.0)
        assert await collector.sweep(0.0) == []
        assert await collector.sweep(100.0) == [orphan.ledger]
        assert await context.meta.get(keys.ledger(broken.ledger)) is not None

    scenario(work)


@pytest.mark.xfail(
    strict=True,
    raises=CorruptData,
    reason="one topic record that cannot be read keeps all orphans of the region",
)
def test_orphans_of_other_topics_than_an_unreadable_one_go() -> None:
    """A ledger that no topic names goes after its grace.

    The sweep ends at the topic whose record it cannot read, each time. Right: it reports that topic, leaves all of its
    ledgers, and goes on: the ledgers of other topics say whose they are.
    """

    async def work(region: Region) -> None:
        broker = Broker(region)
        context = broker.factory.context
        log = await broker.open()
        broker.append(log, "a")
        await until(lambda: len(broker.done) == 1)
        kept = log.ledgers()[-1].ledger
        orphan, _ = await create_ledger(context, 2, 2, 2, topic=OTHER, owner=1)
        await context.meta.put(keys.managed_ledger(TOPIC), UNREADABLE)
        collector = OrphanCollector(context, 60.0)
        assert await collector.sweep(0.0) == []
        assert await collector.sweep(100.0) == [orphan.ledger]
        assert await context.meta.get(keys.ledger(kept)) is not None

    scenario(work)


@pytest.mark.xfail(
    strict=True,
    raises=CorruptData,
    reason="one topic record that cannot be read keeps all garbage of the region in the object store",
)
def test_objects_of_other_topics_than_an_unreadable_one_go() -> None:
    """Objects of a topic that was deleted go from the store with the second sweep.

    A sweep ends at the topic whose record it cannot read, each time. Right: it reports that topic, leaves its objects,
    and goes on.
    """

    async def work(sim: Simulation, region: Region) -> None:
        store = FakeStore({})
        broker = TierBroker(region, store, AT_ONCE)
        await broker.tiering.start()
        collector = broker.tiering.collector
        assert collector is not None
        ledger = await filled(broker, 25)
        await settled(broker, ledger)
        kept = set(store.objects)
        assert kept, "nothing was moved: the case is none"
        store.objects |= {key.replace("/t/", "/deleted/"): blob for key, blob in store.objects.items()}
        assert len(store.objects) == 2 * len(kept)
        await ledger.close()
        await broker.meta.put(keys.managed_ledger(TOPIC), UNREADABLE)
        for _ in range(2):
            await collector.sweep()
        assert set(store.objects) == kept

    simulated(work)
