"""What a topic's own record, its cursors, and other regions show of a ledger that all of its bookies have lost.

Is: the last entry that is known to have been confirmed. Isn't: the ledger's end (`storage.ledger.recovery`).
Invariants: what is acknowledged, in the stored state, or in another region was confirmed before.
Source: docs/protocols/ledger.md, "Fencing and recovery".
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from heliograph.kv.metadata_store import MetadataStore, pages_under
from heliograph.kv.unreadable_records import readable
from heliograph.model.ledger_metadata import LedgerMetadata
from local_meta import keys
from storage.managed_ledger.cursors.cursor import Cursor
from storage.managed_ledger.metadata.ledger_pages import stored_topic

log = logging.getLogger("storage.managed_ledger")


Elsewhere = Callable[[LedgerMetadata, int], Awaitable[int]]
"""Given a ledger and the highest entry that it may have: the last one that another region holds; -1: none is known."""


class KnownEnds:
    """How far a ledger is known to be confirmed by whatever is not a bookie. elsewhere: asks other regions; None:
    nobody does. last_entry_max: of a ledger here; whoever names a higher one is not believed.
    """

    def __init__(self, meta: MetadataStore, last_entry_max: int, elsewhere: Elsewhere | None = None) -> None:
        self._meta, self._last_entry_max, self._elsewhere = meta, last_entry_max, elsewhere

    async def __call__(self, metadata: LedgerMetadata) -> int:
        """-1: nothing is known. Raises what the metadata raises."""
        here = await confirmed_through(self._meta, metadata)
        there = -1 if self._elsewhere is None else await self._elsewhere(metadata, self._last_entry_max)
        log.warning(
            "ledger.forgotten",
            extra={"topic": metadata.topic, "ledger": metadata.ledger, "known_here": here, "known_elsewhere": there},
        )
        return max(here, there)


async def confirmed_through(meta: MetadataStore, metadata: LedgerMetadata) -> int:
    """-1: nothing is known. Raises what the metadata raises."""
    topic = metadata.topic
    found = await stored_topic(meta, topic) if topic else None
    if found is None:
        return -1
    known = [found[0].state_through]
    async for page in pages_under(meta, keys.cursors(topic)):
        for key, blob, _ in page:
            known += readable(Cursor.acked_in, key, blob) or ()
    return max((entry for ledger, entry in known if ledger == metadata.ledger), default=-1)
