"""Tiering: offloads the topics that one broker has open.

Is: the shell that asks the policies, and takes each step of an offload. Isn't: the decision what is offloaded
(`offload_plan`), the upload (`ledger_upload`), the reading (`cold_reader`), or a retry without end: a topic that failed
is tried again by the next look at its policies, later and later.
Invariants: an attempt stands in the topic's metadata before its object is begun; the object is verified before the
metadata calls it stored; the local copy goes after that, in one write with the metadata's last word on it, and only
while the object is still there. Each of these writes is a compare-and-set of the topic's owner. So a crash after any
step loses nothing, and leaves at most one object more, which is collected.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import NoReturn

from heliograph.model.errors import (
    AlreadyExists,
    CorruptData,
    HeliographError,
    MetadataUnavailable,
    NoSuchLedger,
    StoreRefused,
    StoreUnavailable,
)
from heliograph.model.ledger_metadata import LedgerInfo, LedgerMetadata, OffloadRecord, OffloadState
from heliograph.model.positions import Position
from heliograph.runtime.clock import CautiousClock
from heliograph.runtime.every import every
from heliograph.runtime.recent_latencies import Recent
from heliograph.runtime.task_set import cancel_all, report_unexpected
from heliograph.runtime.throttle import Throttle
from local_meta.metadata_id import instance_of
from storage.ledger.ledger_context import LedgerContext
from storage.ledger.reading.ledger_reader import ledger_metadata
from storage.managed_ledger.log.managed_ledger import ManagedLedger
from storage.tiered.objects.object_names import MANIFEST, ObjectName, folder, holder_of, key, manifest_attempt, parse
from storage.tiered.offload.ledger_upload import check, upload
from storage.tiered.offload.object_collector import ObjectCollector
from storage.tiered.offload.offload_plan import OffloadPolicy, stored, to_drop, to_offload
from storage.tiered.offload.side_ledgers import SideLedgers
from storage.tiered.offload.topic_manifest import State, States, TopicManifest, merge_states, stored_end
from storage.tiered.offload.unloaded_topics import TopicLoader, TopicSweep
from storage.tiered.store import ObjectStore, Stores
from storage.tiered.tiered_settings import TieredSettings

log = logging.getLogger("storage.tiered.tiering")

_BACK_OFF_MAX = 6
_TOPICS_A_SLICE = 100
_TOPICS_A_TICK = 5000
_TOPICS_APART = 1000
_QUEUE_MAX = 64
"""Topics that wait for their turn; the others are found by the next look."""


@dataclass(frozen=True, slots=True)
class Described:
    """What the layers above say of a topic, for its manifest. policies: name -> JSON text."""

    policies: dict[str, str]
    partitions: int = 0
    schemas_changed: int = 0
    """Another number: `schemas` would say something else."""


@dataclass(slots=True)
class OffloadStatus:
    """How the offload of one topic on this broker stands. state: NOT_RUN, RUNNING, SUCCESS, or ERROR."""

    state: str = "NOT_RUN"
    error: str = ""
    failures: int = 0
    errors: int = 0
    """Attempts that failed at all; `failures`: one behind another."""
    store_errors: int = 0
    """How many of the `errors` were the store's, not the broker's."""
    offloaded_bytes: int = 0
    not_before: float = 0.0
    put_off_failures: int = 0
    put_off_until: float = 0.0
    """The same of steps that are put off where some fail: they hold up no others."""
    unread: bool = False
    """The last failure was that of a look at what is to be done, not of an attempt."""
    states: States | None = None
    """The states in the last manifest; None: not known yet."""
    manifest: tuple[object, ...] = ()
    """What the last one said; () where none was stored by this broker."""
    manifest_at: float = 0.0


class Tiering:
    """One a broker. opened: the topics that it has open."""

    def __init__(
        self,
        *,
        region: str,
        context: LedgerContext,
        stores: Stores,
        opened: Callable[[], Iterable[ManagedLedger]],
        policy: Callable[[str], OffloadPolicy],
        describe: Callable[[str], Described],
        collects: Callable[[], bool],
        clock: CautiousClock,
        settings: TieredSettings,
        lender: TopicLoader | None = None,
        schemas: Callable[[str], Awaitable[dict[str, str]]] | None = None,
        beside: SideLedgers | None = None,
    ) -> None:
        """policy, describe: by a topic's full name. collects: whether this broker is the one that collects at the
        moment. clock: by it local copies go.

        schemas: what else a manifest says of a topic beside its policies, by name, as JSON text; it is read for each
        manifest.
        lender: loads topics that nobody has loaded; without one they wait until somebody does. beside: what topics have
        beside their logs.
        """
        self.holder = ""
        self.offloaded_bytes = self.offloaded_ledgers = self.dropped_ledgers = 0
        self.collector: ObjectCollector | None = None
        self._region, self._context, self._stores, self._opened = region, context, stores, opened
        self._policy, self._describe, self._collects, self._clock, self._settings = (
            policy,
            describe,
            collects,
            clock,
            settings,
        )
        self._throttle = Throttle(settings.bytes_per_s)
        self._slots = asyncio.Semaphore(settings.uploads_max)
        self._status: dict[str, OffloadStatus] = {}
        self.read_ms: dict[str, Recent] = {}
        """How long reads from the bookies took, of the first `_TOPICS_APART` topics that are offloaded; "": of the
        others.
        """
        self._running: dict[str, asyncio.Task[None]] = {}
        self._ticking: asyncio.Task[NoReturn] | None = None
        self._collect_at = 0.0
        self._manifest_moment = 0
        """Wall time in ms, but it grows with each manifest: cursors alone give a topic's metadata no other version."""
        self._round: list[ManagedLedger] = []
        """The open topics whose turn comes yet: where there are very many, each tick takes some."""
        self._schemas, self._beside = schemas, beside
        self.sweep: TopicSweep | None = None
        if lender is not None and settings.sweep_topics:
            self.sweep = TopicSweep(context.meta, lender, self.due, self._running.__contains__, settings.sweep_topics)

    async def start(self) -> None:
        """Does nothing where the broker is set to no store. Raises ConfigError, and what the metadata raises."""
        if self._stores.own_url:
            store = self._stores.get()
            instance = await instance_of(self._context.meta, self._context.rng)
            self.holder = holder_of(self._region, instance)
            self.collector = ObjectCollector(
                self._context.meta,
                store,
                self.holder,
                instance.encode(),
                None if self._beside is None else self._beside.named,
            )
            self._collect_at = self._clock.monotonic() + self._settings.collect_s
            self._ticking = self._context.tasks.spawn(every(self._settings.tick_s, self._tick_in_slices))

    async def stop(self) -> None:
        await cancel_all([self._ticking, *self._running.values()])

    def failures(self) -> dict[str, int]:
        """Topic -> attempts that failed one behind another, of those whose last one did."""
        counts = {topic: status.failures + status.put_off_failures for topic, status in self._status.items()}
        return {topic: count for topic, count in counts.items() if count}

    def errors(self) -> dict[str, int]:
        """Topic -> attempts that failed since it was loaded, where any did."""
        return {topic: status.errors for topic, status in self._status.items() if status.errors}

    def statuses(self) -> dict[str, OffloadStatus]:
        """Topic -> what became of it, of those that were looked at."""
        return dict(self._status)

    def status(self, topic: str) -> OffloadStatus:
        return self._status.get(topic) or OffloadStatus()

    def offload(self, ledger: ManagedLedger, before: Position, *, roll_over: bool = False) -> None:
        """By command: whole ledgers that end before a position, in the background. Raises AlreadyExists while the topic
        is being offloaded.

        roll_over: closes the open ledger first; with it, and all before the end, the store holds the topic as of now.
        """
        if not self.holder:
            raise StoreRefused("this broker is set to no object store: set broker.tiered.store")
        if ledger.topic in self._running:
            raise AlreadyExists(f"{ledger.topic} is being offloaded already")
        self.begin(ledger, partial(self._all_steps, ledger, before, roll_over))

    async def idle(self) -> None:
        """Returns once nothing that was begun is running."""
        while running := list(self._running.values()):
            await asyncio.wait(running)

    # -- by policy ----------------------------------------------------------------------------------------------------

    async def _tick_in_slices(self) -> None:
        for number, ledger in enumerate(self._next_topics()):
            self._look(ledger)
            if number % _TOPICS_A_SLICE == _TOPICS_A_SLICE - 1:
                await asyncio.sleep(0)
        if self.sweep is not None:
            await self.sweep.step()
        if self._clock.monotonic() >= self._collect_at:
            self._collect_at = self._clock.monotonic() + self._settings.collect_s
            if self._collects():
                await self.collect()

    def tick(self) -> None:
        """Begins what the policies ask for."""
        for ledger in self._forget():
            self._look(ledger)

    def _next_topics(self) -> list[ManagedLedger]:
        """Whose policies are asked on this tick: all, or of very many the next ones, so that a tick costs no more
        however many there are.
        """
        opened = self._forget()
        if len(opened) <= _TOPICS_A_TICK:
            self._round.clear()
            return opened
        self._round = self._round or opened
        topics = self._round[-_TOPICS_A_TICK:]
        del self._round[-_TOPICS_A_TICK:]
        return topics

    def _forget(self) -> list[ManagedLedger]:
        """The topics that are open; of others nothing is kept."""
        opened = list(self._opened())
        names = {ledger.topic for ledger in opened}
        for topic in [topic for topic in self._status if topic not in names and topic not in self._running]:
            del self._status[topic]
            self.read_ms.pop(topic, None)
        return opened

    def _look(self, ledger: ManagedLedger) -> None:
        """Begins what the topic's policies ask for; what goes wrong with it is told, and keeps no other one waiting."""
        status, now = self.status(ledger.topic), self._clock.monotonic()
        if (
            len(self._running) >= _QUEUE_MAX
            or ledger.topic in self._running
            or ledger.failed is not None
            or status.not_before > now
        ):
            return
        try:
            due = self._is_due(ledger, now)
        except MetadataUnavailable:
            return  # its ledgers are being read: the next look has them
        except Exception as error:
            status = self._status.setdefault(ledger.topic, status)
            status.unread = True
            self._failed(ledger.topic, status, error)
            report_unexpected(error, f"the look at what is to be offloaded of {ledger.topic}")
            return
        if status.unread:
            status.state, status.error, status.failures, status.unread = "NOT_RUN", "", 0, False
        if due:
            self.begin(ledger, partial(self._all_steps, ledger, None, False))

    def _is_due(self, ledger: ManagedLedger, now: float) -> bool:
        infos, now_ms = ledger.unsettled(), self._clock.wall_ms()
        beside = [] if self._beside is None else self._beside.ledgers(ledger.topic)
        if not any(info.closed_ms for info in infos) and not beside:
            return False
        policy = self._policy(ledger.topic)
        if not policy.active and not ledger.settled and all(info.offload is None for info in (*infos, *beside)):
            return False
        return bool(
            to_offload(beside, policy, now_ms)
            or to_drop(beside, policy, now_ms)
            or to_offload(infos, policy, now_ms)
            or to_drop(infos, policy, now_ms)
            or self._manifest_due(ledger, infos, now)
        )

    def due(self, topic: str, infos: list[LedgerInfo]) -> bool:
        """Whether the policies want any of its ledgers moved now."""
        if not any(info.closed_ms for info in infos):
            return False
        policy, now_ms = self._policy(topic), self._clock.wall_ms()
        if not policy.active and all(info.offload is None for info in infos):
            return False
        return bool(to_offload(infos, policy, now_ms) or to_drop(infos, policy, now_ms))

    async def collect(self) -> None:
        assert self.collector is not None
        try:
            deleted = await self.collector.sweep()
        except HeliographError as error:
            log.warning("tier.collect_failed", extra={"store": self._stores.own_url, "error": str(error)})
            return
        if deleted:
            log.info("tier.collected", extra={"objects": len(deleted)})

    def begin(
        self, ledger: ManagedLedger, steps: Callable[[OffloadStatus], Awaitable[None]], *, put_off: bool = False
    ) -> bool:
        """Takes steps with a topic, in the background. False: not now, as others are being taken. put_off: nor where
        some have failed a moment ago; where these fail no others wait.
        """
        topic = ledger.topic
        status = self._status.setdefault(topic, OffloadStatus())
        waits = ledger.failed is not None or max(status.not_before, status.put_off_until) > self._clock.monotonic()
        if topic in self._running or (put_off and waits):
            return False
        status.state, status.error, status.unread = "RUNNING", "", False
        self._running[topic] = self._context.tasks.spawn(self._run(topic, steps, status, put_off))
        return True

    # -- one topic ----------------------------------------------------------------------------------------------------

    async def _run(
        self,
        topic: str,
        steps: Callable[[OffloadStatus], Awaitable[None]],
        status: OffloadStatus,
        put_off: bool = False,
    ) -> None:
        try:
            async with self._slots:
                await steps(status)
            status.state = "SUCCESS"
            if put_off:
                status.put_off_failures = 0
            else:
                status.failures = 0
        except Exception as error:
            self._failed(topic, status, error, put_off)
            if not isinstance(error, HeliographError):
                raise
        finally:
            self._running.pop(topic, None)

    def _failed(self, topic: str, status: OffloadStatus, error: Exception, put_off: bool = False) -> None:
        status.state, status.error = "ERROR", str(error)
        status.errors += 1
        status.store_errors += isinstance(error, StoreUnavailable | StoreRefused)
        failures = 1 + (status.put_off_failures if put_off else status.failures)
        until = self._clock.monotonic() + self._settings.tick_s * (1 << min(failures, _BACK_OFF_MAX))
        if put_off:
            status.put_off_failures, status.put_off_until = failures, until
        else:
            status.failures, status.not_before = failures, until
        log.warning("tier.offload_failed", extra={"topic": topic, "error": str(error), "failures": failures})

    async def _all_steps(
        self, ledger: ManagedLedger, before: Position | None, roll_over: bool, status: OffloadStatus
    ) -> None:
        early: State | None = None
        if roll_over:
            await ledger.whole()
            form, _ = ledger.stored_form()
            early = form.state_through, form.state_blob  # reaches no further than what is about to be stored
            await ledger.roll_over()
        policy = self._policy(ledger.topic)
        await ledger.whole()
        for info in to_offload(ledger.unsettled(), policy, self._clock.wall_ms(), before):
            status.offloaded_bytes += await self._offload(ledger, info)
        if self._manifest_due(ledger, ledger.unsettled(), None):
            await self.store_manifest(ledger, status, early)
        for info in to_drop(ledger.unsettled(), policy, self._clock.wall_ms()):
            await self._drop(ledger, info)
        if self._beside is not None:
            for info in to_offload(self._beside.ledgers(ledger.topic), policy, self._clock.wall_ms()):
                status.offloaded_bytes += await self._offload_beside(self._beside, ledger.topic, info)
            for info in to_drop(self._beside.ledgers(ledger.topic), policy, self._clock.wall_ms()):
                assert info.offload is not None
                await check(self._stores.get(info.offload.store), ledger.topic, info, info.offload)
                if await self._beside.set_offload(
                    ledger.topic, info.ledger, replace(info.offload, state=OffloadState.LOCAL_GONE)
                ):
                    self.dropped_ledgers += 1

    async def _offload_beside(self, beside: SideLedgers, topic: str, info: LedgerInfo) -> int:
        """The bytes that were stored; 0 where the topic has another ledger there by now: the object is named by nobody
        then.
        """
        begun = OffloadRecord(f"{self._context.rng.getrandbits(128):032x}", self.holder)
        if not await beside.set_offload(topic, info.ledger, begun):
            return 0
        try:
            done = await self._upload(self._stores.get(), topic, info, begun)
        except NoSuchLedger:
            if any(one.ledger == info.ledger for one in beside.ledgers(topic)):
                raise
            return 0
        if not await beside.set_offload(topic, info.ledger, replace(done, stored_ms=self._clock.latest_ms())):
            return 0
        self._count(topic, info, done.size_bytes)
        return done.size_bytes

    async def _upload(self, store: ObjectStore, topic: str, info: LedgerInfo, begun: OffloadRecord) -> OffloadRecord:
        of = topic if topic in self.read_ms or len(self.read_ms) < _TOPICS_APART else ""
        took = self.read_ms.setdefault(of, Recent()).add
        return await upload(self._context, store, topic, info, begun, self._settings, self._throttle, took, self._clock)

    def _count(self, topic: str, info: LedgerInfo, size_bytes: int) -> None:
        self.offloaded_ledgers += 1
        self.offloaded_bytes += size_bytes
        log.info(
            "ledger.offloaded",
            extra={"topic": topic, "ledger": info.ledger, "entries": info.entries, "bytes": size_bytes},
        )

    async def _offload(self, ledger: ManagedLedger, info: LedgerInfo) -> int:
        """The bytes that were stored."""
        store = self._stores.get()
        begun = OffloadRecord(f"{self._context.rng.getrandbits(128):032x}", self.holder)
        try:
            await ledger.set_offload(info.ledger, begun)
            done = await self._upload(store, ledger.topic, info, begun)
            await ledger.set_offload(info.ledger, replace(done, stored_ms=self._clock.latest_ms()))
        except NoSuchLedger:
            if any(i.ledger == info.ledger for i in ledger.ledgers()):
                raise
            return 0  # trimmed meanwhile: its object, if there is one, is named by nobody
        self._count(ledger.topic, info, done.size_bytes)
        return done.size_bytes

    async def _drop(self, ledger: ManagedLedger, info: LedgerInfo) -> None:
        """The local copy goes, where the object is still whole."""
        assert info.offload is not None
        await check(self._stores.get(info.offload.store), ledger.topic, info, info.offload)
        try:
            local: LedgerMetadata | None = await ledger_metadata(self._context, info.ledger)
        except NoSuchLedger:
            local = None  # the metadata was restored from a time when it had gone
        try:
            await ledger.set_offload(info.ledger, replace(info.offload, state=OffloadState.LOCAL_GONE), local)
        except NoSuchLedger:
            return  # trimmed meanwhile
        self.dropped_ledgers += 1

    # -- manifests ----------------------------------------------------------------------------------------------------

    def _manifest_due(self, ledger: ManagedLedger, infos: list[LedgerInfo], now: float | None) -> bool:
        """now: None where other steps have just been taken."""
        if not ledger.settled and not any(stored(info) for info in infos):
            return False
        status = self.status(ledger.topic)
        if now is not None and status.manifest and now - status.manifest_at < self._settings.manifest_s:
            return False
        return status.manifest != self._essence(ledger, infos)

    def _essence(self, ledger: ManagedLedger, infos: list[LedgerInfo]) -> tuple[object, ...]:
        """What makes another manifest worth its writing: what is stored, changes of cursors, policies; not the live
        end.
        """
        described = self._describe(ledger.topic)
        objects = tuple(
            (info.ledger, info.offload.attempt) for info in infos if stored(info) and info.offload is not None
        )
        cursors = tuple((name, cursor.changes) for name, cursor in sorted(ledger.cursors.items()) if cursor.durable)
        policies = tuple(sorted(described.policies.items()))
        return (
            ledger.settled,
            objects,
            cursors,
            policies,
            described.partitions,
            described.schemas_changed,
            ledger.terminated_at,
        )

    async def store_manifest(self, ledger: ManagedLedger, status: OffloadStatus, early: State | None = None) -> None:
        """Stores one of a topic that steps are being taken with. early: a state no further than what is stored."""
        store = self._stores.get()
        if status.states is None:
            status.states = await self._former_states(store, ledger.topic)
        metadata, version = ledger.stored_form()
        essence = self._essence(ledger, ledger.unsettled())
        described = self._describe(ledger.topic)
        end, known = stored_end(metadata), status.states
        if early is not None:
            known = merge_states(known, early, end)
        states = merge_states(known, (metadata.state_through, metadata.state_blob), end)
        cursors = tuple((name, cursor.encode()) for name, cursor in sorted(ledger.cursors.items()) if cursor.durable)
        form = replace(metadata, state_blob=b"", owner=0)
        policies = (
            described.policies if self._schemas is None else {**described.policies, **await self._schemas(ledger.topic)}
        )
        manifest = TopicManifest(
            ledger.topic, self._clock.latest_ms(), form, states, cursors, policies, described.partitions
        )
        self._manifest_moment = max(self._manifest_moment + 1, manifest.made_ms)
        attempt = manifest_attempt(self._manifest_moment, self._context.rng.getrandbits(64))
        await store.put(key(ObjectName(self.holder, ledger.topic, MANIFEST, version, attempt)), _one(manifest.encode()))
        status.states, status.manifest, status.manifest_at = states, essence, self._clock.monotonic()

    async def _former_states(self, store: ObjectStore, topic: str) -> States:
        """The states in the newest manifest that is stored, by another opening or by this one before; () where none can
        be read.
        """
        newest: tuple[int, str, int] | None = None
        async for page in store.list(f"{folder(self.holder, topic)}{MANIFEST}/"):
            for name, size in page:
                parsed = parse(name)
                if parsed is not None and (newest is None or (parsed.number, name) > newest[:2]):
                    newest = parsed.number, name, size
        if newest is None:
            return ()
        try:
            return TopicManifest.decode(await store.read(newest[1], 0, newest[2])).states
        except CorruptData as error:
            log.warning("tier.manifest_damaged", extra={"object": newest[1], "error": str(error)})
            return ()


async def _one(blob: bytes) -> AsyncIterator[bytes]:
    yield blob
