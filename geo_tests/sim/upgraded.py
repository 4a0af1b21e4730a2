"""Upgraded: a region of a world whose processes are of an earlier version at first, and are replaced by newer ones, one
by one, while everything else goes on.

Is: one story of a world: which processes speak less, the upgrade, and what must hold of the region's feature level.
Isn't: an earlier version's code (`tests/system/test_two_versions.py`): these say and agree on less, and do what this
version does at that level.

At any time the level only rises, and never above what a process speaks that has been there for a while, or a metadata
node, there or away. In the end every region's level is the newest, and its brokers know it, and so is that of every
link.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from geo_tests.sim.checkers import Violation
from global_config import keys as config_keys
from heliograph.model.configuration.configuration_records import RegionInfo
from heliograph.model.feature_levels import LEVEL
from heliograph.wire.links.link_commands import FEATURE_LEVEL
from local_meta import keys
from local_meta.node_level import UNSAID, level_of
from replicator.manager.link_manager import LinkSettings
from replicator.receiving.link_receiver import ReceiverSettings

if TYPE_CHECKING:
    from geo_tests.sim.region import Node
    from geo_tests.sim.world import World

CYCLE_S = 2.0
"""Of the balancing in such worlds: whoever leads it raises the level."""
ENDS_S = 60.0
KNOWN_S = 4.0
"""Who leads the balancing knows by then what was registered, or leads no more."""
LINK_LEVELS = (5, 6)
"""Earlier ones that keep what worlds promise: a topology is chosen at 5 and up (docs/protocols/links.md)."""
_EVERY_S = 0.2
_GROUPS = (("meta",), ("bookie",), ("broker",), ("meta", "bookie", "broker"))
"""Which roles are older: of one region, by the seed."""


class Upgraded:
    """Of one world."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._rng = world.sim.rng("upgraded")
        self._levels: dict[str, int] = {}
        """Region -> the highest that was seen."""
        self._index = 0
        """Of the configuration, the highest that was seen."""
        self._since: dict[str, float] = {}
        """Node -> since when it is registered with less than the newest, without a gap."""
        self._older: list[Node] = []
        self._tasks: list[asyncio.Future[None]] = []
        self._ended = False

    def prepare(self) -> None:
        """Says who is older. The processes have not started."""
        region = self.world.regions[self._rng.choice(sorted(self.world.regions))]
        roles = self._rng.choice(_GROUPS)
        level = self._rng.randrange(UNSAID if "meta" in roles else 1, LEVEL)
        link_level = self._rng.choice(LINK_LEVELS)
        for node in region.nodes:
            if set(node.role_names) & set(roles):
                node.speaks = level
                if "broker" in node.role_names:
                    node.tuned = {
                        LinkSettings: LinkSettings(feature_level=link_level),
                        ReceiverSettings: ReceiverSettings(feature_level=link_level),
                    }
                self._older.append(node)
        self.world.trace(f"of level {level}: {', '.join(node.name for node in self._older)}")

    def begin(self) -> None:
        self._tasks = [asyncio.ensure_future(self._watch()), asyncio.ensure_future(self._upgrade())]
        for task in self._tasks:
            task.add_done_callback(self.world.sim.report)

    async def _upgrade(self) -> None:
        """Metadata nodes, bookies, brokers: one after another."""
        world = self.world
        await asyncio.sleep(world.settings.chaos_s * self._rng.uniform(0.3, 0.6))
        world.verdict.kinds.append("upgrade")
        for node in list(self._older):
            world.faults.disturbed(node.region.name, 20.0)
            world.trace(f"upgrade {node.name}")
            node.kill()
            node.speaks, node.tuned = LEVEL, {}
            self._since.pop(node.name, None)
            self._older.remove(node)
            await asyncio.sleep(self._rng.uniform(0.1, 1.0))
            node.revive()
            while not node.is_ready() and not self._ended:  # noqa: ASYNC110 - virtual time
                await asyncio.sleep(0.1)

    # -- what must hold ------------------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        while not self._ended:
            await asyncio.sleep(_EVERY_S)
            now = self.world.sim.now()
            for node in self._older:
                if self._registered(node) == node.speaks:
                    self._since.setdefault(node.name, now)
                else:
                    self._since.pop(node.name, None)
            for region in self.world.regions:
                self._look(region, self._level(region), now)

    def _look(self, region: str, level: int, now: float) -> None:
        before = self._levels.get(region, 0)
        if level < before and not self.world.faults.lives.restored:
            raise Violation(f"the level of {region} falls from {before} to {level}")
        if level == before:
            return
        self._levels[region] = level
        self.world.trace(f"{region} is at level {level}")
        for node in self._older:
            known = "meta" in node.role_names or now - self._since.get(node.name, now) > KNOWN_S
            if node.region.name == region and node.speaks < level and known:
                raise Violation(f"{region} is raised to level {level}, and {node.name} speaks {node.speaks}")

    def _registered(self, node: Node) -> int:
        """What stands in the region's metadata; 0: nothing."""
        key = keys.bookie(node.name) if "bookie" in node.role_names else keys.broker(node.name)
        machine = _machine(node.region.metadata, 0)
        found = None if machine is None else machine.get(key)
        return 0 if found is None else level_of(found[0], unsaid=1)

    def _level(self, region: str) -> int:
        """As the configuration node knows it that is the furthest; as it was, where all are behind what was seen."""
        machines = [found for one in self.world.regions.values() if (found := _machine(one.metadata, 1)) is not None]
        furthest = max(machines, key=lambda machine: int(machine.index), default=None)
        if furthest is None or furthest.index < self._index:
            return self._levels.get(region, 0)
        self._index = furthest.index
        found = furthest.get(config_keys.region(region))
        return self._levels.get(region, 0) if found is None else RegionInfo.decode(found[0]).feature_level

    async def finish(self) -> None:
        """Everything is well by now. Raises Violation."""
        await self.world._until("the upgrade has ended", self._tasks[1].done, ENDS_S)
        await self.world._until("every region is at the newest level", self._raised, ENDS_S)
        await self.world._until("every link is at the newest level", self._agreed, ENDS_S)
        self._ended = True
        await asyncio.gather(*self._tasks)

    def _raised(self) -> str:
        levels = {region: self._level(region) for region in self.world.regions}
        known = {
            node.name: node.roles[0].level.present  # type: ignore[attr-defined]
            for region in self.world.regions.values()
            for node in region.brokers
            if node.is_ready()
        }
        return "" if {*levels.values(), *known.values()} == {LEVEL} else f"{levels}, known as {known}"

    def _agreed(self) -> str:
        levels = {
            (region, topic, target): link.level
            for region, topic, node, _ in self.world.probes.owners()
            for target, link in node.roles[0].links.links(topic).items()
            if link.connection is not None
        }
        return str({at: level for at, level in levels.items() if level != FEATURE_LEVEL} or "")


def _machine(node: Node, role: int) -> Any:
    """The table of a metadata process: of the region's metadata, or of the configuration; None: it does not run."""
    if not node.is_ready() or len(node.roles) <= role:
        return None
    held: Any = node.roles[role]
    return None if held.node is None else held.node.service.machine
