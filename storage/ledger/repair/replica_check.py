"""CopyCheck: asks the bookies, ledger by ledger, whether they hold what they should, and marks what lacks a copy.

Is: the auditor's walk over all ledgers, spread over its period. Isn't: the questions (`replica_holdings`), the repair
(`ledger_repair`), or the election.
Invariants: it reads indexes, not data, and changes nothing but marks. How far it came is written down, so that whoever
is elected next goes on from there; a closed ledger is passed only once the mark of what it lacks stands. What an open
one seems to lack may be on its way: it is marked only if it is missing still when an ack would be overdue.
Source: docs/protocols/storage.md, "Auto-recovery".
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from heliograph.kv.metadata_store import prefix_end
from heliograph.kv.unreadable_records import readable
from heliograph.model.errors import CorruptData
from heliograph.model.ledger_metadata import LedgerMetadata, LedgerState, pack, unpack
from heliograph.runtime.every import every
from local_meta import keys
from storage.ledger.ledger_context import LedgerContext
from storage.ledger.repair.lost_bookies import AutoRecoverySettings
from storage.ledger.repair.replica_holdings import Holdings, look
from storage.ledger.underreplicated_marks import mark_lacking

log = logging.getLogger("storage.ledger.copies")

_LEDGERS_PER_S_MAX = 100.0
"""A region with more than so many in `check_s` takes longer."""
_AGAIN_MAX = 1000
_SAVE_S = 60.0


class CopyCheck:
    """One broker's; it works while that broker is the auditor. Counts are since its start."""

    def __init__(
        self,
        context: LedgerContext,
        settings: AutoRecoverySettings,
        *,
        leads: Callable[[], bool],
        ledgers: Callable[[], int],
        marks: Callable[[], int],
    ) -> None:
        """leads: whether it is this broker that checks. ledgers: how many there are, about. marks: how many wait for
        their repair.
        """
        self.checked = self.found = self.nowhere = self.passes = 0
        """Ledgers asked for; those of them that lacked a copy; those of the last whole walk with an entry that nobody
        holds; walks that came to their end.
        """
        self._context, self._settings = context, settings
        self._leads, self._ledgers, self._marks = leads, ledgers, marks
        self._loop = asyncio.get_running_loop()
        self._next: int | None = None
        self._again: dict[int, tuple[float, int]] = {}  # open ledger -> (when to look again, up to which entry)
        self._credit = 1.0
        self._nowhere = 0
        self._saved_at = self._at = 0.0

    async def run(self) -> None:
        """Checks a share of the ledgers each `tick_s` while this broker is the auditor; ends only when it is
        cancelled.
        """
        self._at = self._loop.time()
        await every(
            self._settings.tick_s,
            self._tick,
            failed=lambda error: log.warning("copies.check_failed", extra={"error": str(error)}),
        )

    async def _tick(self) -> None:
        now = self._loop.time()
        elapsed_s, self._at = now - self._at, now
        if not self._leads():
            self._next, self._credit = None, 1.0
            self._again.clear()
            return
        await self._go_on(now, elapsed_s)

    async def _go_on(self, now: float, elapsed_s: float) -> None:
        if self._next is None:
            stored = await self._context.meta.get(keys.COPIES_CHECKED)
            self._next = (readable(_progress, keys.COPIES_CHECKED, stored[0]) or 0) if stored is not None else 0
            self._saved_at = now
        per_s = min(max(self._ledgers(), 1) / self._settings.check_s, _LEDGERS_PER_S_MAX)
        self._credit = min(self._credit + elapsed_s * per_s, max(1.0, 2 * per_s * self._settings.tick_s))
        passes = self.passes
        for ledger in [ledger for ledger, (due, _) in self._again.items() if due <= now]:
            await self._look_again(ledger, self._again[ledger][1])
            self._again.pop(ledger, None)
        while self._credit >= 1.0 and self._leads() and self._marks() < self._settings.marks_max:
            self._credit -= 1.0
            await self._check_next()
        if self.passes > passes or now - self._saved_at >= _SAVE_S:
            await self._context.meta.put(keys.COPIES_CHECKED, pack([self._next]))
            self._saved_at = now

    async def _check_next(self) -> None:
        rows = await self._context.meta.range(keys.ledger(self._next or 0), prefix_end(keys.LEDGERS), limit=1)
        if not rows:
            self._next, self.passes = 0, self.passes + 1
            self.nowhere, self._nowhere = self._nowhere, 0
            log.info("copies.checked", extra={"checked": self.checked, "lacking": self.found, "nowhere": self.nowhere})
            return
        if (metadata := readable(LedgerMetadata.decode, rows[0][0], rows[0][1])) is not None:
            await self._check(metadata)
            self.checked += 1
        self._next = keys.ledger_of(rows[0][0]) + 1

    async def _check(self, metadata: LedgerMetadata) -> None:
        found = await look(self._context, metadata)
        if metadata.state == LedgerState.CLOSED:
            await self._judge(metadata, found, found.through)
        elif found.lacking and len(self._again) < _AGAIN_MAX:
            self._again[metadata.ledger] = self._loop.time() + 2 * self._context.settings.add_timeout_s, found.through

    async def _look_again(self, ledger: int, through: int) -> None:
        stored = await self._context.meta.get(keys.ledger(ledger))
        if stored is not None and (metadata := readable(LedgerMetadata.decode, keys.ledger(ledger), stored[0])):
            await self._judge(metadata, await look(self._context, metadata, through), through)

    async def _judge(self, metadata: LedgerMetadata, found: Holdings, through: int) -> None:
        """through: what is missing behind that may be on its way. Raises what the metadata raises."""
        lacking = [repair for repair in found.lacking if repair.first <= through]
        if not lacking and not found.nowhere:
            return
        stored = await self._context.meta.get(keys.ledger(metadata.ledger))
        if stored is None or readable(LedgerMetadata.decode, keys.ledger(metadata.ledger), stored[0]) != metadata:
            return  # it was deleted, or its copies were moved meanwhile: the next walk sees what became of it
        bookies = {repair.lost[0]: through for repair in lacking}
        if bookies:
            await mark_lacking(self._context.meta, metadata.ledger, bookies)
        if found.nowhere:
            self._nowhere += 1
            log.error(
                "copies.nowhere",
                extra={"ledger": metadata.ledger, "topic": metadata.topic, "ranges": found.nowhere[:5]},
            )
        if bookies:
            self.found += 1
            log.warning(
                "copies.lacking",
                extra={
                    "ledger": metadata.ledger,
                    "bookies": sorted(bookies),
                    "first": [(r.first, r.last) for r in lacking[:5]],
                },
            )


def _progress(blob: bytes) -> int:
    """The ledger from which the walk goes on. Raises CorruptData."""
    try:
        return int(unpack("progress of the check of copies", blob)[0])
    except (IndexError, TypeError, ValueError) as error:
        raise CorruptData(f"progress of the check of copies: {error}") from error
