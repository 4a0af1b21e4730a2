"""Life faults: what lives and dies by command in a simulated world: what is kept, what an admin takes away.

Is: kinds of faults, in a table that `faults` adds to its own. Isn't: what must hold nevertheless
(`trimming`, `remade`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from geo_tests.sim.remade import Remade

if TYPE_CHECKING:
    from geo_tests.sim.faults import Faults

Undo = Callable[[], None]
Kind = Callable[[], tuple[str, Undo] | None]


class LifeFaults:
    """Of one world."""

    def __init__(self, faults: Faults) -> None:
        self._faults, self._world = faults, faults.world
        self._remade = Remade(self._world)

    def kinds(self) -> list[tuple[int, Kind]]:
        """With their weights, as `Faults.kinds`."""
        if self._world.settings.trims:
            return [(14, self._faults._leave), (10, self._truncate)]
        if not self._world.everywhere:
            return []
        return [(1, self._delete_and_make_again)]

    async def finish(self) -> None:
        """What was begun comes to its end, now that everything is well. Raises Violation."""
        await self._remade.finish()

    def _delete_and_make_again(self) -> tuple[str, Undo] | None:
        """Of a topic beside those of the world, in every region."""
        return ("delete a topic, and make it again", lambda: None) if self._remade.begin() else None

    def _truncate(self) -> tuple[str, Undo] | None:
        """An admin empties a topic of one region, whatever consumers and links still lack of it."""
        rng = self._faults.rng
        region, topic = rng.choice(sorted(self._world.regions)), rng.choice(self._world.topics)
        for there, name, node, _ in self._world.probes.owners():
            if (there, name) == (region, topic):
                loaded = node.roles[0].topics.loaded[topic]
                self._faults._by_hand(node, self._world.trimmings[topic].empty, region, loaded)
                return f"truncate {topic} in {region}", lambda: None
        return None
