"""CompactionOffload: the compacted ledgers of one broker's topics, as tiered storage moves them to an object store.

Is: the port `storage.tiered.offload.side_ledgers` over `Compactor`. Isn't: the steps of an offload, or their record
(the cursor `__compaction` has it).
Invariants: only what is not being compacted anew is offered; an object is deleted by this region only where this region
made it. A topic that is restored keeps of what was compacted what lies in an object store, and no number of a ledger
that it would read or delete: here that may be another topic's.
Source: docs/protocols/tiered.md, "Compacted topics".
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from heliograph.kv.metadata_store import MetadataStore
from heliograph.model.errors import CorruptData, NoSuchObject
from heliograph.model.ledger_metadata import LedgerInfo, OffloadRecord, OffloadState, stored
from heliograph.model.positions import BEFORE_ALL
from local_meta import keys
from region_node.compaction.compacted_view import CURSOR, Compacted, properties_of, read_properties
from region_node.compaction.compactor import Compactor
from storage.managed_ledger.cursors.cursor import Cursor
from storage.tiered.objects.object_names import ledger_key
from storage.tiered.offload.ledger_upload import check
from storage.tiered.store import Stores

if TYPE_CHECKING:
    from region_node.topics.topic import Topic

log = logging.getLogger("region_node.tiering")


class CompactionOffload:
    """find: a loaded topic, by its full name. holder: this region's folder in the store. allowed: whether every broker
    of the region understands it.
    """

    def __init__(
        self,
        compactor: Callable[[], Compactor | None],
        find: Callable[[str], Topic | None],
        meta: MetadataStore,
        stores: Stores,
        holder: Callable[[], str],
        allowed: Callable[[], bool],
        deleted: Callable[[str], None] = lambda topic: None,
    ) -> None:
        """deleted: counts objects by topic."""
        self._deleted = deleted
        self._compactor, self._find, self._meta, self._stores, self._holder, self._allowed = (
            compactor,
            find,
            meta,
            stores,
            holder,
            allowed,
        )

    def ledgers(self, topic: str) -> list[LedgerInfo]:
        found = self._find(topic)
        state = None if found is None or found.closed else found.compacted
        compacted = None if state is None or state.status == "RUNNING" else state.view.compacted
        if compacted is None or compacted.ledger < 0 or not self._allowed():
            return []
        return [_info(compacted)]

    async def set_offload(self, topic: str, ledger: int, record: OffloadRecord) -> bool:
        found, compactor = self._find(topic), self._compactor()
        if found is None or compactor is None or found.compacted is None:
            return False
        return await compactor.set_offload(found, ledger, record)

    async def named(self, topic: str) -> Collection[tuple[int, str]]:
        stored = await self._meta.get(keys.cursor(topic, CURSOR))
        compacted = None if stored is None else read_properties(Cursor.properties_in(stored[0]))[0]
        return [] if compacted is None or compacted.offload is None else [(compacted.ledger, compacted.offload.attempt)]

    async def delete(self, topic: str, ledger: int, record: OffloadRecord) -> None:
        """Raises what the store raises. Another region's object stays."""
        if record.holder == self._holder():
            await self._stores.get(record.store).delete([ledger_key(record.holder, topic, ledger, record.attempt)])
            self._deleted(topic)

    async def adapt(self, topic: str, url: str, cursor: Cursor) -> tuple[list[int], list[str]]:
        """As `storage.tiered.reading.topic_restore` has it. url: of the store that the topic is restored from, "": the
        broker's own. Raises what the store raises, unless the object is missing or damaged.
        """
        if cursor.name != CURSOR:
            return [], []
        compacted, garbage, kept = None, list[int](), None
        with suppress(CorruptData):
            compacted, garbage = read_properties(cursor.properties)
        if compacted is not None:
            kept = await self._kept(topic, url, compacted)
            garbage.append(compacted.ledger)
        if kept is None:
            cursor.reset(BEFORE_ALL)  # the log is held until it is compacted again
        cursor.set_properties(properties_of(kept, []))
        note = (
            f"what {topic} was compacted to is not in the object store: until it is compacted again, who reads it "
            "compacted gets all that its log has"
        )
        return garbage, [note] if compacted is not None and kept is None else []

    async def _kept(self, topic: str, url: str, compacted: Compacted) -> Compacted | None:
        """What is left of it without the lost region; None: nothing."""
        if compacted.ledger < 0:
            return compacted  # everything was taken away
        info = _info(compacted)
        if info.offload is None or not stored(info) or not self._allowed():
            return None
        record = replace(info.offload, state=OffloadState.LOCAL_GONE, store=info.offload.store or url)
        try:
            await check(self._stores.get(record.store), topic, info, record)
        except (NoSuchObject, CorruptData) as error:  # it was replaced since that manifest
            log.warning("restore.compacted_missing", extra={"topic": topic, "error": str(error)})
            return None
        return replace(compacted, offload=record)


def _info(compacted: Compacted) -> LedgerInfo:
    return LedgerInfo(
        compacted.ledger,
        compacted.entries,
        compacted.size_bytes,
        max(1, compacted.made_ms),
        offload=compacted.offload,
    )
