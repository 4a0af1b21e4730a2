"""Stories: what goes on in a part of the simulated worlds beside their topics, from the start to the end.

Is: which of them a world has, by its seed. Isn't: a story (`transacted`, `compacted`, `upgraded`).
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from geo_tests.sim.broker_calls import listen
from geo_tests.sim.compacted import Compacted
from geo_tests.sim.transacted import Transacted
from geo_tests.sim.upgraded import CYCLE_S, Upgraded
from region_node.placement.balance.settings import BalanceSettings

if TYPE_CHECKING:
    from geo_tests.sim.world import World

STORIES = {"transactions": 0.25, "compaction": 0.2, "upgrade": 0.2}
"""The part of worlds that have one, of those that keep everything and whose settings do not say which have."""

KINDS = (
    "transaction committed",
    "transaction aborted",
    "transaction left open",
    "behind an open transaction",
    "compaction",
    "compacted reading",
    "upgrade",
)
"""What a verdict counts of them among its kinds."""


def drawn(rng: random.Random) -> tuple[str, ...]:
    return tuple(name for name, part in STORIES.items() if rng.random() < part)


class Stories:
    """Of one world. names: those that it has."""

    def __init__(self, world: World, names: tuple[str, ...]) -> None:
        self._world = world
        self.names = names
        self._stories: list[Transacted | Compacted | Upgraded] = []
        self._upgraded = Upgraded(world) if "upgrade" in names else None
        self.balance = BalanceSettings() if self._upgraded is None else BalanceSettings(cycle_s=CYCLE_S)
        """Of every broker."""
        if "transactions" in names:
            self._stories.append(Transacted(world))
        if "compaction" in names:
            self._stories.append(Compacted(world))
        if self._upgraded is not None:
            self._stories.append(self._upgraded)

    def prepare(self) -> None:
        """The regions are there, and have not started."""
        if self._upgraded is not None:
            self._upgraded.prepare()
        if "transactions" in self.names:
            for region in self._world.regions.values():
                for node in region.brokers:
                    node.on_started = listen

    def begin(self) -> None:
        """Clients' machines run."""
        for story in self._stories:
            story.begin()

    async def finish(self) -> None:
        """Everything is well by now. Raises Violation."""
        for story in self._stories:
            await story.finish()
