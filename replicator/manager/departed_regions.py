"""Leaving: regions that a topic does not go to any more, and whose cursors stay for a while, should they come back.

Is: since when each of them is away, kept in the cursor's properties; whose time is over. Isn't: deleting the cursor
(`replicator.manager.link_manager`).
Invariants: what a region that left had not got is kept for the grace period from then on, through moves of the topic,
and one wrong clock does not shorten it; a region that the configuration has had, and does not have any more, is not
waited for, since whatever comes under its name begins anew. One that it never heard of is waited for: it may be younger
than the copy that is read here.
Source: docs/protocols/links.md, "Regions that leave".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from heliograph.runtime.clock import CautiousClock

PROPERTY = "heliograph.left_ms"


class DepartedCursor(Protocol):
    @property
    def properties(self) -> dict[str, str]: ...

    def set_properties(self, properties: dict[str, str]) -> None: ...


class Leaving:
    """One broker's. `known(region)`: whether the configuration has it, or may have. `over(topic, region)`: it does not
    come back.
    """

    def __init__(
        self, clock: CautiousClock, grace_s: float, known: Callable[[str], bool], over: Callable[[str, str], None]
    ) -> None:
        self._clock, self._grace_ms, self._known, self._over = clock, int(grace_s * 1000), known, over
        self._left: dict[str, dict[str, int]] = {}
        """Topic -> region -> wall ms at which its time is over."""
        self._next_ms = 0
        """Nobody's is before that."""

    def left(self, topic: str, region: str, cursor: DepartedCursor) -> None:
        """It gets the topic no more, since now or since the cursor says."""
        since = cursor.properties.get(PROPERTY, "")
        if not since.isdecimal():
            since = str(self._clock.latest_ms())
            cursor.set_properties({**cursor.properties, PROPERTY: since})
        until_ms = self._left.setdefault(topic, {})[region] = int(since) + self._grace_ms
        self._next_ms = min(self._next_ms, until_ms)
        self._look(topic, region, until_ms)

    def back(self, topic: str, region: str, cursor: DepartedCursor) -> None:
        self._left.get(topic, {}).pop(region, None)
        if PROPERTY in cursor.properties:
            cursor.set_properties({name: value for name, value in cursor.properties.items() if name != PROPERTY})

    def forget(self, topic: str) -> None:
        """Forgets a topic that is unloaded. Its cursors go on saying since when a region is away."""
        self._left.pop(topic, None)

    def regions_changed(self) -> None:
        self._next_ms = 0

    def tick(self) -> None:
        """Called about once a second: looks for regions whose grace period is over, where one may be."""
        if self._left and self._clock.wall_ms() >= self._next_ms:
            for topic, regions in list(self._left.items()):
                for region, until_ms in list(regions.items()):
                    self._look(topic, region, until_ms)
            self._left = {topic: regions for topic, regions in self._left.items() if regions}
            self._next_ms = min(
                (until_ms for regions in self._left.values() for until_ms in regions.values()), default=0
            )

    def _look(self, topic: str, region: str, until_ms: int) -> None:
        if self._clock.wall_ms() >= until_ms or not self._known(region):
            del self._left[topic][region]
            self._over(topic, region)
