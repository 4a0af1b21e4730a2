"""What a topic's own record and its cursors show of a ledger of which all bookies have lost their copies.

Is: the last entry that is known to have been confirmed. Isn't: the ledger's end (`storage.ledger.recovery`).
Invariants: what is acknowledged, or in the stored state, was confirmed before.
Source: docs/protocols/ledger.md, "Fencing and recovery".
"""

from __future__ import annotations

from heliograph.kv.metadata_store import MetadataStore, pages_under
from heliograph.kv.unreadable_records import readable
from heliograph.model.ledger_metadata import LedgerMetadata
from local_meta import keys
from storage.managed_ledger.cursors.cursor import Cursor
from storage.managed_ledger.metadata.ledger_pages import stored_topic


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
