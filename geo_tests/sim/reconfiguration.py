"""Reconfiguration: an admin who changes the namespace of a world: by which way its regions replicate, and which regions
it has.

Is: the newest wish, carried into the global configuration as `namespaces set` would, however often that takes. Isn't:
the choice of what to wish (`faults`).
Invariants: a wish that was taken over by a newer one may never have held anywhere; the newest one does once `settled`.
Nobody connects before the first wish, so that worlds without this fault run as if there were no such admin.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from geo_tests.sim.region import CONFIG_PORT, NAMESPACE
from global_config.admin import ConfigAdmin
from heliograph.kv.metadata_client import MetaClient
from heliograph.model.configuration.configuration_records import NamespacePolicies
from heliograph.model.errors import HeliographError

if TYPE_CHECKING:
    from geo_tests.sim.world import World

ADMIN = "admin"
KINDS = ("mesh", "star", "chain", "ring")
SETTLES_S = 15.0
"""So long after a region's leaving or coming back nobody expects anything of it."""


@dataclass(frozen=True, slots=True)
class Wish:
    """kind: of the topology; order: of all regions that the world has; members: those of the namespace."""

    kind: str
    order: tuple[str, ...]
    members: frozenset[str]

    def topology(self) -> dict[str, Any]:
        """For the members alone: the admin's interface refuses one that names others."""
        regions = [region for region in self.order if region in self.members]
        if self.kind == "star":
            return {"kind": "star", "center": regions[0]}
        if self.kind == "mesh" or len(regions) < 2:
            return {"kind": "mesh"}
        return {"kind": "chain" if len(regions) < 3 else self.kind, "regions": regions}

    def shown(self) -> str:
        return f"{self.kind} {'-'.join(region for region in self.order if region in self.members)}"


class Reconfiguration:
    """Of one world. regions: all that it has."""

    def __init__(self, world: World, regions: Sequence[str]) -> None:
        self._world = world
        self.wish = self._applied = Wish("mesh", tuple(regions), frozenset(regions))
        self._task: asyncio.Future[None] | None = None

    def settled(self) -> bool:
        return self._applied is self.wish

    def serves(self, region: str) -> bool:
        """Whether it is one of the namespace's regions, and shall be."""
        return region in self.wish.members and region in self._applied.members

    def new_ways(self, rng: random.Random) -> str:
        """Another topology of the same regions. Returns what it is."""
        order = rng.sample(self.wish.order, len(self.wish.order))
        return self._want(replace(self.wish, kind=rng.choice(KINDS), order=tuple(order)))

    def leave(self, region: str) -> str:
        return self._member(region, self.wish.members - {region})

    def again(self) -> None:
        """The configuration may hold anything now: whatever is wished is written once more."""
        self._applied = replace(self.wish, members=frozenset())
        self._want(replace(self.wish))

    def come(self, region: str) -> str:
        return self._member(region, self.wish.members | {region})

    def _member(self, region: str, members: frozenset[str]) -> str:
        self._world.faults.disturbed(region, SETTLES_S)  # also where nobody learns that the configuration took it
        return self._want(replace(self.wish, members=members))

    def _want(self, wish: Wish) -> str:
        self.wish = wish
        if self._task is None or self._task.done():
            self._task = asyncio.ensure_future(self._world.sim.call(ADMIN, self._apply, limit_s=600.0))
            self._task.add_done_callback(self._world.sim.report)
        return wish.shown()

    async def _apply(self) -> None:
        machine = self._world.sim.machines[ADMIN]
        metadata = [f"{region.metadata.name}:{CONFIG_PORT}" for region in self._world.regions.values()]
        store = MetaClient(metadata, clock=machine.clock, rng=machine.rng)
        admin = ConfigAdmin(store)
        while not self.settled():
            wish = self.wish
            try:
                await admin.update_namespace(NAMESPACE, lambda old, wish=wish: _changed(old, wish))  # type: ignore[misc]
            except HeliographError as error:
                if not (error.retryable or self._world.faults.lives.incomplete):
                    raise
                await asyncio.sleep(0.2)
                continue
            for region in wish.members ^ self._applied.members:
                self._world.faults.disturbed(region, SETTLES_S)
            self._applied = wish
            self._world.trace(f"the namespace is a {wish.shown()}")
        store.close()


def _changed(old: NamespacePolicies, wish: Wish) -> NamespacePolicies:
    regions = tuple(region for region in sorted(wish.order) if region in wish.members)
    return replace(old, regions=regions, policies={**old.policies, "replicationTopology": wish.topology()})
