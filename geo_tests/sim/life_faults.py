"""Life faults: what lives and dies by command in a simulated world: what is kept, what an admin takes away.

Is: kinds of faults, in a table that `faults` adds to its own. Isn't: what must hold nevertheless (`trimming`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from geo_tests.sim.faults import Faults

Undo = Callable[[], None]
Kind = Callable[[], tuple[str, Undo] | None]


class LifeFaults:
    """Of one world."""

    def __init__(self, faults: Faults) -> None:
        self._faults, self._world = faults, faults.world

    def kinds(self) -> list[tuple[int, Kind]]:
        """With their weights, as `Faults.kinds`."""
        return [(14, self._faults._leave), (10, self._truncate)] if self._world.settings.trims else []

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
