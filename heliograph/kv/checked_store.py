"""checked: a metadata store that writes only while one key is as it was.

Is: that key's version beside every write, in its transaction, for whoever does many writes because of one record.
Isn't: a lock: others write as they like.
Invariants: once the key has another version, or is gone, nothing is written any more; reads and watches go on.
"""

from __future__ import annotations

from collections.abc import Sequence

from heliograph.kv.metadata_store import Check, Delete, MetadataStore, Op
from heliograph.kv.passing_store import PassingStore
from heliograph.model.errors import NotAllowed, VersionConflict


def checked(store: MetadataStore, check: Check) -> MetadataStore:
    """Every write raises NotAllowed, and changes nothing, where the key is not as `check` says."""
    return PassingStore(store, writes=_CheckedWrites(store, check))


class _CheckedWrites:
    def __init__(self, store: MetadataStore, check: Check) -> None:
        self._store, self._check = store, check

    async def delete(self, key: str, *, expected: int | None = None) -> bool:
        there = await self._store.get(key) is not None
        if there or expected is not None:
            await self.txn([Delete(key, expected)])
        return there

    async def txn(self, ops: Sequence[Op]) -> int:
        """One operation fewer than a store takes: the check is one."""
        try:
            return await self._store.txn([self._check, *ops])
        except VersionConflict as conflict:
            if conflict.key != self._check.key:
                raise
            raise NotAllowed(f"{conflict.key} has changed meanwhile: look at it again") from conflict
