"""Collector: deletes objects that no topic names: of attempts that failed, of ledgers that were trimmed, of topics that were deleted.

Is: the rule, and its sweep over one holder's folder. Isn't: what names an object (that is the topic's metadata).
Invariants: objects are listed first, metadata is read after that: an object is uploaded only once the metadata names its attempt, and an attempt that
was dropped never comes back; so what was listed, and is not named then, never will be. It goes only when two sweeps have found it so, under the same
instance id of the metadata. No lock is needed, and several brokers may do it at once. Another holder's objects are never touched.
"""

from __future__ import annotations

from collections.abc import Sequence

from heliograph.model.ledgers import ManagedLedgerMetadata
from heliograph.raft.store import MetadataStore
from local_meta import keys
from storage.tiered.names import LEDGER, MANIFEST, ObjectName, parse
from storage.tiered.store import ObjectStore

_MANIFESTS_KEPT = 2
_DELETES_AT_ONCE = 100


class Collector:
    """`collected`: since its start."""

    def __init__(self, meta: MetadataStore, store: ObjectStore, holder: str, instance: bytes) -> None:
        self.collected = 0
        self._meta, self._store, self._holder, self._instance = meta, store, holder, instance
        self._unnamed: dict[str, None] = {}

    async def sweep(self) -> list[str]:
        """Returns the keys that it deleted. Raises what the store and the metadata raise."""
        found: dict[str, list[tuple[str, ObjectName]]] = {}
        async for page in self._store.list(f"{self._holder}/"):
            for key, _ in page:
                name = parse(key)
                if name is not None and name.holder == self._holder:
                    found.setdefault(name.topic, []).append((key, name))
        unnamed: list[str] = []
        for topic, objects in found.items():
            stored = await self._meta.get(keys.managed_ledger(topic))
            unnamed += doomed(objects, None if stored is None else ManagedLedgerMetadata.decode(stored[0]))
        instance = await self._meta.get(keys.INSTANCE)
        if instance is None or instance[0] != self._instance:
            self._unnamed = {}
            return []
        again = [key for key in unnamed if key in self._unnamed]
        for start in range(0, len(again), _DELETES_AT_ONCE):
            await self._store.delete(again[start : start + _DELETES_AT_ONCE])
        self._unnamed = dict.fromkeys(key for key in unnamed if key not in again)
        self.collected += len(again)
        return again


def doomed(objects: Sequence[tuple[str, ObjectName]], topic: ManagedLedgerMetadata | None) -> list[str]:
    """Of one topic's objects, the keys that nothing names. topic: its metadata, read after the listing; None where it is gone."""
    if topic is None:
        return [key for key, _ in objects]
    named = {(info.ledger, info.offload.attempt) for info in topic.ledgers if info.offload is not None}
    manifests = sorted((name.number, key) for key, name in objects if name.kind == MANIFEST)
    unnamed = [key for key, name in objects if name.kind == LEDGER and (name.number, name.attempt) not in named]
    return unnamed + [key for _, key in manifests[:-_MANIFESTS_KEPT]]
