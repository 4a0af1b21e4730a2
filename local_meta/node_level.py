"""NodeLevel: a metadata node says, in the metadata itself, which feature level it speaks.

Is: one key of each node, put at its start where it does not say that yet; and what each member of the group speaks, for
whoever raises the region's level.
Isn't: a sign of life (the group's leader knows who is silent), or a level's meaning
(`heliograph.model.feature_levels`).
Invariants: the key stays while its node is away, so that an older one that comes back has held the level down all the
time; a member without a key speaks UNSAID; only members count, so that the key of one that was removed holds nothing
down.
Source: docs/operating/scaling.md, "Mixed versions".
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgpack

from heliograph.kv.metadata_store import MetadataStore, pages_under
from heliograph.model.errors import HeliographError
from heliograph.model.feature_levels import LEVEL
from heliograph.runtime.clock import Rng
from heliograph.runtime.task_set import TaskSet
from local_meta import keys

UNSAID = 3
"""Level of the last version whose metadata nodes did not say theirs."""
_RETRY_S = 1.0

Members = Callable[[], Awaitable[tuple[dict[str, Any], bool]]]
"""Asks as `MetaClient.members` does: the report of the group's members, and whether anything changed."""


class NodeLevel:
    """Says the level of one node. store: it is reached through that node, and closed here."""

    def __init__(self, store: MetadataStore, node_id: str, rng: Rng, *, level: int = LEVEL) -> None:
        """level: what the node's version speaks."""
        self._store, self._key, self._rng, self._level = store, keys.metadata_node(node_id), rng, level
        self._tasks = TaskSet("saying the level of the metadata node has ended")

    def start(self) -> None:
        """It goes on trying until it is said: at this node's start its group may have no leader, or not this member
        yet.
        """
        self._tasks.spawn(self._run())

    async def stop(self) -> None:
        """Ends the tries and closes the store; what was said stays."""
        await self._tasks.close()
        self._store.close()

    async def _run(self) -> None:
        said = msgpack.packb({"level": self._level})
        while True:
            try:
                found = await self._store.get(self._key)
                if found is None or found[0] != said:
                    await self._store.put(self._key, said)
            except HeliographError:
                await asyncio.sleep(_RETRY_S * self._rng.uniform(0.8, 1.2))
            else:
                self._store.close()
                return


async def spoken(meta: MetadataStore, members: Members) -> dict[str, int]:
    """Member of the group -> the level that it speaks. Raises MetadataUnavailable."""
    report, _ = await members()
    said = {
        keys.id_of(key): level_of(value)
        async for rows in pages_under(meta, keys.METADATA_NODES)
        for key, value, _ in rows
    }
    return {row["member"]: said.get(row["member"], UNSAID) for row in report["members"]}


def level_of(value: bytes, unsaid: int = UNSAID) -> int:
    """What a process's key says; unsaid: where it says nothing that can be read."""
    try:
        level = msgpack.unpackb(value).get("level", unsaid)
    except (ValueError, AttributeError, msgpack.exceptions.UnpackException):
        return unsaid
    return level if type(level) is int else unsaid
