"""Leaderships of namespaces that are deleted: no epoch of one comes again in a namespace that is made under its name.

Is: what is written as a namespace goes. Isn't: how one begins (`region_node.dr.leadership.leadership_changes`).
Source: docs/protocols/leadership.md.
"""

from __future__ import annotations

from heliograph.kv.metadata_store import ABSENT, Check, Delete, MetadataStore, Op, Put
from heliograph.model.configuration.leadership import DELETED, ENDED, Leadership, leadership
from heliograph.model.errors import CorruptData


async def without(store: MetadataStore, namespace: str) -> list[Op]:
    """What deletes a namespace's leadership, and leaves the highest epoch of all that were deleted. Raises what the
    metadata raises; the transaction conflicts where the leadership changes meanwhile.
    """
    ops, highest = list[Op](), 0
    for key in (leadership(namespace), ENDED + namespace):
        row = await store.get(key)
        ops.append(Check(key, ABSENT) if row is None else Delete(key, row[1]))
        if row is not None:
            highest = max(highest, _epoch(key, row[0]))
    told = await store.get(DELETED)
    if highest > (0 if told is None else _epoch(DELETED, told[0])):
        ops.append(Put(DELETED, str(highest).encode(), ABSENT if told is None else told[1]))
    return ops


def _epoch(key: str, value: bytes) -> int:
    """0: it cannot be read."""
    try:
        return int(value) if key.startswith((ENDED, DELETED)) else Leadership.decode(value).epoch
    except (CorruptData, ValueError):
        return 0
