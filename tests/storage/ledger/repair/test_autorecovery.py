"""Bookies are lost one after another, for good or for a while: every entry keeps its copies, and nobody keeps more of
them for ever.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace

import pytest

from heliograph.kv.metadata_store import prefix_end
from heliograph.model.errors import VersionConflict
from heliograph.model.ledger_metadata import LedgerState, pack
from local_meta import keys
from region_node.metrics import autorecovery_metrics
from storage.ledger.repair.autorecovery import AutoRecovery
from storage.ledger.repair.ledger_repair import LedgerRepair
from storage.ledger.underreplicated_marks import Mark
from tests.storage.ledger.repair.lost_bookie_worlds import SETTINGS, Worlds, filled, scenario
from tests.storage.managed_ledger.world import read_all, until


def test_one_broker_looks_and_a_lost_bookies_ledgers_are_copied_after_the_delay() -> None:
    async def work(world: Worlds) -> None:
        log = await filled(world)
        await log.close()
        await asyncio.sleep(2.0)
        assert sum(part.auditor for part in world.parts) == 1
        lost = (await world.ledgers())[0].fragments[0][1][0]
        await world.lose(lost)
        await asyncio.sleep(2.5)
        assert any(lost in bookies for m in await world.ledgers() for _, bookies in m.fragments), (
            "within the delay nothing is copied"
        )
        await world.settled(20.0)
        assert not any(lost in bookies for m in await world.ledgers() for _, bookies in m.fragments)
        copied = sum(part.repair.copied_fragments for part in world.parts)
        assert copied > 0
        shown = [
            {name: value for name, _, _, value in autorecovery_metrics.samples("us", part)} for part in world.parts
        ]
        found = [
            one["auditor_NUM_UNDER_REPLICATED_LEDGERS"]
            for one in shown
            if "auditor_NUM_UNDER_REPLICATED_LEDGERS" in one
        ]
        assert found == [0], "who looks shows what the region lacks, and nobody else does"
        assert sum(one["replication_worker_NUM_FULL_OR_PARTIAL_LEDGERS_REPLICATED"] for one in shown) == copied
        assert (
            sum(one["replication_worker_rereplicate_count"] for one in shown)
            > 0
            < sum(one["replication_worker_rereplicate_sum"] for one in shown)
        )

    scenario(work)


def test_the_auditor_counts_ledgers_on_fewer_racks_than_there_are() -> None:
    async def work(world: Worlds) -> None:
        for name, bookie in world.region.bookies.items():
            await bookie.register(world.meta, rack="x" if name in ("b0", "b1") else "y")
        await (await filled(world)).close()
        await asyncio.sleep(2.0)
        (auditor,) = [part for part in world.parts if part.auditor]
        auditor._scan_at = 0.0
        await asyncio.sleep(1.0)
        assert auditor.misplaced_count == 0 and auditor.misplaced == []
        for name, bookie in world.region.bookies.items():  # they were moved
            await bookie.register(world.meta, rack="x" if name != "b3" else "y")
        auditor._scan_at = 0.0
        await asyncio.sleep(1.0)
        wrong = [m.ledger for m in await world.ledgers() if any("b3" not in ensemble for _, ensemble in m.fragments)]
        assert wrong and auditor.misplaced == wrong and auditor.misplaced_count == len(wrong)

    scenario(work)


def test_a_bookie_that_is_back_within_the_delay_costs_nothing() -> None:
    async def work(world: Worlds) -> None:
        await (await filled(world)).close()
        before = await world.ledgers()
        await asyncio.sleep(1.0)
        for _ in range(3):
            await world.lose("b0")
            await asyncio.sleep(2.0)
            await world.back("b0")
            await asyncio.sleep(2.0)
        assert await world.ledgers() == before and not any(part.repair.copied_bytes for part in world.parts)

    scenario(work)


def test_what_a_returned_bookie_holds_too_many_goes_with_its_garbage_collection() -> None:
    async def work(world: Worlds) -> None:
        await (await filled(world)).close()
        lost = (await world.ledgers())[0].fragments[0][1][0]
        await asyncio.sleep(1.0)
        await world.lose(lost)
        await asyncio.sleep(4.0)
        await world.settled()
        await world.back(lost)
        bookie = world.region.bookies[lost]
        held = [ledger for ledger, of in bookie.ledgers.items() if of.blocks]
        assert held and await world.collect_garbage(bookie) == held
        await world.settled(1.0)

    scenario(work)


def test_the_last_fragment_of_an_open_ledger_is_left_to_its_writer() -> None:
    async def work(world: Worlds) -> None:
        broker = world.broker()
        log = await broker.open(quorums=world.quorums)
        log.set_retention(-1, -1)
        broker.append(log, "a", "b")
        await until(lambda: len(broker.done) == 2)
        (before,) = await world.ledgers()
        await asyncio.sleep(1.0)
        lost, kept = before.fragments[-1][1]
        await world.lose(lost)
        await asyncio.sleep(8.0)
        broker.append(log, "c")
        await until(lambda: len(broker.done) == 3)
        await world.settled()
        (after,) = await world.ledgers()
        assert after.state == LedgerState.OPEN and after.fragments[-1][0] == 2 and lost not in after.fragments[-1][1]
        assert lost not in after.fragments[0][1] and kept in after.fragments[0][1]
        await world.lose(kept)
        broker.append(log, "d")
        await until(lambda: len(broker.done) == 4)
        await asyncio.sleep(4.0)
        await world.settled()
        assert [name for *_, name in await read_all(log)] == ["a", "b", "c", "d"]
        await log.close()

    scenario(work, bookies=5)


def test_a_bookie_is_emptied_and_gets_nothing_new() -> None:
    async def work(world: Worlds) -> None:
        broker = world.broker()
        log = await filled(world)
        await asyncio.sleep(1.0)
        chosen = (await world.ledgers())[-1].fragments[-1][1][0]
        assert not (await world.parts[1].emptying(chosen)).done
        await world.parts[1].decommission(chosen)
        while not (progress := await world.parts[0].emptying(chosen)).done:
            assert progress.ledgers_left >= progress.open_ledgers_left
            await asyncio.sleep(0.5)  # an idle open ledger leaves it too
        broker.append(log, "more", pad=50)
        await until(lambda: not log.pending_bytes)
        await world.settled()
        assert chosen not in world.broker().pool.writable()
        await world.lose(chosen)  # without waiting for anything
        assert len(await read_all(log)) == len(broker.done)
        await world.parts[0].recommission(chosen)
        await log.close()

    scenario(work)


def test_readers_find_copies_that_have_moved() -> None:
    async def work(world: Worlds) -> None:
        await (await filled(world)).close()
        log = await world.brokers[1].open()
        log.set_retention(-1, -1)
        before = await read_all(log)
        for name in (await world.ledgers())[0].fragments[0][1]:
            await world.lose(name)
            await asyncio.sleep(5.0)
            await world.settled()
        assert await read_all(log) == before

    scenario(work)


def test_ledgers_that_wait_for_a_spare_hold_up_no_other_work_of_the_auditor() -> None:
    """No scan came to its end then, and no copy was asked for."""

    async def work(world: Worlds) -> None:
        calls: list[float] = []

        async def also(now: float) -> None:
            calls.append(now)

        log = await filled(world, 12)
        for number in range(36):
            world.broker().append(log, f"more{number}", pad=50)
            await until(lambda: not log.pending_bytes)
        await log.close()
        assert len(await world.ledgers()) > 3
        await asyncio.sleep(2.0)
        (auditor,) = [part for part in world.parts if part.auditor]
        auditor._also = also
        await world.lose("b0")
        await until(lambda: auditor.repairs == 2)
        calls.clear()
        scans, checked = auditor.scans, auditor.check.checked
        await asyncio.sleep(60.0)
        assert auditor.repairs == 2 and auditor.scans - scans > 50
        assert 2 <= len(calls) <= 3, "most scans end where they may mark nothing more"
        assert auditor.check.checked > checked and auditor._ledgers == len(await world.ledgers())

    scenario(work, bookies=2, settings=replace(SETTINGS, marks_max=2, check_s=10.0))


def slow_repair(world: Worlds) -> LedgerRepair:
    """So slow that a test can do something in the middle of a copy."""
    return LedgerRepair(world.broker().factory.context, 500)


async def marked(world: Worlds, ledger: int, lost: list[str]) -> int:
    return await world.meta.put(keys.underreplicated(ledger), pack([lost]))


def test_a_bookie_that_is_back_is_not_replaced_any_more() -> None:
    async def work(world: Worlds) -> None:
        for part in world.parts:
            await part.stop()
        await (await filled(world, 12)).close()
        (before,) = await world.ledgers()
        lost = list(before.fragments[0][1])
        await world.lose(lost[0])
        mark = await marked(world, before.ledger, lost)  # the other one has come back before the worker looked
        await slow_repair(world).run(before.ledger, mark, Mark(lost))
        ((_, bookies),) = (await world.ledgers())[0].fragments
        assert lost[0] not in bookies and lost[1] in bookies
        assert not await world.meta.range(keys.UNDERREPLICATED, prefix_end(keys.UNDERREPLICATED))

    scenario(work)


def test_the_record_of_a_copy_keeps_what_the_writer_has_recorded_meanwhile() -> None:
    async def work(world: Worlds) -> None:
        for part in world.parts:
            await part.stop()
        broker = world.broker()
        log = await broker.open(quorums=world.quorums)
        for number in range(5):
            broker.append(log, f"n{number}", pad=200)
        await until(lambda: len(broker.done) == 5)
        (first,) = await world.ledgers()
        lost, kept = first.fragments[0][1]
        await world.lose(lost)
        broker.append(log, "second")
        await until(lambda: len(broker.done) == 6)
        mark = await marked(world, first.ledger, [lost])
        repair = asyncio.ensure_future(slow_repair(world).run(first.ledger, mark, Mark([lost])))
        await asyncio.sleep(0.5)
        (second,) = await world.ledgers()
        await world.lose(next(b for b in second.fragments[1][1] if b != kept))
        broker.append(log, "third")
        await until(lambda: len(broker.done) == 7)
        assert not repair.done()
        await repair
        (after,) = await world.ledgers()
        assert [start for start, _ in after.fragments] == [0, 5, 6] and lost not in after.fragments[0][1]

    scenario(work, bookies=6, seed=3)  # of which the copy goes to another bookie than the one that is lost


def test_many_small_runs_wait_for_one_fsync_together() -> None:
    """Else a ledger of small runs takes as long as so many fsyncs, and a new life is not whole for hours."""

    async def work(world: Worlds) -> None:
        for part in world.parts:
            await part.stop()
        await (await filled(world, 400)).close()
        ledgers = await world.ledgers()
        lost = ledgers[0].fragments[0][1][0]
        await world.lose(lost)
        loop, repair = asyncio.get_running_loop(), LedgerRepair(world.broker().factory.context, 1 << 30)
        began = loop.time()
        for metadata in ledgers:
            await repair.run(metadata.ledger, await marked(world, metadata.ledger, [lost]), Mark([lost]))
        assert loop.time() - began < 0.5, "of virtual time: one behind the other they take a second"
        assert repair.copied_fragments == len(ledgers) == 1

    scenario(work)


def test_a_mark_that_has_changed_ends_the_repair() -> None:
    async def work(world: Worlds) -> None:
        for part in world.parts:
            await part.stop()
        await (await filled(world, 12)).close()
        (before,) = await world.ledgers()
        lost = before.fragments[0][1][0]
        await world.lose(lost)
        repair = asyncio.ensure_future(
            slow_repair(world).run(before.ledger, await marked(world, before.ledger, [lost]), Mark([lost]))
        )
        await asyncio.sleep(0.2)
        await marked(world, before.ledger, [lost])
        with pytest.raises(VersionConflict):
            await repair
        assert await world.ledgers() == [before]

    scenario(work)


def test_an_entry_that_cannot_be_read_is_asked_for_again_and_the_others_are_copied_once() -> None:
    async def work(world: Worlds) -> None:
        log = await world.broker().open(quorums=world.quorums)
        log.set_retention(-1, -1)
        for number in range(40):
            world.broker().append(log, f"n{number}", pad=50)
            await asyncio.sleep(0.05)
        await until(lambda: len(world.broker().done) == 40)
        await log.close()
        damaged = (await world.ledgers())[0]
        lost, left = damaged.fragments[0][1]
        del world.region.bookies[left].ledgers[damaged.ledger].blocks[5]
        await world.lose(lost)
        await asyncio.sleep(120.0)
        found = {m.ledger: m for m in await world.ledgers()}
        assert not [m for m in found.values() if m.ledger != damaged.ledger and lost in m.fragments[0][1]]
        (there,) = [part for part in found[damaged.ledger].fragments if lost in part[1]]
        assert there[0] == 5 and found[damaged.ledger].write_set(6).count(lost) == 0, "it alone may have that entry"
        world.broken = [text for text in world.broken if f"{left} is named for entry 5," not in text]
        size = sum(len(block) for _, block in world.region.bookies[left].ledgers[damaged.ledger].blocks.values())
        others = sum(info.size_bytes for info in log.ledgers_from(0) if info.ledger != damaged.ledger)
        assert sum(part.repair.copied_bytes for part in world.parts) < 2 * others + 8 * size

    scenario(work)


@pytest.mark.parametrize("seed", range(12))
def test_bookies_lost_one_after_another_never_cost_an_entry(seed: int) -> None:
    async def work(world: Worlds) -> None:
        rng = random.Random(seed)
        broker = world.broker()
        log = await broker.open(quorums=world.quorums)
        log.set_retention(-1, -1)
        stopped = False

        async def write() -> None:
            number = 0
            while not stopped:
                broker.append(log, f"n{number}", pad=rng.choice((10, 200)))
                number += 1
                await asyncio.sleep(rng.choice((0.01, 0.1, 0.5)))

        writing = asyncio.ensure_future(write())
        for _ in range(6):
            await asyncio.sleep(rng.uniform(0.5, 3.0))
            victim = rng.choice([name for name, bookie in world.region.bookies.items() if bookie.alive])
            await world.lose(victim)
            if rng.random() < 0.3:
                await asyncio.sleep(rng.uniform(0.0, 2.0))  # a restart
                await world.back(victim)
            elif rng.random() < 0.3:
                leader = next((part for part in world.parts if part.auditor), None)
                if leader is not None:
                    await leader.stop()  # the auditor goes in the middle
                    await asyncio.sleep(rng.uniform(0.0, 4.0))
                    again = AutoRecovery(leader._context, f"again-{rng.getrandbits(30)}", SETTINGS)
                    world.parts[world.parts.index(leader)] = again
                    await again.start()
            await asyncio.sleep(rng.uniform(3.0, 5.0))
            broker.append(log, "to-be-sure-that-the-writer-has-left-it")
            await asyncio.sleep(1.5)
            await world.settled()
            for name, bookie in world.region.bookies.items():
                if not bookie.alive and rng.random() < 0.7:
                    await world.back(name)
                elif bookie.alive:
                    await world.collect_garbage(bookie)
        stopped = True
        await writing
        await until(lambda: len(broker.done) + len(broker.failed) >= 10 and not log.pending_bytes)
        assert await read_all(log) == broker.done and not broker.failed
        await log.close()
        await asyncio.sleep(8.0)
        await world.settled()
        for name, bookie in world.region.bookies.items():
            if not bookie.alive:
                await world.back(name)
        await asyncio.sleep(5.0)
        for bookie in world.region.bookies.values():
            await world.collect_garbage(bookie)
        for metadata in await world.ledgers():
            for entry in range(metadata.last_entry + 1):
                held = [
                    n
                    for n, b in world.region.bookies.items()
                    if b.holds(metadata.ledger) and entry in b.ledgers[metadata.ledger].blocks
                ]
                named = {name for _, bookies in metadata.fragments for name in bookies}
                assert set(metadata.write_set(entry)) <= set(held) <= named, f"{metadata.ledger}:{entry} lies on {held}"

    scenario(work, bookies=5 + seed % 2, seed=seed, quorums=((2, 2, 2), (3, 2, 2))[seed % 2])
