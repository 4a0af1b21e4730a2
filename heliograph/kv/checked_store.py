"""PassingStore: a metadata store over another one, with reads and writes in place of that one's; and `checked`, which
writes only while one key is as it was.

Is: what passes on to the other store; of `checked` that key's version beside every write, in its transaction, for
whoever does many writes because of one record.
Isn't: a lock: others write as they like.
Invariants: once the key has another version, or is gone, nothing is written any more; reads and watches go on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from heliograph.kv.metadata_store import Check, Delete, MetadataStore, Op, Put, WatchCallback
from heliograph.model.errors import NotAllowed, VersionConflict


class Reads(Protocol):
    """Those of a MetadataStore that may be done in its place."""

    async def get(self, key: str) -> tuple[bytes, int] | None: ...

    async def range(self, start: str, end: str, *, limit: int | None = None) -> list[tuple[str, bytes, int]]: ...


class Writes(Protocol):
    """The same. `put` is a transaction."""

    async def delete(self, key: str, *, expected: int | None = None) -> bool: ...

    async def txn(self, ops: Sequence[Op]) -> int: ...


class PassingStore:
    """Implements MetadataStore over another one."""

    def __init__(self, store: MetadataStore, *, reads: Reads | None = None, writes: Writes) -> None:
        self._store, reads = store, reads or store
        self.get, self.range, self.delete, self.txn = reads.get, reads.range, writes.delete, writes.txn

    async def put(self, key: str, value: bytes, *, expected: int | None = None, lease: int = 0) -> int:
        return await self.txn([Put(key, value, expected, lease)])

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
