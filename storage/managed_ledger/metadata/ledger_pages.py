"""Pages: a topic's pages of ledgers, read from the local metadata.

Is: the reading of some pages for the topic's owner, and of all that is stored of a topic for anybody. Isn't: which are
wanted, or a change of one.
Invariants: a page's value and what its topic's metadata says of it change in one transaction. Who reads both one after
the other may find a page newer (what it says of objects), or gone (all of it was trimmed): then the metadata is another
one by now, and is read again.
Source: docs/protocols/ledger.md, "Pages of ledgers".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from heliograph.kv.metadata_store import MetadataStore, pages_between
from heliograph.model.errors import CorruptData, LedgerFenced
from heliograph.model.ledger_metadata import LedgerInfo, LedgerPage, ManagedLedgerMetadata, decode_page
from local_meta import keys
from storage.managed_ledger.metadata.ledger_history import Page


async def read_pages(meta: MetadataStore, topic: str, owner: int, pages: Sequence[Page]) -> None:
    """For the opening `owner` of the topic. Raises LedgerFenced where it is not its owner any more; CorruptData; what
    the metadata raises.
    """
    if not pages:
        return
    blobs = await _blobs(meta, topic, [page.about for page in pages])
    for page in pages:
        blob = blobs.get(page.about.key)
        if blob is not None:
            page.take(blob)
            continue
        found = await meta.get(keys.managed_ledger(topic))
        if found is None or ManagedLedgerMetadata.decode(found[0]).owner != owner:
            raise LedgerFenced(
                f"{topic} was taken over by another owner" if found is not None else f"{topic} was deleted"
            )
        raise _lost(topic, page.about)


async def stored_topic(meta: MetadataStore, topic: str) -> tuple[ManagedLedgerMetadata, int] | None:
    """(all that is stored of it: every ledger in `ledgers`, and no page; its version). None: there is no such topic.
    Raises CorruptData.
    """
    found = await meta.get(keys.managed_ledger(topic))
    while found is not None:
        stored = ManagedLedgerMetadata.decode(found[0])
        infos, lost = await _infos(meta, topic, stored.pages)
        if lost is None:
            return replace(stored, ledgers=(*infos, *stored.ledgers), pages=()), found[1]
        version = found[1]
        found = await meta.get(keys.managed_ledger(topic))
        if found is not None and found[1] == version:
            raise _lost(topic, lost)
    return None


async def _infos(
    meta: MetadataStore, topic: str, pages: Sequence[LedgerPage]
) -> tuple[list[LedgerInfo], LedgerPage | None]:
    """(the ledgers that are left of the pages, the first page that is not there)."""
    infos: list[LedgerInfo] = []
    blobs = await _blobs(meta, topic, pages) if pages else {}
    for page in pages:
        if page.key not in blobs:
            return [], page
        infos += decode_page(page, blobs[page.key])[page.trimmed :]
    return infos, None


async def _blobs(meta: MetadataStore, topic: str, pages: Sequence[LedgerPage]) -> dict[int, bytes]:
    between = pages_between(meta, keys.ledger_page(topic, pages[0].key), keys.ledger_page(topic, pages[-1].key + 1))
    return {keys.ledger_of(key): blob async for rows in between for key, blob, _ in rows}


def _lost(topic: str, page: LedgerPage) -> CorruptData:
    return CorruptData(
        f"{topic}: the metadata lacks the page of its ledgers {page.first.ledger} to {page.last.ledger}: restore the "
        "metadata from a backup "
        "(docs/operating.md, Backup and restore)"
    )
