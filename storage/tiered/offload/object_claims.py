"""Claims: who has the objects of one topic to itself, a restore or the collection of objects.

Is: a key a topic in the region's metadata, under a lease, so that nothing stays of whoever crashed. Isn't: what a
restore writes, or what is collected.
Invariants: what the collection deletes it has judged under its claim; a topic that a restore writes was under its claim
from before the first look at an object until that write. So neither sees half of the other one's work. A restore takes
the claim of another restore: one of both has crashed, or does not get its topic written.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from heliograph.kv.metadata_store import ABSENT, TTL_MS_MAX, Check, MetadataStore
from heliograph.model.errors import MetadataError, NotAllowed, VersionConflict
from local_meta import keys

RESTORE_MS = TTL_MS_MAX
"""So long a restore may take, and so long the objects of a topic stay whose restore has crashed."""
COLLECT_MS = 300_000
"""Longer than one request to delete takes: it is renewed before each."""
_RESTORES, _COLLECTS = b"restore", b"collection"


@asynccontextmanager
async def lease(meta: MetadataStore, ttl_ms: int) -> AsyncIterator[int]:
    """What was claimed under it is free at the end."""
    held = await meta.grant(ttl_ms)
    try:
        yield held
    finally:
        with suppress(MetadataError):  # it ends by itself
            await meta.revoke(held)


async def claim_to_restore(meta: MetadataStore, topic: str, held: int) -> Check:
    """What the write of the topic depends on. Raises NotAllowed while its objects are being deleted."""
    key = keys.tier_claim(topic)
    found = await meta.get(key)
    if found is not None and found[0] != _RESTORES:
        raise NotAllowed(_being_deleted(topic))
    try:
        return Check(key, await meta.put(key, _RESTORES, expected=ABSENT if found is None else found[1], lease=held))
    except VersionConflict as error:
        raise NotAllowed(_being_deleted(topic)) from error


async def claim_to_collect(meta: MetadataStore, topic: str, held: int) -> bool:
    """False: somebody else has it."""
    try:
        await meta.put(keys.tier_claim(topic), _COLLECTS, expected=ABSENT, lease=held)
    except VersionConflict:
        return False
    return True


def _being_deleted(topic: str) -> str:
    return (
        f"objects of {topic} that no topic names are being deleted just now, or another restore of it has just begun: "
        "try again in some minutes"
    )
