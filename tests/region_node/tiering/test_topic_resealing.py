"""Compacted ledgers under another data key: a job's, on the topic's owner; crashes, trims, rotations, object stores."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from geo_tests.sim.simulation import Machine, Simulation
from heliograph.kv.in_process_store import EmbeddedStore
from heliograph.kv.metadata_store import Op
from heliograph.model.errors import StoreUnavailable
from heliograph.model.ledger_metadata import LedgerInfo, OffloadRecord, OffloadState
from heliograph.runtime.clock import CautiousClock
from heliograph.wire.block import decode_block
from region_node.compaction.compacted_view import OPEN, UNKNOWN, Compacted, properties_of, read_properties
from region_node.tiering.topic_resealing import TopicResealing, is_due, stored_compacted
from storage.managed_ledger.resealing.reseal_job import Aim, JobState, ResealJob, begin, cancel, job_of
from storage.managed_ledger.resealing.reseal_worker import ResealWorker
from storage.sealing.sealing import Sealing
from storage.tiered.offload.object_resealing import ObjectResealing
from tests.region_node.compaction.world import (
    TOPIC,
    Owner,
    Row,
    latest,
    ledgers_without_topic,
    made_up,
    rows_of,
    settled,
)
from tests.region_node.tiering.tiered_owner import TieredOwner
from tests.storage.managed_ledger.world import Region, until
from tests.storage.sealing.world import Config, leaks
from tests.storage.tiered.world import SETTINGS, Steps

Rows = list[tuple[tuple[int, int], str, str]]
SETTLES_MS = 300_000


class Shelf:
    """Loads the one topic on its broker."""

    def __init__(self, load: Callable[[], Awaitable[Any]] | None = None) -> None:
        self.load_it, self.loads, self.back = load, 0, 0

    def lends(self, topic: str) -> bool:
        return self.load_it is not None and self.loads == self.back

    async def load(self, topic: str) -> bool:
        self.loads += 1
        assert self.load_it is not None
        await self.load_it()
        return True

    async def give_back(self, topic: str) -> None:
        self.back += 1


class World:
    """A topic that was compacted, and whose data key was rotated since. rows: as it is read compacted."""

    def __init__(self, region: Region, owner: Owner, sealing: Sealing) -> None:
        self.region, self.owner, self.sealing = region, owner, sealing
        self.rows: Rows = []
        self.worker: ResealWorker | None = None
        self.objects: ObjectResealing | None = None

    @classmethod
    async def make(cls, region: Region, owner: Owner, sealing: Sealing, *, rotated: bool = True) -> World:
        made = cls(region, owner, sealing)
        await owner.open()
        rows = made_up(random.Random(5), 60, 0)
        for at in range(0, 60, 20):
            assert await owner.publish([(key, value and f"secret{value}") for key, value in rows[at : at + 20]])
        assert await owner.compact() == "SUCCESS", owner.topic.compaction().error
        await settled(owner)
        if rotated:
            await sealing.rotate("public")
        made.rows = await made.read()
        return made

    @property
    def newest(self) -> int:
        return self.sealing.listing()["public"][-1].number

    @property
    def compacted(self) -> Compacted:
        found = self.owner.topic.compaction().view.compacted
        assert found is not None
        return found

    def aim(self, **changes: Any) -> Aim:
        now = self.region.sim.clock().wall_ms()
        return Aim("public", (self.newest,), now, now, 1 << 20, 0, **changes)

    def beside(self, shelf: Shelf | None = None) -> TopicResealing:
        owner = self.owner
        return TopicResealing(
            lambda: owner.topic._compactor,
            lambda: [owner.topic],
            owner.broker.meta,
            self.sealing,
            self.region.sim.clock(),
            shelf or Shelf(),
            self.objects,
        )

    async def read(self) -> Rows:
        return await rows_of(self.owner.topic.compaction().view)

    async def anew(self) -> str:
        """How it ended."""
        compactor = self.owner.topic._compactor
        assert compactor is not None
        compactor.start(self.owner.topic, anew=True)
        state = self.owner.topic.compaction()
        await until(lambda: state.status != "RUNNING", 120.0)
        await settled(self.owner)
        return state.status

    async def job(self, *, settles_ms: int = 0) -> ResealJob:
        """Begins one, with a worker for it."""
        owner, now = self.owner, self.region.sim.clock().wall_ms()
        context = owner.broker.factory.context
        self.worker = ResealWorker(
            context, CautiousClock(self.region.sim.clock()), lambda: True, lambda: owner.broker.factory.opened
        )
        self.worker.beside = self.beside()
        key_ms = self.sealing.listing()["public"][-1].created_ms
        job = ResealJob("public", now, key_ms, now + settles_ms, 1 << 20, 0)
        await begin(owner.broker.meta, job)
        self.worker.start()
        return job

    async def reaches(self, there: Callable[[ResealJob], bool]) -> ResealJob:
        for _ in range(1000):
            found = await job_of(self.owner.broker.meta, "public")
            assert found is not None
            if there(found[0]):
                return found[0]
            await asyncio.sleep(2)
        raise AssertionError(found[0])

    def held(self, ledger: int) -> set[int]:
        """The data keys of what bookies hold of a ledger, 0: open."""
        return {
            run.seal.key if run.seal else 0
            for bookie in self.region.bookies.values()
            for number, held in bookie.ledgers.items()
            if number == ledger and number not in bookie.deleted
            for _, _, run in (decode_block(block) for _, block in held.blocks.values())
        }


def run(work: Callable[[World, Config], Awaitable[None]], *, seed: str = "anew", rotated: bool = True) -> None:
    async def main() -> None:
        await region.start()
        config = Config()
        sealing = await config.sealing(region)
        world = await World.make(region, Owner(region, sim, sealing=sealing), sealing, rotated=rotated)
        await work(world, config)
        if world.worker is not None:
            await world.worker.stop()

    with Simulation(seed=seed) as sim:
        region = Region(sim)
        sim.run(main(), limit_s=3600)


def test_a_job_has_what_is_compacted_written_anew_once_and_counts_it() -> None:
    async def work(world: World, config: Config) -> None:
        older, former = world.compacted, world.sealing.listing()["public"][0].number
        assert older.data_key == former and world.held(older.ledger) == {former}
        job = await world.job(settles_ms=SETTLES_MS)
        found = await world.reaches(lambda job: job.counted)
        assert found.compacted_left == 1 and TOPIC in found.waits_for
        found = await world.reaches(lambda job: job.counted and not job.compacted_left)
        assert found.state == JobState.RUNNING and world.compacted.horizon == older.horizon
        assert world.held(world.compacted.ledger) == {world.newest} and world.held(older.ledger) == set()
        assert await world.read() == world.rows and not leaks(world.region, "secret")
        assert await ledgers_without_topic(world.owner.broker.meta) == {world.compacted.ledger}
        anew = world.compacted.ledger
        found = await world.reaches(lambda job: not job.active)
        assert found.state == JobState.DONE and found.ended_ms >= job.settled_ms and world.compacted.ledger == anew, (
            "once"
        )

    run(work)


def test_a_job_does_not_end_before_what_is_compacted_is_written_anew() -> None:
    async def work(world: World, config: Config) -> None:
        await world.job()
        assert world.worker is not None
        beside, world.worker.beside = world.beside(), None

        class Away:
            """Its owner is elsewhere."""

            left, writes_objects = staticmethod(beside.left), False

            async def step(self, aims: Sequence[Aim]) -> None: ...

        world.worker.beside = Away()
        await asyncio.sleep(200)
        assert (await world.reaches(lambda job: job.counted)).state == JobState.RUNNING
        world.worker.beside = beside
        await world.reaches(lambda job: job.state == JobState.DONE)
        assert world.compacted.data_key == world.newest

    run(work)


@pytest.mark.parametrize("step", range(12))
def test_a_crash_at_each_step_leaves_it_readable_and_is_gone_on_from(step: int) -> None:
    class Counted(EmbeddedStore):
        steps = Steps()

        async def txn(self, ops: Sequence[Op]) -> int:
            return await self.steps.around("write", lambda: EmbeddedStore.txn(self, ops))

    async def life(machine: Machine) -> None:
        owners.append(Owner(region, sim, Counted(region.machine), sealing=await config.sealing(region)))

    async def main() -> None:
        await region.start()
        machine = sim.machine("first")
        await machine.start(life)
        sealing = owners[0].broker.factory.context.sealing
        assert sealing is not None
        world = await machine.ask(World.make, region, owners[0], sealing)
        Counted.steps = Steps(step, machine.kill)
        compactor = owners[0].topic._compactor
        assert compactor is not None
        machine.run(lambda: compactor.start(owners[0].topic, anew=True))
        await asyncio.sleep(20)
        assert len(Counted.steps.done) == step + 1, "it died there"
        Counted.steps = Steps()
        other = sim.machine("other")
        await other.start(life)
        await other.ask(owners[1].open)
        sealing = owners[1].broker.factory.context.sealing
        assert sealing is not None
        after = World(region, owners[1], sealing)
        assert await other.ask(after.read) == world.rows
        assert await other.ask(after.anew) == "SUCCESS", owners[1].topic.compaction().error
        assert await other.ask(after.read) == world.rows
        assert await ledgers_without_topic(EmbeddedStore(region.machine)) == {after.compacted.ledger}
        assert after.held(after.compacted.ledger) == {after.newest}

    with Simulation(seed=f"step-{step}") as sim:
        config = Config()
        owners: list[Owner] = []
        region = Region(sim)
        sim.run(main(), limit_s=600)


def test_the_log_may_be_trimmed_and_published_to_meanwhile() -> None:
    async def work(world: World, config: Config) -> None:
        topic = world.owner.topic
        await world.job(settles_ms=SETTLES_MS)
        topic.ledger.set_retention(0, 0)
        fresh: list[Row] = [("k1", "later1"), ("new", "later2")]
        assert await world.owner.publish(fresh)
        await world.reaches(lambda job: job.counted and not job.compacted_left)
        before = [(key, value) for _, key, value in world.rows]
        assert latest([(key, value) for _, key, value in await world.read()]) == latest([*before, *fresh])
        assert len(await rows_of(topic.ledger)) < 60, "what is compacted was trimmed"
        older = world.compacted.ledger
        await world.sealing.rotate("public")
        assert await world.anew() == "SUCCESS" and world.compacted.ledger != older, "where the log has nothing left"
        assert latest([(key, value) for _, key, value in await world.read()]) == latest([*before, *fresh])

    run(work)


def test_a_rotation_while_it_is_compacted_undoes_it_and_the_next_one_has_the_newer_key() -> None:
    async def work(world: World, config: Config) -> None:
        older, ensure = world.compacted, world.sealing.anew

        async def rotated(topic: str, ledger: int) -> Any:
            found = await ensure(topic, ledger)
            await world.sealing.rotate("public")
            return found

        world.sealing.anew = rotated  # type: ignore[method-assign]
        assert await world.anew() == "ERROR" and "was rotated while" in world.owner.topic.compaction().error
        assert world.compacted == older and await world.read() == world.rows
        assert await ledgers_without_topic(world.owner.broker.meta) == {older.ledger}
        world.sealing.anew = ensure  # type: ignore[method-assign]
        assert await world.anew() == "SUCCESS" and world.compacted.data_key == world.newest

    run(work)


def test_what_lay_there_sealed_is_not_written_in_the_clear_though_it_need_not_be_sealed_any_more() -> None:
    async def work(world: World, config: Config) -> None:
        world.sealing.wanted = lambda topic: False
        assert await world.anew() == "SUCCESS" and world.compacted.data_key == world.newest
        assert not leaks(world.region, "secret") and await world.read() == world.rows

    run(work)


def test_what_lay_there_in_the_clear_is_sealed_where_it_is_to_be_by_now() -> None:
    async def main() -> None:
        await region.start()
        sealing = await Config().sealing(region, wanted=False)
        await sealing.rotate("public")
        world = await World.make(region, Owner(region, sim, sealing=sealing), sealing, rotated=False)
        assert world.compacted.data_key == OPEN == 0 and world.held(world.compacted.ledger) == {0}
        await world.job()
        assert (await world.reaches(lambda job: not job.active)).state == JobState.DONE
        assert world.compacted.data_key == OPEN
        assert world.worker is not None
        await world.worker.stop()
        sealing.wanted = lambda topic: True
        await world.job()
        assert (await world.reaches(lambda job: not job.active)).state == JobState.DONE
        assert world.held(world.compacted.ledger) == {world.newest} and await world.read() == world.rows
        await world.worker.stop()

    with Simulation(seed="clear") as sim:
        region = Region(sim)
        sim.run(main(), limit_s=3600)


def test_one_that_fails_waits_before_it_is_tried_again_and_none_is_begun_with_an_older_key() -> None:
    async def work(world: World, config: Config) -> None:
        state, beside, started = world.owner.topic.compaction(), world.beside(), list[bool]()
        compactor: Any = world.owner.topic._compactor
        compactor.start = lambda topic, anew: started.append(anew)
        state.failed_ms = world.region.sim.clock().wall_ms()
        await beside.step([world.aim()])
        assert not started
        await asyncio.sleep(61)
        older = Aim("public", (world.newest + 1,), 0, 0, 1, 0)
        await beside.step([older])
        assert not started, "this broker has not heard of that key"
        await beside.step([world.aim()])
        assert started == [True]

    run(work)


def test_a_topic_that_nobody_has_loaded_is_loaded_for_it_and_given_back() -> None:
    async def work(world: World, config: Config) -> None:
        loaded = list[Any]()

        async def load() -> None:
            loaded.append(world.owner.topic)

        shelf = Shelf(load)
        beside = TopicResealing(
            lambda: world.owner.topic._compactor,
            lambda: loaded,
            world.owner.broker.meta,
            world.sealing,
            world.region.sim.clock(),
            shelf,
        )
        await beside.step([world.aim(left=False)])
        assert not shelf.loads, "the job counts nothing that is left"
        for _ in range(6):
            await beside.step([world.aim()])
            await asyncio.sleep(2)
        assert shelf.loads == shelf.back == 1 and world.compacted.data_key == world.newest
        await world.sealing.rotate("public")
        await asyncio.sleep(61)
        state, compactor, clock = world.owner.topic.compaction(), world.owner.topic._compactor, world.region.sim.clock()
        assert compactor is not None
        compactor.start = lambda topic, anew: setattr(state, "failed_ms", clock.wall_ms())  # type: ignore
        for _ in range(20):
            if shelf.loads == shelf.back:  # it is not loaded: what it knew is forgotten
                loaded.clear()
                state.failed_ms = 0
            await beside.step([world.aim()])
            await asyncio.sleep(1)
        assert shelf.loads == 2, "what fails again and again is not loaded again and again"

    run(work)


def test_what_an_object_store_has_of_it_is_written_anew_and_the_object_goes() -> None:
    async def main() -> None:
        await region.start()
        objects: dict[str, bytes] = {}
        sealing = await Config().sealing(region)
        owner = TieredOwner(region, sim, objects, sealing=sealing)
        world = await World.make(region, owner, sealing)
        await owner.tiered()
        older = world.compacted
        assert older.offloaded and older.data_key != world.newest
        assert await world.anew() == "SUCCESS", owner.topic.compaction().error
        assert world.held(world.compacted.ledger) == {world.newest} and await world.read() == world.rows
        assert older.offload is not None and not any(older.offload.attempt in key for key in objects)
        await owner.tiered()
        assert world.compacted.offloaded and world.compacted.data_key == world.newest
        assert await stored_compacted(owner.broker.meta, TOPIC) == world.compacted
        assert await world.read() == world.rows

    with Simulation(seed="objects") as sim:
        region = Region(sim)
        sim.run(main(), limit_s=600)


def objects_anew(owner: TieredOwner) -> ObjectResealing:
    broker: Any = owner.broker
    clock = CautiousClock(broker.region.sim.clock())
    return ObjectResealing(broker.tiering, broker.factory.context, broker.stores, SETTINGS, clock)


def objects_of(ledgers: Sequence[LedgerInfo], newest: int) -> list[bool]:
    """Of each that the store has, whether it was sealed anew, and that is settled."""
    return [info.offload.data_key == newest and not info.offload.also for info in ledgers if info.offload is not None]


def test_a_job_has_objects_of_the_log_uploaded_anew_by_the_owner_and_ends_behind_that() -> None:
    async def main() -> None:
        await region.start()
        objects: dict[str, bytes] = {}
        sealing = await Config().sealing(region)
        owner = TieredOwner(region, sim, objects, sealing=sealing)
        world = await World.make(region, owner, sealing)
        await owner.topic.ledger.roll_over()  # type: ignore[attr-defined]
        await owner.tiered()
        (older,) = {key.number for key in sealing.listing()["public"][:-1]}
        before = await rows_of(owner.topic.ledger)
        world.objects = objects_anew(owner)
        await world.job()
        job = await world.reaches(lambda job: job.counted)
        assert job.objects_left > 1 and job.state == JobState.RUNNING and TOPIC in job.waits_for
        await world.reaches(lambda job: job.state == JobState.DONE)
        ledgers = owner.topic.ledger.ledgers()  # type: ignore[attr-defined]
        assert len(objects_of(ledgers, world.newest)) > 1 and all(objects_of(ledgers, world.newest))
        await sealing.remove("public", older)
        owner.broker.cold._parts.clear()  # type: ignore[attr-defined]
        owner.broker.cold._of.clear()  # type: ignore[attr-defined]
        assert await rows_of(owner.topic.ledger) == before and await world.read() == world.rows
        assert world.worker is not None
        await world.worker.stop()

    with Simulation(seed="log objects") as sim:
        region = Region(sim)
        sim.run(main(), limit_s=3600)


@pytest.mark.parametrize("fails", [False, True])
def test_a_job_that_is_cancelled_leaves_one_object_of_each_ledger(fails: bool) -> None:
    async def main() -> None:
        await region.start()
        objects: dict[str, bytes] = {}
        sealing = await Config().sealing(region)
        owner = TieredOwner(region, sim, objects, sealing=sealing)
        world = await World.make(region, owner, sealing)
        await owner.topic.ledger.roll_over()  # type: ignore[attr-defined]
        await owner.tiered()
        before, put = await rows_of(owner.topic.ledger), owner.store.put

        async def late(key: str, body: Any) -> None:
            ledgers = owner.topic.ledger.ledgers()  # type: ignore[attr-defined]
            if any(info.offload is not None and info.offload.also for info in ledgers):
                owner.store.put = put  # type: ignore[method-assign]
                await cancel(owner.broker.meta, "public")
                await world.reaches(lambda job: job.state == JobState.CANCELLED)
                if fails:
                    raise StoreUnavailable("it is away")
            await put(key, body)

        owner.store.put = late  # type: ignore[method-assign]
        world.objects = objects_anew(owner)
        await world.job()
        job = await world.reaches(lambda job: job.state == JobState.CANCELLED)
        assert job.objects_left == 1 and job.waits_for == (TOPIC,)
        job = await world.reaches(lambda job: not job.objects_left)
        ledgers = [info for info in owner.topic.ledger.ledgers() if info.offload is not None]  # type: ignore
        assert sum(info.offload.data_key == world.newest for info in ledgers) == (not fails) < len(ledgers), "no more"
        assert owner.tiering.collector is not None and job.state == JobState.CANCELLED
        for _ in range(2):
            await owner.tiering.collector.sweep()
        for info in ledgers:
            assert not info.offload.also and sum(f"/ledger/{info.ledger:020d}" in key for key in objects) == 1
        assert await rows_of(owner.topic.ledger) == before
        assert world.worker is not None
        await world.worker.stop()

    with Simulation(seed="cancelled") as sim:
        region = Region(sim)
        sim.run(main(), limit_s=3600)


def test_a_topic_that_nobody_has_loaded_is_loaded_for_its_objects() -> None:
    async def main() -> None:
        await region.start()
        sealing = await Config().sealing(region)
        owner = TieredOwner(region, sim, {}, sealing=sealing)
        world = await World.make(region, owner, sealing)
        await owner.topic.ledger.roll_over()  # type: ignore[attr-defined]
        await owner.tiered()
        assert await world.anew() == "SUCCESS"
        loaded = list[Any]()

        async def load() -> None:
            loaded.append(owner.topic)

        shelf = Shelf(load)
        beside = TopicResealing(
            lambda: owner.topic._compactor,
            lambda: loaded if shelf.loads > shelf.back else [],
            owner.broker.meta,
            sealing,
            sim.clock(),
            shelf,
            objects_anew(owner),
        )
        await beside.step([world.aim(objects_left=False)])
        assert not shelf.loads, "the job counts none that is left"
        for _ in range(8):
            await beside.step([world.aim()])
            await asyncio.sleep(2)
        assert shelf.loads == shelf.back == 1
        ledgers = owner.topic.ledger.ledgers()  # type: ignore[attr-defined]
        assert objects_of(ledgers, world.newest) and all(objects_of(ledgers, world.newest))

    with Simulation(seed="nobody's objects") as sim:
        region = Region(sim)
        sim.run(main(), limit_s=600)


def test_which_are_due_and_what_earlier_versions_wrote_is() -> None:
    aim = Aim("t", (7, 8), 1000, 1000, 1, 0)
    assert not is_due(None, aim, True) and not is_due(Compacted(-1, 0, 0, (1, 2)), aim, True)

    def one(data_key: int, made_ms: int = 500, offload: OffloadRecord | None = None) -> Compacted:
        return Compacted(5, 3, 30, (1, 2), made_ms, offload, data_key)

    assert [is_due(one(key), aim, False) for key in (UNKNOWN, OPEN, 6, 7, 8)] == [True, False, True, False, False]
    assert is_due(one(OPEN), aim, True)
    stored = OffloadRecord("ab", "us", OffloadState.STORED)
    assert is_due(one(OPEN, 999, stored), aim, False) and not is_due(one(OPEN, 1000, stored), aim, False)
    for compacted in (one(UNKNOWN), one(OPEN, 1, stored), one(2**64 - 1)):
        assert read_properties(properties_of(compacted, [])) == (compacted, [])
    assert "CompactedKey" not in properties_of(one(UNKNOWN), [])
