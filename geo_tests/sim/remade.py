"""Remade: a topic that is deleted in every region and made again under its name, while everything else goes on.

Is: one story of a world beside its topics: clients, an admin who deletes it as `heliograph dr delete` does, the same
clients again, and what must hold. Isn't: a deletion in one region alone, which takes nothing from the others.

Nothing of the old incarnation is in the new one: no reader finds it, no consumer gets it, and producers that begin
again at sequence 0 under their names are no duplicates. Nothing of the new one is deleted: what was acknowledged of it
is in every region, once and in order. The tombstone goes. Where a region that had not heard of it made its first copy
behind it, it asks, and the admin says that this is meant, too.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

from geo_tests.sim.beside import ENDS_S, Beside
from geo_tests.sim.region import CONFIG_PORT, NAMESPACE
from heliograph.kv.metadata_client import MetaClient
from heliograph.kv.metadata_store import ABSENT
from heliograph.model.configuration.tombstones import Tombstone, tombstone
from heliograph.model.errors import HeliographError, VersionConflict

if TYPE_CHECKING:
    from geo_tests.sim.world import World

TOPIC = f"persistent://{NAMESPACE}/remade"
_ADMIN = "deleting-admin"


class Remade:
    """Of one world; nothing happens before `begin`."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._rng = world.sim.rng("remade")
        self._beside = Beside(world, TOPIC, "remade")
        self._story: asyncio.Future[None] | None = None
        self.begun = self.deleting = False
        """deleting: an admin is at it, who answers what a tombstone asks."""

    def begin(self) -> bool:
        """False: it has begun before, or a region is out of the namespace, whose copy nobody would delete."""
        world = self._world
        members = world.reconfiguration.wish.members
        if self._story is not None or not all(map(world.reconfiguration.serves, world.regions)) or not members:
            return False
        self.begun = True
        self._story = asyncio.ensure_future(self._tell())
        self._story.add_done_callback(world.sim.report)
        return True

    async def finish(self) -> None:
        """Everything is well by now. Raises Violation."""
        if self._story is not None:
            await self._world._until(f"{TOPIC} is deleted and made again", self._story.done, ENDS_S)
            await self._beside.finish()

    async def _tell(self) -> None:
        world = self._world
        self._beside.publish()
        self._beside.consume()
        await asyncio.sleep(self._rng.uniform(0.1, 2.0))
        self._beside.stop_publishing()
        self.deleting = True
        await world.sim.call(_ADMIN, self._delete, limit_s=600.0)
        self.deleting = False
        world.trace(f"{TOPIC} is deleted everywhere")
        self._beside.publish()

    async def _delete(self) -> None:
        """Returns once every region has purged it."""
        world, machine = self._world, self._world.sim.machines[_ADMIN]
        nodes = [f"{region.metadata.name}:{CONFIG_PORT}" for region in world.regions.values()]
        store = MetaClient(nodes, clock=machine.clock, rng=machine.rng)
        made = Tombstone(
            topic=TOPIC,
            regions=tuple(world.regions),
            since_ms=machine.clock.wall_ms(),
            until_ms=machine.clock.wall_ms(),
        )
        written = -1
        """How often the configuration had been restored when it was."""
        while True:
            restored = world.faults.lives.restored
            try:
                found = await store.get(tombstone(TOPIC))
                if found is None and written == world.faults.lives.restored:
                    break
                if found is None:
                    await store.put(tombstone(TOPIC), made.encode(), expected=ABSENT)
                    written = restored
                elif Tombstone.decode(found[0]).asks:
                    again = replace(made, since_ms=machine.clock.wall_ms(), sure=True)
                    await store.put(tombstone(TOPIC), again.encode(), expected=found[1])
                    written = restored
            except VersionConflict:
                written = restored  # by the try before
            except HeliographError as error:
                world.trace(f"the admin cannot delete {TOPIC}: {error}")
            await asyncio.sleep(0.2)
        store.close()
