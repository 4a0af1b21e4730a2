"""CompactedView: a topic as it reads once what is not the latest of its key is left out.

Is: a LedgerPort: up to the horizon the entries of the compacted ledger, behind it the log; and what is known of that
ledger, as it is stored with the cursor `__compaction`. Isn't: compaction (`compactor`).
Invariants: positions are those of the log; a reader that was at a position goes on at the first entry behind it,
whichever compaction came between. Where the compacted ledger is gone although it is named (a restored region), the log
is read alone, as far as it goes back, and that is logged once.

Properties of the cursor: `CompactedTopicLedger` (ledger, -1: everything was taken away), `CompactedThrough`
(ledger:entry, the horizon), `CompactedEntries`, `CompactedBytes`, `CompactedTime` (wall time, ms), `CompactedObject`
(where it was offloaded: the fields of an OffloadRecord, as JSON), `CompactedKey` (what sealed it; it lacks where an
earlier version has written these), and `CompactionGarbage`: ledgers, by commas, that are
this topic's and nobody needs unless they are the first, while that is not read from its object: then it names the
local copy, until it is gone. No other number is a ledger of this region: a restored topic's are the lost region's.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from heliograph.model.errors import BookieUnavailable, CorruptData, NoSuchEntry, NoSuchLedger, NoSuchObject
from heliograph.model.ledger_metadata import LedgerMetadata, OffloadRecord, OffloadState
from heliograph.model.positions import Position
from heliograph.wire.pulsar.entry_metadata import entry_metadata
from heliograph.wire.run import Run
from region_node.compaction.compacted_entries import pieces_of, position_of
from region_node.runtime.cursor_ports import LedgerPort, Piece
from storage.ledger.ledger_context import LedgerContext
from storage.ledger.reading.ledger_reader import ledger_metadata, read_open
from storage.managed_ledger.log.log_reader import ColdReads

log = logging.getLogger("region_node.compaction")

CURSOR = "__compaction"
_ENDS_KEPT = 16
_NAMES = ("CompactedTopicLedger", "CompactedThrough", "CompactedEntries", "CompactedBytes")
_GARBAGE, _TIME, _OBJECT, _KEY = "CompactionGarbage", "CompactedTime", "CompactedObject", "CompactedKey"
OPEN, UNKNOWN = 0, -1


@dataclass(frozen=True, slots=True)
class Compacted:
    """ledger -1: nothing is left. horizon: the last position of the log that it stands for."""

    ledger: int
    entries: int
    size_bytes: int
    horizon: Position
    made_ms: int = 0
    """Wall time; 0: before that was written down."""
    offload: OffloadRecord | None = None
    """How far its copy in an object store is; None: it was never to be copied."""
    data_key: int = UNKNOWN
    """Number of the data key that sealed all of it; OPEN: it was written in the clear; UNKNOWN: by a version that did
    not write that down.
    """

    @property
    def offloaded(self) -> bool:
        """Whether the object alone is left."""
        return self.offload is not None and self.offload.state == OffloadState.LOCAL_GONE


def properties_of(compacted: Compacted | None, garbage: list[int]) -> dict[str, str]:
    found: dict[str, str] = {}
    if compacted is not None:
        values = (
            compacted.ledger,
            f"{compacted.horizon[0]}:{compacted.horizon[1]}",
            compacted.entries,
            compacted.size_bytes,
        )
        found = {name: str(value) for name, value in zip(_NAMES, values, strict=True)} | {_TIME: str(compacted.made_ms)}
        if compacted.data_key != UNKNOWN:
            found[_KEY] = str(compacted.data_key)
        if compacted.offload is not None:
            found[_OBJECT] = json.dumps(compacted.offload.fields())
    return found | ({_GARBAGE: ",".join(map(str, garbage))} if garbage else {})


def read_properties(properties: Mapping[str, str]) -> tuple[Compacted | None, list[int]]:
    """(what is compacted, ledgers to be deleted). Raises CorruptData."""
    try:
        garbage = [int(text) for text in properties.get(_GARBAGE, "").split(",") if text]
        if _NAMES[0] not in properties:
            return None, garbage
        ledger, horizon, entries, size = (properties[name] for name in _NAMES)
        at, _, entry = horizon.partition(":")
        offload = OffloadRecord.of(json.loads(properties[_OBJECT])) if _OBJECT in properties else None
        made_ms, data_key = int(properties.get(_TIME, 0)), int(properties.get(_KEY, UNKNOWN))
        where = int(at), int(entry)
        compacted = Compacted(int(ledger), int(entries), int(size), where, made_ms, offload, data_key)
    except (KeyError, ValueError, TypeError) as error:
        raise CorruptData(f"properties of cursor {CURSOR}: {error}") from error
    return compacted, [number for number in garbage if number not in local_ledgers(compacted)]


def local_ledgers(compacted: Compacted | None) -> list[int]:
    """The ledger that is read from bookies: as of an object its number may be another topic's here."""
    return [] if compacted is None or compacted.ledger < 0 or compacted.offloaded else [compacted.ledger]


class CompactedView:
    """`compacted`: what is there; changed by the compactor once it is durable. log: the topic's, as clients read it at
    the time.

    cold: reads what was offloaded; None: nothing is.
    """

    __slots__ = ("_cold", "_context", "_ends", "_log", "_lost", "_metadata", "_topic", "compacted")

    def __init__(
        self,
        log: Callable[[], LedgerPort],
        context: LedgerContext,
        compacted: Compacted | None,
        topic: str = "",
        cold: ColdReads | None = None,
    ) -> None:
        self._log, self.compacted = log, compacted
        self._context, self._topic, self._cold = context, topic, cold
        self._metadata: LedgerMetadata | None = None
        self._ends: dict[Position, tuple[int, int]] = {}
        """Where earlier reads ended -> (compacted ledger, its entry there)."""
        self._lost = -2
        """A ledger that is named and gone. -1 is none: there everything was taken away, and nothing is lost."""

    @property
    def last_confirmed(self) -> Position:
        return self._log().last_confirmed

    def cached(self, position: Position, max_entries: int, max_bytes: int) -> list[Piece]:
        compacted = self.compacted
        return (
            []
            if compacted is not None and position <= compacted.horizon
            else self._log().cached(position, max_entries, max_bytes)
        )

    async def read(self, position: Position, max_entries: int, max_bytes: int) -> list[Piece]:
        while True:
            compacted = self.compacted
            if compacted is None or position > compacted.horizon or compacted.ledger == self._lost:
                return await self._log().read(position, max_entries, max_bytes)
            try:
                found = await self._read(compacted, position, max_entries, max_bytes)
            except (NoSuchLedger, NoSuchEntry, NoSuchObject, BookieUnavailable, CorruptData):
                if self.compacted is not compacted:  # it was replaced meanwhile
                    continue
                raise
            if compacted.ledger == self._lost:
                continue
            return found or await self._log().read(
                (compacted.horizon[0], compacted.horizon[1] + 1), max_entries, max_bytes
            )

    def beyond(self, position: Position) -> Position:
        """Where a reader stands who found nothing at or after `position`: what was compacted away up to the horizon is
        passed.
        """
        if self.compacted is None or position > self.compacted.horizon:
            return position
        return self.compacted.horizon[0], self.compacted.horizon[1] + 1

    async def last(self) -> tuple[Position, Run] | None:
        """The last entry of the compacted ledger, as a run of one; None where nothing is left."""
        compacted = self.compacted
        if compacted is None or not compacted.entries or compacted.ledger == self._lost:
            return None
        found = await self._entries(compacted, compacted.entries - 1, 1, 1)
        if not found:
            return None
        ledger, first, run = pieces_of(found[0][1])[-1]
        return (ledger, first + run.count - 1), run.cut(run.count - 1, run.count)

    async def before_publish_time(self, publish_ms: int) -> Position | None:
        """The position before the first entry left that was published at that time or later; None where none of them
        was.
        """
        found = await self._first(lambda run: entry_metadata(run.parts[0])[0].publish_time >= publish_ms)
        return None if found is None else (found[0], found[1] - 1)

    async def position_of_index(self, index: int) -> Position | None:
        """The entry left that holds the message of that index, or the first one behind it; None where nothing is left
        behind it.
        """
        return await self._first(lambda run: run.first_index + run.messages_before(1) > index)

    # -- the compacted ledger -----------------------------------------------------------------------------------------

    async def _first(self, fits: Callable[[Run], bool]) -> Position | None:
        """The first entry left that fits, by halving: so does each behind it. None where there is none, or where
        nothing can be read.
        """
        compacted = self.compacted
        if compacted is None or compacted.ledger == self._lost:
            return None
        low, high, found = 0, compacted.entries, None
        while low < high:
            middle = (low + high) // 2
            runs = await self._entries(compacted, middle, 1, 1)
            if not runs:
                return None
            ledger, first, run = pieces_of(runs[0][1])[0]
            if fits(run):
                high, found = middle, (ledger, first)
            else:
                low = middle + 1
        return found

    async def _read(self, compacted: Compacted, position: Position, max_entries: int, max_bytes: int) -> list[Piece]:
        known = self._ends.pop(position, None)
        at = known[1] if known is not None and known[0] == compacted.ledger else await self._find(compacted, position)
        if at >= compacted.entries or max_entries < 1:
            return []
        out: list[Piece] = []
        for first, run in await self._entries(compacted, at, max_entries, max_bytes):
            out += pieces_of(run)
            at = first + run.count
        if out:
            ledger, first, run = out[-1]
            while len(self._ends) >= _ENDS_KEPT:
                del self._ends[next(iter(self._ends))]
            self._ends[ledger, first + run.count] = compacted.ledger, at
        return out

    async def _find(self, compacted: Compacted, position: Position) -> int:
        """The first of its entries at or after `position`, by halving."""
        low, high = 0, compacted.entries
        while low < high:
            middle = (low + high) // 2
            found = await self._entries(compacted, middle, 1, 1)
            if not found:
                return compacted.entries
            if position_of(found[0][1].parts[0]) < position:
                low = middle + 1
            else:
                high = middle
        return low

    async def _entries(self, compacted: Compacted, first: int, count: int, max_bytes: int) -> list[tuple[int, Run]]:
        """Reads at least one of its entries, from wherever they are now; [] where the compacted ledger is lost."""
        if compacted.ledger < 0:
            return []
        last = min(first + count, compacted.entries) - 1
        if compacted.offloaded:
            return await self._offloaded(compacted, first, last, max_bytes)
        try:
            return await self._local(compacted, first, last, max_bytes)
        except (NoSuchLedger, NoSuchEntry, BookieUnavailable, CorruptData) as error:
            now = self.compacted
            if (
                now is not None and now.ledger == compacted.ledger and now.offloaded
            ):  # the local copy has gone meanwhile
                return await self._offloaded(now, first, last, max_bytes)
            if now is not compacted or not isinstance(error, NoSuchLedger):
                raise
            if (
                compacted.offload is not None and compacted.offload.state == OffloadState.STORED
            ):  # this metadata is older than that
                return await self._offloaded(compacted, first, last, max_bytes)
            self._lost = compacted.ledger
            log.error("compaction.ledger_lost", extra={"ledger": compacted.ledger, "horizon": compacted.horizon})
            return []

    async def _offloaded(self, compacted: Compacted, first: int, last: int, max_bytes: int) -> list[tuple[int, Run]]:
        assert compacted.offload is not None
        if self._cold is None:
            raise NoSuchObject(
                f"ledger {compacted.ledger} lies in an object store, and this broker reads none: set "
                "broker.tiered.store"
            )
        return await self._cold.read(self._topic, compacted.ledger, compacted.offload, first, last, max_bytes)

    async def _local(self, compacted: Compacted, first: int, last: int, max_bytes: int) -> list[tuple[int, Run]]:
        if self._metadata is None or self._metadata.ledger != compacted.ledger:
            self._metadata = await self._own(compacted)
        metadata = self._metadata
        try:
            return await read_open(self._context, metadata, first, last, max_bytes)
        except (BookieUnavailable, CorruptData, NoSuchEntry, NoSuchLedger):
            self._metadata = await self._own(compacted)  # copies may have moved
            if self._metadata.fragments == metadata.fragments:
                raise
            return await read_open(self._context, self._metadata, first, last, max_bytes)

    async def _own(self, compacted: Compacted) -> LedgerMetadata:
        """Raises NoSuchLedger, also where the ledger of that number is another one: a log's, or of another length."""
        found = await ledger_metadata(self._context, compacted.ledger)
        if found.topic or found.last_entry != compacted.entries - 1:
            raise NoSuchLedger(f"ledger {compacted.ledger} is not the compacted one of {self._topic}")
        return found
