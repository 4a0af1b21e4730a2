"""Metadata with one record that cannot be read: of a later version, or damaged by a tool."""

from __future__ import annotations

import asyncio

import pytest

from geo_tests.sim.simulation import Simulation
from local_meta import keys
from storage.ledger.reading.ledger_reader import ledger_metadata
from storage.ledger.repair.autorecovery import AutoRecovery
from storage.ledger.repair.lost_bookies import AutoRecoverySettings
from storage.ledger.underreplicated_marks import Mark, mark_lacking, mark_lost
from storage.ledger.writing.ledger_creation import create_ledger
from storage.managed_ledger.retention.orphan_ledgers import OrphanCollector
from tests.storage.ledger.writers import Writer
from tests.storage.ledger.writers import scenario as with_writer
from tests.storage.managed_ledger.world import TOPIC, Broker, Region, run_of, scenario, until
from tests.storage.tiered.world import AT_ONCE, FakeStore, TierBroker, filled, settled, simulated

UNREADABLE = b"\xffno record"
QUICK = AutoRecoverySettings(lost_after_s=0.5, scan_s=2.0, check_s=2.0, rescan_s=0.5, tick_s=0.1)
OTHER = "persistent://public/default/other"


def test_ledgers_behind_an_unreadable_record_get_their_copies_again() -> None:
    """Every ledger that lacks a copy gets it again as long as there is a bookie to hold it.

    The auditor's scan would end at the record that it cannot read, each time, and mark nothing behind it. It reports
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
        assert lost not in now.fragments[0][1], f"twenty seconds later its copy is still to be on {lost}"
        assert recovery.unreadable == 1

    with_writer(work, bookies=4)


async def lost_copy(region: Region, writer: Writer) -> tuple[int, str]:
    """A closed ledger, and one of its bookies, which is gone."""
    handle = await writer.open((2, 2))
    handle.append_run(run_of("a"))
    await writer.reach(0)
    closed = await handle.close()
    lost = closed.fragments[0][1][0]
    region.bookies[lost].crash()
    await region.bookies[lost].unregister(writer.context.meta)
    return handle.ledger, lost


async def recovered(writer: Writer, seconds: float = 20.0) -> AutoRecovery:
    recovery = AutoRecovery(writer.context, "node", QUICK)
    await recovery.start()
    await asyncio.sleep(seconds)
    await recovery.stop()
    return recovery


def test_thousands_of_unreadable_records_hold_nobody_up() -> None:
    """More than a page of them, before and behind the one that lacks a copy."""

    async def work(region: Region, writer: Writer) -> None:
        meta = writer.context.meta
        ledger, lost = await lost_copy(region, writer)
        await meta.next_ids(keys.LEDGER_IDS, 3000)
        for number in range(3000):
            if number != ledger:
                await meta.put(keys.ledger(number), UNREADABLE)
        recovery = await recovered(writer, 45.0)
        assert recovery.unreadable == 2999 and recovery.check.passes > 0
        assert lost not in (await ledger_metadata(writer.context, ledger)).fragments[0][1]

    with_writer(work, bookies=4)


@pytest.mark.parametrize("before", [True, False])
def test_a_mark_that_cannot_be_read_keeps_its_ledger_from_nothing(before: bool) -> None:
    """Nobody knows what it says: it is written anew by the auditor, who finds what is lost. before: it stands when the
    broker starts; otherwise it comes to one that watches.
    """

    async def work(region: Region, writer: Writer) -> None:
        meta = writer.context.meta
        ledger, lost = await lost_copy(region, writer)
        if before:
            await meta.put(keys.underreplicated(ledger), UNREADABLE)
        recovery = AutoRecovery(writer.context, "node", QUICK)
        await recovery.start()
        if not before:
            await asyncio.sleep(0.3)
            await meta.put(keys.underreplicated(ledger), UNREADABLE)
        await asyncio.sleep(20.0)
        await recovery.stop()
        assert lost not in (await ledger_metadata(writer.context, ledger)).fragments[0][1]
        assert await meta.get(keys.underreplicated(ledger)) is None

    with_writer(work, bookies=4)


def test_what_a_writer_and_a_repair_know_is_added_to_a_mark_that_cannot_be_read() -> None:
    async def work(region: Region, writer: Writer) -> None:
        meta, key = writer.context.meta, keys.underreplicated(7)
        for said in (Mark((), {"b1": 5}), Mark(("b2",))):
            await meta.put(key, UNREADABLE)
            if said.lost:
                await mark_lost(meta, 7, said.lost)
            else:
                await mark_lacking(meta, 7, said.lacking)
            found = await meta.get(key)
            assert found is not None and Mark.decode(found[0]) == said

    with_writer(work)


def test_the_check_of_copies_goes_past_unreadable_records_and_its_own() -> None:
    async def work(region: Region, writer: Writer) -> None:
        meta = writer.context.meta
        await meta.put(keys.COPIES_CHECKED, UNREADABLE)
        broken, _ = await create_ledger(writer.context, 2, 2, 2)
        await meta.put(keys.ledger(broken.ledger), UNREADABLE)
        handle = await writer.open((2, 2))
        handle.append_run(run_of("a"))
        await writer.reach(0)
        closed = await handle.close()
        lacking = region.bookies[closed.fragments[0][1][0]]
        del lacking.ledgers[handle.ledger].blocks[0]
        recovery = await recovered(writer)
        assert recovery.check.passes > 0 and recovery.check.found > 0
        assert 0 in lacking.ledgers[handle.ledger].blocks

    with_writer(work, bookies=3)


def test_a_bookie_is_not_empty_while_a_record_that_cannot_be_read_has_its_name() -> None:
    async def work(region: Region, writer: Writer) -> None:
        meta = writer.context.meta
        made, _ = await create_ledger(writer.context, 2, 2, 2)
        named, other = made.fragments[0][1][0], next(b for b in region.bookies if b not in made.fragments[0][1])
        await meta.put(keys.ledger(made.ledger), UNREADABLE + made.encode())
        recovery = AutoRecovery(writer.context, "node", QUICK)
        await recovery.start()
        for bookie in (named, other):
            await recovery.decommission(bookie)
        await asyncio.sleep(20.0)
        left = await recovery.emptying(named)
        assert (left.ledgers_left, left.done) == (1, False)
        assert (await recovery.emptying(other)).done, "the record says nothing of that one"
        await recovery.stop()

    with_writer(work, bookies=4)


def test_orphans_beside_an_unreadable_ledger_go() -> None:
    """A ledger that no topic names goes after its grace.

    The sweep reports the record that it cannot read, leaves it where it is, and goes on.
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


def test_orphans_of_other_topics_than_an_unreadable_one_go() -> None:
    """A ledger that no topic names goes after its grace.

    The sweep reports the topic whose record it cannot read, leaves all of its ledgers, and goes on: the ledgers of
    other topics say whose they are.
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


def test_ledgers_of_a_topic_with_an_unreadable_page_stay() -> None:
    """Those that the page names, and those that it may name: all that say that they are of that topic."""

    async def work(region: Region) -> None:
        broker = Broker(region)
        context = broker.factory.context
        await broker.open()
        of_page, _ = await create_ledger(context, 2, 2, 2, topic=TOPIC, owner=1)
        orphan, _ = await create_ledger(context, 2, 2, 2, topic=OTHER, owner=1)
        await context.meta.put(keys.ledger_page(TOPIC, 0), UNREADABLE)
        collector = OrphanCollector(context, 60.0)
        assert await collector.sweep(0.0) == []
        assert await collector.sweep(100.0) == [orphan.ledger]
        await context.meta.delete(keys.ledger_page(TOPIC, 0))
        assert await collector.sweep(110.0) == [], "its grace begins with the first sweep that could read all of it"
        assert await collector.sweep(200.0) == [of_page.ledger]

    scenario(work)


def test_objects_of_other_topics_than_an_unreadable_one_go() -> None:
    """Objects of a topic that was deleted go from the store with the second sweep.

    A sweep reports the topic whose record it cannot read, leaves its objects, and goes on.
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
        assert {key for key in store.objects if "/seen/" not in key} == kept

    simulated(work)
