"""RemoteBrokers: the brokers of other regions that speak Kafka's protocol, by region, as these tell of themselves.

Is: who is there, who owns a topic, and how much is kept of them. Isn't: which region leads (`leading_regions`), or a
broker of this region (`kafka_cluster`).
Invariants: whatever another region writes, no more of it is kept than the bounds say, and no region takes another's
room; what is refused is told once, and taken when it is told again and there is room. Asking for the leader of a
partition costs a search in the ranges of its namespace, however many brokers there are.
Bounds: REGIONS_KEPT; of each region BROKERS_KEPT, and KEPT_BYTES of values.
Source: docs/protocols/kafka.md, "Active-passive namespaces".
"""

from __future__ import annotations

import logging
from bisect import bisect_right

from heliograph.model.configuration.kafka_brokers import KafkaBrokerInfo, region_of
from region_node.faces.kafka.cluster.kafka_nodes import node_of

log = logging.getLogger("region_node.kafka")

REGIONS_KEPT = 64
BROKERS_KEPT = 1_000
"""Of one region. A topic whose owner is not kept is led to another broker of its region, which says who owns it."""
KEPT_BYTES = 8 << 20
"""Of one region: 160,000 ranges in 10,000 namespaces are about so much."""


class RemoteBroker:
    """What one broker of another region has told. size_bytes: of the value."""

    __slots__ = ("nodes", "owned", "region", "size_bytes")

    def __init__(self, region: str, info: KafkaBrokerInfo, size_bytes: int) -> None:
        """Raises ValueError for a listener that is no address."""
        self.region, self.size_bytes = region, size_bytes
        self.nodes = (node_of(info.listeners, False), node_of(info.listeners, True))
        """As they are counted in their region; by whether it is the one with TLS."""
        self.owned = {namespace: [(low, high) for low, high in rows] for namespace, rows in info.owns.items()}


class _Ranges:
    """Who owns what of one namespace, each hash at most one broker. Of two that say they own it, the one whose range
    begins first does: one of both is late, and its client asks again.
    """

    __slots__ = ("_ends", "_lows", "_owners")

    def __init__(self, brokers: list[RemoteBroker], namespace: str) -> None:
        self._lows, self._ends, self._owners = list[int](), list[int](), list[RemoteBroker]()
        rows = [
            (low, high, place) for place, broker in enumerate(brokers) for low, high in broker.owned.get(namespace, ())
        ]
        end: int | None = None
        for low, high, place in sorted(rows):
            begin = low if end is None else max(low, end)
            if begin < high:
                self._lows.append(begin)
                self._ends.append(high)
                self._owners.append(brokers[place])
                end = high

    def owner(self, number: int) -> RemoteBroker | None:
        at = bisect_right(self._lows, number) - 1
        return self._owners[at] if at >= 0 and number < self._ends[at] else None


class _OfRegion:
    """One region's brokers; what is looked up in is made when it is asked for, anew behind each change."""

    def __init__(self) -> None:
        self.kept: dict[str, RemoteBroker] = {}
        self.size_bytes = 0
        self.refused = False
        """Whether it was told that not all are kept."""
        self._listening: dict[bool, list[RemoteBroker]] = {}
        self._ranges: dict[tuple[str, bool], _Ranges] = {}

    def put(self, key: str, broker: RemoteBroker | None) -> None:
        """broker: what it tells now; None: it is gone."""
        if (old := self.kept.pop(key, None)) is not None:
            self.size_bytes -= old.size_bytes
        if broker is not None:
            self.kept[key] = broker
            self.size_bytes += broker.size_bytes
        self._listening.clear()
        self._ranges.clear()

    def listening(self, tls: bool) -> list[RemoteBroker]:
        if (found := self._listening.get(tls)) is None:
            numbered = [(node.number, key) for key, told in self.kept.items() if (node := told.nodes[tls]) is not None]
            found = self._listening[tls] = [self.kept[key] for _, key in sorted(numbered)]
        return found

    def owner(self, namespace: str, number: int, tls: bool) -> RemoteBroker | None:
        if (ranges := self._ranges.get((namespace, tls))) is None:
            ranges = self._ranges[namespace, tls] = _Ranges(self.listening(tls), namespace)
        return ranges.owner(number)


class RemoteBrokers:
    """As one broker has heard of them."""

    def __init__(self) -> None:
        self._regions: dict[str, _OfRegion] = {}
        self._refused = False
        """Whether it was told that not all regions are kept."""

    def put(self, key: str, info: KafkaBrokerInfo, size_bytes: int) -> None:
        """key: as `kafka_broker` makes it. Raises ValueError for a listener that is no address: then nothing of that
        broker is kept.
        """
        self.remove(key)
        region = region_of(key)
        broker = RemoteBroker(region, info, size_bytes)
        of_region = self._regions.get(region)
        if of_region is None:
            if len(self._regions) >= REGIONS_KEPT:
                self._refuse_region(region)
                return
            of_region = self._regions[region] = _OfRegion()
        if len(of_region.kept) < BROKERS_KEPT and of_region.size_bytes + size_bytes <= KEPT_BYTES:
            of_region.put(key, broker)
        elif not of_region.refused:
            of_region.refused = True
            log.warning(
                "kafka.broker_not_kept",
                extra={"key": key, "brokers": len(of_region.kept), "size_bytes": of_region.size_bytes + size_bytes},
            )

    def _refuse_region(self, region: str) -> None:
        if not self._refused:
            self._refused = True
            log.warning("kafka.region_not_kept", extra={"region": region, "regions": len(self._regions)})

    def remove(self, key: str) -> None:
        region = region_of(key)
        of_region = self._regions.get(region)
        if of_region is not None and key in of_region.kept:
            of_region.put(key, None)
            if not of_region.kept:
                del self._regions[region]

    def listening(self, region: str, tls: bool) -> list[RemoteBroker]:
        """Those with such a listener, by number. The list is not to be changed."""
        of_region = self._regions.get(region)
        return [] if of_region is None else of_region.listening(tls)

    def owner(self, region: str, namespace: str, number: int, tls: bool) -> RemoteBroker | None:
        """Which of those with such a listener owns topics with this hash; None: nobody has said so."""
        of_region = self._regions.get(region)
        return None if of_region is None else of_region.owner(namespace, number, tls)
