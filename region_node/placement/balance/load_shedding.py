"""Shedder: says which bundles shall move, from which broker to which.

Is: the decision, from what the brokers report; one cycle is one call. Isn't: measuring, or moving.
Invariants:
- a move makes the fuller of its two brokers emptier than the fuller one was before; so no pair of moves undoes itself
  at constant load;
- a bundle that moved rests for `cool_down_s`;
- in any quarter of an hour no more moves start than `moves_per_minute` allows on the average; in any minute no more
  than that, or than one for each two brokers where those are more: a large region that has lost its balance is not
  slower to find it than a small one, and one that never finds it does not move for ever;
- a broker is relieved, or filled, when its distance from the average has lasted: it is summed up over time until it
  reaches a price. So a severe overload is met within half a minute, a slight one within minutes, and a burst that ends
  by itself mostly not at all; one whose load falls is left alone, unless it is far above;
- the price doubles with the moves of late, so that a load which keeps changing is not chased; a new leader begins with
  the plain price;
- a broker is relieved down to half the threshold above the average, or not at all, unless it has been too full for very
  long: what costs reconnects and leaves it overloaded all the same is not done for a burst.
Why so: brokers with the same number of bundles are not equally loaded, so their number is never looked at; the receiver
is drawn among all below the average, weighed by their room, since whoever sends all to the emptiest one makes the next
overloaded broker.
Source: docs/protocols/balancing.md.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from heliograph.runtime.clock import Rng
from region_node.placement.balance.settings import SheddingSettings

Bundle = tuple[str, int]
_WINDOW_S = 900
_NEARLY = 0.75
"""Shares of the threshold above the average from which on a broker's overload counts."""
_FILLED = 10
"""So many times as long as an overload lasts a broker's emptiness, by the same measure."""
_PARTLY = 100
"""So many times the price is paid for a relief that leaves the broker overloaded."""
_CALM_S = 2400.0
"""Half-life of the moves that raise the price."""
_DOUBLED_MAX = 4.0
"""So many times the price doubles at the most."""
_NEVER_WELL = 0.5
"""Shares of the price for who has been too full ever since it was first seen: that is no burst."""
_DOWN_TO = 0.5
"""Shares of the threshold above the average: a broker is relieved until it is below."""
_AIM, _FIRST_AIM = _DOWN_TO, 0.0
"""The same, of what a single bundle should bring it to; the second, where the broker never was well: what comes on top
later finds room.
"""
_SEVERE = 4.0
"""Thresholds above the average from which on a broker is relieved although its load falls: it falls for long then,
being smoothed.
"""
_FORGETS_S = 300.0
"""Half-life of an overload that is over."""
_CYCLE_S = 60.0
"""The longest time between two looks that counts: nobody knows what was meanwhile."""


class BrokerLoad(NamedTuple):
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


@dataclass(slots=True)
class _Seen:
    """A broker, as of the last look: when, its load, whether it has been falling, and what its distances from the
    average sum up to.
    """

    at: float
    load: float
    falling: bool = False
    over: float = 0.0
    under: float = 0.0
    moves: float = 0.0
    """Away from it, of late, once it had not been too full."""
    was_well: bool = False


class _Plan:
    """The loads of the brokers as they will be, and the bundles that may still move, largest first."""

    def __init__(
        self,
        brokers: Mapping[str, BrokerLoad],
        resting: Mapping[Bundle, float],
        pinned: Mapping[Bundle, Sequence[str]],
        full: Collection[str],
    ) -> None:
        self.loads = {name: carried.load for name, carried in sorted(brokers.items())}
        self.average = sum(self.loads.values()) / len(self.loads)
        self.pinned, self.full = pinned, full
        self.left = {
            name: sorted(
                ((load, bundle) for bundle, load in carried.bundles if bundle not in resting and load > 0), reverse=True
            )
            for name, carried in brokers.items()
        }

    def by_load(self) -> list[str]:
        return sorted(self.loads, key=lambda name: (-self.loads[name], name))

    def take(self, source: str, to: str, place: int) -> Move:
        load, bundle = self.left[source].pop(place)
        self.loads[source] -= load
        self.loads[to] += load
        return Move(bundle, source, to, load)

    def give_back(self, moves: Sequence[Move]) -> None:
        for move in moves:
            self.loads[move.source] += move.load
            self.loads[move.to] -= move.load
            self.left[move.source].append((move.load, move.bundle))
            self.left[move.source].sort(reverse=True)


class Shedder:
    """Remembers what moved, and how full brokers have been for how long; times are monotonic seconds."""

    def __init__(self, settings: SheddingSettings, rng: Rng) -> None:
        self.settings, self._rng = settings, rng
        self._moved: dict[Bundle, float] = {}
        self._times: deque[float] = deque()
        self._seen: dict[str, _Seen] = {}

    def plan(
        self,
        brokers: Mapping[str, BrokerLoad],
        now: float,
        pinned: Mapping[Bundle, Sequence[str]] | None = None,
        full: Collection[str] = (),
    ) -> list[Move]:
        """The moves to begin now. pinned: the brokers that may serve a bundle, for those that not all may. full: these
        get none, whatever their load.
        """
        self._forget(now)
        if len(brokers) < 2:
            return []
        plan = _Plan(brokers, self._moved, pinned or {}, full)
        for name, load in plan.loads.items():
            self._look(name, load, plan.average, now)
        budget, price = self._budget(len(brokers), now), self._price(brokers)
        if budget <= 0:
            return []
        moves: list[Move] = []
        for source in [name for name in plan.by_load() if self._too_full(name, plan, price)]:
            moves += self._relieve(source, plan, price, budget - len(moves))
        for to in [name for name in reversed(plan.by_load()) if self._too_empty(name, plan, price)]:
            moves += self._fill(to, plan, budget - len(moves))
        for move in moves:
            self._moved[move.bundle] = now
            self._times.append(now)
            self._seen[move.source].moves += self._seen[move.source].was_well
        return moves

    def undone(self, move: Move) -> None:
        """It did not come about: the bundle need not rest, and nobody waits the longer for it."""
        self._moved.pop(move.bundle, None)
        if (seen := self._seen.get(move.source)) is not None:
            seen.moves = max(0.0, seen.moves - 1)

    # -- when ---------------------------------------------------------------------------------------------------------

    def _budget(self, brokers: int, now: float) -> int:
        limit = self.settings.moves_per_minute
        lately = sum(1 for at in self._times if at > now - 60)
        return min(max(limit, brokers // 2) - lately, limit * _WINDOW_S // 60 - len(self._times))

    def _forget(self, now: float) -> None:
        while self._times and self._times[0] <= now - _WINDOW_S:
            self._times.popleft()
        for bundle in [bundle for bundle, at in self._moved.items() if at <= now - self.settings.cool_down_s]:
            del self._moved[bundle]
        for name in [name for name, seen in self._seen.items() if seen.at <= now - _WINDOW_S]:
            del self._seen[name]

    def _look(self, name: str, load: float, average: float, now: float) -> None:
        seen = self._seen.get(name)
        if seen is None:
            self._seen[name] = _Seen(now, load)
            return
        passed = min(_CYCLE_S, now - seen.at)
        if load != seen.load:
            seen.falling = load < seen.load
        seen.moves *= 0.5 ** ((now - seen.at) / _CALM_S)
        seen.at, seen.load = now, load
        seen.was_well |= load <= average + self.settings.threshold
        above, keep = (load - average) / self.settings.threshold, 0.5 ** (passed / _FORGETS_S)
        seen.over = seen.over + above * passed if above > _NEARLY and load > self.settings.floor else seen.over * keep
        seen.under = seen.under - above * passed if above < -1 else seen.under * keep

    def _price(self, brokers: Collection[str]) -> float:
        """What the distances have to sum up to. The more brokers, the more moves are usual; from 30 on by the root:
        there is always a burst somewhere.
        """
        usual = min(0.7 * len(brokers), 3.84 * len(brokers) ** 0.5)
        lately = sum(self._seen[name].moves for name in brokers)
        return float(self.settings.patience_s * 2 ** min(lately / usual, _DOUBLED_MAX))

    def _too_full(self, name: str, plan: _Plan, price: float) -> bool:
        seen, load = self._seen[name], plan.loads[name]
        full = load > plan.average + _NEARLY * self.settings.threshold and load > self.settings.floor
        ends = seen.falling and load < plan.average + _SEVERE * self.settings.threshold
        return full and not ends and seen.over >= (price if seen.was_well else _NEVER_WELL * price)

    def _too_empty(self, name: str, plan: _Plan, price: float) -> bool:
        empty = plan.loads[name] < plan.average - self.settings.threshold and name not in plan.full
        return empty and max(plan.loads.values()) > self.settings.floor and self._seen[name].under >= _FILLED * price

    # -- what, and where to -------------------------------------------------------------------------------------------

    def _relieve(self, source: str, plan: _Plan, price: float, budget: int) -> list[Move]:
        """Down to half the threshold above the average, by few moves."""
        moves: list[Move] = []
        wanted = plan.average + self.settings.threshold * _DOWN_TO
        aim = plan.average + self.settings.threshold * (_AIM if self._seen[source].was_well else _FIRST_AIM)
        while len(moves) < budget and plan.loads[source] > wanted:
            receivers = [name for name, load in plan.loads.items() if load < plan.average and name not in plan.full]
            if (move := self._one(source, receivers, plan, plan.loads[source] - aim)) is None:
                break
            moves.append(move)
        partly = plan.loads[source] > plan.average + self.settings.threshold and len(moves) < budget
        if moves and partly and self._seen[source].over < _PARTLY * price:
            plan.give_back(moves)
            return []
        self._seen[source].over = 0.0
        return moves

    def _fill(self, to: str, plan: _Plan, budget: int) -> list[Move]:
        """Up to half the threshold below the average, from the fullest ones."""
        moves: list[Move] = []
        while len(moves) < budget and plan.loads[to] < plan.average - self.settings.threshold / 2:
            sources = [name for name in plan.by_load() if plan.loads[name] > max(plan.average, self.settings.floor)]
            found = (self._one(source, [to], plan, plan.loads[source]) for source in sources)
            if (move := next((move for move in found if move is not None), None)) is None:
                break
            moves.append(move)
        self._seen[to].under = 0.0
        return moves

    def _one(self, source: str, receivers: list[str], plan: _Plan, wanted: float) -> Move | None:
        """To one of them, by chance, the more room the likelier. wanted: the load that would be enough."""
        most = plan.average + self.settings.threshold / 4
        while receivers:
            to = receivers.pop(drawn(self._rng, [most - plan.loads[name] for name in receivers]))
            if (found := self._fitting(source, to, plan, wanted)) is not None:
                return plan.take(source, to, found)
        return None

    def _fitting(self, source: str, to: str, plan: _Plan, wanted: float) -> int | None:
        """Which of the source's bundles: the smallest that is enough, else the largest, of those that leave the source
        above the average, and the receiver at most a quarter of the threshold above; else the smallest that still
        helps.
        """
        fits = min(plan.average + self.settings.threshold / 4 - plan.loads[to], plan.loads[source] - plan.average)
        found = helps = None
        for index, (load, bundle) in enumerate(plan.left[source]):
            if bundle in plan.pinned and to not in plan.pinned[bundle]:
                continue
            if self.settings.least <= load <= fits:
                if found is None or load >= wanted:
                    found = index
                if load < wanted:
                    break
            if max(plan.loads[source] - load, plan.loads[to] + load) <= plan.loads[source] - self.settings.gain:
                helps = index
        return found if found is not None else helps
