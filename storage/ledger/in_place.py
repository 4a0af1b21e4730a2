"""In-place repair: a closed ledger whose copies are lost or damaged gets its entries back under the same ids, from wherever they still are.

Is: for each fragment, spares for the bookies that are gone, entries from the copies that can be read, and all others from a `Source`: another region
of a replicated topic, or an object store. Isn't: the source, or the choice of ledgers; where the copies suffice, auto-recovery does the same alone.
Invariants: a spare is recorded, by compare-and-set, only once everything that its place holds of the fragment is durable on it. What the source
gives goes to the whole write set: adds are idempotent by entry, so a copy that was only out of reach loses nothing by it. Nothing beyond the
ledger's last entry, and nothing of a ledger that is not closed, is ever written: so nothing is confirmed here that was not.
Source: docs/protocols/storage.md, "In-place repair".
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from heliograph.model.errors import CorruptData, HeliographError, NoSuchLedger, NotAllowed, NotEnoughBookies, OutcomeUnknown, VersionConflict
from heliograph.model.ledgers import LedgerMetadata, LedgerState
from heliograph.wire.run import Run, encode_block
from local_meta import keys
from storage.ledger.context import LedgerContext
from storage.ledger.reader import read_entries
from storage.ledger.repair import READ_BYTES, Throttle

_ATTEMPTS_MAX = 5


class Source(Protocol):
    """Where entries of this region's ledgers still are."""

    async def read(self, topic: str, ledger: int, first: int, last: int, max_bytes: int) -> Sequence[tuple[int, Run]]:
        """(first entry, run) from entry `first` on, without a hole, at most to `last`; [] where it has not got `first`.

        An entry's bytes, and what its run says of it (times, index, coordinate), are those that were stored here.
        """
        ...


@dataclass(frozen=True, slots=True)
class Refilled:
    """missing: [first, last] of what neither a copy nor the source has; a fragment with any stays as it is."""

    copied_entries: int = 0
    fetched_entries: int = 0
    missing: tuple[tuple[int, int], ...] = ()


async def refill(context: LedgerContext, ledger: int, source: Source, throttle: Throttle) -> Refilled:
    """Idempotent; two may try at once.

    Raises NoSuchLedger; NotAllowed where it is not closed (recover it first); NotEnoughBookies without a spare; what bookies, the source, and
    the metadata raise: then it is tried again later, and goes on where it stopped, because what was written is there.
    """
    for attempt in range(1, _ATTEMPTS_MAX + 1):
        found = await context.meta.get(keys.ledger(ledger))
        if found is None:
            raise NoSuchLedger(f"ledger {ledger} has no metadata")
        metadata, version = LedgerMetadata.decode(found[0]), found[1]
        if metadata.state != LedgerState.CLOSED:
            raise NotAllowed(f"ledger {ledger} is still open: load its topic, so that it is recovered first")
        wanted, result = await _Filling(context, metadata, source, throttle).run()
        if wanted == metadata:
            return result
        try:
            await context.meta.put(keys.ledger(ledger), wanted.encode(), expected=version)
            return result
        except (VersionConflict, OutcomeUnknown):  # auto-recovery was there too: once more, on what it has recorded
            await asyncio.sleep(context.pause_s(attempt))
    raise NotEnoughBookies(f"ledger {ledger}: its new places could not be recorded; they are tried again")


class _Filling:
    """One attempt."""

    def __init__(self, context: LedgerContext, metadata: LedgerMetadata, source: Source, throttle: Throttle) -> None:
        self._context, self._metadata, self._source, self._throttle = context, metadata, source, throttle
        self._striping = metadata.striping
        self._copied = self._fetched = 0
        self._missing: list[tuple[int, int]] = []

    async def run(self) -> tuple[LedgerMetadata, Refilled]:
        fragments = list(self._metadata.fragments)
        for index, (first, ensemble) in enumerate(fragments):
            after = fragments[index + 1][0] if index + 1 < len(fragments) else self._metadata.last_entry + 1
            last = min(after - 1, self._metadata.last_entry)
            if first <= last:
                places = self._with_spares(ensemble)
                if await self._fill(first, last, ensemble, places):
                    fragments[index] = first, tuple(places)
        return replace(self._metadata, fragments=tuple(fragments)), Refilled(self._copied, self._fetched, tuple(self._missing))

    def _with_spares(self, ensemble: Sequence[str]) -> list[str]:
        pool, places = self._context.pool, list(ensemble)
        for place, bookie in enumerate(ensemble):
            if not pool.registered(bookie):
                beside = [[places[other] for other in others] for others in self._striping.others(place)]
                spare = pool.spare([*ensemble, *places], beside, self._metadata.affinity)
                if spare is None:
                    raise NotEnoughBookies(f"ledger {self._metadata.ledger}: no bookie is left in the place of {bookie}")
                places[place] = spare
        return places

    async def _fill(self, first: int, last: int, before: Sequence[str], places: Sequence[str]) -> bool:
        """Returns whether every entry has its copies now."""
        at, whole = first, True
        while at <= last:
            stop = min(last, self._striping.last(at))
            holders = [places[place] for place in self._striping.places(at)]
            fresh = [bookie for bookie in holders if bookie not in before]
            try:
                runs: Sequence[tuple[int, Run]] = await read_entries(self._context, self._metadata, at, stop, READ_BYTES)
            except HeliographError:
                runs, fresh = await self._fetched_runs(at, stop), holders
                self._fetched += sum(run.count for _, run in runs)
            else:
                self._copied += sum(run.count for _, run in runs) if fresh else 0
            if not runs:
                whole = False
                self._note_missing(at)
                at += 1
                continue
            for start, run in runs:
                await self._write(fresh, start, run)
                at = start + run.count
        return whole

    async def _fetched_runs(self, first: int, last: int) -> list[tuple[int, Run]]:
        metadata, at = self._metadata, first
        runs: list[tuple[int, Run]] = []
        for start, run in await self._source.read(metadata.topic, metadata.ledger, first, last, READ_BYTES):
            if start != at or start + run.count - 1 > last:
                raise CorruptData(f"ledger {metadata.ledger}: asked for entries {at} to {last}, the source answered {start} to {start + run.count - 1}")
            runs.append((start, run))
            at += run.count
        return runs

    async def _write(self, bookies: Sequence[str], first: int, run: Run) -> None:
        if not bookies:
            return
        ledger = self._metadata.ledger
        block = encode_block(run, ledger, first)
        await self._throttle.take(run.size_bytes * len(bookies))
        for bookie in bookies:
            await self._context.pool.client(bookie).add_recovery(ledger, first, run.count, block, self._metadata.last_entry)

    def _note_missing(self, entry: int) -> None:
        if self._missing and self._missing[-1][1] == entry - 1:
            self._missing[-1] = self._missing[-1][0], entry
        else:
            self._missing.append((entry, entry))
