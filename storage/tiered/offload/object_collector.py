"""ObjectCollector: deletes objects that no topic names: of attempts that failed, of ledgers that were trimmed, of
topics that were deleted.

Is: the rule, and its sweep over one holder's folder. Isn't: what names an object (that is the topic's metadata).
Invariants: objects are listed first, metadata is read after that: an object is uploaded only once the metadata names
its attempt, and an attempt that was dropped never comes back; so what was listed, and is not named then, never will be.
It goes only when two sweeps have found it so, under the same instance id of the metadata. No lock is needed, and
several brokers may do it at once. Another holder's objects are never touched.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence

from heliograph.kv.metadata_store import MetadataStore
from heliograph.model.ledger_metadata import ManagedLedgerMetadata
from local_meta import keys
from storage.managed_ledger.metadata.ledger_pages import stored_topic
from storage.tiered.objects.object_names import LEDGER, MANIFEST, ObjectName, parse
from storage.tiered.store import ObjectStore

_MANIFESTS_KEPT = 2
_DELETES_AT_ONCE = 100
_TOPICS_MAX = 1000


class ObjectCollector:
    """Deletes objects below one holder's folder. `collected`: how many since its start."""

    def __init__(
        self,
        meta: MetadataStore,
        store: ObjectStore,
        holder: str,
        instance: bytes,
        beside: Callable[[str], Awaitable[Collection[tuple[int, str]]]] | None = None,
    ) -> None:
        """beside: (ledger, attempt) of what a topic names outside of its list of ledgers, as the metadata has it
        now.
        """
        self.collected = 0
        self.deleted: dict[str, int] = {}
        """Objects of the first `_TOPICS_MAX` topics that any was deleted of; "": of the others."""
        self._beside = beside
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
            stored = await stored_topic(self._meta, topic)
            beside = () if stored is None or self._beside is None else await self._beside(topic)
            unnamed += doomed(objects, None if stored is None else stored[0], beside)
        instance = await self._meta.get(keys.INSTANCE)
        if instance is None or instance[0] != self._instance:
            self._unnamed = {}
            return []
        again = [key for key in unnamed if key in self._unnamed]
        for start in range(0, len(again), _DELETES_AT_ONCE):
            await self._store.delete(again[start : start + _DELETES_AT_ONCE])
        self._unnamed = dict.fromkeys(key for key in unnamed if key not in again)
        self.collected += len(again)
        for key in again:
            if (name := parse(key)) is not None:
                self.count(name.topic)
        return again

    def count(self, topic: str) -> None:
        """An object of the topic was deleted, by whomever."""
        if topic not in self.deleted and len(self.deleted) >= _TOPICS_MAX:
            topic = ""
        self.deleted[topic] = self.deleted.get(topic, 0) + 1


def doomed(
    objects: Sequence[tuple[str, ObjectName]],
    topic: ManagedLedgerMetadata | None,
    beside: Collection[tuple[int, str]] = (),
) -> list[str]:
    """Returns the keys of one topic's objects that nothing names. topic: its metadata, read after the listing; None
    where it is gone. beside: as for `ObjectCollector`.
    """
    if topic is None:
        return [key for key, _ in objects]
    named = {(info.ledger, info.offload.attempt) for info in topic.ledgers if info.offload is not None} | set(beside)
    manifests = sorted((name.number, key) for key, name in objects if name.kind == MANIFEST)
    unnamed = [key for key, name in objects if name.kind == LEDGER and (name.number, name.attempt) not in named]
    return unnamed + [key for _, key in manifests[:-_MANIFESTS_KEPT]]
