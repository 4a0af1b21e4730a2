"""Shedder: says which bundles shall move, from which broker to which.

Is: the decision, from what the brokers report; one cycle is one call. Isn't: measuring, or moving.
Invariants:
- a move makes the fuller of its two brokers emptier than the fuller one was before; so no pair of moves undoes itself at constant load;
- a bundle that moved rests for `cool_down_s`;
- in any quarter of an hour no more moves start than `moves_per_minute` allows on the average; in any minute no more than that, or than one for each two brokers
  where those are more: a large region that has lost its balance is not slower to find it than a small one, and one that never finds it does not move for ever;
- a broker is relieved when it is above the average by `threshold`, or when another is below it by as much; then down to half of that,
  so that a load on the edge does not move back and forth.
Why so: brokers with the same number of bundles are not equally loaded, so their number is never looked at; the receiver is drawn among all below
the average, weighed by their room, since whoever sends all to the emptiest one makes the next overloaded broker.
Source: docs/protocols/balancing.md.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from heliograph.runtime.clock import Rng
from region_node.balance.settings import SheddingSettings

Bundle = tuple[str, int]
_WINDOW_S = 900


class Carried(NamedTuple):
    """What a broker carries. `bundles`: those worth naming, with their share of `load`."""

    load: float
    bundles: Sequence[tuple[Bundle, float]]


class Move(NamedTuple):
    bundle: Bundle
    source: str
    to: str
    load: float


def drawn(rng: Rng, weights: Sequence[float]) -> int:
    """An index by chance, as likely as its weight says; not all weights are 0."""
    at = rng.uniform(0, sum(weights))
    for index, weight in enumerate(weights):
        at -= weight
        if at < 0:
            return index
    return len(weights) - 1


class Shedder:
    """Remembers what moved, and when; times are monotonic seconds."""

    def __init__(self, settings: SheddingSettings, rng: Rng) -> None:
        self.settings, self._rng = settings, rng
        self._moved: dict[Bundle, float] = {}
        self._times: deque[float] = deque()

    def plan(self, brokers: Mapping[str, Carried], now: float, pinned: Mapping[Bundle, Sequence[str]] | None = None) -> list[Move]:
        """The moves to begin now. pinned: the brokers that may serve a bundle, for those that not all may."""
        self._forget(now)
        budget = self._budget(len(brokers), now)
        if len(brokers) < 2 or budget <= 0:
            return []
        loads = {name: carried.load for name, carried in sorted(brokers.items())}
        average = sum(loads.values()) / len(loads)
        if not self._unbalanced(loads, average):
            return []
        left = {
            name: sorted(((load, bundle) for bundle, load in carried.bundles if bundle not in self._moved and load > 0), reverse=True)
            for name, carried in brokers.items()
        }
        moves: list[Move] = []
        while len(moves) < budget and (move := self._next(loads, average, left, pinned or {})) is not None:
            moves.append(move)
            self._moved[move.bundle] = now
            self._times.append(now)
        return moves

    def undone(self, move: Move) -> None:
        """It did not come about: the bundle need not rest."""
        self._moved.pop(move.bundle, None)

    # -- inside -------------------------------------------------------------------------------------------------------

    def _budget(self, brokers: int, now: float) -> int:
        limit = self.settings.moves_per_minute
        lately = sum(1 for at in self._times if at > now - 60)
        return min(max(limit, brokers // 2) - lately, limit * _WINDOW_S // 60 - len(self._times))

    def _forget(self, now: float) -> None:
        while self._times and self._times[0] <= now - _WINDOW_S:
            self._times.popleft()
        rested = [bundle for bundle, at in self._moved.items() if at <= now - self.settings.cool_down_s]
        for bundle in rested:
            del self._moved[bundle]

    def _unbalanced(self, loads: Mapping[str, float], average: float) -> bool:
        fullest = max(loads.values())
        return fullest > self.settings.floor and (fullest > average + self.settings.threshold or min(loads.values()) < average - self.settings.threshold)

    def _next(
        self, loads: dict[str, float], average: float, left: dict[str, list[tuple[float, Bundle]]], pinned: Mapping[Bundle, Sequence[str]]
    ) -> Move | None:
        """One move, taken off `left` and counted into `loads`; None: it is balanced, or nothing makes it better."""
        slack = self.settings.threshold / 2
        for source in sorted(loads, key=lambda name: (-loads[name], name)):
            if loads[source] <= max(average, self.settings.floor):
                return None
            if loads[source] <= average + slack and min(loads.values()) >= average - slack:
                return None
            receivers = [name for name in loads if loads[name] < average]
            while receivers:
                to = receivers.pop(drawn(self._rng, [average - loads[name] for name in receivers]))
                if (found := self._fitting(loads[source], loads[to], average, left[source], to, pinned)) is not None:
                    load, bundle = left[source].pop(found)
                    loads[source] -= load
                    loads[to] += load
                    return Move(bundle, source, to, load)
        return None

    def _fitting(
        self, source: float, to: float, average: float, bundles: list[tuple[float, Bundle]], receiver: str, pinned: Mapping[Bundle, Sequence[str]]
    ) -> int | None:
        """Which of the bundles, largest first: the largest that leaves both on their side of the average; else the smallest that still helps."""
        wanted = min(source - average, average - to)
        helps = None
        for index, (load, bundle) in enumerate(bundles):
            if bundle in pinned and receiver not in pinned[bundle]:
                continue
            if self.settings.least <= load <= wanted:
                return index
            if max(source - load, to + load) <= source - self.settings.gain:
                helps = index
        return helps
