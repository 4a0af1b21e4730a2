"""Repair: copies what lost bookies held of one ledger to spares, and records the new place; and to bookies that are
there what they lack.

Is: the shell around `storage.ledger.repair.lost_bookies.repairs` and `storage.ledger.repair.replica_holdings` for one
ledger that is marked. Isn't: the choice of ledgers, or the judgement of who is lost.
Invariants: a spare is recorded, by compare-and-set, only once it has made every entry durable that the lost one had
there; the mark of the ledger stands, unchanged, from before the first copied entry until after the record (a bookie's
garbage collection keeps a marked ledger). Two that repair the same ledger at once disturb each other's progress, not
the ledger. Entries that cannot be read keep no others from their copy: their fragment is split around them, and for
them alone the lost one stays named, which may come back with them. What a try has copied the next one does not copy
again.
Source: docs/protocols/storage.md, "Auto-recovery".
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import replace

from heliograph.kv.metadata_store import Check, Put
from heliograph.model.errors import (
    BookieUnavailable,
    HeliographError,
    NoSuchLedger,
    NotEnoughBookies,
    OutcomeUnknown,
    VersionConflict,
)
from heliograph.model.ledger_metadata import LedgerMetadata, LedgerState
from heliograph.runtime.recent_latencies import Recent
from heliograph.runtime.throttle import Throttle
from heliograph.wire.block import encode_block
from heliograph.wire.run import Run
from local_meta import keys
from storage.ledger.bookies.added_copies import COPIES_AT_ONCE, add_copies
from storage.ledger.ledger_context import LedgerContext
from storage.ledger.reading.ledger_reader import read_entries
from storage.ledger.repair.lost_bookies import Repair, repairs, with_copy
from storage.ledger.repair.replica_holdings import UNREAD, look, unreadable_through
from storage.ledger.underreplicated_marks import Mark

READ_BYTES = 1 << 20
_STUCK_MAX = 8
"""Fragments of a ledger of which nothing could be copied: with so many of them the bookies are in trouble, and the
others have their turn the next time.
"""
_FAILED_MAX = 10_000


class LedgerRepair:
    """One broker's way to repair ledgers. `copied_bytes`, `copied_fragments`: since its start.

    `took_ms`: of each ledger that was copied from.
    """

    def __init__(self, context: LedgerContext, bytes_per_s: int) -> None:
        self.copied_bytes = self.copied_fragments = 0
        self.took_ms = Recent()
        self._context, self._throttle = context, Throttle(bytes_per_s)
        self._failed: dict[tuple[int, int], tuple[str, float]] = {}
        """(ledger, first entry) -> of a try of that fragment that failed: which bookie has a part of it, and when."""

    async def run(self, ledger: int, mark: int, said: Mark) -> None:
        """Repairs it, and takes the mark (of version `mark`) away. said: what the mark says; a lost bookie that is back
        gets what it lacks.

        Raises NotEnoughBookies without a spare; BookieUnavailable where one that may lack entries can't be asked;
        VersionConflict where somebody else has changed the mark; what reads and the metadata raise.
        """
        pool, meta = self._context.pool, self._context.meta
        refused: dict[str, None] = {}
        taking_none: dict[str, None] = {}
        stuck: dict[int, HeliographError] = {}
        """First entry of a fragment -> why it cannot be copied now."""
        unreadable: dict[int, None] = {}
        """Those of them of which every bookie that has an entry, or had it, was asked, and none gives it."""
        failed, loop = 0, asyncio.get_running_loop()
        began, before = loop.time(), self.copied_fragments
        while (found := await meta.get(keys.ledger(ledger))) is not None:
            metadata, version = LedgerMetadata.decode(found[0]), found[1]
            gone = [b for b in said.lost if pool.draining(b) or not pool.registered(b) or pool.lacks(b, ledger)]
            todo = [r for r in repairs(metadata, [*gone, *taking_none]) if r.first not in stuck]
            if not todo or failed >= _STUCK_MAX:
                if not await self._refill(metadata, mark, said, taking_none):
                    continue
                if not stuck:
                    break
                if not todo and stuck.keys() <= unreadable.keys():
                    await self._say_nowhere(ledger, mark, said)
                raise next(iter(stuck.values()))
            # those that failed come behind the others, the longest ago first
            repair = min(todo, key=lambda one: self._failed.get((ledger, one.first), ("", -1.0))[1])
            striping, place = metadata.striping, repair.ensemble.index(repair.lost[0])
            beside = [[repair.ensemble[other] for other in others] for others in striping.others(place)]
            known, unfit = self._failed.pop((ledger, repair.first), ("", 0.0))[0], [*repair.ensemble, *refused]
            fit = known in pool.writable() and known not in unfit and not pool.suspected(known)
            spare = known if fit else pool.spare(unfit, beside, metadata.affinity)
            if spare is None:
                raise NotEnoughBookies(
                    f"ledger {ledger}: no bookie is left for a copy of the entries {repair.first} to {repair.last}"
                )
            try:
                unread = await self._copy(metadata, repair, spare, gone)
            except NoSuchLedger:
                refused[spare] = None
                continue
            except (BookieUnavailable, NotEnoughBookies) as error:
                stuck[repair.first], failed = error, failed + 1
                self._note(ledger, repair.first, spare)
                continue
            recorded = await self._record(metadata, version, mark, repair, spare, unread)
            if unread:
                left = [r for r in repairs(recorded, repair.lost[:1]) if repair.first <= r.first <= repair.last]
                for one in left:
                    stuck[one.first] = NotEnoughBookies(
                        f"ledger {ledger}: no copy can be read of the entries {unread[0][0]} to {unread[0][1]}"
                    )
                    unreadable[one.first] = None
                    self._note(ledger, one.first, spare)
                if [(one.first, one.last) for one in left] == [(repair.first, repair.last)]:
                    failed += 1
                    continue
            self.copied_fragments += 1
        if self.copied_fragments > before:
            self.took_ms.add(1000 * (loop.time() - began))
        for key in [key for key in self._failed if key[0] == ledger]:
            del self._failed[key]
        await meta.delete(keys.underreplicated(ledger), expected=mark)

    def _note(self, ledger: int, first: int, spare: str) -> None:
        self._failed.pop((ledger, first), None)
        self._failed[ledger, first] = spare, asyncio.get_running_loop().time()
        if len(self._failed) > _FAILED_MAX:
            del self._failed[next(iter(self._failed))]

    async def _say_nowhere(self, ledger: int, mark: int, said: Mark) -> None:
        """The mark stays, but holds up nothing else: it is looked at when bookies come or go, and now and then. A
        refill from elsewhere that is under way under this very mark begins once more.
        """
        if not said.nowhere:
            await self._context.meta.put(
                keys.underreplicated(ledger), replace(said, nowhere=True).encode(), expected=mark
            )

    async def _refill(self, metadata: LedgerMetadata, mark: int, said: Mark, taking_none: dict[str, None]) -> bool:
        """Gives the bookies that the mark names, and any other that is found to lack some, the entries that they lack.

        False where one takes none, and is noted in `taking_none`: it is to be replaced. Raises as `run` does.
        """
        pool, ledger = self._context.pool, metadata.ledger
        named = {b for _, ensemble in metadata.fragments for b in ensemble}
        lacking = [b for b in said.lacking if b in named]
        if not lacking and not any(b in named and pool.registered(b) for b in said.lost):
            return True
        found = await look(self._context, metadata, max(said.lacking.values(), default=-1), said.lost)
        unread: list[tuple[int, int]] = []
        failed: list[HeliographError] = []
        for repair in found.lacking:
            (bookie,) = repair.lost
            if bookie in taking_none:
                failed.append(
                    NotEnoughBookies(
                        f"ledger {ledger}: {bookie} takes no entries, and only the writer of the ledger may leave it"
                    )
                )
                continue
            try:
                if bookie not in pool.writable():
                    raise NoSuchLedger(f"bookie {bookie} is read-only")
                unread += await self._copy(metadata, repair, bookie, said.lost)
            except NoSuchLedger:
                taking_none[bookie] = None
                return False
            except BookieUnavailable as error:  # others may be there
                failed.append(error)
                if sum(isinstance(one, BookieUnavailable) for one in failed) >= _STUCK_MAX:
                    break
                continue
            self.copied_fragments += 1
        if failed:
            raise failed[0]
        silent = [b for b in lacking if b in found.silent or not pool.registered(b)]
        if silent:
            raise BookieUnavailable(f"ledger {ledger}: {', '.join(silent)} may lack entries of it, and cannot be asked")
        if found.unknown:
            first, last = found.unknown[0]
            raise BookieUnavailable(
                f"ledger {ledger}: who answers has no copy of the entries {first} to {last}, and who may have one "
                "cannot be asked"
            )
        if unread:
            raise NotEnoughBookies(
                f"ledger {ledger}: no copy can be read of the entries {unread[0][0]} to {unread[0][1]}"
            )
        if found.nowhere:
            first, last = found.nowhere[0]
            await self._say_nowhere(ledger, mark, said)
            raise NotEnoughBookies(f"ledger {ledger}: no bookie has the entries {first} to {last}")
        return True

    async def _copy(
        self, metadata: LedgerMetadata, repair: Repair, spare: str, gone: Collection[str]
    ) -> list[tuple[int, int]]:
        """Returns [first, last] of what could not be read; the spare has made all else durable that the lost one had.
        gone: bookies that are not waited for.

        Raises NoSuchLedger where the spare takes this ledger no more; BookieUnavailable where it, or what may be read
        later, is not there now.
        """
        has = await self._held(metadata.ledger, repair, spare)
        unread = await self._copy_without(metadata, repair, spare, gone, has)
        if unread is None:
            unread = await self._copy_without(metadata, repair, spare, gone, ())
        return unread or []

    async def _copy_without(
        self,
        metadata: LedgerMetadata,
        repair: Repair,
        spare: str,
        gone: Collection[str],
        has: Sequence[tuple[int, int]],
    ) -> list[tuple[int, int]] | None:
        """As `_copy`. What the spare `has` is passed over, but for the last of it: when that is durable all before it
        are. None where that cannot be read any more.
        """
        at, striping, place = repair.first, metadata.striping, repair.ensemble.index(repair.lost[0])
        unread: list[tuple[int, int]] = []
        passed = -1
        while at <= repair.last:
            if not striping.holds(place, at):  # another stripe: the lost bookie never had it
                at = striping.last(at) + 1
                continue
            there = next((end for begin, end in has if begin <= at <= end), -1)
            if there >= 0 and at < repair.last:
                at = min(there + 1, repair.last)
                passed = at - 1
                continue
            try:
                at = await self._copy_some(metadata, at, repair.last, spare)
                passed = -1
            except _Unread as unread_now:
                end = await unreadable_through(self._context, metadata, at, repair.last, gone, unread_now.error)
                at = unread.pop()[0] if unread and unread[-1][1] == at - 1 else at
                unread.append((at, end))
                at = end + 1
        if passed >= 0:
            try:
                await self._copy_some(metadata, passed, passed, spare)
            except _Unread:
                return None
        return unread

    async def _copy_some(self, metadata: LedgerMetadata, first: int, last: int, spare: str) -> int:
        """Copies entries from `first` on, at most to `last`; returns the entry behind. Raises _Unread where `first`
        cannot be read, and what the spare raises.
        """
        # of an open ledger its writer alone says how far readers may go: a fragment may end within a run that is not
        # confirmed as a whole
        lac = last if metadata.state == LedgerState.CLOSED else -1
        try:
            runs = await read_entries(self._context, metadata, first, last, READ_BYTES)
        except UNREAD as error:
            raise _Unread(error) from error
        for start in range(0, len(runs), COPIES_AT_ONCE):
            await self._store(metadata.ledger, runs[start : start + COPIES_AT_ONCE], spare, lac)
        return runs[-1][0] + runs[-1][1].count

    async def _store(self, ledger: int, runs: Sequence[tuple[int, Run]], spare: str, lac: int) -> None:
        """Returns once all of them are durable there; raises what the first one failed by, once all have ended."""
        for _, run in runs:
            await self._throttle.take(run.size_bytes)
        try:
            blocks = [(first, run.count, encode_block(run, ledger, first)) for first, run in runs]
            await add_copies(self._context.pool.client(spare), ledger, blocks, lac)
        except HeliographError as error:
            if not isinstance(error, NoSuchLedger):
                self._context.pool.suspect(spare)
            raise
        self.copied_bytes += sum(run.size_bytes for _, run in runs)

    async def _held(self, ledger: int, repair: Repair, spare: str) -> Sequence[tuple[int, int]]:
        """What of it the spare has from a try before; nothing where it does not say."""
        try:
            return await self._context.pool.client(spare).held(ledger, repair.first, repair.last) or ()
        except HeliographError:  # if it is not there, the first copy finds that out
            return ()

    async def _record(
        self,
        metadata: LedgerMetadata,
        version: int,
        mark: int,
        repair: Repair,
        spare: str,
        unread: Sequence[tuple[int, int]],
    ) -> LedgerMetadata:
        """Returns what the metadata says now. Raises VersionConflict where the mark is another by now."""
        meta, key, lost = self._context.meta, keys.ledger(metadata.ledger), repair.lost[0]
        for attempt in range(1, 10):
            wanted = with_copy(metadata, repair, lost, spare, unread)
            if wanted is None or wanted == metadata:
                # somebody else was faster, or the entries were recorded already by an attempt whose outcome was unknown
                return metadata
            try:
                await meta.txn([Put(key, wanted.encode(), version), Check(keys.underreplicated(metadata.ledger), mark)])
                return wanted
            except (VersionConflict, OutcomeUnknown) as error:
                if isinstance(error, VersionConflict) and error.key != key:
                    raise
                found = await meta.get(key)
                if found is None:
                    return metadata
                metadata, version = LedgerMetadata.decode(found[0]), found[1]
            await asyncio.sleep(self._context.pause_s(attempt))
        raise NotEnoughBookies(f"ledger {metadata.ledger}: the copy on {spare} could not be recorded")


class _Unread(Exception):
    def __init__(self, error: HeliographError) -> None:
        super().__init__(str(error))
        self.error = error
