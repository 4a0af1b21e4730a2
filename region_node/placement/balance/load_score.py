"""LoadBook: what one broker carries, bundle by bundle, with history weighed.

Is: the one load score by which bundles are shed and placed. Isn't: where the counters come from.
The load of a broker is the largest of its shares: of its core (1.0: a whole one), of its network, of its connections,
of its memory. All but the last is work, and is divided among its bundles by their traffic (a message costs as much as a
kibibyte does), connections by their producers and consumers. Each bundle's part is smoothed with a half-life, and goes
with the bundle when that moves: so a move is seen at once on both sides, and nobody decides by the load of a bundle
that has left. Memory stays with the broker, whatever leaves it (caches, what the allocator keeps): it is no part of any
bundle (`load_report.LoadReport.held`).
Source: docs/protocols/balancing.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from region_node.placement.balance.load_shedding import BrokerLoad, Bundle

HALF_LIFE_S = 60.0
MESSAGE_BYTES = 1024
NAMED_MAX = 64


class BundleTraffic(NamedTuple):
    """What one bundle carried, in and out together."""

    messages_s: float = 0.0
    bytes_s: float = 0.0
    topics: int = 0
    sessions: int = 0
    """Producers and consumers of clients."""

    @property
    def weight(self) -> float:
        return self.messages_s + self.bytes_s / MESSAGE_BYTES


class LoadBook:
    """Keeps the smoothed load of each bundle that one broker owns. Times are seconds on any clock that goes forward."""

    def __init__(self, half_life_s: float = HALF_LIFE_S) -> None:
        self._half_life_s = half_life_s
        self._loads: dict[Bundle, float] = {}
        self._own = 0.0
        self._at: float | None = None

    def __contains__(self, bundle: Bundle) -> bool:
        return bundle in self._loads

    def comes(self, bundle: Bundle, load: float | None) -> None:
        """A bundle that this broker took over, with the load that its last owner saw in it; None: nobody knows."""
        if load is not None:
            self._loads[bundle] = load

    def divided(self, bundle: Bundle, parts: Mapping[Bundle, float]) -> None:
        """It was split: each part goes on with its share of the load. parts: sum 1."""
        load = self._loads.pop(bundle, None)
        if load is not None:
            self._loads |= {part: load * share for part, share in parts.items()}

    def leaves(self, bundle: Bundle) -> float:
        return self._loads.pop(bundle, 0.0)

    def sample(
        self,
        now: float,
        used: float,
        traffic: Mapping[Bundle, BundleTraffic],
        reserved: Mapping[Bundle, float] | None = None,
        *,
        by_sessions: bool = False,
    ) -> BrokerLoad:
        """used: the largest share of work since the last sample. traffic: of the bundles that are here now; others have
        left.

        reserved: what is set aside for bundles of this broker: each counts for at least that. by_sessions: their number
        takes the share, not traffic.
        """
        keep = 0.0 if self._at is None else 0.5 ** ((now - self._at) / self._half_life_s)
        self._at = now
        weights = {bundle: one.sessions if by_sessions else one.weight for bundle, one in traffic.items()}
        total = sum(weights.values())
        known, self._loads = self._loads, {}
        for bundle, weight in weights.items():
            fresh = used * weight / total if total else 0.0
            self._loads[bundle] = known.get(bundle, fresh) * keep + fresh * (1 - keep)
        self._own = 0.0 if total else self._own * keep + used * (1 - keep)
        counted = dict(self._loads)
        for bundle, share in (reserved or {}).items():
            counted[bundle] = max(counted.get(bundle, 0.0), share)
        named = sorted(((load, bundle) for bundle, load in counted.items() if load > 0), reverse=True)[:NAMED_MAX]
        return BrokerLoad(self._own + sum(counted.values()), [(bundle, load) for load, bundle in named])
