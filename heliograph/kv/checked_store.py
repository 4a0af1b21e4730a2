"""CheckedStore: a metadata store that writes only while one key is as it was.

Is: that key's version beside every write, in its transaction, for whoever does many writes because of one record.
Isn't: a lock: others write as they like.
Invariants: once the key has another version, or is gone, nothing is written any more; reads and watches go on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from heliograph.kv.metadata_store import Check, Delete, MetadataStore, Op, Put, WatchCallback
from heliograph.model.errors import NotAllowed, VersionConflict


class CheckedStore:
    """Implements MetadataStore over another one. Every write raises NotAllowed, and changes nothing, where the key is
    not as `check` says.
    """

    def __init__(self, store: MetadataStore, check: Check) -> None:
        self._store, self._check = store, check

    async def put(self, key: str, value: bytes, *, expected: int | None = None, lease: int = 0) -> int:
        return await self.txn([Put(key, value, expected, lease)])

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

    # -- as it is ------------------------------------------------------------------------------------------------------

    async def get(self, key: str) -> tuple[bytes, int] | None:
        return await self._store.get(key)

    async def range(self, start: str, end: str, *, limit: int | None = None) -> list[tuple[str, bytes, int]]:
        return await self._store.range(start, end, limit=limit)

    @property
    def range_limit(self) -> int:
        return self._store.range_limit

    async def count(self, prefix: str) -> int:
        return await self._store.count(prefix)

    async def next_ids(self, counter: str, count: int = 1, *, at_least: int = 0) -> int:
        return await self._store.next_ids(counter, count, at_least=at_least)

    async def grant(self, ttl_ms: int) -> int:
        return await self._store.grant(ttl_ms)

    async def renew(self, lease: int) -> None:
        await self._store.renew(lease)

    async def revoke(self, lease: int) -> None:
        await self._store.revoke(lease)

    def watch(self, prefix: str, callback: WatchCallback) -> Callable[[], None]:
        return self._store.watch(prefix, callback)

    async def synced(self, prefix: str) -> None:
        await self._store.synced(prefix)

    def stale_s(self) -> float:
        return self._store.stale_s()

    def close(self) -> None:
        self._store.close()
