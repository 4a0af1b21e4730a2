"""Abandoned: open ledgers that name a lost bookie, and whose writer does not leave it: there is none any more.

Is: since when each of them has been found so, and its recovery after a while. Isn't: the judgement of who is lost, or
the copies: once it is closed, a ledger is marked and repaired as any other.
Invariants: a writer that lives goes to a spare within seconds, so that nothing is closed under it. Were it alive all
the same, it would be fenced: its topic is opened again, and nothing is lost. Without a spare nothing is done: no copy
could be made either; but a bookie that is there in a new life takes the copies itself.
Source: docs/protocols/storage.md, "Auto-recovery".
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from heliograph.kv.unreadable_records import readable
from heliograph.model.errors import HeliographError
from heliograph.model.ledger_metadata import LedgerMetadata, LedgerState
from local_meta import keys
from storage.ledger.bookies.bookie_pool import ends_for
from storage.ledger.ledger_context import LedgerContext
from storage.ledger.recovery.ledger_recovery import recover_ledger

log = logging.getLogger("storage.ledger.abandoned")

EMPTIED_AFTER_S = 60.0
"""Of a bookie that an operator is emptying: it answers, so that its writer needs no time to find out that it does not.
"""


class Abandoned:
    """The auditor's. `closed`: since its start."""

    def __init__(self, context: LedgerContext, after_s: float) -> None:
        self.closed = 0
        self._context, self._after_s = context, after_s
        self._since: dict[int, float] = {}

    async def on_scanned(self, waiting: Iterable[int], gone: Callable[[str, int], bool], now: float) -> None:
        """Closes what has waited for its writer in every scan for `after_s`, or EMPTIED_AFTER_S where an operator waits
        for it; the first that fails ends it until the next scan.

        waiting: ledgers whose last fragment names a lost bookie. gone: whether a bookie is lost for a ledger. Raises
        what the metadata raises.
        """
        self._since = {ledger: self._since.get(ledger, now) for ledger in waiting}
        soonest_s = min(self._after_s, EMPTIED_AFTER_S)
        for ledger in [ledger for ledger, since in self._since.items() if now - since >= soonest_s]:
            found = await self._context.meta.get(keys.ledger(ledger))
            metadata = readable(LedgerMetadata.decode, keys.ledger(ledger), found[0]) if found is not None else None
            if metadata is None or not self._can_leave(metadata, gone):
                continue
            emptied = any(self._context.pool.draining(bookie) for bookie in metadata.fragments[-1][1])
            if not emptied and now - self._since[ledger] < self._after_s:
                continue
            self._since[ledger] = now  # where it fails: not again at once
            try:
                closed = await recover_ledger(self._context, ledger)
            except HeliographError as error:
                log.warning(
                    "auditor.abandoned_left", extra={"ledger": ledger, "topic": metadata.topic, "error": str(error)}
                )
                return
            self.closed += 1
            log.warning(
                "auditor.abandoned_closed",
                extra={"ledger": ledger, "topic": metadata.topic, "last_entry": closed.last_entry},
            )

    def _can_leave(self, metadata: LedgerMetadata, gone: Callable[[str, int], bool]) -> bool:
        """Whether its writer could have left a bookie that is lost, or ended it for one that began a new life."""
        ensemble = metadata.fragments[-1][1]
        if metadata.state == LedgerState.CLOSED:
            return False
        for at, bookie in enumerate(ensemble):
            if ends_for(self._context.pool, metadata, bookie):
                return True
            if gone(bookie, metadata.ledger):
                beside = [[ensemble[place] for place in others] for others in metadata.striping.others(at)]
                if self._context.pool.spare(ensemble, beside, metadata.affinity) is not None:
                    return True
        return False
