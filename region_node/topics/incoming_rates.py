"""IncomingRates: how much of a topic comes from other regions, as rates.

Is: a meter for each region whose link has brought anything, ticked by the topic. Isn't: the counting
(`replicator.health.incoming_stats`), or how old it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from region_node.runtime.rate_meter import Meter
from region_node.runtime.topic_ports import Counted

NOTHING = (0.0, 0.0)


class IncomingRates:
    """Keeps the rates of one topic by the region that its messages come from."""

    __slots__ = ("_meters", "size_bytes")

    def __init__(self) -> None:
        self._meters: dict[str, Meter] = {}
        self.size_bytes = 0
        """Of all regions together, as of the last tick."""

    def tick(self, links: Mapping[str, Counted], elapsed_s: float) -> bool:
        """links: by region. Returns whether any rate is above 0."""
        busy = False
        for region, link in links.items():
            meter = self._meters.get(region)
            if meter is None and link.messages:
                meter = self._meters[region] = Meter(2)
            if meter is not None and meter.tick(elapsed_s, link.messages, link.size_bytes):
                busy = True
        self.size_bytes = sum(link.size_bytes for link in links.values())
        return busy

    def of(self, region: str) -> Sequence[float]:
        """Messages and bytes a second."""
        meter = self._meters.get(region)
        return NOTHING if meter is None else meter.rates

    def all(self) -> Iterable[tuple[str, Sequence[float]]]:
        return ((region, meter.rates) for region, meter in self._meters.items())
