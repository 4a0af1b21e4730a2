"""Wrong clocks: wall clocks of simulated machines that jump, and topics that delete by time.

Is: kinds of faults, in a table that `faults` adds to its own, and the policies of worlds whose topics age
(`WorldSettings.ages`). Isn't: what must hold nevertheless: nothing is as old as these policies allow, so that the
checkers of any world miss what went by them.
Invariants, where topics age: clocks are ahead in one region only; one broker's is behind by more than the policies
allow, once in a world, while it runs and has heard another region, and is right again before it starts anew; all others
are behind by less, as two-sided and lasting wrongness is given up by docs/decisions/0208 and 0254; in other worlds
nothing depends on it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from geo_tests.sim.faults import Faults
    from geo_tests.sim.region import Node

Undo = Callable[[], None]
DAY_S = 86_400
AHEAD_S = 30 * DAY_S
LIVES_S = 29 * DAY_S
"""What topics that age keep, and subscriptions and links still deliver: longer than clocks are behind all together,
shorter than one is ahead.
"""
BEHIND_S = 40 * DAY_S
BEHIND = 0.5
"""The part of worlds whose topics age in which one broker's clock is so far behind for a while."""
_LOOK_S = 0.02
_OWNED_S = 6.0
"""Later somebody has the topics, and looks at what is old."""
AGING_POLICIES: dict[str, Any] = {
    "retention": {"retentionTimeInMinutes": LIVES_S // 60, "retentionSizeInMB": -1},
    "messageTTL": LIVES_S,
    "replicationTTL": LIVES_S,
}


class WrongClocks:
    """Of one world."""

    def __init__(self, faults: Faults) -> None:
        self._faults = faults
        self._ages = bool(faults.world.settings.ages)
        self._ahead = faults.world.sim.rng("wrong clocks").choice(sorted(faults.world.settings.regions))
        self._rng, self._was_behind = faults.world.sim.rng("clocks behind"), False

    def kinds(self) -> list[tuple[int, Callable[[], tuple[str, Undo] | None]]]:
        """Those of topics that age, with their weights, as `Faults.kinds`."""
        return [(12, self._broker_runs_ahead)] if self._ages else []

    def rare(self) -> list[tuple[int, Callable[[], tuple[str, Undo] | None]]]:
        """As `kinds`; of those that are drawn once."""
        return [(12, self._broker_runs_behind)] if self._ages else []

    def drawn(self) -> list[Callable[[], tuple[str, Undo] | None]]:
        """Those that this world has beside its other faults."""
        settings = self._faults.world.settings
        if not self._ages or settings.kinds or not settings.faults or self._rng.random() >= BEHIND:
            return []
        return [self._broker_runs_behind]

    def _broker_runs_behind(self) -> tuple[str, Undo] | None:
        """By more than anything lives, while its region is cut off, so that what it takes waits for others; then
        another broker, or its next life, has its topics.
        """
        world, rng = self._faults.world, self._rng
        nodes = [node for _, region in sorted(world.regions.items()) for node in region.brokers if _has_heard(node)]
        if self._was_behind or not nodes:
            return None
        self._was_behind, node = True, rng.choice(nodes)
        back, left, network = self._jump(node, -BEHIND_S), [True], world.sim.network
        others = [name for name in world.regions if name != node.region.name]
        for name in others:
            network.cut(node.region.name, name)

        def connect() -> None:
            for name in others:
                network.heal(node.region.name, name)

        def end() -> None:
            if left:
                left.clear()
                back()
                world.sim.loop.call_later(_OWNED_S, connect, context=network.neutral)
                if node.is_ready():
                    node.kill()
                    self._faults.disturbed(node.region.name, 20.0)
                    world.sim.loop.call_later(rng.uniform(0.1, 5.0), node.revive)

        def look() -> None:
            if left and node.is_ready():
                world.sim.loop.call_later(_LOOK_S, look)
            else:
                end()

        look()
        return f"{node.name} runs {BEHIND_S} s behind, cut off from others, and ends", end

    def wrong_clock(self) -> tuple[str, Undo]:
        """The wall clock of one machine jumps, and back again: nothing but a time that is shown may depend on it."""
        rng = self._faults.rng
        node, by_s = rng.choice(self._faults.region().nodes), rng.choice((-7 * DAY_S, -3600, -5, 5, 3600, AHEAD_S))
        if self._ages and node.region.name != self._ahead:
            by_s = -min(abs(by_s), 7 * DAY_S)
        return f"the wall clock of {node.name} jumps by {by_s} s", self._jump(node, by_s)

    def _broker_runs_ahead(self) -> tuple[str, Undo]:
        """By more than anything lives: while it runs, or before it begins."""
        rng = self._faults.rng
        node = rng.choice(self._faults.world.regions[self._ahead].brokers)
        undo = self._jump(node, AHEAD_S)
        if node.is_ready() and rng.random() < 0.5:
            node.kill()
            self._faults.disturbed(node.region.name, 20.0)
            self._faults.world.sim.loop.call_later(rng.uniform(0.1, 1.0), node.revive)
            return f"{node.name} begins beside a clock that is {AHEAD_S} s ahead", undo
        return f"{node.name} runs {AHEAD_S} s ahead", undo

    def _jump(self, node: Node, by_s: int) -> Undo:
        clock = node.machine.clock
        clock.offset_ms += by_s * 1000

        def undo() -> None:
            clock.offset_ms -= by_s * 1000

        return undo


def _has_heard(node: Node) -> bool:
    """Whether its broker knows another region's clock."""
    if not node.is_ready():
        return False
    role: Any = node.roles[0]
    return bool(role.links.incoming.clocks())
