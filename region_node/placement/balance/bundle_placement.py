"""Where a bundle goes that nobody has: by chance among the brokers below the average, the emptier the likelier.

Is: one choice, by the same load as shedding. Isn't: a queue: two brokers that choose at the same time do not hear of
each other, and need not.
Source: docs/protocols/balancing.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from heliograph.runtime.clock import Rng
from region_node.placement.balance.load_shedding import drawn

_SAME = 0.02
"""Brokers that differ by less are as good as each other."""


def choose(candidates: Sequence[str], loads: Mapping[str, float], rng: Rng) -> str:
    """candidates: at least one, in an order that all brokers share. loads: what is known; a broker that has said
    nothing yet counts as empty.
    """
    known = [loads.get(name, 0.0) for name in candidates]
    average = sum(known) / len(known)
    room = [max(0.0, average + _SAME - load) for load in known]
    return candidates[drawn(rng, room)]
