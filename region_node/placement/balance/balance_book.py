"""BalanceBook: what a broker has heard of balancing, for whoever asks before its balancer is there.

Is: the newest report of each broker, the pause, and where a bundle goes by them. Isn't: watching
(`region_node.placement.balance.balancer`, which keeps it), or moving anything.
Invariants: who has not reported is placed to as if nothing was there.
"""

from __future__ import annotations

from collections.abc import Sequence

from heliograph.runtime.clock import Clock, Rng
from region_node.placement.balance.bundle_placement import choose
from region_node.placement.balance.load_report import LoadReport, Pause
from region_node.placement.balance.load_shedding import Bundle


class BalanceBook:
    """`reports`: by broker. `pause`: the last one that was heard of, even where it is over; None: none."""

    def __init__(self, clock: Clock, rng: Rng) -> None:
        self.clock, self.rng = clock, rng
        self.reports: dict[str, LoadReport] = {}
        self.pause: Pause | None = None
        self.placed = 0
        """Bundles that nobody had, and that it found a broker for."""

    @property
    def paused(self) -> bool:
        return self.pause is not None and self.clock.wall_ms() < self.pause.until_ms

    def place(self, candidates: Sequence[str], bundle: Bundle) -> str:
        """A broker for a bundle that nobody has; candidates: live ones, at least one."""
        self.placed += 1
        return choose(candidates, {name: report.load for name, report in self.reports.items()}, self.rng)
