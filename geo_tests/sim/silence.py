"""Silence: machines and regions of which nothing comes any more, while every connection stays open.

Is: kinds of faults, in a table that `faults` adds to its own. Isn't: what must be said of a silent region (`reports`).
Nobody is told: no connection is reset before the silence ends, and then only some are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from geo_tests.sim.faults import Faults

Undo = Callable[[], None]
Kind = Callable[[], tuple[str, Undo] | None]


def silent_kinds(faults: Faults) -> list[tuple[int, Kind]]:
    """With their weights, as `Faults.kinds`."""
    world, rng, network = faults.world, faults.rng, faults.world.sim.network

    def cut(source: str, targets: list[str], way: str) -> tuple[str, Undo]:
        pairs = [(source, target) for target in targets]
        for a, b in pairs:
            if way != "is not heard":
                network.cut(b, a, one_way=True)
            if way != "hears nothing":
                network.cut(a, b, one_way=True)
        return f"{source} {way}", lambda: network.heal_all(pairs)

    def _silent_machine() -> tuple[str, Undo] | None:
        """No other machine, near or far, is heard: it runs, and is cut off."""
        region = world.regions[rng.choice(sorted(world.regions))]
        node = rng.choice(region.nodes)
        if node in region.bookies and not all(one.machine.running for one in region.bookies):
            return None
        faults.disturbed(region.name, 25.0)
        return cut(node.name, sorted(world.regions), rng.choice(("is cut off", "hears nothing", "is not heard")))

    def _silent_region() -> tuple[str, Undo]:
        """One way: it publishes, hears the others, and is not heard; or the reverse."""
        region = rng.choice(sorted(world.regions))
        others = [other for other in sorted(world.regions) if other != region]
        return cut(region, others, rng.choice(("hears nothing", "is not heard")))

    return [(5, _silent_machine), (5, _silent_region)]
