"""A ledger written anew under another data key: readers, repairs, uploads, trims, and a crash at each step."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import nullcontext
from copy import copy
from dataclasses import replace

import pytest

from heliograph.kv.in_process_store import EmbeddedStore
from heliograph.kv.metadata_store import Op
from heliograph.model.errors import BookieUnavailable, CorruptData, HeliographError
from heliograph.model.ledger_metadata import LedgerMetadata, OffloadRecord, local_gone
from heliograph.runtime.throttle import Throttle
from heliograph.wire.run import Run
from local_meta import keys
from storage.ledger.ledger_context import LedgerContext
from storage.ledger.reading.ledger_reader import ledger_metadata
from storage.ledger.underreplicated_marks import Mark
from storage.managed_ledger.log import shadow_ledger
from storage.managed_ledger.resealing.ledger_resealing import Stage
from storage.managed_ledger.retention.orphan_ledgers import OrphanCollector
from storage.sealing.cipher import BYTES_ALONE, WITH_HEADER
from storage.tiered.offload.ledger_upload import upload
from storage.tiered.offload.offload_plan import OffloadPolicy
from tests.storage.managed_ledger.resealing.world import ROLLING, World, run
from tests.storage.managed_ledger.world import TOPIC, Broker, Names, Region, read_all, run_of
from tests.storage.sealing.world import Config, leaks
from tests.storage.tiered.world import AT_ONCE, SETTINGS, FakeStore, TierBroker, settled, until


def test_what_an_older_key_sealed_is_gone_and_every_position_is_what_it_was() -> None:
    async def work(region: Region, config: Config) -> None:
        world = await World.make(region, config)
        old, new = (key.number for key in world.sealing.listing()["public"])
        named, began = [info.ledger for info in world.infos], await world.records()
        await world.all_anew()
        assert world.keys_held() == {new} and not leaks(region, "secret")
        assert await read_all(world.ledger) == world.before, "a reader that knew where they lay"
        assert not await world.records() & set(named) and len(await world.records()) == len(began)
        world.broker.factory.abandon()
        await world.sealing.remove("public", old)
        other = Broker(region, settings=ROLLING, sealing=await config.sealing(region))
        again = await other.open()
        assert await read_all(again) == world.before and [info.ledger for info in again.ledgers()] == named

    run(work)


def test_a_ledger_stays_where_nothing_older_is_in_it_or_it_is_open() -> None:
    async def work(region: Region, config: Config) -> None:
        world = await World.make(region, config)
        await world.all_anew()
        there = await world.places()
        await world.all_anew()
        assert await world.places() == there, "a second time"
        world.broker.append(world.ledger, "late")
        await until(lambda: len(world.broker.done) == 51)
        info = world.ledger.ledgers()[-1]
        with pytest.raises(HeliographError, match="its metadata says OPEN"):
            await world.resealing().write_anew(TOPIC, replace(info, entries=1), True)
        await world.ledger.roll_over()
        info = world.infos[-1]
        assert await world.resealing().write_anew(TOPIC, info, True) is Stage.DONE
        assert (await world.places())[info.ledger].at < 0, "the newest key sealed it"

    run(work)


def test_the_older_copy_is_kept_for_a_while_and_a_later_rotation_begins_again() -> None:
    async def work(region: Region, config: Config) -> None:
        world = await World.make(region, config)
        info, work = world.infos[0], world.resealing(keep_ms=60_000)
        assert await work.write_anew(TOPIC, info, True) is Stage.KEPT
        assert await work.move(info.ledger) is Stage.KEPT
        copy = (await world.places())[info.ledger].next
        assert (await ledger_metadata(world.broker.factory.context, info.ledger)).ledger == info.ledger
        await world.sealing.rotate("public")
        anew = world.resealing(keep_ms=60_000)
        assert await anew.stage(info.ledger) is Stage.LEFT
        assert await anew.write_anew(TOPIC, info, True) is Stage.KEPT
        assert copy not in await world.records(), "nobody needs that one"
        assert all(copy in bookie.deleted for bookie in region.bookies.values() if copy in bookie.ledgers)
        await asyncio.sleep(61)
        assert await anew.move(info.ledger) is Stage.DONE
        assert await read_all(world.ledger) == world.before

    run(work)


class _Crashed(Exception):
    pass


class CrashingStore(EmbeddedStore):
    """The writer's machine dies at its n-th write: before it, or behind it."""

    def __init__(self, region: Region, at: int, *, behind: bool) -> None:
        super().__init__(region.machine)
        self.left, self.behind = at, behind

    async def txn(self, ops: Sequence[Op]) -> int:
        self.left -= 1
        if self.left < 0 and not self.behind:
            raise _Crashed
        version = await super().txn(ops)
        if self.left < 0:
            raise _Crashed
        return version


@pytest.mark.parametrize("behind", [False, True])
@pytest.mark.parametrize("step", range(3))
def test_a_crash_at_each_change_of_the_metadata_leaves_it_readable_and_is_gone_on_from(step: int, behind: bool) -> None:
    async def work(region: Region, config: Config) -> None:
        world = await World.make(region, config)
        _, new = (key.number for key in world.sealing.listing()["public"])
        dying = Broker(
            region, CrashingStore(region, step, behind=behind), settings=ROLLING, sealing=await config.sealing(region)
        )
        await dying.pool.ready()
        with pytest.raises(_Crashed):
            await world.all_anew(dying)
        assert await read_all(world.ledger) == world.before
        collector = OrphanCollector(world.broker.factory.context, 0.0)
        for _ in range(2):
            await collector.sweep(0.0)
        assert await read_all(world.ledger) == world.before, "nothing that is read is an orphan"
        await world.all_anew()
        assert await read_all(world.ledger) == world.before
        places = await world.places()
        assert await world.records() == {place.at for place in places.values()} and len(places) == len(world.infos)
        for bookie in region.bookies.values():  # what its garbage collection would find
            for number in set(bookie.ledgers) - await world.records() - world.aside:
                bookie.deleted.append(number)
        assert world.keys_held() == {new}

    run(work)


@pytest.mark.parametrize("seed", range(8))
def test_crashes_two_writers_and_bookies_that_go_at_any_moment(seed: int) -> None:
    """Whoever reads meanwhile has the same entries at the same positions, and in the end nothing is left over."""

    async def work(region: Region, config: Config) -> None:
        rng = random.Random(seed)
        world = await World.make(region, config)
        _, new = (key.number for key in world.sealing.listing()["public"])
        others = [Broker(region, settings=ROLLING, sealing=await config.sealing(region)) for _ in range(2)]
        for broker in others:
            await broker.pool.ready()

        async def tries(broker: Broker) -> None:
            try:
                await world.all_anew(broker)
            except HeliographError:
                pass

        readers = 0
        for _ in range(12):
            jobs = [asyncio.ensure_future(tries(broker)) for broker in others[: rng.randrange(1, 3)]]
            victim = rng.choice(list(region.bookies.values()))
            for _ in range(rng.randrange(12)):
                await asyncio.sleep(rng.random() / 20)
                if rng.random() < 0.2:
                    victim.crash()
                    await asyncio.sleep(rng.random() / 50)
                    victim.start()
                if rng.random() < 0.4:
                    try:
                        assert await read_all(world.ledger) == world.before
                        readers += 1
                    except HeliographError:
                        pass  # of a bookie that is away
            for job in jobs:
                job.cancel()
            await asyncio.gather(*jobs, return_exceptions=True)
        await asyncio.sleep(5)
        for _ in range(5):
            await tries(world.broker)
            await asyncio.sleep(1)
        assert await read_all(world.ledger) == world.before and readers
        collector = OrphanCollector(world.broker.factory.context, 0.0)
        for now in (0.0, 1.0):
            await collector.sweep(now)
        places = await world.places()
        assert await world.records() == {place.at for place in places.values()} and len(places) == len(world.infos)
        for bookie in region.bookies.values():
            for number in set(bookie.ledgers) - await world.records() - world.aside:
                bookie.deleted.append(number)
        assert world.keys_held() == {new}

    run(work, seed=seed)


@pytest.mark.parametrize("done", range(4))
def test_a_ledger_that_is_trimmed_meanwhile_leaves_nothing_behind(done: int) -> None:
    """done: 0 begun, 1 whole, 2 moved, 3 the topic is deleted while one is whole."""

    async def work(region: Region, config: Config) -> None:
        world = await World.make(region, config)
        info, work = world.infos[0], world.resealing()
        if done == 0:
            dying = Broker(
                region, CrashingStore(region, 1, behind=False), settings=ROLLING, sealing=await config.sealing(region)
            )
            await dying.pool.ready()
            with pytest.raises(_Crashed):
                await world.all_anew(dying)
        else:
            await work.write_anew(TOPIC, info, True)
        if done == 2:
            await work.move(info.ledger)
        numbers = {place.at for place in (await world.places()).values()}
        numbers |= {place.next for place in (await world.places()).values()}
        if done == 3:
            await world.broker.factory.delete(TOPIC)
        else:
            world.ledger.set_retention(0, 0)
            await until(lambda: info.ledger not in [one.ledger for one in world.ledger.ledgers()])
        await asyncio.sleep(1)
        with pytest.raises(HeliographError) if done != 2 else nullcontext():
            await work.write_anew(TOPIC, info, True)
            await work.move(info.ledger)
        collector = OrphanCollector(world.broker.factory.context, 0.0)
        for now in (0.0, 1.0, 2.0):
            await collector.sweep(now)
        assert not await world.places() and not await world.records() & {info.ledger, *numbers}

    run(work)


def test_an_upload_of_what_was_moved_has_seals_of_the_number_by_which_its_topic_names_it() -> None:
    async def work(region: Region, config: Config) -> None:
        store = FakeStore({})
        broker = TierBroker(region, store, sealing=await config.sealing(region))
        world = await World.make(region, config, broker)
        old, _ = (key.number for key in world.sealing.listing()["public"])
        await world.all_anew()
        broker.policy = AT_ONCE
        await settled(broker, world.ledger)
        broker.policy = OffloadPolicy(threshold_bytes=0, deletion_lag_ms=0)
        await asyncio.sleep(1)
        await settled(broker, world.ledger)
        assert all(map(local_gone, world.infos)) and not await world.records()
        assert {info.offload.data_key for info in world.infos if info.offload is not None} == {world.newest}
        await OrphanCollector(broker.factory.context, 0.0).sweep(0.0)
        assert not await world.places(), "only the store has them"
        assert not [blob for blob in store.objects.values() if b"secret" in blob and blob[:4] != b"HELM"]
        broker.factory.abandon()
        await world.sealing.remove("public", old)
        other = TierBroker(region, store, sealing=await config.sealing(region))
        assert await read_all(await other.open()) == world.before

    run(work)


def test_a_reader_goes_on_where_the_copy_lies_on_the_same_bookies() -> None:
    async def work(region: Region, config: Config) -> None:
        world = await World.make(region, config)
        assert await read_all(world.ledger) == world.before
        world.ledger.forget_cached(world.infos[0].ledger)
        context = world.broker.factory.context
        for info in world.infos:
            source = await ledger_metadata(context, info.ledger)
            context.pool.pick = lambda *_, source=source: source.fragments[0][1]  # type: ignore[method-assign]
            await world.resealing().write_anew(TOPIC, info, True)
            await world.resealing().move(info.ledger)
        assert await read_all(world.ledger) == world.before

    run(work)


def test_entries_that_are_lost_of_what_was_moved_come_back_under_its_own_key() -> None:
    class Elsewhere:
        async def read(
            self, topic: str, ledger: int, first: int, last: int, max_bytes: int
        ) -> Sequence[tuple[int, Run]]:
            asked.append((topic, ledger))
            out = run_of(*(name for at, entry, name in world.before if at == ledger and first <= entry <= last))
            out.first_index, out.time_ms = -1, 7
            return [(first, out)]

    asked: list[tuple[str, int]] = []
    world: World

    async def work(region: Region, config: Config) -> None:
        nonlocal world
        world = await World.make(region, config)
        _, new = (key.number for key in world.sealing.listing()["public"])
        await world.all_anew()
        info = world.infos[0]
        place = (await world.places())[info.ledger].at
        for bookie in region.bookies.values():
            if place in bookie.ledgers:
                for entry in (4, 5):
                    bookie.ledgers[place].blocks.pop(entry, None)
        world.ledger.forget_cached(info.ledger)
        assert await world.ledger.damaged(info.ledger) == [(4, 5)]
        done = await world.ledger.refill(info.ledger, Elsewhere())
        assert done.fetched_entries >= 2 and not done.missing and set(asked) == {(TOPIC, info.ledger)}
        assert await read_all(world.ledger) == world.before and world.keys_held() == {new}

    run(work)


def test_nothing_moves_to_a_copy_of_which_a_bookie_that_is_there_lacks_its_part() -> None:
    """It began a new life while the older copy was kept, and was not yet marked."""

    async def work(region: Region, config: Config) -> None:
        world = await World.make(region, config)
        info, work = world.infos[0], world.resealing(keep_ms=60_000)
        assert await work.write_anew(TOPIC, info, True) is Stage.KEPT
        copy = (await world.places())[info.ledger].next
        emptied = next(bookie for bookie in region.bookies.values() if copy in bookie.ledgers)
        del emptied.ledgers[copy]
        await asyncio.sleep(61)
        assert await work.move(info.ledger) is Stage.DUE
        assert (await ledger_metadata(world.broker.factory.context, info.ledger)).ledger == info.ledger
        marked = await world.meta.get(keys.underreplicated(copy))
        assert marked is not None and emptied.name in Mark.read(copy, marked[0]).lacking

    run(work)


def test_a_copy_that_is_not_what_was_there_is_no_readers() -> None:
    async def work(region: Region, config: Config) -> None:
        world = await World.make(region, config)
        usual = world.sealing.anew

        async def lying(topic: str, ledger: int) -> tuple[int, Callable[[Run, int], Run]]:
            number, sealer = await usual(topic, ledger)
            return number, lambda run, first: sealer(run_of(*("forged" for _ in range(run.count))), first)

        world.sealing.anew = lying  # type: ignore[method-assign, assignment]
        info = world.infos[0]
        with pytest.raises(CorruptData, match=f"is not what was copied of ledger {info.ledger}"):
            await world.resealing().write_anew(TOPIC, info, True)
        assert await world.resealing().move(info.ledger) is Stage.LEFT
        assert await read_all(world.ledger) == world.before

    run(work)


@pytest.mark.parametrize("sealed_before", [False, True])
def test_an_object_of_what_was_only_looked_at_has_that_key_alone_and_nothing_in_the_clear(sealed_before: bool) -> None:
    """Of a topic that was in the clear, and is to be encrypted by then; or the other way round."""

    async def work(region: Region, config: Config) -> None:
        store, sealing = FakeStore({}), await config.sealing(region)
        await sealing.rotate("public")
        sealing.wanted = lambda topic: sealed_before
        sealing.form = lambda: BYTES_ALONE  # so no ledger promises that all of it is sealed
        broker = TierBroker(region, store, sealing=sealing)
        world = await World.make(region, config, broker, rotated=not sealed_before)
        sealing.form = lambda: WITH_HEADER
        for info in world.infos:
            assert await world.resealing().write_anew(TOPIC, info, False) is Stage.DONE
        assert {place.at for place in (await world.places()).values()} == {-1}
        sealing.wanted = lambda topic: not sealed_before
        broker.policy = AT_ONCE
        await settled(broker, world.ledger)
        assert {info.offload.data_key for info in world.infos if info.offload is not None} == {world.newest}
        objects = [blob for blob in store.objects.values() if blob[:4] != b"HELM"]
        assert objects and not [blob for blob in objects if b"secret" in blob]
        if not sealed_before:
            broker.factory.abandon()
            await sealing.remove("public", sealing.listing()["public"][0].number)
        for bookie in region.bookies.values():
            bookie.ledgers = {number: held for number, held in bookie.ledgers.items() if number in world.aside}
        other = TierBroker(region, store, sealing=await config.sealing(region))
        assert await read_all(await other.open()) == world.before

    run(work)


def test_an_upload_during_which_a_ledger_moves_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(region: Region, config: Config) -> None:
        store = FakeStore({})
        broker = TierBroker(region, store, sealing=await config.sealing(region))
        world = await World.make(region, config, broker)
        info, begun = world.infos[0], OffloadRecord("a1", "holder")
        usual = store.put

        async def put(key: str, body: AsyncIterator[bytes]) -> None:
            await usual(key, body)
            await world.all_anew()

        monkeypatch.setattr(store, "put", put)
        given = broker.factory.context, store, TOPIC, info, begun, SETTINGS, Throttle(1 << 30), lambda _: None
        with pytest.raises(BookieUnavailable, match="was sealed anew while it was uploaded"):
            await upload(*given, region.sim.clock())
        monkeypatch.undo()
        assert (await upload(*given, region.sim.clock())).data_key == world.newest

    run(work)


def test_a_shadow_goes_on_behind_a_move_of_the_ledger_that_it_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(region: Region, config: Config) -> None:
        world = await World.make(region, config)
        reader = Broker(region, sealing=await config.sealing(region))
        await reader.pool.ready()
        looked = list[int]()

        async def moves(context: LedgerContext, ledger: int) -> LedgerMetadata:
            if looked or ledger in closed:
                return await ledger_metadata(context, ledger)
            looked.append(ledger)
            world.broker.append(world.ledger, "later")
            await until(lambda: len(world.broker.done) == 51)
            await world.ledger.roll_over()
            found = await ledger_metadata(context, ledger)
            await world.sealing.rotate("public")
            await world.all_anew()  # between what it has found and what it reads
            for bookie in region.bookies.values():
                bookie.ledgers.pop(found.ledger, None)
            return found

        closed = [info.ledger for info in world.infos]
        monkeypatch.setattr(shadow_ledger, "ledger_metadata", moves)
        shadow = await reader.factory.open_shadow(f"{TOPIC}-shadow", TOPIC, Names(), (2, 2, 2), create=True)
        await until(lambda: shadow.entries == 51)
        assert looked and await read_all(shadow) == await read_all(world.ledger)

    run(work)


@pytest.mark.parametrize("lost", [False, True])
def test_a_ledger_whose_metadata_is_lost_comes_back_where_its_entries_lie(lost: bool) -> None:
    class Source:
        asked = 0

        async def read(self, topic: str, ledger: int, first: int, last: int, max_bytes: int) -> list[tuple[int, Run]]:
            self.asked += 1
            assert lost, "bookies have it"
            return [(first, runs[ledger, first])]

    runs: dict[tuple[int, int], Run] = {}

    async def work(region: Region, config: Config) -> None:
        world = await World.make(region, config)
        info, source = world.infos[0], Source()
        for entry in range(info.entries):
            ((_, _, one),) = await world.ledger.read((info.ledger, entry), 1, 1)
            runs[info.ledger, entry] = copy(one)
            runs[info.ledger, entry].first_index = -1
        await world.all_anew()
        at = (await world.places())[info.ledger].at
        await world.ledger.close()
        await EmbeddedStore(region.machine).delete(keys.ledger(at))
        if lost:
            for bookie in region.bookies.values():
                bookie.ledgers.pop(at, None)
        other = Broker(region, settings=ROLLING, sealing=await config.sealing(region))
        ledger = await other.open()
        assert await ledger.damaged(info.ledger) == [(0, info.entries - 1)]
        await ledger.refill(info.ledger, source)
        assert await read_all(ledger) == world.before and bool(source.asked) == lost
        assert at in await world.records() and info.ledger not in await world.records()
        await OrphanCollector(other.factory.context, 0.0).sweep(0.0)
        assert at in await world.records()

    run(work)
