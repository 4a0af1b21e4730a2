"""Wrong clocks: wall clocks of simulated machines that jump, and topics that delete by time.

Is: kinds of faults, in a table that `faults` adds to its own, and the policies of worlds whose topics age
(`WorldSettings.ages`). Isn't: what must hold nevertheless: nothing is as old as these policies allow, so that the
checkers of any world miss what went by them.
Invariants, where topics age: clocks are ahead in one region only, and behind by less than the policies allow, as
two-sided and lasting wrongness is given up by docs/decisions/0208; in other worlds nothing depends on it.
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

    def kinds(self) -> list[tuple[int, Callable[[], tuple[str, Undo] | None]]]:
        """Those of topics that age, with their weights, as `Faults.kinds`."""
        return [(12, self._broker_runs_ahead)] if self._ages else []

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
