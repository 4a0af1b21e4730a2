"""CompactionOffload: the compacted ledgers of one broker's topics, as tiered storage moves them to an object store.

Is: the port `storage.tiered.offload.side_ledgers` over `Compactor`. Isn't: the steps of an offload, or their record
(the cursor `__compaction` has it).
Invariants: only what is not being compacted anew is offered; an object is deleted by this region only where this region
made it.
Source: docs/protocols/tiered.md, "Compacted topics".
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from heliograph.kv.metadata_store import MetadataStore
from heliograph.model.ledger_metadata import LedgerInfo, OffloadRecord
from local_meta import keys
from region_node.compaction.compacted_view import CURSOR, read_properties
from region_node.compaction.compactor import Compactor
from storage.managed_ledger.cursors.cursor import Cursor
from storage.tiered.objects.object_names import ledger_key
from storage.tiered.store import Stores

if TYPE_CHECKING:
    from region_node.topics.topic import Topic


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
        return [
            LedgerInfo(
                compacted.ledger,
                compacted.entries,
                compacted.size_bytes,
                max(1, compacted.made_ms),
                offload=compacted.offload,
            )
        ]

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
