"""ManagedLedger: one topic's log in this region.

Is: what is appended, read, acknowledged, kept, and stored of one topic, by its one owner. Isn't: dispatch, deduplication, or ownership.
Invariants: every change of the topic's metadata is a compare-and-set on the version that this owner wrote last, and every write of a cursor
checks that version; so an owner that was replaced changes nothing any more. With each such change goes a snapshot of the state above, as of the
last confirmed entry: so trimming never passes it. A conflict means another owner: final.
No task, timer, or open ledger while nothing happens.
Source: docs/protocols/ledger.md, "Managed ledgers".
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from heliograph.model.errors import (
    AlreadyExists,
    HeliographError,
    LedgerFenced,
    NoSuchLedger,
    NotAllowed,
    NotFound,
    TopicClosed,
)
from heliograph.model.ledgers import LedgerInfo, LedgerMetadata, ManagedLedgerMetadata
from heliograph.model.positions import Position
from heliograph.raft.store import Check, Delete, Op, Put
from heliograph.runtime.clock import Clock
from heliograph.wire.run import Run
from local_meta import keys
from storage.ledger.context import LedgerContext
from storage.ledger.reader import delete_on_bookies, ledger_metadata
from storage.managed_ledger.cache import TopicCache
from storage.managed_ledger.catalog import Catalog
from storage.managed_ledger.cursor import Cursor
from storage.managed_ledger.flusher import FLUSH_S, MetadataFlusher
from storage.managed_ledger.read_ahead import ReadAhead
from storage.managed_ledger.reading import LogReader
from storage.managed_ledger.settings import ManagedLedgerSettings
from storage.managed_ledger.tail import Done, Failed, Tail
from storage.managed_ledger.trim import Retention, trim_count

_CURSORS_A_WRITE = 400
_LEDGERS_A_TRIM = 256


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


class _Write:
    """What one transaction of the topic's metadata says."""

    __slots__ = ("cursors", "deleted", "garbage", "ledger", "metadata", "through", "trimmed", "trimming", "waiters")

    def __init__(self) -> None:
        self.metadata: bytes | None = None
        self.through: Position = (-1, -1)
        self.ledger = -1
        self.trimmed: list[LedgerMetadata] = []
        self.trimming = False
        self.garbage: list[LedgerMetadata] = []
        self.cursors: list[tuple[Cursor, int]] = []
        self.deleted: list[str] = []
        self.waiters: list[asyncio.Future[None]] = []


class ManagedLedger:
    """Made by ManagedLedgerFactory.open."""

    def __init__(
        self,
        topic: str,
        state: LogState,
        quorums: tuple[int, int],
        catalog: Catalog,
        stored: ManagedLedgerMetadata,
        version: int,
        next_index: int,
        *,
        context: LedgerContext,
        flusher: MetadataFlusher,
        cache: TopicCache,
        ahead: ReadAhead,
        settings: ManagedLedgerSettings,
        clock: Clock,
        on_closed: Callable[[ManagedLedger], None],
    ) -> None:
        self.topic = topic
        self.cursors: dict[str, Cursor] = {}
        self.failed: HeliographError | None = None
        self.on_failed: Callable[[HeliographError], None] | None = None
        """Called once, after all that waited has failed: the topic must be unloaded."""
        self.terminated_at: Position | None = stored.terminated_at
        self.properties = dict(stored.properties)
        self._state, self._catalog, self._cache = state, catalog, cache
        self._key, self._version, self._owner = keys.managed_ledger(topic), version, stored.owner
        self._context, self._flusher, self._settings, self._clock, self._on_closed = context, flusher, settings, clock, on_closed
        self._loop = asyncio.get_running_loop()
        self._retention: Retention | None = None
        self._wakers: dict[object, Callable[[], None]] = {}
        self._woken = False
        self._dirty = False
        self._dirty_cursors: dict[str, Cursor] = {}
        self._deleted_cursors: dict[str, None] = {}
        self._garbage: list[LedgerMetadata] = []
        self._trim: list[LedgerMetadata] = []
        self._trimming = False
        self._write: _Write | None = None
        self._waiters: list[asyncio.Future[None]] = []
        self._stored_through = stored.state_through
        self._since_checkpoint = 0
        self._bytes_since_checkpoint = 0
        self._checkpoint_at = 0.0
        self._closed = False
        self._closing: asyncio.Task[None] | None = None
        self._tail = Tail(topic, context, settings, clock, quorums, catalog, self, next_index, stored.owner)
        self._reader = LogReader(context, catalog, cache, ahead, settings.read_ahead_bytes, self._known_metadata)
        if self.terminated_at is not None:
            self._tail.refuse(NotAllowed(f"{topic} is terminated"))

    # -- what there is ------------------------------------------------------------------------------------------------

    @property
    def last_confirmed(self) -> Position:
        return self._catalog.last

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
        self._since_checkpoint += run.count
        self._bytes_since_checkpoint += run.size_bytes

    def on_drained(self) -> None:
        if not self._woken and self._wakers:
            self._woken = True
            self._loop.call_soon(self._wake)
        settings = self._settings
        if self._since_checkpoint >= settings.checkpoint_entries or self._bytes_since_checkpoint >= settings.checkpoint_bytes:
            self._dirty = True
            wait = self._checkpoint_at + settings.checkpoint_interval_s - self._loop.time()
            self._flusher.request(self, max(wait, FLUSH_S))

    def on_ledgers_changed(self, dropped: LedgerMetadata | None) -> None:
        if dropped is not None:
            self._garbage.append(dropped)
        self._dirty = True
        self._flusher.request(self, 0.0)
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
            self._request_cursor(cursor)
            await self._written()
        return cursor

    def add_cursor(self, name: str, mark_delete: Position, durable: bool, properties: dict[str, str]) -> Cursor:
        """Without storing it."""
        self.cursors[name] = cursor = Cursor(
            name,
            self._catalog,
            mark_delete,
            durable=durable,
            properties=properties,
            request_flush=self._request_cursor,
            wait_flushed=self._cursor_flushed,
        )
        self._deleted_cursors.pop(name, None)
        return cursor

    async def delete_cursor(self, name: str) -> None:
        """Raises NotFound."""
        cursor = self.cursors.pop(name, None)
        if cursor is None:
            raise NotFound(f"{self.topic}: there is no cursor {name}")
        self._dirty_cursors.pop(name, None)
        if cursor.durable:
            self._deleted_cursors[name] = None
            self._flusher.request(self, 0.0)
            await self._written()
        self.trim_soon()

    def _request_cursor(self, cursor: Cursor) -> None:
        if self.failed is None and self.cursors.get(cursor.name) is cursor:
            self._dirty_cursors[cursor.name] = cursor
            self._flusher.request(self)

    async def _cursor_flushed(self, cursor: Cursor) -> None:
        in_flight = self._write is not None and any(c is cursor for c, _ in self._write.cursors)
        if cursor.name in self._dirty_cursors or in_flight:
            self._flusher.request(self)
            await self._written()
        if self.failed is not None:
            raise self.failed

    # -- keeping ------------------------------------------------------------------------------------------------------

    def set_retention(self, minutes: int, mb: int) -> None:
        """What is kept of what every cursor has passed: 0 none, -1 without limit. Until it is called, nothing is trimmed."""
        self._retention = Retention(minutes, mb)
        self.trim_soon()

    def trim_soon(self) -> None:
        """Frees, in the background, the ledgers that nobody needs."""
        if self._trimming or self.failed is not None or self._closed or not self._trimmable():
            return
        self._trimming = True
        self._context.tasks.spawn(self._prepare_trim())

    def _trimmable(self) -> int:
        if len(self._catalog.ids) < 2 or self._retention is None:
            return 0
        through = self.last_confirmed
        slowest = min((c.mark_delete for c in self.cursors.values() if c.durable), default=through)
        return min(trim_count(self._catalog.infos(), slowest, through, self._retention, self._clock.wall_ms()), _LEDGERS_A_TRIM)

    async def _prepare_trim(self) -> None:
        """Reads what is needed to delete them: their metadata goes with the trim."""
        try:
            self._trim = [await ledger_metadata(self._context, ledger) for ledger in self._catalog.ids[: self._trimmable()]]
            if self._trim:
                self._dirty = True
                self._flusher.request(self)
            else:
                self._trimming = False
        except NoSuchLedger as error:
            self._fail(LedgerFenced(f"{self.topic}: {error}"))
        except HeliographError:
            self._trimming = False  # the next rollover, or sweep, tries again

    async def _delete_ledgers(self, ledgers: Sequence[LedgerMetadata]) -> None:
        for metadata in ledgers:
            await delete_on_bookies(self._context, metadata)

    # -- storing (a member of MetadataFlusher) ------------------------------------------------------------------------

    def collect(self) -> Sequence[Op]:
        if self.failed is not None:
            return []
        write = _Write()
        ops: list[Op] = []
        if self._dirty:
            self._dirty = False
            write.trimming = bool(self._trim)
            every_cursor = len(self._dirty_cursors) <= _CURSORS_A_WRITE  # a trim goes only with the mark-delete positions that allow it
            write.trimmed, self._trim = self._trim[: self._trimmable() if every_cursor else 0], []
            write.garbage, self._garbage = self._garbage, []
            write.through = self.last_confirmed
            infos = self._catalog.infos()[len(write.trimmed) :]
            write.ledger = infos[-1].ledger if infos else -1
            write.metadata = ManagedLedgerMetadata(
                tuple(infos), self._state.snapshot(), write.through, self.terminated_at, self.properties, self._tail.confirmed_index, self._owner
            ).encode()
            ops.append(Put(self._key, write.metadata, self._version))
            ops += [Delete(keys.ledger(m.ledger)) for m in (*write.trimmed, *write.garbage)]
            self._since_checkpoint = self._bytes_since_checkpoint = 0
            self._checkpoint_at = self._loop.time()
        elif self._dirty_cursors or self._deleted_cursors:
            ops.append(Check(self._key, self._version))
        else:
            self._resolve(self._waiters)
            return []
        for name in list(self._dirty_cursors)[:_CURSORS_A_WRITE]:
            cursor = self._dirty_cursors.pop(name)
            write.cursors.append((cursor, cursor.changes))
            ops.append(Put(keys.cursor(self.topic, name), cursor.encode()))
        for name in list(self._deleted_cursors)[:_CURSORS_A_WRITE]:
            del self._deleted_cursors[name]
            write.deleted.append(name)
            ops.append(Delete(keys.cursor(self.topic, name)))
        if self._dirty_cursors or self._deleted_cursors:
            self._flusher.request(self)
        else:
            write.waiters, self._waiters = self._waiters, []
        self._write = write
        return ops

    def on_written(self, version: int) -> None:
        write, self._write = self._write, None
        assert write is not None
        if write.metadata is not None:
            self._version = version
            self._stored_through = write.through
            if write.trimmed:
                self._catalog.drop_first(len(write.trimmed))
                for cursor in self.cursors.values():
                    cursor.on_trimmed()
                for metadata in write.trimmed:
                    self._reader.on_trimmed(metadata.ledger)
                    self._tail.metadata.pop(metadata.ledger, None)
            if write.trimming:
                self._trimming = False
            if write.trimmed or write.garbage:
                self._context.tasks.spawn(self._delete_ledgers([*write.trimmed, *write.garbage]))
            self._tail.on_recorded(write.ledger)
        self._resolve(write.waiters)
        if len(self._catalog.ids) > 1:
            self.trim_soon()

    def on_not_written(self) -> None:
        write, self._write = self._write, None
        if write is None:
            return
        self._dirty = self._dirty or write.metadata is not None
        self._garbage = write.garbage + self._garbage
        for cursor, _ in write.cursors:
            if self.cursors.get(cursor.name) is cursor:
                self._dirty_cursors[cursor.name] = cursor
        for name in write.deleted:
            if name not in self.cursors:
                self._deleted_cursors[name] = None
        self._waiters = write.waiters + self._waiters
        if write.trimming:
            self._trimming = False
            self.trim_soon()

    def on_refused(self, error: HeliographError) -> None:
        self.on_not_written()
        self._fail(error)

    async def settle(self) -> bool:
        """Another owner has written: fenced. Otherwise what was written last stands there, with its version, and goes on from there.

        The metadata is then written once more in any case: so that a late transaction of ours, if there is one, fails its check.
        """
        attempt = 0
        while self.failed is None:
            try:
                found = await self._context.meta.get(self._key)
            except HeliographError:
                attempt += 1
                await asyncio.sleep(self._context.pause_s(attempt))
                continue
            stored = ManagedLedgerMetadata.decode(found[0]) if found is not None else None
            if found is None or stored is None or stored.owner != self._owner:
                self._fail(LedgerFenced(f"{self.topic} was taken over by another owner" if found else f"{self.topic} was deleted"))
                break
            moved = found[1] != self._version
            self._version = found[1]
            if moved and self._write is not None and self._write.metadata == found[0]:
                self.on_written(found[1])
                return bool(self._dirty or self._dirty_cursors or self._deleted_cursors)
            self.on_not_written()
            self._dirty = True
            return True
        return False

    async def _written(self) -> None:
        """Returns once all that was asked for before is written. Raises what closed the topic."""
        if self.failed is not None:
            raise self.failed
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._waiters.append(waiter)
        await waiter
        if self.failed is not None:
            raise self.failed

    @staticmethod
    def _resolve(waiters: list[asyncio.Future[None]]) -> None:
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)
        waiters.clear()

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
            self._dirty = True
            self._flusher.request(self, 0.0)
            await self._written()
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
            self._dirty = self._dirty or self.last_confirmed != self._stored_through
            if self._dirty or self._dirty_cursors or self._deleted_cursors or self._write is not None:
                self._flusher.request(self, 0.0)
                waiter: asyncio.Future[None] = self._loop.create_future()
                self._waiters.append(waiter)
                await asyncio.wait([waiter], timeout=self._settings.close_timeout_s)
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
        self._flusher.drop(self)
        self._tail.fail(error)
        self._cache.close()
        self._wakers.clear()
        self._resolve(self._waiters)
        if self._write is not None:
            self._resolve(self._write.waiters)
        self._on_closed(self)

    def _check_open(self) -> None:
        if self.failed is not None:
            raise self.failed
        if self._closed:
            raise TopicClosed(f"{self.topic} is closed")
