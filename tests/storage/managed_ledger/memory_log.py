"""MemoryLog: the part of a managed ledger that needs no bookies, over runs in memory.

Is: what the fakes of the managed ledger share: questions about positions, reading, wakers, and real cursors. Isn't:
appending, owners, or faults: those are each fake's own.
It differs from ManagedLedger on purpose: entries may be gone from the middle of a ledger, a waker is called at once,
and what a cursor acknowledges is durable at once. All else is as `ledger_cases` says.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

from heliograph.model.errors import AlreadyExists, HeliographError, NotFound, TopicClosed
from heliograph.model.positions import BEFORE_ALL, Position
from heliograph.wire.run import Run
from storage.managed_ledger.cache.topic_cache import cut_point
from storage.managed_ledger.cursors.cursor import Cursor, check_properties
from storage.managed_ledger.metadata.ledger_catalog import Catalog

Extent = tuple[Position, int, Any]
"""(position of the first entry, how many entries, what holds them)."""


class MemoryCatalog:
    """What a cursor asks of the catalog, of a log's extents."""

    def __init__(self, log: MemoryLog) -> None:
        self._log = log

    @property
    def last(self) -> Position:
        return self._log.last_confirmed

    def entries_of(self, ledger: int) -> int:
        found = self.at_or_before((ledger, 1 << 62))
        return found[1] + 1 if found is not None and found[0] == ledger else 0

    def bounded(self, ledger: int, stop: int) -> int:
        return min(stop, self.entries_of(ledger))

    def at_or_after(self, position: Position) -> Position | None:
        for start, _, _ in self._log.extents_from(position):
            return max(start, position)
        return None

    def at_or_before(self, position: Position) -> Position | None:
        extents = self._log.extents()
        at = bisect_right(extents, position, key=_start) - 1
        if at < 0:
            return None
        (ledger, first), count, _ = extents[at]
        return min((ledger, first + count - 1), position)

    def next(self, position: Position) -> Position:
        following = self.at_or_after((position[0], position[1] + 1))
        if following is not None:
            return following
        ledger, entry = max(position, self.last)
        return ledger, entry + 1

    def first(self) -> Position:
        return self.next(BEFORE_ALL)

    def entries_between(self, after: Position, upto: Position) -> int:
        return sum(stop - start for start, stop, _ in self._parts(after, upto))

    def bytes_between(self, after: Position, upto: Position) -> int:
        """Exact, where Catalog estimates."""
        return sum(
            sum(self._log.run_in(extent).lengths[start:stop]) for start, stop, extent in self._parts(after, upto)
        )

    def _parts(self, after: Position, upto: Position) -> Iterator[tuple[int, int, Extent]]:
        """(start, stop, extent) of what lies in (after, upto]."""
        for extent in self._log.extents_from((after[0], after[1] + 1)):
            (ledger, first), count, _ = extent
            if (ledger, first) > upto:
                return
            start = max(0, after[1] + 1 - first) if ledger == after[0] else 0
            yield start, min(count, upto[1] + 1 - first) if ledger == upto[0] else count, extent


class MemoryCursor(Cursor):
    """flushes: how often somebody waited until it was durable."""

    flushes = 0

    async def flushed(self) -> None:
        await asyncio.sleep(0)
        self.flushes += 1
        await super().flushed()


class MemoryLog(ABC):
    """failed: what every append and every new cursor is refused with; None: it is open."""

    failed: HeliographError | None = None

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.catalog = MemoryCatalog(self)
        self.wakers: list[Callable[[], None]] = []

    # -- what a fake says ----------------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def cursors(self) -> dict[str, Any]: ...

    @property
    @abstractmethod
    def last_confirmed(self) -> Position: ...

    @abstractmethod
    def extents(self) -> Sequence[Extent]:
        """What is confirmed and not trimmed, in order."""

    @abstractmethod
    def run_in(self, extent: Extent) -> Run:
        """The whole run of an extent."""

    # -- positions -----------------------------------------------------------------------------------------------------

    def extents_from(self, position: Position) -> Iterator[Extent]:
        """Those that end at or after it."""
        extents = self.extents()
        at = max(bisect_left(extents, position, key=_start) - 1, 0)
        for extent in extents[at:]:
            (ledger, first), count, _ = extent
            if (ledger, first + count - 1) >= position:
                yield extent

    def first_position(self) -> Position:
        return self.catalog.first()

    def next_position(self, position: Position) -> Position:
        return self.catalog.next(position)

    def position_before(self, position: Position) -> Position:
        return self.catalog.at_or_before((position[0], position[1] - 1)) or BEFORE_ALL

    def position_after(self, position: Position, count: int) -> Position:
        at = position
        for (ledger, first), size, _ in self.extents_from((position[0], position[1] + 1)):
            start = max(first, position[1] + 1) if ledger == position[0] else first
            if count <= first + size - start:
                return (ledger, start + count - 1) if count else at
            count -= first + size - start
            at = (ledger, first + size - 1)
        return self.last_confirmed

    def entries_between(self, after: Position, upto: Position) -> int:
        return self.catalog.entries_between(after, upto)

    def bytes_between(self, after: Position, upto: Position) -> int:
        return self.catalog.bytes_between(after, upto)

    async def first_from(self, position: Position) -> Position | None:
        return self.catalog.at_or_after(position)

    async def read_back_to(self, ledger: int) -> None:
        """All ledgers are known: there is nothing to read."""
        self.check_open()

    # -- reading -------------------------------------------------------------------------------------------------------

    def found(self, position: Position, max_entries: int, max_bytes: int) -> list[tuple[int, int, Run]]:
        """Pieces at or after `position`, at least one entry where there is one."""
        out: list[tuple[int, int, Run]] = []
        for extent in self.extents_from(position):
            if max_entries <= 0 or max_bytes <= 0:
                break
            (ledger, first), count, _ = extent
            run = self.run_in(extent)
            start = max(0, position[1] - first) if ledger == position[0] else 0
            stop = cut_point(run, start, max_entries, max_bytes, not out)
            if stop <= start:
                break
            piece = run.cut(start, stop)
            out.append((ledger, first + start, piece))
            if stop < count:
                break
            max_entries, max_bytes = max_entries - piece.count, max_bytes - piece.size_bytes
        return out

    def wake_on_append(self, callback: Callable[[], None]) -> Callable[[], None]:
        def stop() -> None:
            if waker in self.wakers:
                self.wakers.remove(waker)

        def waker() -> None:
            callback()

        self.wakers.append(waker)
        return stop

    def wake(self) -> None:
        for waker in list(self.wakers):
            waker()

    # -- cursors -------------------------------------------------------------------------------------------------------

    async def open_cursor(
        self, name: str, initial: Position, *, durable: bool = True, properties: dict[str, str] | None = None
    ) -> MemoryCursor:
        await asyncio.sleep(0)
        self.check_open()
        cursor = self.cursors.get(name)
        if cursor is not None:
            if cursor.durable != durable:
                raise AlreadyExists(f"{self.topic}: cursor {name} is there")
            return cast(MemoryCursor, cursor)
        check_properties(properties or {})
        return self.add_cursor(name, min(initial, self.last_confirmed), durable, properties or {})

    def add_cursor(
        self, name: str, mark_delete: Position, durable: bool = True, properties: dict[str, str] | None = None
    ) -> MemoryCursor:
        self.cursors[name] = cursor = MemoryCursor(
            name,
            cast(Catalog, self.catalog),
            mark_delete,
            durable=durable,
            properties=properties or {},
            request_flush=lambda _: None,
            wait_flushed=self._flushed,
        )
        return cursor

    async def delete_cursor(self, name: str) -> None:
        await asyncio.sleep(0)
        if self.cursors.pop(name, None) is None:
            raise NotFound(f"{self.topic}: there is no cursor {name}")

    async def _flushed(self, _: Cursor) -> None:
        if self.failed is not None:
            raise self.failed

    def check_open(self) -> None:
        if self.failed is not None:
            raise self.failed


def closed(topic: str) -> TopicClosed:
    return TopicClosed(f"{topic} is closed")


def _start(extent: Extent) -> Position:
    return extent[0]
