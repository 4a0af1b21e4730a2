"""Budgets: what the links of one broker to each region share: bytes a second, and the count of what they have carried.

Is: a region's share of what is configured, which changes with the number of brokers. Isn't: who goes next
(`replicator.bandwidth.fair_shares`).
Source: docs/protocols/links.md, "Budget and fairness".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Generic

from replicator.bandwidth.compression import CompressedBytes
from replicator.bandwidth.fair_shares import Budget, M


class Budgets(Generic[M]):
    """configured: target region -> bytes a second; "*": of each region that is not named. brokers: how many there are
    to share it; one where it is not shared.

    run_later(callback, seconds): on the event loop.
    """

    def __init__(
        self,
        configured: Mapping[str, float],
        brokers: Callable[[], int],
        now: Callable[[], float],
        run_later: Callable[[Callable[[], None], float], None],
    ) -> None:
        self._configured, self._brokers, self._now, self._run_later = configured, brokers, now, run_later
        self._made: dict[str, Budget[M]] = {}
        self.traffic: dict[str, CompressedBytes] = {}
        """Target region -> what all links to it have sent."""

    def to(self, region: str) -> Budget[M] | None:
        """None: links to it share nothing but their connections."""
        found = self._made.get(region)
        if found is None and (bytes_per_s := self._share(region)) > 0:
            made = found = self._made[region] = Budget(
                bytes_per_s, self._now, lambda after_s: self._run_later(made.run, after_s)
            )
        return found

    def traffic_to(self, region: str) -> CompressedBytes:
        return self.traffic.setdefault(region, CompressedBytes())

    def tick(self) -> None:
        """Once a second: brokers come and go."""
        for region, budget in self._made.items():
            budget.bytes_per_s = self._share(region)

    def _share(self, region: str) -> float:
        return self._configured.get(region, self._configured.get("*", 0.0)) / max(1, self._brokers())
