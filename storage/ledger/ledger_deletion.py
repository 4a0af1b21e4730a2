"""Deletion of one ledger's entries from its bookies.

Is: the last step, for who has taken the ledger's metadata away. Isn't: who deletes which ledger, and when
(`storage.managed_ledger.retention`), or a bookie's own collection (`storage.bookie.maintenance.garbage_collector`).
"""

from __future__ import annotations

from heliograph.model.errors import HeliographError
from heliograph.model.ledger_metadata import LedgerMetadata
from storage.ledger.ledger_context import LedgerContext


async def delete_on_bookies(context: LedgerContext, metadata: LedgerMetadata) -> None:
    """Frees the space of a ledger whose metadata is gone already. A bookie that does not answer finds out by its own
    garbage collection.
    """
    bookies = dict.fromkeys(bookie for _, ensemble in metadata.fragments for bookie in ensemble)
    for bookie in bookies:
        try:
            await context.pool.client(bookie).delete(metadata.ledger)
        except HeliographError:
            continue
