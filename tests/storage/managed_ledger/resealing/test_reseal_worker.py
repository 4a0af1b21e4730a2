"""Reseal jobs: what they count, their end, resumption, cancellation, and pace; several brokers, and one that dies."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from heliograph.model.errors import AlreadyExists, CorruptData, NotFound
from heliograph.model.ledger_metadata import OffloadRecord, OffloadState
from heliograph.runtime.clock import CautiousClock
from local_meta import keys
from storage.managed_ledger.resealing.ledger_resealing import LedgerResealing
from storage.managed_ledger.resealing.reseal_job import Aim, JobState, ResealJob, begin, cancel, job_of
from storage.managed_ledger.resealing.reseal_worker import ResealWorker, newer_keys
from storage.sealing.keyring import DataKey
from tests.storage.managed_ledger.resealing.world import ROLLING, World, run
from tests.storage.managed_ledger.world import TOPIC, Broker, Region, read_all
from tests.storage.sealing.world import Config, leaks
from tests.storage.tiered.world import until

SETTLES_MS = 300_000


class Jobs:
    """The jobs of a `World`, done by workers of several brokers."""

    def __init__(self, world: World) -> None:
        self.world, self.workers = world, list[ResealWorker]()
        self.machine_clock = world.region.sim.clock()
        self.clock = CautiousClock(self.machine_clock)

    def worker(self, broker: Broker, leads: Callable[[], bool] = lambda: True) -> ResealWorker:
        made = ResealWorker(broker.factory.context, self.clock, leads, lambda: broker.factory.opened)
        self.workers.append(made)
        made.start()
        return made

    def job(self, *, settles_ms: int = 0, bytes_per_s: int = 1 << 20, keep_ms: int = 0) -> ResealJob:
        now = self.world.region.sim.clock().wall_ms()
        key = self.world.sealing.listing()["public"][-1]
        return ResealJob("public", now, key.created_ms, now + settles_ms, bytes_per_s, keep_ms, key.number)

    async def now(self) -> ResealJob:
        found = await job_of(self.world.meta, "public")
        assert found is not None
        return found[0]

    async def ended(self, limit_s: float = 100_000) -> ResealJob:
        return await self.reaches(lambda job: not job.active, limit_s)

    async def reaches(self, there: Callable[[ResealJob], bool], limit_s: float = 100_000) -> ResealJob:
        deadline = asyncio.get_running_loop().time() + limit_s
        while not there(job := await self.now()):
            assert asyncio.get_running_loop().time() < deadline, job
            await asyncio.sleep(2)
        return job

    async def stop(self) -> None:
        for worker in self.workers:
            await worker.stop()


def jobs(work: Callable[[Region, Config, World, Jobs], Awaitable[None]], *, seed: int = 1) -> None:
    async def main(region: Region, config: Config) -> None:
        world = await World.make(region, config)
        all_jobs = Jobs(world)
        await work(region, config, world, all_jobs)
        await all_jobs.stop()

    run(main, seed=seed)


def test_a_job_counts_writes_everything_anew_and_ends_once_no_broker_can_lag() -> None:
    async def work(region: Region, config: Config, world: World, jobs: Jobs) -> None:
        await asyncio.sleep(2)
        world.broker.append(world.ledger, "in the open one")
        await until(lambda: len(world.broker.done) == 51)
        world.before = await read_all(world.ledger)
        await begin(world.meta, jobs.job(settles_ms=SETTLES_MS))
        jobs.worker(world.broker)
        await asyncio.sleep(120)
        job = await jobs.now()
        assert job.state == JobState.RUNNING and job.ledgers_done == len(world.infos) and not job.ledgers_left
        assert job.bytes_done == sum(info.size_bytes for info in world.infos) and not job.bytes_left
        assert world.keys_held() == {world.newest} and await read_all(world.ledger) == world.before
        jobs.machine_clock.offset_ms = 2 * SETTLES_MS
        await asyncio.sleep(60)
        assert (await jobs.now()).state == JobState.RUNNING, "a clock that jumps does not end it"
        job = await jobs.ended()
        assert job.ended_ms >= job.settled_ms
        assert job.state == JobState.DONE and not job.ledgers_open and not job.waits_for
        assert not leaks(region, "secret")

    jobs(work)


def test_another_broker_goes_on_where_one_died() -> None:
    async def work(region: Region, config: Config, world: World, jobs: Jobs) -> None:
        first = jobs.worker(world.broker)
        await begin(world.meta, jobs.job(bytes_per_s=100))
        await asyncio.sleep(6)
        await first.stop()
        before = await world.places()
        assert 0 < len(before) < len(world.infos)
        other = Broker(region, settings=ROLLING, sealing=await config.sealing(region))
        await other.pool.ready()
        jobs.worker(other)
        job = await jobs.ended()
        assert job.state == JobState.DONE and job.ledgers_done == len(world.infos)
        after = await world.places()
        moved = [number for number, place in before.items() if place.at >= 0]
        assert all(after[number] == before[number] for number in moved), "what was done is not done again"
        assert await read_all(world.ledger) == world.before

    jobs(work)


def test_one_that_does_not_lead_only_ends_its_open_ledgers() -> None:
    async def work(region: Region, config: Config, world: World, jobs: Jobs) -> None:
        await asyncio.sleep(2)
        world.broker.append(world.ledger, "in the open one")
        await until(lambda: len(world.broker.done) == 51)
        count = len(world.infos)
        await begin(world.meta, jobs.job(settles_ms=SETTLES_MS))
        jobs.worker(world.broker, lambda: False)
        await asyncio.sleep(60)
        assert not (await jobs.now()).counted and not await world.places()
        assert len(world.infos) == count + 1, "once"

    jobs(work)


def test_the_pace_is_obeyed() -> None:
    async def work(region: Region, config: Config, world: World, jobs: Jobs) -> None:
        size, clock = sum(info.size_bytes for info in world.infos), region.sim.clock()
        began = clock.monotonic()
        jobs.worker(world.broker)
        await begin(world.meta, jobs.job(bytes_per_s=40))
        await jobs.ended()
        assert clock.monotonic() - began > 0.9 * size / 40

    jobs(work)


def test_a_job_that_is_cancelled_leaves_readers_where_they_are_and_nothing_over() -> None:
    async def work(region: Region, config: Config, world: World, jobs: Jobs) -> None:
        jobs.worker(world.broker)
        await begin(world.meta, jobs.job(keep_ms=SETTLES_MS))
        with pytest.raises(AlreadyExists, match="are being sealed anew already"):
            await begin(world.meta, jobs.job())
        await asyncio.sleep(60)
        jobs.machine_clock.offset_ms = 2 * SETTLES_MS
        await asyncio.sleep(60)
        assert (await jobs.now()).ledgers_kept == len(world.infos), "though the clock jumped"
        await cancel(world.meta, "public")
        job = await jobs.ended(120)
        assert job.state == JobState.CANCELLED
        assert await world.records() == {info.ledger for info in world.infos}
        assert {place.at for place in (await world.places()).values()} == {-1}
        assert await read_all(world.ledger) == world.before
        with pytest.raises(NotFound):
            await cancel(world.meta, "public")
        await begin(world.meta, jobs.job())
        assert (await jobs.ended()).state == JobState.DONE and world.keys_held() == {world.newest}

    jobs(work)


def test_a_cancellation_is_heard_within_a_ledger() -> None:
    async def work(region: Region, config: Config, world: World, jobs: Jobs) -> None:
        world.broker.append(world.ledger, "long", pad=1000)
        await until(lambda: len(world.broker.done) == 51)
        await world.ledger.roll_over()
        jobs.worker(world.broker)
        await begin(world.meta, jobs.job(bytes_per_s=10))
        await jobs.reaches(lambda job: job.counted and job.ledgers_left == 1)
        await asyncio.sleep(20)
        await cancel(world.meta, "public")
        assert (await jobs.ended(20)).state == JobState.CANCELLED

    jobs(work)


def test_a_ledger_that_fails_stops_no_other_and_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(region: Region, config: Config, world: World, jobs: Jobs) -> None:
        bad, usual = world.infos[1].ledger, LedgerResealing.write_anew

        async def write_anew(self: LedgerResealing, topic: str, info: object, sealed: bool) -> object:
            if getattr(info, "ledger", 0) == bad:
                raise CorruptData("it is damaged")
            return await usual(self, topic, info, sealed)  # type: ignore[arg-type]

        monkeypatch.setattr(LedgerResealing, "write_anew", write_anew)
        jobs.worker(world.broker)
        await begin(world.meta, jobs.job())
        await asyncio.sleep(90)
        job = await jobs.now()
        assert (job.state, job.ledgers_left, job.ledgers_done) == (JobState.RUNNING, 1, len(world.infos) - 1)
        assert job.trouble == f"ledger {bad} of {TOPIC}: it is damaged" and job.waits_for == (TOPIC,)
        monkeypatch.undo()
        job = await jobs.ended()
        assert job.state == JobState.DONE and not job.trouble and not job.waits_for

    jobs(work)


def test_what_an_object_store_has_is_left_and_counted() -> None:
    async def work(region: Region, config: Config, world: World, jobs: Jobs) -> None:
        record = OffloadRecord("a", "h", OffloadState.STORED)
        await world.ledger.set_offload(world.infos[0].ledger, record)
        await world.ledger.store_state()
        jobs.worker(world.broker)
        await begin(world.meta, jobs.job())
        job = await jobs.ended()
        assert job.ledgers_offloaded == 1 and not job.objects_left, "this broker is set to no store"
        assert job.ledgers_done == len(world.infos) and world.infos[0].ledger in await world.places()

    jobs(work)


def test_a_job_waits_for_objects_where_brokers_are_set_to_a_store() -> None:
    class Away:
        """The topic's owner is elsewhere."""

        writes_objects, damaged = True, False

        async def left(self, topic: str, aim: Aim) -> bool:
            if self.damaged:
                raise CorruptData("a cursor that cannot be read")
            return False

        async def step(self, aims: Sequence[Aim]) -> None: ...

    async def work(region: Region, config: Config, world: World, jobs: Jobs) -> None:
        info, record = world.infos[0], OffloadRecord("a", "h", OffloadState.STORED)
        await world.ledger.set_offload(info.ledger, record)
        jobs.worker(world.broker).beside = away = Away()
        await begin(world.meta, jobs.job())
        await asyncio.sleep(200)
        job = await jobs.now()
        assert (
            job.state == JobState.RUNNING and job.objects_left == 1 and not job.ledgers_left and TOPIC in job.waits_for
        )
        await world.ledger.set_offload(info.ledger, replace(record, data_key=world.newest, also="b"))
        await asyncio.sleep(200)
        assert (await jobs.now()).objects_left == 1, "the older one is still there"
        away.damaged = True
        await world.ledger.set_offload(info.ledger, replace(record, data_key=world.newest))
        await asyncio.sleep(200)
        job = await jobs.now()
        assert job.active and job.compacted_left == 1 and "cannot be read" in job.trouble
        away.damaged = False
        assert (await jobs.ended()).state == JobState.DONE

    jobs(work)


def test_a_topic_whose_ledgers_are_trimmed_at_once_is_not_rolled_over_again_and_again() -> None:
    async def work(region: Region, config: Config, world: World, jobs: Jobs) -> None:
        await asyncio.sleep(2)
        world.ledger.set_retention(0, 0)
        await begin(world.meta, jobs.job(settles_ms=SETTLES_MS))
        jobs.worker(world.broker)
        names = list[int]()
        for number in range(20):
            world.broker.append(world.ledger, f"more{number}")
            await until(lambda number=number: len(world.broker.done) == 51 + number)
            await asyncio.sleep(6)
            names.append(world.ledger.ledgers()[-1].ledger)
        assert len(world.ledger.ledgers()) == 1, "no other ledger says how old it is"
        assert len(set(names)) <= 4, "once, and as it is full"

    jobs(work)


def test_a_job_that_ended_meanwhile_begins_no_copy_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(region: Region, config: Config, world: World, jobs: Jobs) -> None:
        begins = LedgerResealing._begin

        async def late(self: LedgerResealing, *given: Any) -> Any:
            job, version = await job_of(world.meta, "public") or (jobs.job(), -1)
            if job.state == JobState.RUNNING:  # and whoever leads now has given up all that there was
                await world.meta.put(
                    keys.reseal("public"), replace(job, state=JobState.CANCELLED).encode(), expected=version
                )
            return await begins(self, *given)

        monkeypatch.setattr(LedgerResealing, "_begin", late)
        before = await world.records()
        await begin(world.meta, jobs.job())
        jobs.worker(world.broker)
        assert (await jobs.ended()).state == JobState.CANCELLED
        await asyncio.sleep(60)
        assert not await world.places() and await world.records() == before

    jobs(work)


def test_a_later_key_that_a_slower_clock_made_may_stay_too() -> None:
    def key(number: int, created_ms: int) -> DataKey:
        return DataKey(number, "one", b"", created_ms)

    job = ResealJob("t", 0, 1000, 5000, 1, 0, 2)
    known = {"t": (key(1, 1500), key(2, 1000), key(3, 900))}
    assert newer_keys(job, known) == [2, 3], "nor does an older one that a faster clock made"
    assert newer_keys(job, {"t": (key(1, 500), key(3, 1100))}) == [3], "where it was removed"
    assert newer_keys(job, {}) == []


def test_a_rotation_by_a_slower_clock_makes_no_job_begin_again_and_again() -> None:
    async def work(region: Region, config: Config, world: World, jobs: Jobs) -> None:
        await begin(world.meta, jobs.job())
        expiry: Any = world.sealing._expiry

        def slower() -> int:
            return int(expiry.wall_ms()) - 2000

        world.sealing._expiry = SimpleNamespace(wall_ms=slower, latest_ms=slower)  # type: ignore[assignment]
        await world.sealing.rotate("public")
        world.sealing._expiry = expiry
        jobs.worker(world.broker)
        job = await jobs.ended()
        assert job.state == JobState.DONE and world.keys_held() == {world.newest}

    jobs(work)
