"""TopicRecord: what is stored of one topic in the local metadata, and how it changes.

Is: the topic's metadata and its cursors as this owner wrote them last, and what waits to be written. Isn't: when a
ledger is added or trimmed.
Invariants: every change of the metadata is a compare-and-set on the version that this owner wrote last, and every write
of a cursor checks that version; so an owner that was replaced changes nothing any more. With each such change goes a
snapshot of the state above, as of the last confirmed
entry: so trimming never passes it. A trim goes only with the mark-delete positions that allow it. A conflict means
another owner: final.
Source: docs/protocols/ledger.md, "Managed ledgers".
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Sequence
from typing import Protocol

from heliograph.kv.metadata_store import Check, Delete, Op, Put
from heliograph.model.errors import CorruptData, HeliographError, LedgerFenced
from heliograph.model.ledger_metadata import LedgerMetadata, ManagedLedgerMetadata
from heliograph.model.positions import Position
from heliograph.wire.run import Run
from local_meta import keys
from storage.managed_ledger.cursors.cursor import Cursor
from storage.managed_ledger.log.shared_parts import SharedParts
from storage.managed_ledger.metadata.metadata_flusher import FLUSH_S
from storage.managed_ledger.metadata.topic_times import created_ms, dated, published_by, published_ms

_CURSORS_A_WRITE = 400
_BYTES_A_WRITE = 1 << 20
_BYTES_PER_S = 1 << 20
"""A cursor with very many holes is large: it is written less often, so that it takes no more of the metadata than
this.
"""
_DELAY_MAX_S = 1.0
_NO_CURSORS: dict[str, Cursor] = {}
_NO_NAMES: dict[str, None] = {}


class Stored:
    """What one transaction of the topic's metadata says. `trimming`: it carries out, or gives up, the trim that was
    prepared.
    """

    __slots__ = (
        "cursors",
        "deleted",
        "garbage",
        "ledger",
        "metadata",
        "pages",
        "through",
        "trimmed",
        "trimming",
        "waiters",
    )

    def __init__(self) -> None:
        self.metadata: bytes | None = None
        self.through: Position = (-1, -1)
        self.ledger = -1
        self.pages: list[int] = []
        self.trimmed: list[LedgerMetadata] = []
        self.trimming = False
        self.garbage: list[LedgerMetadata] = []
        self.cursors: list[tuple[Cursor, int]] = []
        self.deleted: list[str] = []
        self.waiters: list[asyncio.Future[None]] = []


class WriteWaiters:
    """Who waits for a write. earlier: those who waited when one left something over; due: names of cursors that it
    left, or whose deletion. With the write that takes the last of them they have what they wait for, whatever has
    changed since.
    """

    __slots__ = ("due", "earlier", "waiting")

    def __init__(self) -> None:
        self.waiting: list[asyncio.Future[None]] = []
        self.earlier: list[asyncio.Future[None]] = []
        self.due: set[str] = set()


_NOBODY = WriteWaiters()
"""Stands for the waiters of every topic that has nothing to write; never changed."""


class RecordHost(Protocol):
    """The managed ledger, as its record sees it."""

    topic: str
    owner: int
    failed: HeliographError | None
    cursors: dict[str, Cursor]

    def form(self, trimmed: int) -> ManagedLedgerMetadata:
        """What is to be stored, without the first `trimmed` ledgers."""
        ...

    def page_changes(self, trimmed: int) -> tuple[dict[int, bytes], list[int]]:
        """(key -> value of the pages that go with it, keys of those that are deleted with it); to be asked before
        `form`, each time.
        """
        ...

    def on_pages_not_written(self, pages: Sequence[int]) -> None:
        """They go with the next write."""
        ...

    def take_trim(self, cursors: Iterable[Cursor], left: Collection[str]) -> tuple[bool, list[LedgerMetadata]]:
        """(whether this write ends the trim that was prepared, the ledgers that go with it). cursors: those that this
        write has; left: names of those that a later one will have. The trim waits for them, each once.
        """
        ...

    def on_stored(self, stored: Stored) -> None:
        """A change of the metadata is durable."""
        ...

    def on_trim_put_off(self, taken: bool) -> None:
        """A write with cursors was not made, or nobody knows. taken: the trim would have gone with it."""
        ...

    def trim_soon(self) -> None: ...

    def on_record_lost(self, error: HeliographError) -> None:
        """Nothing can be written any more, as the topic has another owner, was deleted, or is refused: the topic
        closes.
        """
        ...


class TopicRecord:
    """Writes one topic's metadata and cursors. The MetadataFlusher calls it as one of its members."""

    __slots__ = (
        "_bytes",
        "_checkpoint_at",
        "_cursors",
        "_deleted",
        "_dirty",
        "_entries",
        "_garbage",
        "_host",
        "_made_key",
        "_pace",
        "_parts",
        "_waiters",
        "_write",
        "created_ms",
        "published_ms",
        "through",
        "version",
    )

    def __init__(self, stored: ManagedLedgerMetadata, version: int, host: RecordHost, parts: SharedParts) -> None:
        self.version, self.through = version, stored.state_through
        self.created_ms, self.published_ms = created_ms(stored), published_ms(stored)
        self._host, self._parts = host, parts
        self._dirty = False
        self._cursors, self._deleted = _NO_CURSORS, _NO_NAMES
        self._garbage: tuple[LedgerMetadata, ...] = ()
        self._write: Stored | None = None
        self._waiters = _NOBODY
        self._entries = self._bytes = 0  # since the last checkpoint
        self._checkpoint_at = 0.0
        self._made_key = ""
        self._pace: tuple[float, float] | None = None
        """(seconds between two writes of cursors, when the last one was begun); None: as often as there is something to
        write.
        """

    @property
    def _key(self) -> str:
        """Made when it is first needed: most topics that are loaded write nothing."""
        self._made_key = self._made_key or keys.managed_ledger(self._host.topic)
        return self._made_key

    # -- what is to be stored -----------------------------------------------------------------------------------------

    def change(self, delay_s: float = FLUSH_S) -> None:
        """Asks the flusher to write the topic's metadata within `delay_s`; several calls become one write."""
        self._dirty = True
        self._parts.flusher.request(self, delay_s)

    def discard(self, ledger: LedgerMetadata) -> None:
        """It goes with the next change: it is no part of the topic, or only the object store keeps it."""
        self._garbage = (*self._garbage, ledger)

    def on_appended(self, run: Run) -> None:
        self._entries += run.count
        self._bytes += run.size_bytes
        self.published_ms = published_by(run, self.published_ms)

    def dated(self, properties: dict[str, str], next_index: int) -> dict[str, str]:
        """As they are stored: with when the topic was made, and last published to. next_index: behind the last message
        that is stored with them.
        """
        return dated(properties, self.created_ms, self.published_ms, next_index)

    def checkpoint_if_due(self) -> None:
        settings = self._parts.settings
        if self._entries >= settings.checkpoint_entries or self._bytes >= settings.checkpoint_bytes:
            wait = self._checkpoint_at + settings.checkpoint_interval_s - self._parts.loop.time()
            self.change(max(wait, FLUSH_S))

    def change_cursor(self, cursor: Cursor) -> None:
        if self._host.failed is None and self._host.cursors.get(cursor.name) is cursor:
            self._note(cursor)
            delay_s = max(FLUSH_S, min(cursor.stored_bytes / _BYTES_PER_S, _DELAY_MAX_S))
            if self._pace is not None:
                delay_s = max(delay_s, sum(self._pace) - self._parts.loop.time())
            self._parts.flusher.request(self, delay_s)

    def set_pace(self, seconds: float) -> None:
        """So much lies between two writes of changed cursors at least, unless somebody waits for one. 0: nothing."""
        if seconds <= 0:
            self._pace = None
        elif self._pace is None or self._pace[0] != seconds:
            self._pace = seconds, self._pace[1] if self._pace is not None else -seconds
        if self._cursors:  # what waits by the former pace
            self._parts.flusher.request(self)

    def checkpoint(self) -> None:
        """What was appended since the last snapshot goes into one soon."""
        if self._entries:
            self.change()

    def _note(self, cursor: Cursor) -> None:
        if self._cursors is _NO_CURSORS:
            self._cursors = {}
        self._cursors[cursor.name] = cursor

    def cursor_there(self, name: str) -> None:
        """Made again, before its deletion was written."""
        self._deleted.pop(name, None)

    def delete_cursor(self, cursor: Cursor) -> None:
        self._cursors.pop(cursor.name, None)
        if cursor.durable:
            self._delete_later(cursor.name)
            self._parts.flusher.request(self, 0.0)

    def _delete_later(self, name: str) -> None:
        if self._deleted is _NO_NAMES:
            self._deleted = {}
        self._deleted[name] = None

    def waits(self, cursor: Cursor) -> bool:
        """Whether a change of it is not stored yet."""
        return cursor.name in self._cursors or (
            self._write is not None and any(c is cursor for c, _ in self._write.cursors)
        )

    async def written(self) -> None:
        """Returns once all that was asked for before is written. Raises what closed the topic."""
        if self._host.failed is None:
            waiter = self._waiter()
            if not self._cursors or self._pace is not None:
                self._parts.flusher.request(self)
            await waiter
        if self._host.failed is not None:
            raise self._host.failed

    def _waiter(self) -> asyncio.Future[None]:
        waiter: asyncio.Future[None] = self._parts.loop.create_future()
        self._own_waiters().waiting.append(waiter)
        return waiter

    def _own_waiters(self) -> WriteWaiters:
        if self._waiters is _NOBODY:
            self._waiters = WriteWaiters()
        return self._waiters

    async def flush(self, last: Position, timeout_s: float) -> None:
        """The last write of an owner that goes, if anything is left to say; never raises."""
        self._dirty = self._dirty or last != self.through
        if self._dirty or self._cursors or self._deleted or self._write is not None:
            self._parts.flusher.request(self, 0.0)
            waiter = self._waiter()
            await asyncio.wait([waiter], timeout=timeout_s)

    def end(self) -> None:
        """Nothing is written any more."""
        self._parts.flusher.drop(self)
        self._resolve_all()
        if self._write is not None:
            self._resolve(self._write.waiters)

    # -- storing (a member of MetadataFlusher) ------------------------------------------------------------------------

    def collect(self) -> Sequence[Op]:
        if self._host.failed is not None:
            return []
        write = Stored()
        ops: list[Op] = []
        puts = self._encoded(write)
        write.trimming, write.trimmed = self._host.take_trim((cursor for cursor, _ in write.cursors), self._cursors)
        if self._dirty or write.trimming:
            ops += self._changed(write)
        elif puts or self._deleted:
            ops.append(Check(self._key, self.version))
        else:
            self._resolve_all()
            return []
        ops += puts
        for name in list(self._deleted)[:_CURSORS_A_WRITE]:
            del self._deleted[name]
            write.deleted.append(name)
            ops.append(Delete(keys.cursor(self._host.topic, name)))
        if self._cursors or self._deleted:
            self._parts.flusher.request(self)
        self._take_waiters(write)
        self._write = write
        return ops

    def _take_waiters(self, write: Stored) -> None:
        """Those for whom this is the last write; a topic of which something is always left over has some, too."""
        waiters = self._waiters
        if waiters is _NOBODY:
            return
        left = {*self._cursors, *self._deleted}
        waiters.due.difference_update((cursor.name for cursor, _ in write.cursors), write.deleted)
        waiters.due &= left  # a cursor that was deleted is not waited for
        if not waiters.due:
            write.waiters = waiters.earlier
            waiters.earlier, waiters.waiting, waiters.due = waiters.waiting, [], left
        if not left:
            write.waiters = write.waiters + waiters.earlier
        if not left or not waiters.earlier:
            self._waiters = _NOBODY

    def _encoded(self, write: Stored) -> list[Op]:
        """Changed cursors, as many as one write takes; at least one, where there are any."""
        puts: list[Op] = []
        size = 0
        if self._cursors and self._pace is not None:
            self._pace = self._pace[0], self._parts.loop.time()
        for name in list(self._cursors)[:_CURSORS_A_WRITE]:
            if size > _BYTES_A_WRITE:
                break
            cursor = self._cursors.pop(name)
            write.cursors.append((cursor, cursor.changes))
            cursor.key = cursor.key or keys.cursor(self._host.topic, name)
            blob = cursor.encode()
            size += len(blob)
            puts.append(Put(cursor.key, blob))
        return puts

    def _changed(self, write: Stored) -> list[Op]:
        self._dirty = False
        write.garbage, self._garbage = list(self._garbage), ()
        pages, gone_pages = self._host.page_changes(len(write.trimmed))
        write.pages = [*pages, *gone_pages]
        form = self._host.form(len(write.trimmed))
        write.through = form.state_through
        write.ledger = form.ledgers[-1].ledger if form.ledgers else -1
        write.metadata = form.encode()
        self._entries = self._bytes = 0
        self._checkpoint_at = self._parts.loop.time()
        topic = self._host.topic
        gone = [Delete(keys.ledger(m.ledger)) for m in (*write.trimmed, *write.garbage) if m.fragments]
        gone += [Delete(keys.ledger_page(topic, page)) for page in gone_pages]
        return [
            Put(self._key, write.metadata, self.version),
            *(Put(keys.ledger_page(topic, page), blob) for page, blob in pages.items()),
            *gone,
        ]

    def on_written(self, version: int) -> None:
        write, self._write = self._write, None
        assert write is not None
        if write.metadata is not None:
            self.version, self.through = version, write.through
            self._host.on_stored(write)
        for cursor, _ in write.cursors:
            cursor.writes += 1
        self._resolve(write.waiters)
        if not self._cursors:
            self._cursors = _NO_CURSORS
        if not self._deleted:
            self._deleted = _NO_NAMES
        self._host.trim_soon()

    def on_not_written(self) -> None:
        write, self._write = self._write, None
        if write is None:
            return
        self._dirty = self._dirty or write.metadata is not None
        self._garbage = (*write.garbage, *self._garbage)
        if write.pages:
            self._host.on_pages_not_written(write.pages)
        for cursor, _ in write.cursors:
            cursor.write_errors += 1
            if self._host.cursors.get(cursor.name) is cursor:
                self._note(cursor)
        for name in write.deleted:
            if name not in self._host.cursors:
                self._delete_later(name)
        if write.waiters:
            waiters = self._own_waiters()
            waiters.waiting = write.waiters + waiters.waiting
        if self._waiters.earlier:
            self._waiters.due.update((cursor.name for cursor, _ in write.cursors), write.deleted)
        if write.trimming or write.cursors:
            self._host.on_trim_put_off(write.trimming)

    def on_refused(self, error: HeliographError) -> None:
        self.on_not_written()
        self._host.on_record_lost(error)

    async def settle(self) -> bool:
        """Another owner has written: fenced. Otherwise what was written last stands there, with its version, and goes
        on from there.

        The metadata is then written once more in any case: so that a late transaction of ours, if there is one, fails
        its check.
        """
        attempt = 0
        while self._host.failed is None:
            try:
                found = await self._parts.context.meta.get(self._key)
            except HeliographError:
                attempt += 1
                await asyncio.sleep(self._parts.context.pause_s(attempt))
                continue
            try:
                stored = ManagedLedgerMetadata.decode(found[0]) if found is not None else None
            except CorruptData as error:
                self._host.on_record_lost(error)
                break
            if found is None or stored is None or stored.owner != self._host.owner:
                self._host.on_record_lost(
                    LedgerFenced(
                        f"{self._host.topic} was taken over by another owner"
                        if found
                        else f"{self._host.topic} was deleted"
                    )
                )
                break
            moved = found[1] != self.version
            self.version = found[1]
            if moved and self._write is not None and self._write.metadata == found[0]:
                self.on_written(found[1])
                return bool(self._dirty or self._cursors or self._deleted)
            self.on_not_written()
            self._dirty = True
            return True
        return False

    def _resolve_all(self) -> None:
        waiters, self._waiters = self._waiters, _NOBODY
        self._resolve(waiters.earlier)
        self._resolve(waiters.waiting)

    @staticmethod
    def _resolve(waiters: list[asyncio.Future[None]]) -> None:
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)
        waiters.clear()
