"""Placement: which bookies get the copies of an entry.

Is: one choice among candidates, as plain values. Isn't: who is a candidate, or a bookie's state.
Invariants: a bookie that has just failed is chosen only where there is no other; then, as far as there are racks
enough, no two of one rack (soft: too few racks are no reason to refuse); then by chance, in proportion to free space. A
bookie without a label is a rack of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

from heliograph.model.ledger_metadata import LedgerMetadata
from heliograph.runtime.clock import Rng

_WEIGHT_MAX = 8.0
"""A bookie is chosen at most so much more often than one with the least space: else a new one would get every ledger,
and all their traffic.
"""


@dataclass(frozen=True, slots=True)
class Candidate:
    bookie: str
    rack: str = ""
    free_bytes: int = 0
    """What the bookie said last of its free space; 0 where it is not known."""
    suspicious: bool = False
    secondary: bool = False
    """Only where the others do not suffice."""


def choose(
    candidates: Sequence[Candidate], count: int, racks: Collection[str], rng: Rng, write_quorum: int = 0
) -> list[str]:
    """`count` of the candidates, or all where there are fewer; the racks in `racks` have a copy already.

    write_quorum: where it is less than `count`, the ensemble is striped: then so many neighbours, also over the end,
    lie on different racks as far as can be.
    """
    left, taken, chosen = list(candidates), list(racks), list[Candidate]()
    while left and len(chosen) < count:
        ranks = [(c.suspicious, c.secondary, taken.count(c.rack) if c.rack else 0) for c in left]
        least = min(ranks)
        one = _weighted([c for c, rank in zip(left, ranks, strict=True) if rank == least], rng)
        left.remove(one)
        taken.append(one.rack)
        chosen.append(one)
    if 0 < write_quorum < len(chosen):
        _spread(chosen, write_quorum)
    return [c.bookie for c in chosen]


def racks(bookies: Iterable[str], rack: Callable[[str], str]) -> int:
    """On how many racks these lie; a bookie without a label is a rack of its own."""
    return len({(label, "") if (label := rack(bookie)) else ("", bookie) for bookie in bookies})


def adheres(
    metadata: LedgerMetadata, wanted: int, rack: Callable[[str], str], group: Callable[[str], str | None]
) -> bool:
    """Whether each write set lies on so many racks, and all bookies are of the ledger's groups. group: None of a bookie
    that is not there.
    """
    for _, ensemble in metadata.fragments:
        if any(found is not None and not metadata.affinity.allows(found) for found in map(group, ensemble)):
            return False
        if any(
            racks((ensemble[place] for place in places), rack) < min(wanted, metadata.write_quorum)
            for places in metadata.striping.sets
        ):
            return False
    return True


def _spread(chosen: list[Candidate], write_quorum: int) -> None:
    """Swaps places for as long as that brings fewer copies of one entry together on one rack."""
    width = len(chosen)
    near = [(a, (a + step) % width) for a in range(width) for step in range(1, write_quorum)]

    def together() -> int:
        return sum(bool(chosen[a].rack) and chosen[a].rack == chosen[b].rack for a, b in near)

    best, improved = together(), True
    while best and improved:
        improved = False
        for a in range(width):
            for b in range(a + 1, width):
                chosen[a], chosen[b] = chosen[b], chosen[a]
                if (now := together()) < best:
                    best, improved = now, True
                else:
                    chosen[a], chosen[b] = chosen[b], chosen[a]


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
