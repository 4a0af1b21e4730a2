"""BookieCopies: a topic's entries as its bookies hold them, for the audit.

Is: reads past the broker's caches, and writes under ids that are there already. Isn't: a judgement of what is right
(`replicator.audit.audit_pass`).
Invariants: only entries of closed ledgers are written, at most to the ledger's last one; the open ledger is closed
first. Ledgers whose only copy is in an object store are read from there.
Source: docs/protocols/storage.md, "In-place repair".
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from heliograph.model.errors import BookieUnavailable, CorruptData, HeliographError, KeyMissing, NoSuchLedger
from heliograph.model.ledger_metadata import LedgerState, local_gone
from heliograph.runtime.throttle import Throttle
from heliograph.wire.block import encode_block
from heliograph.wire.run import Run
from storage.ledger.ledger_context import LedgerContext
from storage.ledger.located_ledgers import data_key_of, forget_copy
from storage.ledger.reading.ledger_reader import ledger_metadata, read_open
from storage.ledger.repair.in_place_repair import Runs
from storage.sealing.cipher import check_form

if TYPE_CHECKING:
    from heliograph.model.ledger_metadata import LedgerMetadata
    from replicator.log.replicated_log import ReplicatedLog

_BYTES_PER_S = 8 << 20


class BookieCopies:
    """Reads and writes copies for the audits of one broker; what `replace` writes is bounded by `_BYTES_PER_S`."""

    def __init__(self, context: LedgerContext) -> None:
        self._context = context
        self._throttle = Throttle(_BYTES_PER_S)
        self._known_as = -1
        self._known: LedgerMetadata | None = None
        """The metadata of the ledger that was read last, where it is closed: so it changes no more."""
        self._opens = -1
        """The ledger of which something was seen to open last, though not all of it does."""

    async def extents(self, log: ReplicatedLog) -> list[tuple[int, int, int]]:
        await log.ledger.whole()
        first, end = log.ledger.first_position(), log.ledger.last_confirmed
        return [
            (
                info.ledger,
                first[1] if info.ledger == first[0] else 0,
                end[1] + 1 if info.ledger == end[0] else info.entries,
            )
            for info in log.ledger.ledgers()
            if first[0] <= info.ledger <= end[0]
        ]

    async def read(
        self, log: ReplicatedLog, ledger: int, first: int, last: int, max_bytes: int
    ) -> Sequence[tuple[int, Run]]:
        if local_gone(await log.ledger.ledger_info(ledger)):
            return [
                (start, run) for _, start, run in await log.ledger.read((ledger, first), last - first + 1, max_bytes)
            ]
        known = self._known
        if known is None or self._known_as != ledger:
            known = await ledger_metadata(self._context, ledger)
            self._known, self._known_as = known if known.state == LedgerState.CLOSED else None, ledger
        try:
            return await self._read_open(known, ledger, first, last, max_bytes)
        except KeyMissing as error:
            if self._opens == ledger or await self._opens_elsewhere(known, last):
                self._opens = ledger
                raise CorruptData(
                    f"no copy of entry {ledger}:{first} names a data key of its ledger: {error}"
                ) from error
            raise
        except BookieUnavailable as error:
            if await self._all_answer(known.write_set(first), known.ledger):
                raise CorruptData(
                    f"every bookie that has entry {ledger}:{first} answers, and none can read it: {error}"
                ) from error
            raise

    async def _read_open(
        self, known: LedgerMetadata, ledger: int, first: int, last: int, max_bytes: int
    ) -> Sequence[tuple[int, Run]]:
        try:
            return await read_open(self._context, known, first, last, max_bytes)
        except HeliographError:
            found = await ledger_metadata(self._context, ledger)
            if found.ledger == known.ledger:
                raise
            self._known = found  # it was written anew meanwhile
            return await read_open(self._context, found, first, last, max_bytes)

    async def _opens_elsewhere(self, known: LedgerMetadata, last: int) -> bool:
        """Whether the ledger's first or last entry opens, so that its key is here: what does not open was written by
        somebody, while a ledger of which nothing opens waits for its key.
        """
        for entry in (0, last):
            with contextlib.suppress(HeliographError):
                await read_open(self._context, known, entry, entry, 1)
                return True
        return False

    async def _all_answer(self, bookies: Sequence[str], ledger: int) -> bool:
        """Whether nobody is only out of reach: a bookie that cannot read a block says no more than one that is not
        there. One that has lost the ledger with an earlier life answers, for good.
        """
        for bookie in bookies:
            try:
                await self._context.pool.client(bookie).read_lac(ledger)
            except NoSuchLedger:
                continue
            except HeliographError as error:
                if not (isinstance(error, BookieUnavailable) and error.forgotten):
                    return False
        return True

    async def refill(self, log: ReplicatedLog, ledger: int, runs: Sequence[tuple[int, Run]]) -> int:
        self._known = None
        for _, run in runs:
            run.first_index = -1  # another region's says nothing here
        return (await log.ledger.refill(ledger, Runs(runs))).fetched_entries

    async def replace(self, log: ReplicatedLog, ledger: int, runs: Sequence[tuple[int, Run]]) -> int:
        await self._closed(log, ledger)
        self._known = None
        metadata = await ledger_metadata(self._context, ledger)
        sealing = self._context.sealing
        place, data_key = metadata.ledger, await data_key_of(self._context.meta, ledger)
        closed_ms = (await log.ledger.ledger_info(ledger)).closed_ms
        for first, run in runs:
            if sealing is not None:
                of = log.ledger.topic, place, closed_ms
                run = await sealing.sealed(*of, first, run, metadata.seal_form, data_key)
            check_form(place, first, run, metadata.seal_form)
            block = encode_block(run, place, first)
            bookies = metadata.write_set(first)
            await self._throttle.take(run.size_bytes * len(bookies))
            for bookie in bookies:
                await self._context.pool.client(bookie).add_recovery(
                    place, first, run.count, block, metadata.last_entry
                )
        await forget_copy(self._context.meta, ledger)
        log.ledger.forget_cached(ledger)
        return sum(run.count for _, run in runs)

    async def _closed(self, log: ReplicatedLog, ledger: int) -> None:
        if log.ledger.last_confirmed[0] == ledger:
            await log.ledger.roll_over()
