"""The id of a region's metadata: random text at `/instance`, which a restore replaces.

Is: reading it, and giving one to a store that has none. Isn't: the founding of a metadata (local_meta.node), or what
follows from another id (the bookies' garbage collection, the region's epoch).
"""

from __future__ import annotations

from heliograph.kv.metadata_store import ABSENT, MetadataStore
from heliograph.model.errors import MetadataError, OutcomeUnknown, VersionConflict
from heliograph.runtime.clock import Rng
from local_meta import keys
from local_meta.backup import new_instance

_TRIES_MAX = 3


async def instance_of(meta: MetadataStore, rng: Rng) -> str:
    """Raises what the metadata raises."""
    for _ in range(_TRIES_MAX):
        found = await meta.get(keys.INSTANCE)
        if found is not None:
            return found[0].decode(errors="replace")
        try:
            await meta.put(keys.INSTANCE, new_instance(rng).encode(), expected=ABSENT)
        except (VersionConflict, OutcomeUnknown):
            pass  # another process was faster, or it was this one
    raise MetadataError("the metadata has no instance id")
