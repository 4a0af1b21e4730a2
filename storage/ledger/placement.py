"""Placement: which bookies get the copies of an entry.

Is: one choice among candidates, as plain values. Isn't: who is a candidate, or a bookie's state.
Invariants: a bookie that has just failed is chosen only where there is no other; then, as far as there are racks enough, no two of one rack (soft:
too few racks are no reason to refuse); then by chance, in proportion to free space. A bookie without a label is a rack of its own.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from heliograph.runtime.clock import Rng

_WEIGHT_MAX = 8.0
"""A bookie is chosen at most so much more often than one with the least space: else a new one would get every ledger, and all their traffic."""


@dataclass(frozen=True, slots=True)
class Candidate:
    bookie: str
    rack: str = ""
    free_bytes: int = 0
    """0: not known."""
    suspicious: bool = False


def choose(candidates: Sequence[Candidate], count: int, racks: Collection[str], rng: Rng) -> list[str]:
    """`count` of the candidates, or all where there are fewer; the racks in `racks` have a copy already."""
    left, taken, chosen = list(candidates), list(racks), list[str]()
    while left and len(chosen) < count:
        least = min((c.suspicious, bool(c.rack) and c.rack in taken) for c in left)
        best = [c for c in left if (c.suspicious, bool(c.rack) and c.rack in taken) == least]
        one = _weighted(best, rng)
        left.remove(one)
        taken.append(one.rack)
        chosen.append(one.bookie)
    return chosen


def _weighted(candidates: Sequence[Candidate], rng: Rng) -> Candidate:
    known = [c.free_bytes for c in candidates if c.free_bytes > 0]
    if not known:
        return rng.choice(candidates)
    least = min(known)
    weights = [min(c.free_bytes / least, _WEIGHT_MAX) if c.free_bytes > 0 else 1.0 for c in candidates]
    at = rng.random() * sum(weights)
    for candidate, weight in zip(candidates, weights, strict=True):
        at -= weight
        if at < 0:
            return candidate
    return candidates[-1]
