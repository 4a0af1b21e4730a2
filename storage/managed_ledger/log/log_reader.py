"""LogReader: one topic's confirmed entries, from the cache, from what was fetched ahead, or from bookies.

Is: the way of a read. Isn't: a judge of what is confirmed: that is the catalog.
Invariants: nothing beyond the catalog's last position is returned. A reader that goes on where an earlier read ended is
sequential: for it more is fetched than it asks for, and what comes next while it hands that out: two fetches, the
second one asked for as soon as the end of the first is known. Where copies have moved since a ledger's metadata was
read, or it was written anew, that is read again, once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from heliograph.model.errors import (
    BookieUnavailable,
    CorruptData,
    EntriesLost,
    HeliographError,
    KeyMissing,
    NoSuchEntry,
    NoSuchLedger,
    StoreRefused,
)
from heliograph.model.ledger_metadata import LedgerMetadata, OffloadRecord, OffloadState
from heliograph.model.positions import Position
from heliograph.wire.run import Run
from storage.ledger.reading.ledger_reader import OnEnd, ledger_metadata, read_open, same_places
from storage.ledger.reading.lost_entries import lost_entries, told
from storage.managed_ledger.cache.topic_cache import TopicCache, cut_point
from storage.managed_ledger.log.shared_parts import SharedParts
from storage.managed_ledger.metadata.ledger_catalog import Catalog

_ENDS_KEPT = 16
_FETCHES_AHEAD = 2
"""With one only, bookies have nothing to do from its end until the reader has asked for the next."""
_UNREAD = (BookieUnavailable, CorruptData, KeyMissing, NoSuchEntry, NoSuchLedger)
"""No copy that is known could be read, and another one may be: also where a key is missing, as anybody may have written
the number of one.
"""


class ColdReads(Protocol):
    """What reads a ledger whose local copy is gone."""

    async def read(
        self, topic: str, ledger: int, record: OffloadRecord, first: int, last: int, max_bytes: int
    ) -> list[tuple[int, Run]]:
        """[(first entry, run)]: verified, from entry `first` on, without a hole, at most to `last`; at least one
        entry.
        """
        ...


class LogReader:
    """parts.cold: for ledgers of which only the object is left; it fetches ahead by itself.

    known: the metadata of a ledger that this owner writes, or has just written; None of any other.
    """

    __slots__ = (
        "_ahead",
        "_ahead_bytes",
        "_cache",
        "_catalog",
        "_cold",
        "_context",
        "_counts",
        "_ends",
        "_known",
        "_memory",
        "_metadata",
        "_topic",
    )

    def __init__(
        self,
        parts: SharedParts,
        catalog: Catalog,
        cache: TopicCache,
        known: Callable[[int], LedgerMetadata | None],
        topic: str = "",
    ) -> None:
        self._topic, self._cold, self._counts = topic, parts.cold, parts.appends.of(topic)
        self._context, self._catalog, self._cache, self._memory, self._ahead, self._known = (
            parts.context,
            catalog,
            cache,
            parts.cache,
            parts.ahead,
            known,
        )
        self._ahead_bytes = parts.settings.read_ahead_bytes
        self._metadata: dict[int, LedgerMetadata] = {}
        self._ends: deque[Position] | None = (
            None  # where the last reads from bookies ended; none, for topics that nobody reads behind the tail
        )

    def cached(self, position: Position, max_entries: int, max_bytes: int) -> list[tuple[int, int, Run]]:
        """(ledger, first entry, run) at or after `position`, straight from the cache, at least one entry; [] where it
        is not there.
        """
        found = self._cache.read(position, max_entries, max_bytes)
        if not found:
            existing = self._catalog.at_or_after(position)
            if existing is not None and existing != position:
                found = self._cache.read(existing, max_entries, max_bytes)
        if found:
            amount = _amount(found)
            self._memory.on_hit(*amount)
            self._counts.read(*amount)
        return found

    async def read(self, position: Position, max_entries: int, max_bytes: int) -> list[tuple[int, int, Run]]:
        """The same, also from bookies; [] where nothing is confirmed there yet. Raises CorruptData,
        BookieUnavailable; EntriesLost where the first of them is gone for good.
        """
        while True:
            existing = self._catalog.at_or_after(position)
            if existing is None:
                return []
            found = self._cache.read(existing, max_entries, max_bytes)
            if found:
                amount = _amount(found)
                self._memory.on_hit(*amount)
                self._counts.read(*amount)
                return found
            ledger, first = existing
            ahead = None
            try:
                if self._catalog.local_gone(ledger):
                    runs = await self._from_store(ledger, first, max_entries, max_bytes)
                else:
                    ahead = self._ahead.get(ledger, first) or await self._ahead.arrived(ledger, first)
                    runs = ahead or await self._from_either(ledger, first, max_entries, max_bytes)
                    if self._ahead_bytes and self._ends is not None and existing in self._ends:
                        self._fetch_early(ledger, runs[-1][0] + runs[-1][1].count)
            except (BookieUnavailable, NoSuchEntry, NoSuchLedger) as error:
                gone = not self._catalog.entries_of(ledger) or self._catalog.local_gone(ledger)
                if gone and isinstance(error, NoSuchLedger):
                    continue  # trimmed meanwhile, or left to the object store
                self._counts.read_errors += 1
                lost = None if gone else await self._lost(ledger, first)
                if lost is None:
                    raise
                raise lost from error
            except (CorruptData, KeyMissing, StoreRefused):
                self._counts.read_errors += 1
                raise
            answer = _bounded(ledger, runs, max_entries, max_bytes)
            self._remember((ledger, answer[-1][1] + answer[-1][2].count), existing)
            amount = _amount(answer)
            count = self._memory.on_hit if ahead else self._memory.on_miss
            count(*amount)
            self._counts.read(*amount)
            return answer

    def on_trimmed(self, ledger: int) -> None:
        self._metadata.pop(ledger, None)
        self._context.losses.forget(ledger)

    async def _fetch(self, ledger: int, first: int, max_entries: int, max_bytes: int) -> list[tuple[int, Run]]:
        end = self._catalog.entries_of(ledger)
        if not self._ahead_bytes or self._ends is None or (ledger, first) not in self._ends:
            return await self._from_bookies(ledger, first, min(first + max_entries, end) - 1, max_bytes)
        runs = await self._from_bookies(ledger, first, end - 1, self._ahead.window(self._ahead_bytes))
        self._ahead.put(ledger, runs)
        return runs

    def _fetch_early(self, ledger: int, first: int, fetches: int = _FETCHES_AHEAD) -> None:
        """What a reader that reads on will ask for next, while it hands out what it has: so many fetches from entry
        `first` on.
        """
        lacking = self._ahead.lacking(ledger, first, fetches)
        if lacking is None:
            return
        first, left = lacking
        end = self._catalog.entries_of(ledger)
        if first < end and not self._cache.read((ledger, first), 1, 1):
            size_bytes = self._ahead.window(self._ahead_bytes)
            fetch = partial(self._from_bookies, ledger, first, end - 1, size_bytes)
            go_on = partial(self._fetch_early, ledger, first, left)
            self._ahead.early(
                self._context.tasks, ledger, first, size_bytes, fetch, go_on, second=left < _FETCHES_AHEAD
            )

    async def _from_either(self, ledger: int, first: int, max_entries: int, max_bytes: int) -> list[tuple[int, Run]]:
        """From bookies; where none of them has it, from the object store, if that has it too."""
        try:
            return await self._fetch(ledger, first, max_entries, max_bytes)
        except _UNREAD:
            record = self._catalog.offload_of(ledger)
            if self._cold is None or record is None or record.state == OffloadState.BEGUN:
                raise
            return await self._from_store(ledger, first, max_entries, max_bytes)

    async def _lost(self, ledger: int, first: int) -> EntriesLost | BookieUnavailable | None:
        """What a reader is told of an entry that is gone; None: it cannot be read now."""
        record = self._catalog.offload_of(ledger)
        if record is not None and record.state != OffloadState.BEGUN:
            return None
        try:
            found = await lost_entries(self._context, ledger, first, self._catalog.entries_of(ledger) - 1)
        except HeliographError:
            return None
        return None if found is None else told(self._context, self._topic, found)

    async def _from_store(self, ledger: int, first: int, max_entries: int, max_bytes: int) -> list[tuple[int, Run]]:
        record = self._catalog.offload_of(ledger)
        assert record is not None
        if self._cold is None:
            raise StoreRefused(
                f"ledger {ledger} of {self._topic} lies in an object store only, and this broker is set to none: set "
                "broker.tiered.store"
            )
        last = min(first + max_entries, self._catalog.entries_of(ledger)) - 1
        return await self._cold.read(self._topic, ledger, record, first, last, max_bytes)

    async def _from_bookies(
        self, ledger: int, first: int, last: int, max_bytes: int, on_end: OnEnd | None = None
    ) -> list[tuple[int, Run]]:
        metadata = self._metadata.get(ledger) or self._known(ledger)
        if metadata is None:
            self._metadata[ledger] = metadata = await ledger_metadata(self._context, ledger)
        try:
            return await read_open(self._context, metadata, first, last, max_bytes, on_end)
        except _UNREAD:
            found = await ledger_metadata(self._context, ledger)
            if same_places(found, metadata):
                raise
            self._metadata[ledger] = found
            return await read_open(self._context, found, first, last, max_bytes)

    def _remember(self, end: Position, start: Position) -> None:
        if self._ends is None:
            self._ends = deque(maxlen=_ENDS_KEPT)
        elif start in self._ends:
            self._ends.remove(start)
        self._ends.append(end)


def _amount(runs: Sequence[tuple[int, int, Run]]) -> tuple[int, int]:
    """Returns (entries, bytes) of the runs together."""
    return sum(run.count for *_, run in runs), sum(run.size_bytes for *_, run in runs)


def _bounded(
    ledger: int, runs: Sequence[tuple[int, Run]], max_entries: int, max_bytes: int
) -> list[tuple[int, int, Run]]:
    """Cuts what was fetched to what was asked for; at least one entry."""
    out: list[tuple[int, int, Run]] = []
    for first, run in runs:
        stop = cut_point(run, 0, max_entries, max_bytes, not out)
        if stop:
            out.append((ledger, first, run.cut(0, stop)))
        if stop < run.count:
            break
        max_entries -= run.count
        max_bytes -= run.size_bytes
        if max_entries <= 0 or max_bytes <= 0:
            break
    return out
