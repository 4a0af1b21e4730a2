"""Objects under another data key: a crash at each step, trims, the collector, manifests, pages, other holders."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from geo_tests.sim.simulation import Machine, Simulation
from heliograph.model.errors import StoreUnavailable
from heliograph.model.ledger_metadata import LedgerInfo, OffloadRecord, OffloadState, stored
from heliograph.runtime.clock import CautiousClock
from storage.managed_ledger.log.managed_ledger import ManagedLedger
from storage.sealing.sealing import Sealing
from storage.tiered.objects.object_names import parse
from storage.tiered.offload.object_resealing import (
    OBJECTS_AT_ONCE,
    ObjectResealing,
    SealedObject,
    is_left,
    to_seal_anew,
)
from storage.tiered.offload.topic_manifest import TopicManifest
from tests.storage.managed_ledger.world import TOPIC, Region, read_all
from tests.storage.sealing.world import Config
from tests.storage.tiered.world import (
    AT_ONCE,
    OFF,
    SETTINGS,
    FakeStore,
    Steps,
    TierBroker,
    filled,
    settled,
    simulated,
    until,
)

LATER = 1 << 60
Rows = list[tuple[int, int, str]]


class World:
    """A topic of four ledgers in an object store, sealed with a key that was rotated since."""

    def __init__(self, broker: TierBroker, ledger: ManagedLedger, sealing: Sealing) -> None:
        self.broker, self.ledger, self.sealing = broker, ledger, sealing
        self.rows: Rows = []
        self.machine_clock = broker.region.sim.clock()
        self.clock = CautiousClock(self.machine_clock)

    @classmethod
    async def make(cls, broker: TierBroker, sealing: Sealing, entries: int = 45) -> World:
        await broker.tiering.start()
        made = cls(broker, await filled(broker, entries), sealing)
        await settled(broker, made.ledger)
        await sealing.rotate("public")
        made.rows = await read_all(made.ledger)
        return made

    @property
    def newest(self) -> int:
        return self.sealing.listing()["public"][-1].number

    @property
    def infos(self) -> list[LedgerInfo]:
        """Those that the store has."""
        return [info for info in self.ledger.ledgers() if stored(info)]

    @property
    def now_ms(self) -> int:
        return self.broker.region.sim.clock().wall_ms()

    def begin(self, keep_ms: int = 0, at_once: int = OBJECTS_AT_ONCE) -> bool:
        broker = self.broker
        work = ObjectResealing(broker.tiering, broker.factory.context, broker.stores, SETTINGS, self.clock, at_once)
        return work.begin(self.ledger, [self.newest], LATER, 1 << 30, keep_ms)

    async def anew(self) -> None:
        """All that is left, turn by turn."""
        while to_seal_anew(self.ledger.ledgers(), (self.newest,), LATER, LATER):
            assert self.begin()
            await self.broker.tiering.idle()
            assert self.broker.tiering.status(TOPIC).state == "SUCCESS", self.broker.tiering.status(TOPIC).error

    async def keys_of(self, info: LedgerInfo) -> set[int]:
        """The data keys of what its object holds, 0: in the clear."""
        found = SealedObject(self.broker.factory.context, self.broker.store, TOPIC, info, SETTINGS)
        out, entry = set[int](), 0
        while entry < info.entries:
            runs = await found._stored(entry)
            out |= {run.seal.key if run.seal else 0 for _, run in runs}
            entry = runs[-1][0] + runs[-1][1].count
        return out

    async def collected(self) -> None:
        assert self.broker.tiering.collector is not None
        for _ in range(2):
            await self.broker.tiering.collector.sweep()

    async def is_anew(self) -> None:
        """All of it reads the same, under the newest key alone, and nothing is left over."""
        assert await read_all(self.ledger) == self.rows
        for info in self.infos:
            assert info.offload is not None and info.offload.data_key == self.newest and not info.offload.also
            assert await self.keys_of(info) == {self.newest}
        await self.collected()
        named = {info.offload.attempt for info in self.infos if info.offload is not None}
        assert attempts(self.broker.store.objects) == named
        forget(self.broker)
        assert await read_all(self.ledger) == self.rows
        ((_, manifest),) = [(name, found) async for name, found in newest_manifests(self.broker.store)]
        stored = {info.offload.attempt for info in manifest.metadata.ledgers if info.offload is not None}
        assert stored == named, "what a restore would look for is there"


def attempts(objects: dict[str, bytes]) -> set[str]:
    return {name.attempt for key in objects if "/ledger/" in key and (name := parse(key)) is not None}


def forget(broker: TierBroker) -> None:
    """What it has read of the store."""
    for kept in (broker.cold._parts, broker.cold._of, broker.cold._indexes):
        kept.clear()  # type: ignore[attr-defined]


async def newest_manifests(store: FakeStore):  # type: ignore[no-untyped-def]
    for key in sorted((key for key in store.objects if "/manifest/" in key), reverse=True)[:1]:
        yield key, TopicManifest.decode(store.objects[key])


def run(work: Callable[[Region, World, Config], Awaitable[None]], *, page_ledgers: int = 0) -> None:
    async def main(sim: Simulation, region: Region) -> None:
        config = Config()
        sealing = await config.sealing(region)
        broker = TierBroker(region, FakeStore({}), AT_ONCE, sealing=sealing)
        await work(region, await World.make(broker, sealing), config)

    if page_ledgers:
        simulated(main, page_ledgers=page_ledgers)
    else:
        simulated(main)


def test_objects_are_uploaded_anew_and_the_older_ones_go() -> None:
    async def work(region: Region, world: World, config: Config) -> None:
        before = attempts(world.broker.store.objects)
        (older,) = {key for info in world.infos for key in await world.keys_of(info)}
        assert older != world.newest
        await world.anew()
        assert not before & {info.offload.attempt for info in world.infos if info.offload is not None}
        assert all(info.offload is not None and info.offload.state == OffloadState.LOCAL_GONE for info in world.infos)
        await world.is_anew()
        await world.ledger.roll_over()
        await settled(world.broker, world.ledger)
        await world.anew()
        await world.sealing.remove("public", older)
        again = TierBroker(region, world.broker.store, OFF, sealing=await config.sealing(region))
        assert await read_all(await again.open()) == world.rows

    run(work)


def test_those_in_pages_too() -> None:
    async def work(region: Region, world: World, config: Config) -> None:
        assert world.ledger.settled, "some lie in pages of which nothing is left to do"
        await world.anew()
        await world.is_anew()
        again = TierBroker(region, world.broker.store, OFF, sealing=await config.sealing(region))
        ledger = await again.open()
        await ledger.whole()
        assert [info.offload for info in ledger.ledgers()] == [info.offload for info in world.ledger.ledgers()]

    run(work, page_ledgers=2)


def crash_run(die_at: int) -> list[str]:
    """The owner dies at that step; the next one goes on. Returns the steps taken."""
    taken: list[str] = []

    async def main(sim: Simulation, region: Region) -> None:
        config, objects, steps = Config(), dict[str, bytes](), Steps()
        machine, made = sim.machine("first"), list[TierBroker]()

        async def life(_: Machine) -> None:
            sealing = await config.sealing(region)
            made.append(TierBroker(region, FakeStore(objects, steps), AT_ONCE, steps, sealing=sealing))

        await machine.start(life)
        sealing = made[0].factory.context.sealing
        assert sealing is not None
        world = await machine.ask(World.make, made[0], sealing, 25)
        steps.done.clear()
        steps.die_at, steps.die = die_at, machine.kill
        try:
            await machine.ask(world.anew, limit_s=120.0)
        except TimeoutError:
            assert die_at >= 0
        taken.extend(steps.done)
        second = TierBroker(region, FakeStore(objects), AT_ONCE, sealing=await config.sealing(region))
        await second.tiering.start()
        assert second.factory.context.sealing is not None
        after = World(second, await second.open(), second.factory.context.sealing)
        after.rows = world.rows
        assert await read_all(after.ledger) == world.rows, "something was lost by the crash"
        await after.collected()
        forget(second)
        assert await read_all(after.ledger) == world.rows, "the collector took what is read"
        async for _, manifest in newest_manifests(second.store):
            for info in manifest.metadata.ledgers:
                assert info.offload is None or info.offload.attempt in attempts(objects), "or what a restore needs"
        await settled(second, after.ledger)
        await after.anew()
        await after.is_anew()

    simulated(main)
    return taken


STEPS = 18
"""Of two objects."""


def test_an_object_is_named_before_it_is_there_and_let_go_behind_a_manifest() -> None:
    taken = crash_run(-1)
    one = ["metadata", "put ledger", "metadata"]
    assert taken[::2] == [f"before {what}" for what in [*one, *one, "put manifest", "metadata", "metadata"]]
    assert len(taken) == STEPS


@pytest.mark.parametrize("die_at", range(STEPS))
def test_a_crash_at_every_step_loses_nothing_and_leaves_nothing_over(die_at: int) -> None:
    assert len(crash_run(die_at)) == die_at + 1


@pytest.mark.parametrize("behind", [False, True])
def test_what_is_trimmed_meanwhile_leaves_nothing_behind(behind: bool) -> None:
    async def work(region: Region, world: World, config: Config) -> None:
        store, trimmed = world.broker.store, world.infos[0].ledger
        put = store.put

        async def late(key, body):  # type: ignore[no-untyped-def]
            if behind:
                await put(key, body)
            if "/ledger/" in key and any(info.ledger == trimmed for info in world.infos):
                world.ledger.set_retention(0, 0)
                await until(lambda: all(info.ledger != trimmed for info in world.infos), limit_s=60)
                world.ledger.set_retention(-1, -1)
            if not behind:
                await put(key, body)

        store.put = late  # type: ignore[method-assign]
        await world.anew()
        store.put = put  # type: ignore[method-assign]
        await world.collected()
        assert attempts(store.objects) == {info.offload.attempt for info in world.infos if info.offload is not None}

    run(work)


def test_the_collector_takes_neither_of_two_in_the_middle() -> None:
    async def work(region: Region, world: World, config: Config) -> None:
        store, put, steps = world.broker.store, world.broker.store.put, list[str]()

        async def swept(key, body):  # type: ignore[no-untyped-def]
            if "/manifest/" in key:
                await world.collected()
            await put(key, body)
            if "/ledger/" in key:
                await world.collected()
                assert key in store.objects, "it is about to be named as the one that is read"
            forget(world.broker)
            assert await read_all(world.ledger) == world.rows
            async for _, manifest in newest_manifests(store):
                for info in manifest.metadata.ledgers:
                    assert not stored(info) or info.offload.attempt in attempts(store.objects)  # type: ignore[union-attr]
            steps.append(key)

        store.put = swept  # type: ignore[method-assign]
        await world.anew()
        store.put = put  # type: ignore[method-assign]
        assert sum("/ledger/" in key for key in steps) == 4
        await world.is_anew()

    run(work)


def test_an_object_of_another_holder_is_read_and_left() -> None:
    async def work(region: Region, world: World, config: Config) -> None:
        info, objects = world.infos[0], world.broker.store.objects
        assert info.offload is not None
        (name,) = [key for key in objects if info.offload.attempt in key]
        theirs = name.replace(world.broker.tiering.holder, "them.abc", 1)
        objects[theirs] = objects.pop(name)
        await world.ledger.set_offload(info.ledger, replace(info.offload, holder="them.abc"))
        assert await read_all(world.ledger) == world.rows
        await world.anew()
        assert theirs in objects
        record = world.infos[0].offload
        assert record is not None and record.holder == world.broker.tiering.holder and not record.also
        await world.collected()
        assert theirs in objects and await read_all(world.ledger) == world.rows

    run(work)


def test_what_is_there_in_the_clear_stays_so_where_nothing_older_is_in_it() -> None:
    async def main(sim: Simulation, region: Region) -> None:
        sealing = await Config().sealing(region, wanted=False)
        await sealing.rotate("public")
        broker = TierBroker(region, FakeStore({}), AT_ONCE, sealing=sealing)
        world = await World.make(broker, sealing)
        before = attempts(broker.store.objects)
        await world.anew()
        assert attempts(broker.store.objects) == before, "it was looked at alone"
        assert [await world.keys_of(info) for info in world.infos] == [{0}] * 4
        sealing.wanted = lambda topic: True
        await sealing.rotate("public")
        await world.anew()
        await world.is_anew()

    simulated(main)


def test_what_is_not_what_was_stored_is_not_copied_and_holds_up_nothing_else() -> None:
    async def work(region: Region, world: World, config: Config) -> None:
        info, objects = world.infos[0], world.broker.store.objects
        assert info.offload is not None
        (name,) = [key for key in objects if info.offload.attempt in key]
        spoilt = bytearray(objects[name])
        spoilt[300] ^= 1
        objects[name] = bytes(spoilt)
        assert world.begin(at_once=2)
        await world.broker.tiering.idle()
        status = world.broker.tiering.status(TOPIC)
        assert status.state == "SUCCESS" and len([one for one in world.infos if is_left(one, [world.newest])]) == 2
        assert world.begin(at_once=2)
        await world.broker.tiering.idle()
        assert status.state == "ERROR" and f"ledger {info.ledger} is not sealed anew" in status.error
        first, *others = world.infos
        assert first.offload is not None and first.offload.attempt == info.offload.attempt
        assert others and all(one.offload.data_key == world.newest for one in others if one.offload is not None)
        assert not world.begin(), "not again at once"
        await world.ledger.roll_over()
        world.broker.tiering.tick()
        await world.broker.tiering.idle()
        assert len(world.infos) == len(others) + 2, "newer ledgers are offloaded meanwhile"

    run(work)


def test_a_second_object_of_an_earlier_job_stays_until_a_manifest_names_the_one_that_took_its_place() -> None:
    async def work(region: Region, world: World, config: Config) -> None:
        store, put, swept = world.broker.store, world.broker.store.put, 0

        async def cut_off(key, body):  # type: ignore[no-untyped-def]
            if "/manifest/" in key:
                raise StoreUnavailable("it is away")
            await put(key, body)

        async def collected(key, body):  # type: ignore[no-untyped-def]
            nonlocal swept
            if "/ledger/" in key:
                await world.collected()
                async for _, manifest in newest_manifests(store):
                    named = {info.offload.attempt for info in manifest.metadata.ledgers if info.offload is not None}
                    assert named <= attempts(store.objects)
                    swept += 1
            await put(key, body)

        store.put = cut_off  # type: ignore[method-assign]
        assert world.begin(60_000)
        await world.broker.tiering.idle()
        assert all(info.offload is not None and info.offload.also for info in world.infos)
        before, status = attempts(store.objects), world.broker.tiering.status(TOPIC)
        await world.sealing.rotate("public")
        assert not to_seal_anew(world.ledger.ledgers(), [world.newest], LATER, world.now_ms - 60_000), "it is kept"
        await asyncio.sleep(61)
        assert attempts(store.objects) == before
        status.not_before = status.put_off_until = 0.0
        store.put = collected  # type: ignore[method-assign]
        await world.anew()
        assert swept == 4
        store.put = put  # type: ignore[method-assign]
        await world.is_anew()

    run(work)


def test_the_older_objects_are_kept_for_a_while_beside_the_newer_ones() -> None:
    async def work(region: Region, world: World, config: Config) -> None:
        before = attempts(world.broker.store.objects)
        for _ in range(2):
            assert world.begin(60_000)
            await world.broker.tiering.idle()
            await world.collected()
            assert before < attempts(world.broker.store.objects) and await read_all(world.ledger) == world.rows
            assert not to_seal_anew(world.ledger.ledgers(), [world.newest], LATER, world.now_ms - 60_000)
        assert all(is_left(info, [world.newest]) for info in world.infos), "a job waits for that"
        world.machine_clock.offset_ms = 86_400_000
        assert world.begin(60_000)
        await world.broker.tiering.idle()
        await world.collected()
        assert before < attempts(world.broker.store.objects), "a clock that jumps ends nothing"
        await asyncio.sleep(61)
        assert world.begin(60_000)
        await world.broker.tiering.idle()
        await world.is_anew()

    run(work)


def test_which_are_left() -> None:
    record = OffloadRecord("ab", "us", OffloadState.STORED, data_key=7)
    begun = replace(record, state=OffloadState.BEGUN, data_key=0)

    def one(number: int, offload: OffloadRecord | None, closed_ms: int = 10) -> LedgerInfo:
        return LedgerInfo(number, 5, 50, closed_ms, 0, offload)

    assert is_left(one(1, record), [8]) and not is_left(one(1, record), [7, 8]) and not is_left(one(1, None), [8])
    assert not is_left(one(1, begun), [8]) and is_left(one(1, replace(record, also="cd")), [7])
    older = replace(record, data_key=0)
    ledgers = [one(1, older, 10), one(2, older, 20), one(3, older, 30)]
    assert [info.ledger for info in to_seal_anew(ledgers, [7], 20, 0)] == [1, 2], "the third was begun at 20"
    many = [one(number, older, number) for number in range(1, 40)]
    assert len(to_seal_anew(many, [7], LATER, 0)) == len(many)
