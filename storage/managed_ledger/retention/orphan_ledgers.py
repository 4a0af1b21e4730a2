"""Orphans: ledgers in the metadata that no topic names, and none will.

Is: the rule, and its sweep over the region. Isn't: the garbage collection of bookies (that goes by the metadata, after
this).
Invariants: a ledger goes only where its topic's metadata, read after the ledger's, does not name it and was written by
another opening than the one that made the ledger. That lasts: each opening names only what it found named and what it
made, and what an earlier one writes fails on the version. So no lock is needed; the grace is for operators.
A ledger that another's place names goes once the place has gone, which goes once the topic names that other one no
more.
What cannot be read is told, and names whatever it may name: a ledger stays whose own record, or whose topic's, is so.
An opening that made a ledger and could not name it leaves it until the topic is opened again.
Source: docs/protocols/storage.md, "Orphans".
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import AsyncIterator, Sequence

from heliograph.kv.metadata_store import prefix_end
from heliograph.kv.unreadable_records import readable, tell_unreadable
from heliograph.model.errors import CorruptData, VersionConflict
from heliograph.model.ledger_metadata import (
    LedgerInfo,
    LedgerMetadata,
    ManagedLedgerMetadata,
    local_gone,
    page_ledgers,
)
from local_meta import keys
from local_meta.located_ledger import LocatedLedger
from storage.ledger.ledger_context import LedgerContext
from storage.ledger.ledger_deletion import delete_on_bookies
from storage.managed_ledger.metadata.ledger_pages import stored_topic

_PAGE = 1000
_PAGES = 64
"""How many pages of ledgers are read at once: each has up to 40 KiB."""


def is_orphan(ledger: LedgerMetadata, topic: ManagedLedgerMetadata | None) -> bool:
    """topic: its metadata, read later than the ledger's; None where the topic is gone."""
    if not ledger.topic:
        return False
    return topic is None or (
        topic.owner != ledger.owner and all(info.ledger != ledger.ledger for info in topic.ledgers)
    )


class OrphanCollector:
    """One a broker; only the auditor's is asked. `collected`: since its start."""

    def __init__(self, context: LedgerContext, grace_s: float) -> None:
        self.collected = 0
        self._context, self._grace_s = context, grace_s
        self._since: dict[int, float] = {}

    async def sweep(self, now: float) -> list[int]:
        """Deletes what has been an orphan in every sweep for the grace. Returns the ledgers. Raises what the metadata
        raises.
        """
        found = await self._orphans()
        self._since = {ledger: self._since.get(ledger, now) for ledger in found}
        deleted: list[int] = []
        for ledger, since in list(self._since.items()):
            if now - since < self._grace_s:
                continue
            metadata, version = found[ledger]
            try:
                await self._context.meta.delete(keys.ledger(ledger), expected=version)
            except VersionConflict:
                continue  # its writer, which will never confirm anything in it, is still busy: next time
            del self._since[ledger]
            deleted.append(ledger)
            self.collected += 1
            await delete_on_bookies(self._context, metadata)
        return deleted

    async def _orphans(self) -> dict[int, tuple[LedgerMetadata, int]]:
        """Ledgers first, topics second; then, for each ledger that no topic named, its own topic once more."""
        meta = self._context.meta
        ledgers: array[int] = array("q")
        async for key, _, _ in self._each(keys.LEDGERS):
            ledgers.append(keys.ledger_of(key))
        named = bytearray(len(ledgers))
        places: dict[int, tuple[str, int]] = {}  # ledger -> topic and version, of those that no topic has named yet

        def name_one(ledger: int) -> None:
            at = bisect_left(ledgers, ledger)
            if at < len(ledgers) and ledgers[at] == ledger:
                named[at] = 1

        def name(infos: Sequence[LedgerInfo]) -> None:
            for info in infos:
                name_one(info.ledger)
                if not local_gone(info):
                    places.pop(info.ledger, None)

        unreadable: dict[str, None] = {}  # topics

        async for key, blob, version in self._each(keys.LOCATED):
            if (place := readable(LocatedLedger.decode, key, blob)) is None:
                return {}  # it may name any of them
            places[place.ledger] = place.topic, version
            name_one(place.at)
            name_one(place.next)

        async for key, blob, _ in self._each(keys.LEDGER_PAGES, _PAGES):
            if (infos := readable(page_ledgers, key, blob)) is None:
                unreadable[keys.topic_of(key)] = None
            else:
                name(infos)
        async for key, blob, _ in self._each(keys.MANAGED_LEDGERS):
            if (topic := readable(ManagedLedgerMetadata.decode, key, blob)) is None:
                unreadable[keys.topic_of(key)] = None
            else:
                name(topic.ledgers)
        found: dict[int, tuple[LedgerMetadata, int]] = {}
        for at, ledger in enumerate(ledgers):
            if named[at] or (stored := await meta.get(keys.ledger(ledger))) is None:
                continue
            metadata = readable(LedgerMetadata.decode, keys.ledger(ledger), stored[0])
            if metadata is None or metadata.topic in unreadable:
                continue
            try:
                of_it = await stored_topic(meta, metadata.topic) if metadata.topic else None
            except CorruptData as error:
                tell_unreadable(keys.managed_ledger(metadata.topic), error)
                unreadable[metadata.topic] = None
                continue
            if is_orphan(metadata, of_it[0] if of_it is not None else None):
                found[ledger] = metadata, stored[1]
        for ledger, (topic_name, version) in places.items():
            if topic_name not in unreadable:
                await self._forget_place(ledger, topic_name, version)
        return found

    async def _forget_place(self, ledger: int, topic: str, version: int) -> None:
        """Where the topic names that ledger no more, or leaves it to an object store, which lasts. What lies there is
        an orphan from then on.
        """
        try:
            stored = await stored_topic(self._context.meta, topic)
            if stored is None or all(info.ledger != ledger or local_gone(info) for info in stored[0].ledgers):
                await self._context.meta.delete(keys.located(ledger), expected=version)
        except VersionConflict:
            pass  # whoever writes it anew has not seen that it was trimmed: next time
        except CorruptData as error:
            tell_unreadable(keys.managed_ledger(topic), error)

    async def _each(self, prefix: str, limit: int = _PAGE) -> AsyncIterator[tuple[str, bytes, int]]:
        start = prefix
        while page := await self._context.meta.range(start, prefix_end(prefix), limit=limit):
            for row in page:
                yield row
            start = page[-1][0] + "\0"
