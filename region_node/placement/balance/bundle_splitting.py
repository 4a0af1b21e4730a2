"""Where a bundle is cut in two: the four ways of Pulsar, and which bundle is due.

Is: decisions, from the hashes and traffic of a bundle's topics. Isn't: the split itself
(`region_node.placement.ownership.ownership_service`), or the listing of topics (`bundle_divider`).
Invariants: a cut lies inside the bundle's range, with a topic on either side, wherever the way looks at topics; topics
of one hash are never parted.
Source: Pulsar's NamespaceBundleSplitAlgorithm (range, topic count, specified positions, flow or QPS);
docs/protocols/balancing.md, "Splitting".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

from heliograph.model.errors import NotAllowed
from region_node.placement.balance.load_score import BundleTraffic
from region_node.placement.balance.load_shedding import Bundle
from region_node.placement.balance.settings import SplitSettings

RANGE = "range_equally_divide"
TOPIC_COUNT = "topic_count_equally_divide"
POSITIONS = "specified_positions_divide"
FLOW = "flow_or_qps_equally_divide"


class Weighed(NamedTuple):
    """A topic's place in its bundle, and what it works on (`BundleTraffic.weight`)."""

    hash: int
    weight: float


def _by_range(bounds: tuple[int, int], topics: Sequence[Weighed], positions: Sequence[int]) -> list[int]:
    return [sum(bounds) // 2]


def _by_topics(bounds: tuple[int, int], topics: Sequence[Weighed], positions: Sequence[int]) -> list[int]:
    return _between_topics(
        [Weighed(topic.hash, 1.0) for topic in topics], "it has fewer than two topics, or all have one hash"
    )


def _by_flow(bounds: tuple[int, int], topics: Sequence[Weighed], positions: Sequence[int]) -> list[int]:
    return _between_topics(
        [topic for topic in topics if topic.weight > 0],
        "fewer than two of its topics have traffic: more partitions divide a heavy topic",
    )


def _at_positions(bounds: tuple[int, int], topics: Sequence[Weighed], positions: Sequence[int]) -> list[int]:
    inside = sorted({at for at in positions if bounds[0] < at < bounds[1]})
    if not inside:
        raise NotAllowed(
            f"none of the positions {list(positions)} is inside ({bounds[0]}, {bounds[1]}): give hashes as whole "
            "numbers (splitBoundaries)"
        )
    return inside


def _between_topics(topics: Sequence[Weighed], why_not: str) -> list[int]:
    """The cut between two neighbours that leaves the halves most alike; the middle between those two."""
    ordered = sorted(topics)
    total, best, cut = sum(topic.weight for topic in ordered), float("inf"), -1
    for below, (left, right) in zip(accumulate(topic.weight for topic in ordered), pairwise(ordered), strict=False):
        if left.hash < right.hash and abs(2 * below - total) < best:
            best, cut = abs(2 * below - total), (left.hash + right.hash + 1) // 2
    if cut < 0:
        raise NotAllowed(f"the bundle cannot be divided this way: {why_not}")
    return [cut]


WAYS: dict[str, Callable[[tuple[int, int], Sequence[Weighed], Sequence[int]], list[int]]] = {
    RANGE: _by_range,
    TOPIC_COUNT: _by_topics,
    POSITIONS: _at_positions,
    FLOW: _by_flow,
}


def cuts(way: str, bounds: tuple[int, int], topics: Sequence[Weighed], positions: Sequence[int] = ()) -> list[int]:
    """The hashes before which the bundle [low, high) shall be cut. Raises NotAllowed: no such way, or it finds nothing
    to cut.
    """
    if way not in WAYS:
        raise NotAllowed(f"there is no way {way!r} to split a bundle: there are {', '.join(WAYS)}")
    return WAYS[way](bounds, topics, positions)


class DueSplit(NamedTuple):
    """A bundle that shall be split, in which way, and why."""

    bundle: Bundle
    way: str
    reason: str


class Splitter:
    """Says which of this broker's bundles are above their limits, once they have been for some reports in a row. Times
    are monotonic seconds.
    """

    def __init__(self, settings: SplitSettings) -> None:
        self.settings = settings
        self._above: dict[Bundle, int] = {}
        self._rests: dict[Bundle, float] = {}

    def due(
        self,
        traffic: Mapping[Bundle, BundleTraffic],
        loads: Mapping[Bundle, float],
        count: Callable[[str], int],
        now: float,
    ) -> list[DueSplit]:
        """After each report. loads: shares of what a broker can carry. count: of a namespace, how many bundles it
        has.
        """
        if not self.settings.enabled:
            return []
        self._rests = {bundle: until for bundle, until in self._rests.items() if until > now}
        found = []
        above: dict[Bundle, int] = {}
        for bundle, one in sorted(traffic.items()):
            if (due := self._judge(bundle, one, loads.get(bundle, 0.0))) is None or bundle in self._rests:
                continue
            above[bundle] = self._above.get(bundle, 0) + 1
            if above[bundle] >= self.settings.reports and count(bundle[0]) < self.settings.bundles_max:
                found.append(due)
        self._above = above
        return found[: self.settings.per_report]

    def done(self, bundle: Bundle, now: float) -> None:
        """It was split, or could not be: what comes of that is to be seen first."""
        self._above.pop(bundle, None)
        self._rests[bundle] = now + self.settings.rest_s

    def _judge(self, bundle: Bundle, one: BundleTraffic, load: float) -> DueSplit | None:
        limits = self.settings
        if one.topics < 2:
            return None
        for value, most, what in (
            (load, limits.load, "of what a broker carries"),
            (one.messages_s, limits.messages_s, "messages/s"),
            (one.bytes_s / 1e6, limits.bandwidth_mb_s, "MB/s"),
        ):
            if value > most:
                return DueSplit(bundle, FLOW, f"{value:.4g} {what}, more than {most:g}")
        for number, at_most, what in (
            (one.topics, limits.topics, "loaded topics"),
            (one.sessions, limits.sessions, "producers and consumers"),
        ):
            if number > at_most:
                return DueSplit(bundle, TOPIC_COUNT, f"{number} {what}, more than {at_most}")
        return None
