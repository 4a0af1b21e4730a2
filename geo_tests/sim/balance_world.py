"""Worlds in which load balancers are compared: brokers, bundles whose load changes, and what each kind of shedder makes
of it.

Is: virtual minutes of a region: true loads, what the brokers measure of them, moves, crashes, joins; and three shedders
of Apache Pulsar as models, written from their published description. Isn't: sockets, or the rest of a broker.
A world counts: seconds until the first balance, seconds out of balance, moves, bundles that moved more than once, and
moves back to a broker that the bundle had left not long before.
Source: docs/protocols/balancing.md; Pulsar's load balancer documentation and proposals 16, 182, 192.
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from region_node.placement.balance.load_score import BundleTraffic, LoadBook
from region_node.placement.balance.load_shedding import BrokerLoad, Bundle, Shedder, SheddingSettings

TICK_S = 10
EDGE = 0.10
"""Out of balance: a broker that truly carries more than this above the average, and above the floor."""
FLOOR = 0.15
BACK_S = 1800
"""A bundle that comes back to a broker within this has bounced."""


class Balancer(Protocol):
    """One kind of load balancer."""

    def shed(self, world: World) -> None:
        """Called each TICK_S: looks at `world.measured`, and moves."""

    def place(self, world: World, bundle: Bundle) -> str:
        """A live broker for a bundle that nobody has."""


@dataclass
class Outcome:
    balanced_after_s: int = -1
    unbalanced_s: int = 0
    moves: int = 0
    moved_again: int = 0
    bounced: int = 0
    by_bundle: dict[Bundle, int] = field(default_factory=dict)
    seconds: int = 0
    """That the world lasted."""

    @property
    def first_s(self) -> int:
        """Until the first balance; the whole time where there was none."""
        return self.balanced_after_s if self.balanced_after_s >= 0 else self.seconds


class World:
    """`load(bundle, second)`: the share of a broker that serving it truly takes. `messages(bundle)`: messages/s for
    each unit of load.
    """

    def __init__(
        self,
        seed: int,
        brokers: int,
        bundles: int,
        load: Callable[[int, int], float],
        balancer: Balancer,
        start: Callable[[int], int] | None = None,
    ) -> None:
        self.rng = random.Random(seed)
        self.now = 0
        self.brokers = [f"b{index:03}" for index in range(brokers)]
        self.bundles = [("t/n", index) for index in range(bundles)]
        self.balancer, self._load = balancer, load
        self.books = {name: LoadBook() for name in self.brokers}
        size = random.Random(seed + 1)
        self.messages_of = {bundle: math.exp(size.gauss(0, 1)) * 10_000 for bundle in self.bundles}
        spread = start or (lambda index: self.rng.randrange(brokers))
        self.owner: dict[Bundle, str] = {
            bundle: self.brokers[spread(index)] for index, bundle in enumerate(self.bundles)
        }
        self.measured: dict[str, BrokerLoad] = {}
        self.outcome = Outcome()
        self._left: dict[tuple[Bundle, str], int] = {}

    def true_load(self, bundle: Bundle) -> float:
        return self._load(bundle[1], self.now)

    def move(self, bundle: Bundle, to: str) -> None:
        if self.owner[bundle] == to:
            return
        prior = self.books[self.owner[bundle]].leaves(bundle)
        self.books[to].comes(bundle, prior)
        self._left[bundle, self.owner[bundle]] = self.now
        self.outcome.bounced += self.now - self._left.get((bundle, to), -BACK_S) < BACK_S
        self.owner[bundle] = to
        self.outcome.moves += 1
        self.outcome.by_bundle[bundle] = self.outcome.by_bundle.get(bundle, 0) + 1

    def join(self) -> None:
        name = f"b{len(self.books):03}"
        self.brokers.append(name)
        self.books[name] = LoadBook()

    def crash(self, name: str) -> None:
        self.brokers.remove(name)
        book = self.books[name]
        for bundle, owner in self.owner.items():
            if owner == name:
                self.owner[bundle] = to = self.balancer.place(self, bundle)
                self.books[to].comes(bundle, book.leaves(bundle))

    def tick(self) -> None:
        """One report of each broker, with the noise of real measurements, and one cycle of the balancer."""
        self.now += TICK_S
        truth = dict.fromkeys(self.brokers, 0.0)
        traffic: dict[str, dict[Bundle, BundleTraffic]] = {name: {} for name in self.brokers}
        for bundle, name in self.owner.items():
            load = self.true_load(bundle)
            truth[name] += load
            seen = load * self.rng.uniform(0.8, 1.2)
            traffic[name][bundle] = BundleTraffic(
                messages_s=seen * self.messages_of[bundle], bytes_s=seen * 1e8, topics=10
            )
        for name in self.brokers:
            used = min(1.0, sum(self.true_load(b) for b in traffic[name]) * self.rng.uniform(0.9, 1.1))
            self.measured[name] = self.books[name].sample(self.now, used, traffic[name])
        for gone in set(self.measured) - set(self.brokers):
            del self.measured[gone]
        average = sum(truth.values()) / len(truth)
        fullest = max(truth.values())
        if fullest > average + EDGE + 1e-6 and fullest > FLOOR:
            self.outcome.unbalanced_s += TICK_S
        elif self.outcome.balanced_after_s < 0:
            self.outcome.balanced_after_s = self.now
        self.balancer.shed(self)

    def run(self, seconds: int, events: dict[int, Callable[[World], None]] | None = None) -> Outcome:
        while self.now < seconds:
            if events is not None and (event := events.get(self.now)) is not None:
                event(self)
            self.tick()
        self.outcome.seconds = self.now
        self.outcome.moved_again = sum(count > 1 for count in self.outcome.by_bundle.values())
        return self.outcome


# -- ours --------------------------------------------------------------------------------------------------------------


class Ours:
    def __init__(self, seed: int, settings: SheddingSettings | None = None) -> None:
        self.rng = random.Random(seed)
        self.shedder = Shedder(settings or SheddingSettings(), self.rng)

    def shed(self, world: World) -> None:
        for move in self.shedder.plan(world.measured, world.now):
            world.move(move.bundle, move.to)

    def place(self, world: World, bundle: Bundle) -> str:
        from region_node.placement.balance.bundle_placement import choose

        return choose(sorted(world.brokers), {name: carried.load for name, carried in world.measured.items()}, self.rng)


# -- Apache Pulsar's, as models ----------------------------------------------------------------------------------------


class LongTermRates:
    """Placement by the least long-term message rate: the broker whose bundles carry the fewest messages."""

    def __init__(self) -> None:
        self.rates: dict[Bundle, float] = {}

    def observe(self, world: World) -> None:
        for bundle in world.bundles:
            now = world.true_load(bundle) * world.messages_of[bundle]
            self.rates[bundle] = 0.98 * self.rates.get(bundle, now) + 0.02 * now

    def place(self, world: World, bundle: Bundle) -> str:
        totals = dict.fromkeys(sorted(world.brokers), 0.0)
        for other, name in world.owner.items():
            if name in totals:
                totals[name] += self.rates.get(other, 0.0)
        return min(totals, key=lambda name: totals[name])


class Threshold:
    """ThresholdShedder with LeastLongTermMessageRate: usage weighed 0.9 by history, cut at the average and 10 points;
    whole bundles by throughput.
    """

    def __init__(self) -> None:
        self.usage: dict[str, float] = {}
        self.resting: dict[Bundle, int] = {}
        self.rates = LongTermRates()

    def shed(self, world: World) -> None:
        self.rates.observe(world)
        if world.now % 60:
            return
        for name in world.brokers:
            used = min(1.0, sum(world.true_load(b) for b, owner in world.owner.items() if owner == name))
            self.usage[name] = 0.9 * self.usage.get(name, used) + 0.1 * used
        usage = {name: self.usage[name] for name in world.brokers}
        average = sum(usage.values()) / len(usage)
        for name in sorted(usage):
            if usage[name] <= average + 0.10:
                continue
            mine = {b: world.true_load(b) for b, owner in world.owner.items() if owner == name}
            offload = (usage[name] - average - 0.10 + 0.05) * sum(mine.values())
            for bundle in sorted(mine, key=lambda b: -mine[b]):
                if offload <= 0 or len(mine) < 2:
                    break
                if self.resting.get(bundle, -10_000) + 1800 > world.now:
                    continue
                self.resting[bundle] = world.now
                offload -= mine[bundle]
                world.move(bundle, self.rates.place(world, bundle))

    def place(self, world: World, bundle: Bundle) -> str:
        return self.rates.place(world, bundle)


class Average:
    """AvgShedder: pairs the fullest with the emptiest; moves half their difference once it was 15 points eight times,
    or 40 points twice.
    """

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.hits: dict[str, list[int]] = {}

    def shed(self, world: World) -> None:
        if world.now % 60:
            return
        usage = {
            n: min(1.0, sum(world.true_load(b) for b, owner in world.owner.items() if owner == n))
            for n in world.brokers
        }
        order = sorted(usage, key=lambda n: (usage[n], n))
        for low, high in zip(order[: len(order) // 2], reversed(order), strict=False):
            difference = usage[high] - usage[low]
            hits = self.hits.setdefault(high, [0, 0])
            hits[0] = hits[0] + 1 if difference > 0.15 else 0
            hits[1] = hits[1] + 1 if difference > 0.40 else 0
            if hits[0] < 8 and hits[1] < 2:
                continue
            hits[:] = [0, 0]
            mine = sorted((b for b, owner in world.owner.items() if owner == high), key=lambda b: -world.true_load(b))
            half = difference / 2
            for bundle in mine:
                if world.true_load(bundle) <= half:
                    half -= world.true_load(bundle)
                    world.move(bundle, low)

    def place(self, world: World, bundle: Bundle) -> str:
        return self.rng.choice(sorted(world.brokers))


class Transfer:
    """TransferShedder: from the fullest to the emptiest while the standard deviation is above 0.25 of the scale, by
    usage weighed with history.
    """

    def __init__(self) -> None:
        self.usage: dict[str, float] = {}
        self.hits = 0
        self.recent: deque[str] = deque(maxlen=1)

    def shed(self, world: World) -> None:
        if world.now % 60:
            return
        for name in world.brokers:
            used = min(1.0, sum(world.true_load(b) for b, owner in world.owner.items() if owner == name))
            self.usage[name] = 0.25 * self.usage.get(name, used) + 0.75 * used
        loads = {name: self.usage[name] for name in world.brokers}
        average = sum(loads.values()) / len(loads)

        def deviation() -> float:
            return math.sqrt(sum((load - average) ** 2 for load in loads.values()) / len(loads))

        self.hits = self.hits + 1 if deviation() > 0.25 or min(loads.values()) < average / 2 else 0
        if self.hits < 3:
            return
        self.hits = 0
        for _ in range(min(10, len(loads) // 2 + 1)):
            if deviation() <= 0.25 and min(loads.values()) >= average / 2:
                return
            high, low = max(loads, key=lambda n: loads[n]), min(loads, key=lambda n: loads[n])
            wanted = (loads[high] - loads[low]) / 2
            for bundle in sorted(
                (b for b, owner in world.owner.items() if owner == high), key=lambda b: -world.true_load(b)
            ):
                load = world.true_load(bundle)
                if load <= wanted:
                    wanted -= load
                    loads[high] -= load
                    loads[low] += load
                    world.move(bundle, low)

    def place(self, world: World, bundle: Bundle) -> str:
        return min(sorted(world.brokers), key=lambda name: self.usage.get(name, 0.0))


# -- classes of worlds -------------------------------------------------------------------------------------------------


def even(total: float, bundles: int) -> Callable[[int, int], float]:
    return lambda index, now: total / bundles


def skewed(seed: int, total: float, bundles: int) -> Callable[[int, int], float]:
    """Few bundles carry most of it; the heaviest less than a quarter of a broker."""
    rng = random.Random(seed)
    weights = [rng.paretovariate(1.3) for _ in range(bundles)]
    scale = total / sum(weights)
    loads = [min(0.22, weight * scale) for weight in weights]
    return lambda index, now: loads[index]


def bursty(seed: int, total: float, bundles: int) -> Callable[[int, int], float]:
    """As skewed, and each bundle has minutes of three times its load."""
    base = skewed(seed, total * 0.7, bundles)
    rng = random.Random(seed)
    phase = [rng.randrange(3600) for _ in range(bundles)]
    return lambda index, now: base(index, now) * (3.0 if (now + phase[index]) % 3600 < 300 else 1.0)


def moving(seed: int, total: float, bundles: int) -> Callable[[int, int], float]:
    """A hot region of the bundles wanders round them all in two hours."""
    base = skewed(seed, total * 0.6, bundles)

    def load(index: int, now: int) -> float:
        distance = abs((index / bundles - now / 7200) % 1.0)
        near = max(0.0, 1 - min(distance, 1 - distance) * 8)
        return base(index, now) * (1 + 2 * near)

    return load
