"""ManagedLedger: one topic's log in this region.

Is: what is appended, read, acknowledged, and kept of one topic, by its one owner; the parts that do so, connected. Isn't: dispatch, deduplication, or
ownership; how it is stored (TopicRecord), how it is appended (Tail), what is freed (Keeping), or what expires (expiry).
Invariants: no task, timer, or open ledger while nothing happens. What has failed once stays failed: the topic must be opened again.
Source: docs/protocols/ledger.md, "Managed ledgers".
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import Protocol

from heliograph.model.errors import (
    AlreadyExists,
    HeliographError,
    NoSuchLedger,
    NotAllowed,
    NotFound,
    TopicClosed,
)
from heliograph.model.ledgers import ANYWHERE, Affinity, LedgerInfo, LedgerMetadata, ManagedLedgerMetadata, OffloadRecord
from heliograph.model.positions import Position
from heliograph.runtime.clock import Clock
from heliograph.wire.run import Run
from storage.ledger.context import LedgerContext
from storage.managed_ledger import expiry
from storage.managed_ledger.cache import EntryCache
from storage.managed_ledger.catalog import Catalog
from storage.managed_ledger.cursor import Cursor
from storage.managed_ledger.flusher import MetadataFlusher
from storage.managed_ledger.keeping import Keeping
from storage.managed_ledger.read_ahead import ReadAhead
from storage.managed_ledger.reading import ColdReads, LogReader
from storage.managed_ledger.record import Stored, TopicRecord
from storage.managed_ledger.settings import ManagedLedgerSettings
from storage.managed_ledger.tail import Done, Failed, Tail
from storage.managed_ledger.trim import Retention


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


class ManagedLedger:
    """Made by ManagedLedgerFactory.open."""

    __slots__ = (
        "_cache",
        "_catalog",
        "_closed",
        "_closing",
        "_context",
        "_keeping",
        "_loop",
        "_on_closed",
        "_reader",
        "_record",
        "_settings",
        "_state",
        "_tail",
        "_wakers",
        "_woken",
        "cursors",
        "failed",
        "on_failed",
        "properties",
        "terminated_at",
        "topic",
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
        *,
        context: LedgerContext,
        flusher: MetadataFlusher,
        cache: EntryCache,
        ahead: ReadAhead,
        settings: ManagedLedgerSettings,
        clock: Clock,
        on_closed: Callable[[ManagedLedger], None],
        cold: ColdReads | None = None,
    ) -> None:
        self.topic = topic
        self.cursors: dict[str, Cursor] = {}
        self.failed: HeliographError | None = None
        self.on_failed: Callable[[HeliographError], None] | None = None
        """Called once, after all that waited has failed: the topic must be unloaded."""
        self.terminated_at: Position | None = stored.terminated_at
        self.properties = dict(stored.properties)
        self._state, self._catalog, self._cache = state, catalog, cache.topic()
        self._cache.cursors = self.cursors
        self._context, self._settings, self._on_closed = context, settings, on_closed
        self._loop = asyncio.get_running_loop()
        self._wakers: dict[object, Callable[[], None]] = {}
        self._woken = False
        self._closed = False
        self._closing: asyncio.Task[None] | None = None
        self._record = TopicRecord(topic, stored, version, self, context, flusher, settings)
        self._keeping = Keeping(self, catalog, context, clock)
        self._tail = Tail(topic, context, settings, clock, quorums, catalog, self, next_index, stored.owner)
        self._reader = LogReader(context, catalog, self._cache, cache, ahead, settings.read_ahead_bytes, self._known_metadata, topic, cold)
        if self.terminated_at is not None:
            self._tail.refuse(NotAllowed(f"{topic} is terminated"))

    # -- what there is ------------------------------------------------------------------------------------------------

    @property
    def last_confirmed(self) -> Position:
        return self._catalog.last

    @property
    def ended(self) -> bool:
        """It was closed, or has failed."""
        return self._closed or self.failed is not None

    @property
    def next_index(self) -> int:
        """Index of the next message that is appended."""
        return self._tail.next_index

    @property
    def confirmed_index(self) -> int:
        """Index of the message behind the last confirmed one."""
        return self._tail.confirmed_index

    @property
    def size_bytes(self) -> int:
        return self._catalog.size_bytes

    @property
    def entries(self) -> int:
        return self._catalog.entries

    @property
    def pending_bytes(self) -> int:
        """Bytes appended and not yet confirmed."""
        return self._tail.pending_bytes

    def ledgers(self) -> list[LedgerInfo]:
        """Every ledger, the open one with live numbers."""
        return self._catalog.infos()

    def first_position(self) -> Position:
        return self._catalog.first()

    def next_position(self, position: Position) -> Position:
        """The first position that exists strictly after it; where there is none, one that the next entry will be at or after."""
        return self._catalog.next(position)

    def entries_between(self, after: Position, upto: Position) -> int:
        """How many entries lie in (after, upto]."""
        return self._catalog.entries_between(after, upto)

    def bytes_between(self, after: Position, upto: Position) -> int:
        """An estimate."""
        return self._catalog.bytes_between(after, upto)

    def position_after(self, position: Position, count: int) -> Position:
        """The position `count` entries behind `position`, or the last one."""
        return self._catalog.position_at(self._catalog.rank(position) + count) or self._catalog.last

    # -- appending ----------------------------------------------------------------------------------------------------

    def append_run(self, run: Run, done: Done, failed: Failed) -> None:
        """Appends in the order of the calls; never waits. Sets run.first_index, and run.time_ms where it is 0.

        done(ledger, first entry, run): in order, once the whole run is at or below LAC. failed(error): it is not, and never will be, in the
        topic, and everything appended behind it fails too; but where `self.failed` is set, the next owner may find it there.
        """
        self._tail.append_run(run, done, failed)

    def leave_draining(self) -> None:
        """The open ledger goes on elsewhere than on bookies that are being emptied."""
        self._tail.leave_draining()

    def wake_on_append(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Calls back, at most once a loop turn, when `last_confirmed` has moved. Returns "stop"."""
        token = object()
        self._wakers[token] = callback

        def stop() -> None:
            self._wakers.pop(token, None)

        return stop

    def on_confirmed(self, ledger: int, first: int, run: Run) -> None:
        self._cache.append(ledger, first, run)
        self._record.on_appended(run)

    def on_drained(self) -> None:
        if not self._woken and self._wakers:
            self._woken = True
            self._loop.call_soon(self._wake)
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
        for callback in list(self._wakers.values()):
            callback()

    # -- reading ------------------------------------------------------------------------------------------------------

    def cached(self, position: Position, max_entries: int, max_bytes: int) -> list[tuple[int, int, Run]]:
        """(ledger, first entry, run) at or after `position`, straight from the cache, at least one entry; [] where it is not there."""
        return self._reader.cached(position, max_entries, max_bytes)

    async def read(self, position: Position, max_entries: int, max_bytes: int) -> list[tuple[int, int, Run]]:
        """The same, from the cache or the bookies; [] where nothing is confirmed there yet. Raises CorruptData, BookieUnavailable."""
        return await self._reader.read(position, max_entries, max_bytes)

    def _known_metadata(self, ledger: int) -> LedgerMetadata | None:
        """Of an open ledger fragments before the last may have moved: the reader finds that out."""
        open_ledger = self._tail.open_ledger
        if open_ledger is not None and open_ledger.ledger == ledger:
            return open_ledger.metadata
        return self._tail.metadata.get(ledger)

    # -- cursors ------------------------------------------------------------------------------------------------------

    async def open_cursor(
        self, name: str, initial: Position, *, durable: bool = True, properties: dict[str, str] | None = None
    ) -> Cursor:
        """The cursor of that name, made where there is none with `initial` as its mark-delete position. Returns once a new one is durable."""
        self._check_open()
        cursor = self.cursors.get(name)
        if cursor is not None:
            if cursor.durable != durable:
                raise AlreadyExists(f"{self.topic}: cursor {name} is there, and is {'durable' if cursor.durable else 'not durable'}")
            return cursor
        cursor = self.add_cursor(name, min(initial, self.last_confirmed), durable, properties or {})
        if durable:
            self._record.change_cursor(cursor)
            await self._record.written()
        return cursor

    def add_cursor(self, name: str, mark_delete: Position, durable: bool, properties: dict[str, str]) -> Cursor:
        """Without storing it."""
        self.cursors[name] = cursor = Cursor(
            name,
            self._catalog,
            mark_delete,
            durable=durable,
            properties=properties,
            request_flush=self._record.change_cursor,
            wait_flushed=self._cursor_flushed,
        )
        self._record.cursor_there(name)
        return cursor

    async def delete_cursor(self, name: str) -> None:
        """Raises NotFound."""
        cursor = self.cursors.pop(name, None)
        if cursor is None:
            raise NotFound(f"{self.topic}: there is no cursor {name}")
        self._record.delete_cursor(cursor)
        if cursor.durable:
            await self._record.written()
        self.trim_soon()

    async def _cursor_flushed(self, cursor: Cursor) -> None:
        if self._record.waits(cursor):
            await self._record.written()
        if self.failed is not None:
            raise self.failed

    def set_quorums(self, ensemble: int, write_quorum: int, ack_quorum: int) -> None:
        """Of the ledgers that are made from now on; the open one stays as it is. Raises NotAllowed unless ensemble >= write >= ack quorum >= 1."""
        if not 1 <= ack_quorum <= write_quorum <= ensemble:
            raise NotAllowed(f"{self.topic}: want ensemble {ensemble} >= write quorum {write_quorum} >= ack quorum {ack_quorum} >= 1")
        self._tail.quorums = (ensemble, write_quorum, ack_quorum)

    def set_affinity(self, primary: Collection[str], secondary: Collection[str]) -> None:
        """Groups of bookies for the ledgers that are made from now on; without a primary one, all bookies."""
        self._tail.affinity = Affinity(tuple(primary), tuple(secondary)) if primary else ANYWHERE

    # -- keeping ------------------------------------------------------------------------------------------------------

    def set_retention(self, minutes: int, mb: int) -> None:
        """What is kept of what every cursor has passed: 0 none, -1 without limit. Until it is called, nothing is trimmed."""
        self._keeping.retention = Retention(minutes, mb)
        self.trim_soon()

    def trim_soon(self) -> None:
        """Frees, in the background, the ledgers that nobody needs."""
        self._keeping.trim_soon()

    async def oldest_unacked_ms(self, name: str) -> int:
        """Broker time of the first entry that this cursor has not acknowledged; 0: there is none. Raises NotFound; what `read` raises."""
        return await expiry.oldest_unacked_ms(self, name)

    async def expire_before(self, time_ms: int, names: Collection[str]) -> dict[str, int]:
        """Moves these cursors over all that is older than that broker time. Returns how many entries each of them gave up, unacknowledged."""
        return await expiry.expire_before(self, time_ms, names)

    async def drop_to(self, size_bytes: int, names: Collection[str]) -> dict[str, int]:
        """Moves these cursors until at most about so many bytes lie before each. Returns how many entries each of them gave up, unacknowledged."""
        return await expiry.drop_to(self, size_bytes, names)

    async def truncate(self, names: Collection[str] | None = None) -> dict[str, int]:
        """Moves these cursors (None: every one) over all that is confirmed; what no other cursor needs is freed soon, whatever retention says.

        Returns how many entries each of them gave up. Raises NotEnoughBookies where no next ledger can be made: then what is freed is less.
        """
        self._check_open()
        upto = self.last_confirmed
        given_up = await expiry.move(self, upto, self.cursors if names is None else names)
        self._keeping.truncating = max(self._keeping.truncating, upto)
        if upto[0] >= 0 and self._catalog.ids and self._catalog.ids[-1] == upto[0]:
            await self._tail.roll()
        self.trim_soon()
        return given_up

    async def roll_over(self) -> None:
        """What is confirmed by now lies in closed ledgers when it returns. Raises NotEnoughBookies, and what closed the topic."""
        self._check_open()
        infos = self._catalog.infos()
        if infos and infos[-1].entries and not infos[-1].closed_ms:
            await self._tail.roll()

    def take_trim(self, whole: bool) -> tuple[bool, list[LedgerMetadata]]:
        return self._keeping.take(whole)

    def on_trim_ready(self) -> None:
        self._record.change()

    def on_trim_put_off(self) -> None:
        self._keeping.finished()
        self.trim_soon()

    def on_ledgers_gone(self, error: HeliographError) -> None:
        self._fail(error)

    async def set_offload(self, ledger: int, record: OffloadRecord, local: LedgerMetadata | None = None) -> None:
        """Writes down how far the copy of a closed ledger is; returns once that is durable.

        local: given where the local copy shall go with it. Raises NoSuchLedger where it was trimmed meanwhile; what closed the topic.
        """
        self._check_open()
        if not self._catalog.set_offload(ledger, record):
            raise NoSuchLedger(f"ledger {ledger} of {self.topic} was trimmed meanwhile")
        if local is not None:
            self._record.discard(local)
        self._record.change(0.0)
        await self._record.written()

    def stored_form(self) -> tuple[ManagedLedgerMetadata, int]:
        """What would be stored of it now, and the version of what is stored."""
        return self.form(0), self._record.version

    # -- storing ------------------------------------------------------------------------------------------------------

    def form(self, trimmed: int) -> ManagedLedgerMetadata:
        """What is to be stored, as of the last confirmed entry, without the first `trimmed` ledgers."""
        infos = tuple(self._catalog.infos()[trimmed:])
        index, owner = self._tail.confirmed_index, self._record.owner
        return ManagedLedgerMetadata(infos, self._state.snapshot(), self.last_confirmed, self.terminated_at, self.properties, index, owner)

    def on_stored(self, stored: Stored) -> None:
        if stored.trimmed:
            self._catalog.drop_first(len(stored.trimmed))
            for cursor in self.cursors.values():
                cursor.on_trimmed()
            for metadata in stored.trimmed:
                self._reader.on_trimmed(metadata.ledger)
                self._tail.metadata.pop(metadata.ledger, None)
        if stored.trimming:
            self._keeping.finished()
        self._keeping.delete([*stored.trimmed, *stored.garbage])
        self._tail.on_recorded(stored.ledger)

    def on_record_lost(self, error: HeliographError) -> None:
        self._fail(error)

    # -- ending -------------------------------------------------------------------------------------------------------

    async def terminate(self) -> Position:
        """Takes no more runs, for ever; returns the last position. Those on their way are confirmed, or fail."""
        self._check_open()
        if self.terminated_at is None:
            refusal = NotAllowed(f"{self.topic} is terminated")
            self._tail.refuse(refusal)
            await self._tail.emptied(self._settings.close_timeout_s)
            await self._end_tail(refusal)
            self._check_open()
            self.terminated_at = self.last_confirmed
            self._record.change(0.0)
            await self._record.written()
        return self.last_confirmed

    async def close(self) -> None:
        """Waits for appends that are on their way, closes the open ledger, and stores cursors and state. Idempotent; never raises."""
        if self._closing is None:
            self._closing = self._context.tasks.spawn(self._close())
        await asyncio.wait([self._closing])

    async def _close(self) -> None:
        closed = TopicClosed(f"{self.topic} is being closed")
        if self.failed is None:
            self._tail.refuse(closed)
            await self._tail.emptied(self._settings.close_timeout_s)
            ending = self._context.tasks.spawn(self._end_tail(closed))
            await asyncio.wait([ending], timeout=self._settings.close_timeout_s)  # without metadata it ends when the tail is failed below
        if self.failed is None:
            await self._record.flush(self.last_confirmed, self._settings.close_timeout_s)
        self._end(closed)

    def abandon(self, error: HeliographError) -> None:
        """Ends it at once, as a crash would: what waits fails, nothing is written, on_failed is not called."""
        self.on_failed = None
        self._fail(error)

    async def _end_tail(self, error: HeliographError) -> None:
        try:
            await self._tail.close(error)
        except HeliographError as cause:
            self._fail(cause)

    def _fail(self, error: HeliographError) -> None:
        if self.failed is None and not self._closed:
            self._end(error)
            if self.on_failed is not None:
                self.on_failed(error)

    def _end(self, error: HeliographError) -> None:
        self.failed = self.failed or error
        self._closed = True
        self._tail.fail(error)
        self._cache.close()
        self._wakers.clear()
        self._record.end()
        self._on_closed(self)

    def _check_open(self) -> None:
        if self.failed is not None:
            raise self.failed
        if self._closed:
            raise TopicClosed(f"{self.topic} is closed")
