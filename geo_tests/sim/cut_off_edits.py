"""Cut-off edits: operators of two regions change policies while these are cut off from the configuration, with values
that come again: one, another one, and the first one once more.

Is: one story of a world beside all else: the cuts, and the operators. Isn't: what must hold of each edit
(`merge_eyes`). In the end nothing waits, and every broker of every region shows the same values, and the same
conflicts.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from geo_tests.sim.checkers import Violation
from geo_tests.sim.merge_eyes import MergeEyes, Place, Value, value_at
from geo_tests.sim.region import NAMESPACE
from global_config import keys
from global_config.admin import ConfigAdmin
from heliograph.model.configuration.configuration_records import NamespacePolicies, TopicPolicies
from heliograph.model.errors import HeliographError

if TYPE_CHECKING:
    from geo_tests.sim.region import Node, Region
    from geo_tests.sim.world import World

SHARED = "maxConsumers"
"""What both operators set, of the namespace; each sets a property of the topic, too, that the other one does not."""
VALUES = (200, 300, 200)
_FIRST = 100
"""What a third operator sets, who is cut off from nothing."""
_CUT_S = (6.5, 9.0)
"""The configuration's node says after 5 s that it hears no majority."""
_ENDS_S = 60.0


class CutOffEdits:
    """Of one world; nothing happens before `begin`."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._rng: random.Random = world.sim.rng("cut-off edits")
        self._story: asyncio.Future[None] | None = None
        self._eyes = MergeEyes(NAMESPACE, world.topics[0], world.settings.regions, self._fail)

    @property
    def begun(self) -> bool:
        return self._story is not None

    def begin(self) -> bool:
        """False: it has begun before."""
        if self.begun:
            return False
        for region in self._world.regions.values():
            for node in region.voters:
                self._watch(node)
        self._story = asyncio.ensure_future(self._tell())
        self._story.add_done_callback(self._world.sim.report)
        return True

    async def finish(self) -> None:
        """Everything is well by now. Raises Violation."""
        if self._story is None:
            return
        await self._world._until("operators have edited", self._story.done, _ENDS_S)
        await self._world._until("every edit is merged, and all regions agree", self._differing, _ENDS_S)
        self._eyes.judge()
        kinds = self._world.verdict.kinds
        kinds += ["edits merged"] * bool(self._eyes.merged) + ["edits in conflict"] * bool(self._eyes.conflicts)

    # -- the operators -------------------------------------------------------------------------------------------------

    async def _tell(self) -> None:
        regions = self._rng.sample(sorted(self._world.regions), 3)
        await asyncio.gather(*map(self._cut_off, regions[:2]), self._connected(self._world.regions[regions[2]]))

    async def _cut_off(self, name: str) -> None:
        world, network = self._world, self._world.sim.network
        await asyncio.sleep(self._rng.uniform(0.0, 2.0))
        others = [other for other in world.regions if other != name]
        for other in others:
            network.cut(name, other)
        world.trace(f"{name} is cut off, where policies are edited")
        until = world.sim.now() + self._rng.uniform(*_CUT_S)
        for value in VALUES:
            await self._edit(world.regions[name], value)
        await asyncio.sleep(max(0.0, until - world.sim.now()))
        network.heal_all([(name, other) for other in others])

    async def _connected(self, region: Region) -> None:
        """What the first of the others found is set again, while they are merged."""
        for _ in range(4):
            await self._edit(region, _FIRST)
            await asyncio.sleep(self._rng.uniform(1.0, 4.0))

    async def _edit(self, region: Region, value: int) -> None:
        ready = [node for node in region.brokers if node.is_ready()]
        if ready:
            changes = (self._change_namespace, self._change_topic)
            await asyncio.gather(*(self._ask(self._rng.choice(ready), change, value) for change in changes))

    async def _ask(self, node: Node, change: Callable[..., Any], value: int) -> None:
        try:
            place, before, after = await node.machine.ask(change, node, value, limit_s=12.0)
        except (HeliographError, TimeoutError) as error:
            self._world.trace(f"an edit on {node.name} may be lost: {error!r}")
            return
        self._world.trace(f"{node.name} accepts {place[1]}: {before} becomes {after}")
        self._eyes.accept(place, before, after)

    async def _change_namespace(self, node: Node, value: int) -> tuple[Place, Value, Value]:
        found: Value = []

        def change(old: NamespacePolicies) -> NamespacePolicies:
            found[:] = value_at(old.policies, SHARED)
            return replace(old, policies={**old.policies, SHARED: value})

        await _admin(node).update_namespace(NAMESPACE, change)
        return (keys.namespace(NAMESPACE), SHARED), found, [value]

    async def _change_topic(self, node: Node, value: int) -> tuple[Place, Value, Value]:
        found: Value = []
        name = f"note-{node.region.name}"

        def change(old: TopicPolicies) -> TopicPolicies:
            found[:] = value_at(old.properties, name)
            return replace(old, properties={**old.properties, name: str(value)})

        await _admin(node).change_topic_policies(self._world.topics[0], change)
        return (keys.topic_policies(self._world.topics[0]), name), found, [str(value)]

    # -- what is applied -----------------------------------------------------------------------------------------------

    def _watch(self, node: Node) -> None:
        """In this life, and in each that follows."""
        told: Callable[[Node], None] = node.on_started

        def on_started(node: Node) -> None:
            told(node)
            self._look_at(node)

        node.on_started = on_started
        if node.is_ready():
            self._look_at(node)

    def _look_at(self, node: Node) -> None:
        for name, role in zip(node.role_names, node.roles, strict=True):
            member: Any = role.node  # type: ignore[attr-defined]
            if name == "meta":
                self._eyes.watch_region(node.region.name, member.machine)
            elif name == "config":
                self._eyes.watch_configuration(member.raft._machine, member.machine)

    # -- in the end ----------------------------------------------------------------------------------------------------

    def _differing(self) -> str:
        """What is not as it is everywhere: "": nothing."""
        shown = {}
        for region in self._world.regions.values():
            for node in region.brokers:
                if not node.is_ready():
                    return f"{node.name} is not ready"
                role: Any = node.roles[0]
                if pending := role.deferred.status()["pending"]:
                    return f"{node.name} has {len(pending)} edits that wait"
                namespace, topic = role.view.namespace(NAMESPACE), role.view.topic_policies(self._world.topics[0])
                shown[node.name] = (namespace.policies.get(SHARED), topic, sorted(role.deferred.conflicts))
        first = next(iter(shown.values()))
        return "" if all(one == first for one in shown.values()) else f"they show {shown}"

    def _fail(self, text: str) -> None:
        self._world.sim.loop.fail(text, Violation(text))


def _admin(node: Node) -> ConfigAdmin:
    """As the broker's own REST interface has it."""
    role: Any = node.roles[0]
    return ConfigAdmin(role.config, role.deferred, node.machine.rng, node.machine.clock)
