"""ResealWorker: does a region's reseal jobs, on whichever broker looks after the region's ledgers.

Is: one job after the other, pass by pass; the pace; what is told of it; and the end of open ledgers on the brokers that
write them. Isn't: one ledger (`ledger_resealing`), what topics were compacted to, or the job's value
(`reseal_job`).
Invariants: a ledger that fails stops no other one. The pace and the end of a job are obeyed within a run of entries.
Two brokers that both believe to be the one do no harm: each change of a ledger is by compare-and-set.
Source: docs/operating/keys.md, "Encryption at rest: older ledgers under a new key".
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from heliograph.kv.metadata_store import Check, Op, rows_under
from heliograph.kv.unreadable_records import readable
from heliograph.model.errors import CorruptData, HeliographError, KeyMissing, VersionConflict
from heliograph.model.ledger_metadata import LedgerInfo, local_gone, stored
from heliograph.runtime.clock import CautiousClock
from heliograph.runtime.every import every
from heliograph.runtime.task_set import TaskSet
from heliograph.runtime.throttle import RowPace, Throttle
from local_meta import keys
from storage.ledger.ledger_context import LedgerContext
from storage.managed_ledger.log.managed_ledger import ManagedLedger
from storage.managed_ledger.log.shadow_ledger import ShadowLedger
from storage.managed_ledger.resealing.ledger_resealing import LedgerResealing, Stage
from storage.managed_ledger.resealing.reseal_job import (
    EVERY_KEY,
    EXAMPLES,
    Aim,
    JobState,
    ResealJob,
    SideReseals,
    job_of,
    ledgers_begun_before,
    topics_of,
)
from storage.sealing.keyring import DataKey

log = logging.getLogger("storage.managed_ledger.resealing")

_TICK_S = 5.0
_IDLE_S, _TROUBLE_S = 10.0, 60.0
"""Between two passes of a job, of which the earlier one has written nothing, or could not write something."""
_COUNTING = 5
"""So much longer than a pass takes lies between two that write nothing."""
_TELL_S = 2.0
_BATCH = 1000
"""Ledgers that a pass writes anew before it counts again."""


class _Ended(Exception):
    """The job was cancelled, or another broker looks after it."""


class ResealWorker:
    """One a broker. clock: by it older copies go, and a job ends. leads: whether this broker does the jobs. opened: the
    topics that it has open.
    """

    def __init__(
        self,
        context: LedgerContext,
        clock: CautiousClock,
        leads: Callable[[], bool],
        opened: Callable[[], Iterable[ManagedLedger]],
        beside: SideReseals | None = None,
    ) -> None:
        self._context, self._clock, self._leads, self._opened = context, clock, leads, opened
        self.beside = beside
        self._tasks = TaskSet("nothing is sealed anew by this broker any more")
        self._not_before: dict[str, float] = {}
        """Tenant -> when its next pass may begin, of the monotonic clock."""

    def start(self) -> None:
        for work in (self.roll_over, self.once):
            self._tasks.spawn(every(_TICK_S, work, failed=self._failed))

    async def stop(self) -> None:
        await self._tasks.close()

    @staticmethod
    def _failed(error: HeliographError) -> None:
        log.warning("reseal.put_off", extra={"error": str(error)})

    async def _jobs(self) -> list[ResealJob]:
        rows = await rows_under(self._context.meta, keys.RESEALS)
        jobs, now_ms = [readable(ResealJob.decode, key, blob) for key, blob, _ in rows], self._clock.latest_ms()
        return [job for job in jobs if job is not None and job.pending(now_ms)]

    # -- open ledgers -------------------------------------------------------------------------------------------------

    async def roll_over(self) -> None:
        """Ends those that may hold something of an older key, of the topics that are open here: each once as a job
        begins, and once more where that may have been before all brokers heard of the newer key.
        """
        pace = RowPace()
        jobs = await self._jobs()
        for job in [job for job in jobs if job.active]:
            before = before_ms(job, self._clock.wall_ms())
            for ledger in list(self._opened()):
                await pace.row()
                if ledger.topic.split("/", 3)[2] != job.tenant or isinstance(ledger, ShadowLedger):
                    continue
                try:
                    await ledger.roll_over(before)
                except HeliographError as error:
                    log.warning("reseal.not_rolled_over", extra={"topic": ledger.topic, "error": str(error)})
        sealing = self._context.sealing
        if self.beside is not None and sealing is not None:
            known = sealing.listing()
            await self.beside.step(
                [
                    replace(
                        aim_of(job, newer_keys(job, known) if job.active else EVERY_KEY, self._clock.wall_ms()),
                        left=job.active and job.compacted_left > 0,
                        objects_left=job.objects_left > 0,
                    )
                    for job in jobs
                    if job.state != JobState.CANCELLING
                ]
            )

    # -- passes -------------------------------------------------------------------------------------------------------

    async def once(self) -> None:
        """One pass of each job that is due. Raises what the metadata raises."""
        if not self._leads() or self._context.sealing is None:
            return
        for job in await self._jobs():
            began = self._clock.monotonic()
            if began < self._not_before.get(job.tenant, 0.0) and job.state != JobState.CANCELLING:
                continue
            found = await job_of(self._context.meta, job.tenant)
            if found is None or not found[0].pending(self._clock.latest_ms()):
                continue
            work = _Pass(self._context, self._clock, self._leads, self.beside, *found)
            try:
                wrote = await work.run()
            except _Ended:
                continue
            except HeliographError as error:
                self._failed(error)
                wrote = False
            now = self._clock.monotonic()
            pause_s = _IDLE_S if work.job.active and not work.job.trouble else _TROUBLE_S
            self._not_before[job.tenant] = now if wrote else now + max(pause_s, _COUNTING * (now - began))


def newer_keys(job: ResealJob, known: Mapping[str, Sequence[DataKey]]) -> list[int]:
    """Those of the tenant's data keys that may stay, the oldest first, whatever the clocks said that made later ones.
    known: as `Sealing.listing` says them.
    """
    keys_known = known.get(job.tenant, ())
    numbers = [key.number for key in keys_known]
    if job.key in numbers:
        return numbers[numbers.index(job.key) :]
    return [key.number for key in keys_known if key.created_ms >= job.key_ms]


def before_ms(job: ResealJob, now_ms: int) -> int:
    """What was begun before may hold something of an older key: a broker may not have heard of the newer one until it
    is settled.
    """
    return job.settled_ms if now_ms >= job.settled_ms else job.begun_ms


def aim_of(job: ResealJob, newer: Sequence[int], now_ms: int) -> Aim:
    return Aim(job.tenant, newer, before_ms(job, now_ms), job.settled_ms, job.bytes_per_s, job.keep_ms)


class _Pass:
    """One pass of one job. job: as it was last stored."""

    def __init__(
        self,
        context: LedgerContext,
        clock: CautiousClock,
        leads: Callable[[], bool],
        beside: SideReseals | None,
        job: ResealJob,
        version: int,
    ) -> None:
        self._context, self._clock, self._leads, self._beside = context, clock, leads, beside
        self.job, self._version = job, version
        self._throttle = Throttle(job.bytes_per_s)
        self._told_at = clock.monotonic()

    async def run(self) -> bool:
        """Whether there was anything to write. Raises _Ended, what the metadata raises."""
        sealing, job = self._context.sealing, self.job
        assert sealing is not None
        await sealing.look()
        newer = newer_keys(job, sealing.listing())
        one = LedgerResealing(self._context, self._clock, self._paced, newer, job.keep_ms, self._as_told)
        if job.state != JobState.RUNNING:
            await self._give_up(one)
            return False
        if not newer:
            raise KeyMissing(
                f"the data key with which ledgers of tenant {job.tenant} are sealed anew is not known here"
            )
        wrote = False
        for topic, info in await self._count(one, newer):
            wrote = await self._write(one, topic, info) or wrote
        await self._tell()
        return wrote

    async def _give_up(self, one: LedgerResealing) -> None:
        """Ends a job that is cancelled, and counts second objects in a store, which their topics' owners let go."""
        job, objects, waits = self.job, 0, dict[str, None]()
        async for topic, _, info in ledgers_begun_before(self._context.meta, job.tenant, job.settled_ms):
            if job.active:
                await one.give_up(info.ledger)
            if stored(info) and info.offload is not None and info.offload.also:
                objects, waits[topic] = objects + 1, None
        if self._beside is None or not self._beside.writes_objects:
            objects = 0
        ended_ms, waits_for = job.ended_ms or self._clock.latest_ms(), tuple(waits)[:EXAMPLES]
        await self._tell(state=JobState.CANCELLED, ended_ms=ended_ms, objects_left=objects, waits_for=waits_for)

    async def _count(self, one: LedgerResealing, newer: Sequence[int]) -> list[tuple[str, LedgerInfo]]:
        """Tells how far the job is, and ends it where that is so; returns some of what is left."""
        job, todo, waits = self.job, list[tuple[str, LedgerInfo]](), dict[str, None]()
        counts = dict.fromkeys(Stage, 0)
        bytes_of = dict.fromkeys(Stage, 0)
        still_open = offloaded = objects = 0
        objects_of = dict[str, None]()
        async for topic, _, info in ledgers_begun_before(self._context.meta, job.tenant, job.settled_ms):
            if not info.closed_ms:
                still_open += 1
                waits[topic] = None
                continue
            if stored(info) and info.offload is not None:
                if self._beside is None or not self._beside.writes_objects:
                    offloaded += info.offload.data_key not in newer
                elif info.offload.also or info.offload.data_key not in newer:
                    objects += 1
                    objects_of[topic] = None
            if info.entries and not local_gone(info):
                stage = await one.stage(info.ledger)
                counts[stage] += 1
                bytes_of[stage] += info.size_bytes
                if stage in (Stage.LEFT, Stage.DUE) and len(todo) < _BATCH:
                    todo.append((topic, info))
        beside = [topic async for topic in self._left_beside(newer)]
        trouble = self.job.trouble if counts[Stage.LEFT] or self.job is not job else ""
        waits |= dict.fromkeys(beside) | objects_of
        written = Stage.DONE, Stage.KEPT, Stage.DUE
        self.job = replace(
            job,
            counted=True,
            ledgers_done=sum(counts[stage] for stage in written),
            bytes_done=sum(bytes_of[stage] for stage in written),
            ledgers_left=counts[Stage.LEFT],
            bytes_left=bytes_of[Stage.LEFT],
            ledgers_kept=counts[Stage.KEPT] + counts[Stage.DUE],
            ledgers_open=still_open,
            ledgers_offloaded=offloaded,
            objects_left=objects,
            compacted_left=len(beside),
            waits_for=tuple(waits)[:EXAMPLES],
            trouble=trouble,
        )
        if not self.job.left and self._clock.wall_ms() >= job.settled_ms:
            await self._tell(state=JobState.DONE, ended_ms=self._clock.latest_ms())
            log.info("reseal.done", extra={"tenant": job.tenant, "ledgers": self.job.ledgers_done})
            raise _Ended
        await self._tell()
        return todo

    async def _left_beside(self, newer: Sequence[int]) -> AsyncIterator[str]:
        """Topics; also those of which it cannot be read."""
        if self._beside is None:
            return
        aim = aim_of(self.job, newer, self._clock.wall_ms())
        async for topic in topics_of(self._context.meta, self.job.tenant):
            try:
                left = await self._beside.left(topic, aim)
            except CorruptData as error:
                self.job = replace(self.job, trouble=f"what {topic} was compacted to: {error}")
                left = True
            if left:
                yield topic

    async def _write(self, one: LedgerResealing, topic: str, info: LedgerInfo) -> bool:
        """Whether it is any further now."""
        sealing = self._context.sealing
        assert sealing is not None
        left = self.job.bytes_left
        try:
            before = await one.stage(info.ledger)
            stage = await one.write_anew(topic, info, sealing.wanted(topic))
            if stage is Stage.DUE:
                stage = await one.move(info.ledger)
        except HeliographError as error:
            waits = dict.fromkeys((topic, *self.job.waits_for))
            self.job = replace(self.job, trouble=f"ledger {info.ledger} of {topic}: {error}", bytes_left=left)
            self.job = replace(self.job, waits_for=tuple(waits)[:EXAMPLES])
            return False
        kept = self.job.ledgers_kept + (stage is not Stage.DONE) - (before is Stage.DUE)
        self.job = replace(self.job, ledgers_kept=kept)
        if before is Stage.LEFT:
            self.job = replace(
                self.job,
                ledgers_done=self.job.ledgers_done + 1,
                bytes_done=self.job.bytes_done + info.size_bytes,
                ledgers_left=self.job.ledgers_left - 1,
                bytes_left=max(0, left - info.size_bytes),
            )
        return stage is not before

    # -- pace, and what is told ---------------------------------------------------------------------------------------

    async def _paced(self, size_bytes: int) -> None:
        """Raises _Ended where the job is to be left."""
        while True:  # about a second's worth at a time
            await self._throttle.take(min(size_bytes, self.job.bytes_per_s))
            size_bytes -= self.job.bytes_per_s
            if self._clock.monotonic() - self._told_at >= _TELL_S:
                if not self._leads():
                    raise _Ended
                await self._tell()
            if size_bytes <= 0:
                return

    def _as_told(self) -> Op:
        """Whether nobody else has changed the job, such as to cancel it."""
        return Check(keys.reseal(self.job.tenant), self._version)

    async def _tell(self, **changes: object) -> None:
        """Raises _Ended where somebody has changed the job."""
        self.job = replace(self.job, **changes)  # type: ignore[arg-type]
        self._told_at = self._clock.monotonic()
        try:
            self._version = await self._context.meta.put(
                keys.reseal(self.job.tenant), self.job.encode(), expected=self._version
            )
        except VersionConflict as error:
            raise _Ended from error
