"""Life faults: what lives and dies by command in a simulated world: what is kept, what an admin takes away.

Is: kinds of faults, in a table that `faults` adds to its own. Isn't: what must hold nevertheless
(`trimming`, `remade`, `restored`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from geo_tests.sim.auditing import EVERY
from geo_tests.sim.cut_off_edits import CutOffEdits
from geo_tests.sim.reborn import Reborn
from geo_tests.sim.remade import Remade
from geo_tests.sim.restored import Restored
from geo_tests.sim.went_back import WentBack

if TYPE_CHECKING:
    from geo_tests.sim.faults import Faults

Undo = Callable[[], None]
Kind = Callable[[], tuple[str, Undo] | None]
SOME = 0.3
"""The part of worlds that have a kind of `rare`, beside the faults that all of them draw from."""


class LifeFaults:
    """Of one world."""

    def __init__(self, faults: Faults) -> None:
        self._faults, self._world = faults, faults.world
        self._remade = Remade(self._world)
        self._restored = Restored(self._world, self._remade)
        self._reborn = Reborn(self._world)
        self._went_back = WentBack(self._world)
        self._edits = CutOffEdits(self._world)

    @property
    def restored(self) -> int:
        """How often the global configuration went back."""
        return self._restored.count

    @property
    def incomplete(self) -> bool:
        """Whether it lacks what somebody is about to make again."""
        return self._restored.incomplete

    def kinds(self) -> list[tuple[int, Kind]]:
        """With their weights, as `Faults.kinds`."""
        if self._world.settings.trims:
            return [(14, self._faults._leave), (10, self._truncate)]
        if not self._world.everywhere:
            return []
        return [(1, self._delete_and_make_again)]

    def rare(self) -> list[tuple[int, Kind]]:
        """As `kinds`; of those that take a world long, and are drawn once, in some of the worlds."""
        settings = self._world.settings
        if settings.trims or settings.replicated or settings.durable or not self._world.everywhere:
            return []
        found = [(3, self._restore_configuration), (3, self._go_back), (4, self._edit_while_cut_off)]
        return found if self._spoilt and not settings.kinds else [*found, (4, self._come_again)]

    def drawn(self) -> list[Kind]:
        """Those that this world has beside its other faults."""
        rng, rare = self._world.sim.rng("rare kinds"), self.rare()
        if not rare or self._world.settings.kinds or not self._world.settings.faults or rng.random() >= SOME:
            return []
        return rng.choices([kind for _, kind in rare], [weight for weight, _ in rare])

    async def finish(self) -> None:
        """What was begun comes to its end, now that everything is well. Raises Violation."""
        await self._edits.finish()
        await self._remade.finish()
        await self._restored.finish()
        await self._reborn.finish()
        await self._went_back.finish()

    def _delete_and_make_again(self) -> tuple[str, Undo] | None:
        """Of a topic beside those of the world, in every region."""
        return ("delete a topic, and make it again", lambda: None) if self._remade.begin() else None

    def _restore_configuration(self) -> tuple[str, Undo] | None:
        """It is backed up, and some time later lost, and restored."""
        if self._took_long or not self._restored.begin():
            return None
        return "back the configuration up, and restore it", self._restored.end

    def _come_again(self) -> tuple[str, Undo] | None:
        """In the end a region is taken out for good, and comes again with empty disks."""
        if self._took_long or self._spoilt or not self._reborn.begin():
            return None
        return "a region will be taken out for good, and come again", lambda: None

    def _go_back(self) -> tuple[str, Undo] | None:
        """The metadata of a region is backed up, and in the end lost, and restored."""
        if self._took_long or not self._went_back.begin():
            return None
        return "back a region's metadata up, to restore it in the end", lambda: None

    def _edit_while_cut_off(self) -> tuple[str, Undo] | None:
        """Policies, in two regions, with values that come again."""
        if self._took_long or not self._edits.begin():
            return None
        return "policies are edited in two regions that are cut off", lambda: None

    @property
    def _spoilt(self) -> bool:
        """Whether an entry is, in the end: its own region tells what it was, and has to remember that."""
        return self._world.seed % EVERY == 0

    @property
    def _took_long(self) -> bool:
        """Whether one of those of which a world has one has begun."""
        return any(one.begun for one in (self._restored, self._reborn, self._went_back, self._edits))

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
