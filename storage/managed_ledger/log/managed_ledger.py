"""ManagedLedger: one topic's log in this region.

Is: what is appended, read, acknowledged, and kept of one topic, by its one owner; the parts that do so, connected.
Isn't: dispatch, deduplication, or ownership; how it is stored (TopicRecord), how it is appended (Tail), what is freed
(LedgerRetention), or what expires (`cursor_expiry`).
Invariants: no task, timer, or open ledger while nothing happens, and no part that only a busy topic needs: those are
made when they are first used, and given up by `rest`. What has failed once stays failed: the topic must be opened
again.
Source: docs/protocols/ledger.md, "Managed ledgers".
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from typing import Protocol

from heliograph.model.errors import HeliographError, NoSuchLedger, NotAllowed, TopicClosed
from heliograph.model.ledger_metadata import (
    ANYWHERE,
    TRIMMED_MS,
    Affinity,
    LedgerMetadata,
    ManagedLedgerMetadata,
    OffloadRecord,
)
from heliograph.model.positions import Position
from heliograph.runtime.task_set import report_error
from heliograph.wire.run import Run
from storage.ledger.reading.ledger_reader import ledger_metadata
from storage.managed_ledger.cache.topic_cache import TopicCache
from storage.managed_ledger.cursors import cursor_expiry
from storage.managed_ledger.cursors.cursor import Cursor
from storage.managed_ledger.log.log_reader import LogReader
from storage.managed_ledger.log.log_repair import LogRepair
from storage.managed_ledger.log.log_tail import Done, Failed, LogTail
from storage.managed_ledger.log.rollover_rule import idle_limit_s
from storage.managed_ledger.log.shared_parts import SharedParts
from storage.managed_ledger.log.topic_record import Stored, TopicRecord
from storage.managed_ledger.metadata.ledger_catalog import Catalog
from storage.managed_ledger.metadata.topic_times import dated
from storage.managed_ledger.retention.ledger_retention import LedgerRetention
from storage.managed_ledger.retention.sweep_schedule import NEVER
from storage.managed_ledger.retention.trim_rule import Retention


class LogState(Protocol):
    """What the layer above keeps beside the entries (vector, producers, incarnation); opaque here."""

    def restore(self, blob: bytes) -> None:
        """What `snapshot` returned; b"" for a new topic."""
        ...

    def replay(self, ledger: int, first: int, run: Run) -> None:
        """The entries behind the snapshot, in order."""
        ...

    def snapshot(self) -> bytes:
        """As of every run whose `done` was called, and nothing else."""
        ...


class _Waker:
    """Calls back when something was appended; calling it ends that."""

    __slots__ = ("_ledger", "callback")

    def __init__(self, ledger: ManagedLedger, callback: Callable[[], None]) -> None:
        self._ledger, self.callback = ledger, callback

    def __call__(self) -> None:
        self._ledger.drop_waker(self)


class ManagedLedger(LogRepair):
    """A topic's log while this broker owns it. `ManagedLedgerFactory.open` makes it."""

    __slots__ = (
        "_cache",
        "_closing",
        "_index",
        "_reader",
        "_refusal",
        "_retention",
        "_state",
        "_tail",
        "_wakers",
        "_woken",
        "affinity",
        "on_failed",
        "properties",
        "retention",
        "terminated_at",
    )

    def __init__(
        self,
        topic: str,
        state: LogState,
        quorums: tuple[int, int, int],
        catalog: Catalog,
        stored: ManagedLedgerMetadata,
        version: int,
        next_index: int,
        parts: SharedParts,
    ) -> None:
        """quorums: ensemble, write, and ack quorum of new ledgers."""
        self.topic, self.quorums, self.affinity = topic, parts.same(quorums), ANYWHERE
        self.cursors: dict[str, Cursor] = {}
        self.failed: HeliographError | None = None
        self.on_failed: Callable[[HeliographError], None] | None = None
        """Called once, after all that waited has failed: the topic must be unloaded."""
        self.owner = stored.owner
        self.terminated_at: Position | None = stored.terminated_at
        self.properties = dated(stored.properties, 0)
        self.retention: Retention | None = None
        self._state, self._catalog, self._parts = state, catalog, parts
        self._index = next_index  # of the next message, while there is no tail
        self._wakers: tuple[_Waker, ...] = ()
        self._woken = self._closed = False
        self._closing: asyncio.Task[None] | None = None
        self._refusal: HeliographError | None = (
            None if self.terminated_at is None else NotAllowed(f"{topic} is terminated")
        )
        self._record = TopicRecord(stored, version, self, parts)
        self._tail: LogTail | None = None
        self._retention: LedgerRetention | None = None
        self._reader: LogReader | None = None
        self._cache: TopicCache | None = None

    # -- parts that are there while they are needed --------------------------------------------------------------------

    def _end(self) -> LogTail:
        if self._tail is None:
            parts = self._parts
            parts.touch(self.topic)
            counts = parts.appends.of(self.topic)
            self._tail = LogTail(
                self.topic,
                parts.context,
                parts.settings,
                parts.clock,
                self._catalog,
                self,
                self._index,
                self.owner,
                counts,
            )
            if self._refusal is not None:
                self._tail.refuse(self._refusal)
        return self._tail

    def _cached(self) -> TopicCache:
        if self._cache is None:
            self._parts.touch(self.topic)
            self._cache = self._parts.cache.topic()
            self._cache.cursors = self.cursors
        return self._cache

    def _reads(self) -> LogReader:
        if self._reader is None:
            self._reader = LogReader(self._parts, self._catalog, self._cached(), self._known_metadata, self.topic)
        return self._reader

    def _ledger_retention(self) -> LedgerRetention:
        if self._retention is None:
            self._parts.touch(self.topic)
            settings = self._parts.settings
            self._retention = LedgerRetention(
                self, self._catalog, self._parts.context, self._parts.expiry, int(settings.ledger_age_max_s * 1000)
            )
        return self._retention

    def rest(self) -> float:
        """To be called now and then: closes the open ledger of a topic that is idle, or too old, and gives up what an
        idle topic does not need.

        Returns for how many seconds there will be nothing to do unless `SharedParts.touch` says so; 0: for none.
        """
        if self.ended or self._closing is not None:
            return NEVER
        idle_s = idle_limit_s(self._parts.settings, self._catalog.count)
        if self._tail is not None and self._tail.rest(idle_s):
            self._index, self._tail = self._tail.next_index, None
        if self._tail is None:
            self._reader = None
            self._cache = self._cache if self._cache is not None and self._cache.runs else None
        self.trim_soon()
        again_s = NEVER
        if self._retention is not None and self._retention.idle:
            again_s, self._retention = self._retention.again_s(), None
        if self._catalog.history is not None:
            self._catalog.history.forget(
                min((cursor.mark_delete[0] for cursor in self.cursors.values()), default=self.last_confirmed[0])
            )
            again_s = 0.0
        busy = self._retention is not None or (self._tail is None and self._cache is not None)
        return 0.0 if busy else again_s if self._tail is None else min(again_s, self._tail.rests_in_s(idle_s))

    # -- what there is ------------------------------------------------------------------------------------------------

    @property
    def next_index(self) -> int:
        """Index of the next message that is appended."""
        return self._index if self._tail is None else self._tail.next_index

    @property
    def confirmed_index(self) -> int:
        """Index of the message behind the last confirmed one."""
        return self._index if self._tail is None else self._tail.confirmed_index

    @property
    def pending_bytes(self) -> int:
        """Bytes appended and not yet confirmed."""
        return 0 if self._tail is None else self._tail.pending_bytes

    # -- appending ----------------------------------------------------------------------------------------------------

    def append_run(self, run: Run, done: Done, failed: Failed) -> None:
        """Appends in the order of the calls; never waits. Sets run.first_index, and run.time_ms where it is 0.

        done(ledger, first entry, run): in order, once the whole run is at or below LAC. failed(error): it is not, and
        never will be, in the topic, and everything appended behind it fails too; but where `self.failed` is set, the
        next owner may find it there. Raises what nobody expected, as MemoryError: that run is not in the topic either.
        """
        (self._tail or self._end()).append_run(run, done, failed)

    def leave_bookies(self) -> bool:
        """As `LedgerHandle.leave_bookies`, of the open ledger."""
        return self._tail is not None and self._tail.leave_bookies()

    def wake_on_append(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Calls back, at most once a loop pass, when `last_confirmed` has moved. Returns "stop"."""
        waker = _Waker(self, callback)
        self._wakers = (*self._wakers, waker)
        return waker

    def drop_waker(self, waker: _Waker) -> None:
        """It is not called any more."""
        self._wakers = tuple(other for other in self._wakers if other is not waker)

    def on_confirmed(self, ledger: int, first: int, run: Run) -> None:
        (self._cache or self._cached()).append(ledger, first, run)
        self._record.on_appended(run)

    def on_drained(self) -> None:
        if not self._woken and self._wakers:
            self._woken = True
            self._parts.loop.call_soon(self._wake)
        self._record.checkpoint_if_due()

    def on_ledgers_changed(self, dropped: LedgerMetadata | None) -> None:
        if dropped is not None:
            self._record.discard(dropped)
        self._record.change(0.0)
        self.trim_soon()

    def on_tail_failed(self, error: HeliographError) -> None:
        self._fail(error)

    def _wake(self) -> None:
        self._woken = False
        for waker in self._wakers:
            try:
                waker.callback()
            except Exception as error:  # consumers and links alike wait for this: the others have their turn
                report_error(error, "who waits for a topic's entries failed")

    # -- reading ------------------------------------------------------------------------------------------------------

    def cached(self, position: Position, max_entries: int, max_bytes: int) -> list[tuple[int, int, Run]]:
        """(ledger, first entry, run) at or after `position`, straight from the cache, at least one entry; [] where it
        is not there.
        """
        return [] if self._cache is None else self._reads().cached(position, max_entries, max_bytes)

    async def read(self, position: Position, max_entries: int, max_bytes: int) -> list[tuple[int, int, Run]]:
        """The same, from the cache or the bookies; [] where nothing is confirmed there yet.

        Raises CorruptData, BookieUnavailable, and what the metadata raises.
        """
        await self.first_from(position)
        return await self._reads().read(position, max_entries, max_bytes)

    async def at_bookies(self, ledger: int, first: int, last: int) -> tuple[LedgerMetadata, int] | None:
        """(metadata, last entry) of what of that range is confirmed and at bookies, and not in memory here, from
        `first` on; None: nothing is.

        Raises NoSuchLedger, and what the metadata raises.
        """
        await self.first_from((ledger, first))
        last = min(last, self._catalog.entries_of(ledger) - 1)
        if self._cache is not None and (start := self._cache.start) is not None and start <= (ledger, last):
            last = start[1] - 1 if start[0] == ledger else -1
        if last < first or self._catalog.local_gone(ledger):
            return None
        return await ledger_metadata(self._parts.context, ledger), last

    def _known_metadata(self, ledger: int) -> LedgerMetadata | None:
        """Returns what is known of a ledger without a look at the metadata. In an open one fragments before the last
        may have moved: the reader finds that out.
        """
        if self._tail is None:
            return None
        open_ledger = self._tail.open_ledger
        if open_ledger is not None and open_ledger.ledger == ledger:
            return open_ledger.metadata
        return self._tail.metadata.get(ledger)

    # -- what holds from now on ----------------------------------------------------------------------------------------

    def set_quorums(self, ensemble: int, write_quorum: int, ack_quorum: int) -> None:
        """Holds for the ledgers that are made from now on; the open one stays as it is. Raises NotAllowed unless
        ensemble >= write >= ack quorum >= 1.
        """
        if not 1 <= ack_quorum <= write_quorum <= ensemble:
            raise NotAllowed(
                f"{self.topic}: want ensemble {ensemble} >= write quorum {write_quorum} >= ack quorum {ack_quorum} >= 1"
            )
        self.quorums = self._parts.same((ensemble, write_quorum, ack_quorum))

    def set_mark_delete_rate(self, per_s: float) -> None:
        """How often a second changes of its cursors are written at most, where nobody waits for it. 0: as soon as there
        are some.
        """
        self._record.set_pace(1 / per_s if per_s > 0 else 0.0)

    def checkpoint(self) -> None:
        """Writes the state's snapshot soon, where anything was appended since the last one: so loading the topic
        replays less.
        """
        self._record.checkpoint()

    async def store_state(self) -> None:
        """What the state's snapshot says now is durable when it returns. Raises what closed the topic."""
        self._check_open()
        self._record.change(0.0)
        await self._record.written()

    def set_affinity(self, primary: Collection[str], secondary: Collection[str]) -> None:
        """Groups of bookies for the ledgers that are made from now on; without a primary one, all bookies."""
        self.affinity = Affinity(tuple(primary), tuple(secondary)) if primary else ANYWHERE

    def follow_sealing(self) -> None:
        """Whether it is to be encrypted at rest may have changed: from then on in a ledger of its own."""
        if self._tail is not None:
            self._tail.follow_sealing()

    # -- keeping ------------------------------------------------------------------------------------------------------

    def set_retention(self, minutes: int, mb: int) -> None:
        """What is kept of what every cursor has passed: 0 none, -1 without limit. Until it is called, nothing is
        trimmed.
        """
        self.retention = self._parts.same(Retention(minutes, mb))
        self.trim_soon()

    def trim_soon(self) -> None:
        """Frees, in the background, the ledgers that nobody needs."""
        if self._catalog.count:
            self._ledger_retention().trim_soon()

    async def truncate(self, names: Collection[str] | None = None) -> dict[str, int]:
        """Moves these cursors (None: every one) over all that is confirmed; what no other cursor needs is freed soon,
        whatever retention says.

        Returns how many entries each of them gave up. Raises NotEnoughBookies where no next ledger can be made: then
        what is freed is less.
        """
        self._check_open()
        upto = self.last_confirmed
        given_up = await cursor_expiry.move(self, upto, self.cursors if names is None else names)
        retention = self._ledger_retention()
        retention.truncating = max(retention.truncating, upto)
        if (
            upto[0] >= 0
            and self._catalog.ids
            and self._catalog.ids[-1] == upto[0]
            and not self._catalog.closed(upto[0])
        ):
            await self._end().roll()
        self.trim_soon()
        return given_up

    async def roll_over(self, begun_before_ms: int | None = None) -> None:
        """What is confirmed by now lies in closed ledgers when it returns; or only if the open one may have been begun
        before that wall time: as the ledger before it was closed says, or where that was trimmed how long it has been
        open. By the latter, a wall clock that jumped ahead since puts it off by as much. Raises NotEnoughBookies, and
        what closed the topic.
        """
        self._check_open()
        if not self._catalog.ids or self._catalog.closed(self._catalog.ids[-1]):
            return
        infos = self._catalog.recent()
        if begun_before_ms is not None and len(infos) > 1 and infos[-2].closed_ms >= begun_before_ms:
            return
        if infos and infos[-1].entries and not infos[-1].closed_ms:
            since_ms = 0 if begun_before_ms is None else self._parts.clock.wall_ms() - begun_before_ms
            await self._end().roll(since_ms / 1000)

    def take_trim(self, cursors: Iterable[Cursor], left: Collection[str]) -> tuple[bool, list[LedgerMetadata]]:
        return (False, []) if self._retention is None else self._retention.take(cursors, left)

    def on_trim_ready(self) -> None:
        self._record.change()

    def on_trim_put_off(self, taken: bool) -> None:
        if self._retention is not None:
            self._retention.put_off(taken)
            self.trim_soon()

    async def set_offload(self, ledger: int, record: OffloadRecord, local: LedgerMetadata | None = None) -> None:
        """Writes down how far the copy of a closed ledger is; returns once that is durable.

        local: given where the local copy shall go with it. Raises NoSuchLedger where it was trimmed meanwhile; what
        closed the topic.
        """
        self._check_open()
        if self._catalog.unread(ledger):
            await self._read_page(ledger)
        if not self._catalog.set_offload(ledger, record):
            raise NoSuchLedger(f"ledger {ledger} of {self.topic} was trimmed meanwhile")
        if local is not None:
            self._record.discard(local)
        self._record.change(0.0)
        await self._record.written()

    # -- repairs ------------------------------------------------------------------------------------------------------

    def forget_cached(self, ledger: int) -> None:
        self._parts.context.losses.forget(ledger)
        if self._reader is not None:
            self._reader.on_trimmed(ledger)  # its places may be others
        if self._cache is not None:
            self._cache.evict_through(ledger)
        self._parts.ahead.forget(ledger)

    def stored_form(self) -> tuple[ManagedLedgerMetadata, int]:
        """What would be stored of it now, in one piece, and the version of what is stored. Raises as `ledgers`."""
        return replace(self.form(0), ledgers=tuple(self.ledgers()), pages=()), self._record.version

    # -- storing ------------------------------------------------------------------------------------------------------

    def form(self, trimmed: int) -> ManagedLedgerMetadata:
        """What is to be stored, as of the last confirmed entry, without the first `trimmed` ledgers."""
        pages, infos = self._catalog.forms(trimmed)
        index, owner = self.confirmed_index, self.owner
        properties = self._record.dated(self._properties_without(trimmed), index)
        return ManagedLedgerMetadata(
            infos, self._state.snapshot(), self.last_confirmed, self.terminated_at, properties, index, owner, pages
        )

    def _properties_without(self, trimmed: int) -> dict[str, str]:
        """Those that hold once the first `trimmed` ledgers are gone."""
        return {**self.properties, TRIMMED_MS: str(self._catalog.closed_ms(trimmed))} if trimmed else self.properties

    def page_changes(self, trimmed: int) -> tuple[dict[int, bytes], list[int]]:
        parts = self._parts
        more = self._catalog.history is not None or parts.may_page()
        return self._catalog.page_changes(trimmed, more=more, page_ledgers=parts.page_ledgers)

    def on_pages_not_written(self, pages: Sequence[int]) -> None:
        if self._catalog.history is not None:
            self._catalog.history.change_again(pages)

    def on_stored(self, stored: Stored) -> None:
        if stored.trimmed:
            self.properties = self._properties_without(len(stored.trimmed))
            gone = [info.ledger for info in self._catalog.front(len(stored.trimmed))]
            self._catalog.drop_first(len(stored.trimmed))
            for cursor in self.cursors.values():
                cursor.on_trimmed()
            for ledger in gone:
                if self._reader is not None:
                    self._reader.on_trimmed(ledger)
                if self._tail is not None:
                    self._tail.metadata.pop(ledger, None)
        if stored.trimming:
            self._ledger_retention().finished()
        if stored.trimmed or stored.garbage:
            self._ledger_retention().delete([*stored.trimmed, *stored.garbage])
        if self._tail is not None:
            self._tail.on_recorded(stored.ledger)

    def on_record_lost(self, error: HeliographError) -> None:
        self._fail(error)

    # -- ending -------------------------------------------------------------------------------------------------------

    async def terminate(self) -> Position:
        """Takes no more runs, for ever; returns the last position. Those on their way are confirmed, or fail."""
        self._check_open()
        if self.terminated_at is None:
            refusal = NotAllowed(f"{self.topic} is terminated")
            await self._refuse(refusal)
            await self._end_tail(refusal)
            self._check_open()
            self.terminated_at = self.last_confirmed
            self._record.change(0.0)
            await self._record.written()
        return self.last_confirmed

    async def close(self) -> None:
        """Waits for appends that are on their way, closes the open ledger, and stores cursors and state. Idempotent;
        never raises.
        """
        if self._closing is None:
            self._closing = self._parts.context.tasks.spawn(self._close())
        await asyncio.wait([self._closing])

    async def _close(self) -> None:
        closed = TopicClosed(f"{self.topic} is being closed")
        if self.failed is None:
            await self._refuse(closed)
            ending = self._parts.context.tasks.spawn(self._end_tail(closed))
            await asyncio.wait(
                [ending], timeout=self._parts.settings.close_timeout_s
            )  # without metadata it ends when the tail is failed below
        if self.failed is None:
            await self._record.flush(self.last_confirmed, self._parts.settings.close_timeout_s)
        self._finish(closed)

    def abandon(self, error: HeliographError) -> None:
        """Ends it at once, as a crash would: what waits fails, nothing is written, on_failed is not called."""
        self.on_failed = None
        self._fail(error)

    async def _refuse(self, error: HeliographError) -> None:
        """Takes no more runs; those that were taken are waited for, not for ever."""
        self._refusal = error
        if self._tail is not None:
            self._tail.refuse(error)
            await self._tail.emptied(self._parts.settings.close_timeout_s)

    async def _end_tail(self, error: HeliographError) -> None:
        try:
            if self._tail is not None:
                await self._tail.close(error)
        except HeliographError as cause:
            self._fail(cause)

    def _fail(self, error: HeliographError) -> None:
        if self.failed is None and not self._closed:
            self._finish(error)
            if self.on_failed is not None:
                self.on_failed(error)

    def _finish(self, error: HeliographError) -> None:
        self.failed = self.failed or error
        self._refusal, self._closed = error, True
        if self._tail is not None:
            self._tail.fail(error)
        if self._cache is not None:
            self._cache.close()
        self._wakers = ()
        for cursor in self.cursors.values():  # who is still held by somebody must not count against the living
            cursor.give_up_ack_sets(0)
        self._record.end()
        self._parts.on_closed(self)
