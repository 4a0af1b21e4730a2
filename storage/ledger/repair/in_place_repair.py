"""In-place repair: a closed ledger whose copies are lost or damaged gets its entries back under the same ids, from
wherever they still are.

Is: for each fragment, spares for the bookies that are gone or refuse the ledger, entries from the copies that can be
read, and all others from a `Source`: another region of a replicated topic, or an object store; and which entries no
copy can be read of. Isn't: the source, or the choice of ledgers (`storage.managed_ledger.log.damaged_ledgers`); where
the copies suffice, auto-recovery does the same alone.
Invariants: a spare is recorded, by compare-and-set, only once everything that its place holds of the fragment is
durable on it; from before the first entry that it is sent until then the ledger has one and the same mark, so that no
bookie's garbage collection takes what it got for a surplus copy. What the source gives goes to the whole write set:
adds are idempotent by entry, so a copy that was only out of reach loses nothing by it. Nothing beyond the ledger's last
entry, and nothing of a ledger that is not closed, is ever written: so nothing is confirmed here that was not. What a
source gives is written only where it fits between its neighbours here: the message index goes on without a gap. A crash
leaves entries on bookies and the metadata as it was, or all of it done: the next attempt goes on from there.
Source: docs/protocols/storage.md, "In-place repair".
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Protocol

from heliograph.kv.metadata_store import Check, Put
from heliograph.model.errors import (
    CorruptData,
    HeliographError,
    NoSuchLedger,
    NotAllowed,
    NotEnoughBookies,
    OutcomeUnknown,
    VersionConflict,
)
from heliograph.model.ledger_metadata import LedgerMetadata, LedgerState
from heliograph.runtime.throttle import Throttle
from heliograph.wire.block import encode_block
from heliograph.wire.run import Run
from local_meta import keys
from storage.ledger.ledger_context import LedgerContext
from storage.ledger.located_ledgers import data_key_of, record_of
from storage.ledger.reading.ledger_reader import read_entries
from storage.ledger.reading.lost_entries import lost_entries
from storage.ledger.repair.ledger_repair import READ_BYTES
from storage.ledger.underreplicated_marks import look_again, mark_lost
from storage.sealing.cipher import check_form

_ATTEMPTS_MAX = 5


class Source(Protocol):
    """Where entries of this region's ledgers still are."""

    async def read(self, topic: str, ledger: int, first: int, last: int, max_bytes: int) -> Sequence[tuple[int, Run]]:
        """(first entry, run) from entry `first` on, without a hole, at most to `last`; [] where it has not got `first`.

        An entry's bytes, and what its run says of it (times, coordinate, producers), are those that were stored here. A
        `first_index` below 0 is counted from the entry before; a `time_ms` of 0 becomes that of the origin.
        """
        ...


class Runs:
    """A Source of runs that were fetched already, for entries that somebody has judged damaged: they also take the
    place of copies whose data key is not known. runs: (first entry, run), of one ledger, in order; holes are allowed.
    """

    def __init__(self, runs: Iterable[tuple[int, Run]]) -> None:
        self._runs = list(runs)

    async def read(self, topic: str, ledger: int, first: int, last: int, max_bytes: int) -> Sequence[tuple[int, Run]]:
        found: list[tuple[int, Run]] = []
        at = first
        for start, run in self._runs:
            if start + run.count <= at:
                continue
            if start > at or at > last:
                break
            piece = run.cut(at - start, min(run.count, last - start + 1))
            if run.first_index < 0:
                piece.first_index = -1
            found.append((at, piece))
            max_bytes -= found[-1][1].size_bytes
            at += found[-1][1].count
            if max_bytes <= 0:
                break
        return found


@dataclass(frozen=True, slots=True)
class Refilled:
    """missing: [first, last] of what neither a copy nor the source has; a fragment with any stays as it is."""

    copied_entries: int = 0
    fetched_entries: int = 0
    missing: tuple[tuple[int, int], ...] = ()


async def unreadable(
    context: LedgerContext, metadata: LedgerMetadata, throttle: Throttle, first: int = 0, last: int | None = None
) -> list[tuple[int, int]]:
    """[first, last] of the entries in that range of a closed ledger of which no copy can be read. Reads all of it, but
    for what its bookies say is lost, which is passed over at once; BookieUnavailable counts as well.
    """
    at, end, found = (
        first,
        metadata.last_entry if last is None else min(last, metadata.last_entry),
        list[tuple[int, int]](),
    )
    while at <= end:
        try:
            runs = await read_entries(context, metadata, at, end, READ_BYTES)
        except NoSuchLedger:  # nobody has any of it: at least up to where others are asked
            after = min(
                [start for start, _ in metadata.fragments if start > at] + [end + 1, metadata.striping.last(at) + 1]
            )
            _note(found, at, after - 1)
            at = after
        except HeliographError:
            lost = await lost_entries(context, metadata.ledger, at, end)
            after = at + 1 if lost is None else lost.last + 1
            _note(found, at, after - 1)
            at = after
        else:
            await throttle.take(sum(run.size_bytes for _, run in runs))
            at = runs[-1][0] + runs[-1][1].count
    return found


async def refill(
    context: LedgerContext,
    ledger: int,
    source: Source,
    throttle: Throttle,
    *,
    first: int = 0,
    last: int | None = None,
    first_index: int = -1,
    closed_ms: int = 0,
) -> Refilled:
    """Idempotent; two may try at once.

    first, last: which entries are looked at; where a bookie is gone, its whole fragment. first_index: of the ledger's
    first message; -1: not known.
    closed_ms: when the ledger was closed, for what is to be encrypted; 0: not known.

    Raises NoSuchLedger; NotAllowed where it is not closed (recover it first); NotEnoughBookies without a spare; what
    bookies, the source, and the metadata raise: then it is tried again later, and goes on where it stopped, because
    what was written is there.
    """
    for attempt in range(1, _ATTEMPTS_MAX + 1):
        metadata, version = await record_of(context.meta, ledger)
        place = metadata.ledger
        if metadata.state != LedgerState.CLOSED:
            raise NotAllowed(f"ledger {ledger} is still open: load its topic, so that it is recovered first")
        end = metadata.last_entry if last is None else min(last, metadata.last_entry)
        filling = _Filling(context, metadata, ledger, source, throttle, (first, end), first_index, closed_ms)
        try:
            wanted, result = await filling.run()
            if wanted != metadata:
                assert filling.mark is not None
                marked = Check(keys.underreplicated(place), filling.mark)
                await context.meta.txn([Put(keys.ledger(place), wanted.encode(), version), marked])
            if result.fetched_entries:
                await look_again(context.meta, place)
            return result
        except (VersionConflict, OutcomeUnknown):  # auto-recovery was there too: once more, on what it has recorded
            await asyncio.sleep(context.pause_s(attempt))
    raise NotEnoughBookies(f"ledger {ledger}: its new places could not be recorded; they are tried again")


class _Filling:
    """One attempt to fill a ledger: it writes entries, and returns the metadata to be recorded; it records nothing
    itself but the mark. `mark`: its version; None where no place is new.
    """

    def __init__(
        self,
        context: LedgerContext,
        metadata: LedgerMetadata,
        ledger: int,
        source: Source,
        throttle: Throttle,
        entries: tuple[int, int],
        first_index: int,
        closed_ms: int,
    ) -> None:
        """ledger: as its topic, and the source, name it. entries: the first and the last that are looked at."""
        self._ledger, self._data_key = ledger, -1
        self.mark: int | None = None
        self._lost: dict[str, None] = {}
        """Bookies that the mark names."""
        self._closed_ms = closed_ms
        self._context, self._metadata, self._source, self._throttle = context, metadata, source, throttle
        self._first, self._last = entries
        self._index_at = 0, first_index
        """(entry, index of its first message): behind what was read or written last. New places are in no metadata yet,
        so they can't be read from.
        """
        self._refusing: dict[str, None] = {}
        """Bookies that take nothing of this ledger any more: it was deleted there."""
        self._striping = metadata.striping
        self._copied = self._fetched = 0
        self._missing: list[tuple[int, int]] = []

    async def run(self) -> tuple[LedgerMetadata, Refilled]:
        fragments = list(self._metadata.fragments)
        for index, (first, ensemble) in enumerate(fragments):
            after = fragments[index + 1][0] if index + 1 < len(fragments) else self._metadata.last_entry + 1
            last = min(after - 1, self._metadata.last_entry)
            while first <= last:
                places = self._with_spares(ensemble)
                if places == list(ensemble):
                    low, high = max(first, self._first), min(last, self._last)
                else:
                    low, high = first, last
                    await self._keep({old: None for old, new in zip(ensemble, places, strict=True) if old != new})
                before = self._copied, self._fetched, list(self._missing)
                try:
                    if await self._fill(low, high, ensemble, places):
                        fragments[index] = first, tuple(places)
                    break
                except _Refused as refused:
                    self._refusing[refused.bookie] = None
                    self._copied, self._fetched, self._missing = before
        return replace(self._metadata, fragments=tuple(fragments)), Refilled(
            self._copied, self._fetched, tuple(self._missing)
        )

    def _with_spares(self, ensemble: Sequence[str]) -> list[str]:
        pool, places = self._context.pool, list(ensemble)
        for place, bookie in enumerate(ensemble):
            if not pool.registered(bookie) or bookie in self._refusing or pool.lacks(bookie, self._metadata.ledger):
                beside = [[places[other] for other in others] for others in self._striping.others(place)]
                spare = pool.spare([*ensemble, *places, *self._refusing], beside, self._metadata.affinity)
                if spare is None:
                    raise NotEnoughBookies(
                        f"ledger {self._metadata.ledger}: no bookie is left in the place of {bookie}"
                    )
                places[place] = spare
        return places

    async def _keep(self, lost: dict[str, None]) -> None:
        """Marks the ledger. Raises VersionConflict where the mark is another one by now."""
        if lost.keys() - self._lost.keys():
            self._lost |= lost
            self.mark = await mark_lost(self._context.meta, self._metadata.ledger, self._lost, self.mark)

    async def _fill(self, first: int, last: int, before: Sequence[str], places: Sequence[str]) -> bool:
        """Returns whether every entry has its copies now."""
        at, whole = first, True
        while at <= last:
            stop = min(last, self._striping.last(at))
            holders = [places[place] for place in self._striping.places(at)]
            fresh = [bookie for bookie in holders if bookie not in before]
            try:
                runs: Sequence[tuple[int, Run]] = await read_entries(
                    self._context, self._metadata, at, stop, READ_BYTES
                )
            except HeliographError:
                runs, fresh = await self._fetched_runs(at, stop), holders
                self._fetched += sum(run.count for _, run in runs)
            else:
                if instead := await self._in_place_of(runs):
                    runs, fresh = instead, holders
                    self._fetched += sum(run.count for _, run in runs)
                else:
                    self._copied += sum(run.count for _, run in runs) if fresh else 0
            if not runs:
                whole = False
                _note(self._missing, at, at)
                at += 1
                continue
            for start, run in runs:
                await self._write(fresh, start, run)
                at = start + run.count
                self._index_at = at, run.first_index + run.messages
        return whole

    async def _in_place_of(self, runs: Sequence[tuple[int, Run]]) -> Sequence[tuple[int, Run]]:
        """What was fetched for entries that no copy here names a known data key for; [] where that is nothing."""
        first, last, sealing = runs[0][0], runs[-1][0] + runs[-1][1].count - 1, self._context.sealing
        seal = runs[0][1].seal  # where it is not known, it is so of all of them
        if not isinstance(self._source, Runs) or seal is None or sealing is None or sealing.knows(seal.key):
            return []
        return await self._fetched_runs(first, last)

    async def _fetched_runs(self, first: int, last: int) -> list[tuple[int, Run]]:
        metadata, at = self._metadata, first
        runs: list[tuple[int, Run]] = []
        for start, run in await self._source.read(metadata.topic, self._ledger, first, last, READ_BYTES):
            if start != at or start + run.count - 1 > last:
                raise CorruptData(
                    f"ledger {metadata.ledger}: asked for entries {at} to {last}, the source answered {start} to "
                    f"{start + run.count - 1}"
                )
            runs.append((start, run))
            at += run.count
        return await self._fitting(first, runs) if runs else []

    async def _fitting(self, first: int, runs: list[tuple[int, Run]]) -> list[tuple[int, Run]]:
        """With the message index that belongs to them. Raises CorruptData where they do not fit between what is
        here.
        """
        index = await self._index_before(first)
        if index < 0:
            index = runs[0][1].first_index
        if index < 0:
            return []  # neither here nor there is it known how many messages came before
        for at, (start, run) in enumerate(runs):
            if run.first_index < 0 or not run.time_ms:
                run = copy(run)
                run.first_index = index if run.first_index < 0 else run.first_index
                run.time_ms = run.time_ms or run.origin_time_ms
                runs[at] = start, run
            if run.first_index != index:
                raise CorruptData(
                    f"ledger {self._metadata.ledger}: the source's entry {start} begins at message {run.first_index}, "
                    f"and here it is {index}: it is another's"
                )
            index += run.messages
        after = start + run.count
        following = await self._entry(after) if after <= self._metadata.last_entry else None
        if following is not None and following.first_index != index:
            raise CorruptData(
                f"ledger {self._metadata.ledger}: with the source's entries {first} to {after - 1} entry {after} "
                f"would begin at message {index}, and it "
                f"begins at {following.first_index}: they are others"
            )
        return runs

    async def _index_before(self, entry: int) -> int:
        """The index of the first message of `entry`; -1 where it can't be told from what is here."""
        if self._index_at[0] == entry:
            return self._index_at[1]
        before = await self._entry(entry - 1) if entry else None
        return -1 if before is None else before.first_index + before.messages

    async def _entry(self, entry: int) -> Run | None:
        try:
            return (await read_entries(self._context, self._metadata, entry, entry, 1))[0][1]
        except HeliographError:
            return None

    async def _write(self, bookies: Sequence[str], first: int, run: Run) -> None:
        if not bookies:
            return
        ledger, sealing, form = self._metadata.ledger, self._context.sealing, self._metadata.seal_form
        if sealing is not None:  # what another region sends comes open
            if self._data_key < 0:
                self._data_key = await data_key_of(self._context.meta, self._ledger)
            of = self._metadata.topic, ledger, self._closed_ms
            run = await sealing.sealed(*of, first, run, form, self._data_key)
        check_form(ledger, first, run, form)
        block = encode_block(run, ledger, first)
        await self._throttle.take(run.size_bytes * len(bookies))
        for bookie in bookies:
            try:
                await self._context.pool.client(bookie).add_recovery(
                    ledger, first, run.count, block, self._metadata.last_entry
                )
            except NoSuchLedger as error:
                raise _Refused(bookie) from error


class _Refused(Exception):
    def __init__(self, bookie: str) -> None:
        super().__init__(bookie)
        self.bookie = bookie


def _note(ranges: list[tuple[int, int]], first: int, last: int) -> None:
    if ranges and ranges[-1][1] == first - 1:
        ranges[-1] = ranges[-1][0], last
    else:
        ranges.append((first, last))
