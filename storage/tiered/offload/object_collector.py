"""ObjectCollector: deletes objects that no topic names: of attempts that failed, of ledgers that were trimmed, of
topics that were deleted.

Is: the rule, and its sweep over one holder's folder. Isn't: what names an object (that is the topic's metadata).
Invariants: objects are listed first, metadata is read after that: an object is uploaded only once the metadata names
its attempt, and an attempt that was dropped never comes back; so what was listed, and is not named then, never will be.
It goes only when two sweeps have found it so, under the same instance id of the metadata. Several brokers may do it at
once; a topic that is being restored is left alone (`object_claims`). Another holder's objects are never touched.
Nothing goes by a metadata that went back, as one does whose disk or machine is put back to a snapshot, until an
operator confirms: each sweep puts a mark there (`local_meta.metadata_age`), and its version into the store before it
deletes; and an object of a ledger whose id is still to be given out, or was passed over (`local_meta.ledger_ids`) where
no topic names it, is proof, too.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence

from heliograph.kv.metadata_store import MetadataStore
from heliograph.kv.unreadable_records import tell_unreadable
from heliograph.model.errors import CorruptData
from heliograph.model.ledger_metadata import ManagedLedgerMetadata
from local_meta import keys
from local_meta.ledger_ids import passed_over
from local_meta.metadata_age import MetadataWentBack, put_mark
from storage.managed_ledger.metadata.ledger_pages import stored_topic
from storage.tiered.objects.object_names import (
    LEDGER,
    MANIFEST,
    ObjectName,
    doubt_key,
    judged_below,
    judged_key,
    parse,
    seen_folder,
    seen_key,
    seen_version,
)
from storage.tiered.offload.object_claims import COLLECT_MS, claim_to_collect, lease
from storage.tiered.store import ObjectStore

log = logging.getLogger("storage.tiered.collector")

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
        self.went_back = ""
        """Why the metadata is not what it was, and nothing is deleted; "" where it is."""
        self.deleted: dict[str, int] = {}
        """Objects of the first `_TOPICS_MAX` topics that any was deleted of; "": of the others."""
        self._beside = beside
        self._meta, self._store, self._holder, self._instance = meta, store, holder, instance
        self._unnamed: dict[str, None] = {}

    async def sweep(self) -> list[str]:
        """Returns the keys that it deleted. Raises what the store and the metadata raise."""
        found: dict[str, list[tuple[str, ObjectName]]] = {}
        marks: dict[str, int] = {}
        highest, judged, doubtful = -1, 0, False
        async for page in self._store.list(f"{self._holder}/"):
            for key, _ in page:
                name = parse(key)
                if name is not None and name.holder == self._holder:
                    found.setdefault(name.topic, []).append((key, name))
                    highest = max(highest, name.number if name.kind == LEDGER else -1)
                elif (version := seen_version(key)) is not None:
                    marks[key] = version
                judged = max(judged, judged_below(key) or 0)
                doubtful |= key == doubt_key(self._holder)
        unnamed = [key for topic, objects in found.items() for key in await self._doomed(topic, objects)]
        instance = await self._meta.get(keys.INSTANCE)
        if instance is None or instance[0] != self._instance:
            self._unnamed = {}
            return []
        ids = {name.number for key in unnamed if (name := parse(key)) is not None and name.kind == LEDGER}
        if not await self._trusted(marks, highest, doubtful, [one for one in ids if one >= judged]):
            self._unnamed = {}
            return []
        noted, again = {key for key in unnamed if key in self._unnamed}, list[str]()
        if noted:
            async with lease(self._meta, COLLECT_MS) as held:
                for topic in dict.fromkeys(name.topic for key in unnamed if key in noted and (name := parse(key))):
                    again += await self._delete(topic, found[topic], noted, held)
        self._unnamed = dict.fromkeys(unnamed)
        for key in again:
            del self._unnamed[key]
        self.collected += len(again)
        for key in again:
            if (name := parse(key)) is not None:
                self.count(name.topic)
        return again

    async def _delete(
        self, topic: str, objects: Sequence[tuple[str, ObjectName]], noted: Collection[str], held: int
    ) -> list[str]:
        """What is still doomed of the noted ones; nothing while the topic is being restored. held: the lease."""
        if not await claim_to_collect(self._meta, topic, held):
            return []
        # the other topics took their time: this one may have been restored since
        gone = [key for key in await self._doomed(topic, objects) if key in noted]
        for start in range(0, len(gone), _DELETES_AT_ONCE):
            await self._meta.renew(held)
            await self._store.delete(gone[start : start + _DELETES_AT_ONCE])
        await self._meta.delete(keys.tier_claim(topic))
        return gone

    async def _doomed(self, topic: str, objects: Sequence[tuple[str, ObjectName]]) -> list[str]:
        """Those that the topic, as the metadata has it now, does not name."""
        try:
            stored = await stored_topic(self._meta, topic)
            beside = () if stored is None or self._beside is None else await self._beside(topic)
        except CorruptData as error:  # what it names is not known: all of its objects stay
            tell_unreadable(keys.managed_ledger(topic), error)
            return []
        return list(doomed(objects, None if stored is None else stored[0], beside))

    async def confirm(self) -> None:
        """What the metadata does not name goes in the sweeps to come, of whichever broker. Raises what the store
        raises.
        """
        highest, known = -1, list[str]()
        async for page in self._store.list(f"{self._holder}/"):
            for key, _ in page:
                name = parse(key)
                highest = max(highest, name.number if name is not None and name.kind == LEDGER else -1)
                if key.startswith(seen_folder(self._holder)):
                    known.append(key)
        judged = judged_key(self._holder, highest + 1)
        await self._store.put(judged, _one(b""))
        await self._store.delete([key for key in known if key != judged])
        self._unnamed, self.went_back = {}, ""

    async def _trusted(self, marks: dict[str, int], highest: int, doubtful: bool, unnamed: Sequence[int]) -> bool:
        """Whether the metadata is what it was, or a later state of it. marks: key -> version, of those in the store;
        highest: id of a ledger that has an object; doubtful: whether an earlier sweep has found that it is not;
        unnamed: ledgers with objects that nothing names. Raises what the store and the metadata raise.
        """
        doubt = ""
        try:
            seen = await put_mark(self._meta, keys.seen_by_tiers(self._holder), max(marks.values(), default=0))
            await self._store.put(seen_key(self._holder, seen), _one(b"%d" % seen))
            await self._store.delete(list(marks))
        except MetadataWentBack as error:
            doubt = str(error)
        if not doubt and not doubtful and highest >= (upcoming := await self._meta.next_ids(keys.LEDGER_IDS, 0)):
            doubt = (
                f"the metadata went back: it would give out ledger {upcoming} next, and the store has an object of "
                f"ledger {highest}"
            )
            await self._store.put(doubt_key(self._holder), _one(doubt.encode()))
        never_given = await passed_over(self._meta)
        if not doubt and (strange := [ledger for ledger in unnamed if ledger in never_given]):
            doubt = (
                f"the metadata went back, or has come back: it never gave out the id of ledger {min(strange)}, of "
                "which the store has an object: it was made while the metadata was in another state"
            )
        if doubtful and not doubt:
            doubt = "the metadata went back: objects of ledgers were found whose ids were still to be given out"
        if doubt and not self.went_back:
            log.warning("tier.metadata_went_back", extra={"holder": self._holder, "why": doubt})
        self.went_back = doubt
        return not doubt

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
    named = {
        (info.ledger, attempt)
        for info in topic.ledgers
        if info.offload is not None
        for attempt in (info.offload.attempt, info.offload.also)
    } | set(beside)
    manifests = sorted((name.number, key) for key, name in objects if name.kind == MANIFEST)
    unnamed = [key for key, name in objects if name.kind == LEDGER and (name.number, name.attempt) not in named]
    return unnamed + [key for _, key in manifests[:-_MANIFESTS_KEPT]]


async def _one(body: bytes) -> AsyncIterator[bytes]:
    yield body
