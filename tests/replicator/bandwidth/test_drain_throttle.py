"""Drains of backlog give way to who publishes a little on the same broker, by what an append takes beside them and
alone; and never below a floor.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from geo_tests.sim.simulation import Simulation
from replicator.bandwidth.drain_throttle import DrainThrottle
from replicator.bandwidth.fair_shares import Budget
from storage.managed_ledger.append_counts import Appends
from tests.replicator.link_instance import Instance

_MB = 1_000_000
_TURN = 128 << 10
_FLOOR = 8 * _MB


class Drain:
    """A link with a backlog that never ends."""

    live, weight = False, 1

    def __init__(self, broker: Broker, name: str) -> None:
        self.broker, self.name = broker, name

    def on_share(self, upto_bytes: int) -> None:
        self.broker.send(self)


class Going:
    """What is told of a link."""

    unread_bytes = published_bytes = 0


class Broker:
    """On virtual time. dearer: how much longer an append takes for each MB/s of the drains; publishes: a second, each
    of so many bytes.

    hit: how many of them meet the drain at all.
    """

    def __init__(
        self,
        seed: int,
        *,
        dearer: float = 0.0,
        hit: float = 1.0,
        publishes: float = 50,
        size_bytes: int = 100,
        floor: float = _FLOOR,
        disk_mb_s: float = 100,
    ) -> None:
        self.rng, self.now, self.appends, self.hit = random.Random(seed), 0.0, Appends(), hit
        self.dearer, self.publishes, self.size_bytes, self.disk_mb_s = dearer, publishes, size_bytes, disk_mb_s
        self.yielding: DrainThrottle[Drain] = DrainThrottle(self.appends, floor, lambda: self.now, self.wake_after)
        self.sent: Counter[str] = Counter()
        self.took: list[float] = []
        self._waking: list[float] = []
        self._ready: dict[Drain, None] = {}
        self._rate = 0.0

    def wake_after(self, seconds: float) -> None:
        self._waking.append(self.now + seconds)

    def send(self, drain: Drain) -> None:
        if self.yielding.may(drain):
            self.yielding.spend(_TURN)
            self.sent[drain.name] += _TURN
            self._ready[drain] = None

    def run(self, seconds: float, drains: list[Drain]) -> float:
        """MB/s of all drains together. Every ms: as much as the disk takes, what appends there are, and what is due."""
        self._ready.update(dict.fromkeys(drains))
        began, until, free_at = sum(self.sent.values()), self.now + seconds, self.now
        while self.now < until:
            self.now += 0.001
            before = sum(self.sent.values())
            while self._ready and free_at <= self.now:
                drain = next(iter(self._ready))
                del self._ready[drain]
                self.send(drain)
                free_at += _TURN / (self.disk_mb_s * _MB)
            due, self._waking = (
                [at for at in self._waking if at <= self.now],
                [at for at in self._waking if at > self.now],
            )
            for _ in due:
                self.yielding.run()
            free_at = max(free_at, self.now - 0.01)
            self._rate += 0.02 * ((sum(self.sent.values()) - before) / 0.001 / _MB - self._rate)
            if self.rng.random() < self.publishes * 0.001:
                took = (
                    0.0015
                    * (1 + self.dearer * self._rate * (self.rng.random() < self.hit))
                    * self.rng.uniform(0.8, 1.3)
                )
                self.took.append(took)
                self.appends.of("persistent://t/n/x").confirmed(1, self.size_bytes, 2, took)
        return (sum(self.sent.values()) - began) / seconds / _MB


@pytest.mark.parametrize("seed", range(6))
def test_a_drain_is_slowed_until_appends_beside_it_take_little_longer(seed: int) -> None:
    broker = Broker(seed, dearer=0.03)  # at full speed four times as long, at 10 MB/s a third longer
    drain = Drain(broker, "a")
    broker.run(6, [drain])
    broker.took.clear()
    rate = broker.run(30, [])
    assert _FLOOR * 0.7 / _MB < rate < 25
    assert sorted(broker.took)[len(broker.took) // 2] < 1.5 * 0.0016


@pytest.mark.parametrize("seed", range(6))
def test_a_drain_that_only_one_append_in_four_meets_is_slowed_as_well(seed: int) -> None:
    broker = Broker(seed, dearer=0.1, hit=0.25, publishes=150)  # the median never sees it
    broker.run(8, [Drain(broker, "a")])
    broker.took.clear()
    assert _FLOOR * 0.7 / _MB < broker.run(30, []) < 25
    assert sorted(broker.took)[len(broker.took) * 9 // 10] < 2.2 * 0.0015 * 1.3


@pytest.mark.parametrize("seed", range(3))
def test_a_drain_that_begins_beside_a_publisher_is_at_no_time_as_fast_as_it_can_be(seed: int) -> None:
    broker = Broker(seed, dearer=0.1, publishes=100)
    for _ in range(3):
        broker.run(1, [])
        broker.yielding.look_at([], 1.0)
    assert broker.run(0.2, [Drain(broker, "a")]) == 0, "what an append takes alone is measured first"
    assert broker.run(1, []) < 25 and broker.yielding.bytes_per_s is not None
    quiet = Broker(seed, dearer=0.1, publishes=0.0)
    quiet.yielding.look_at([], 1.0)
    assert quiet.run(1.03, [Drain(quiet, "a")]) > 90
    quiet.publishes = 200
    quiet.run(0.08, [])
    assert quiet.run(0.1, []) == 0, "who begins is noticed at once"


@pytest.mark.parametrize("seed", range(3))
def test_a_drain_that_costs_nobody_anything_becomes_fast(seed: int) -> None:
    broker = Broker(seed, dearer=0.0005)
    broker.run(10, [Drain(broker, "a")])
    assert broker.run(10, []) > 60


def test_where_nobody_publishes_or_much_is_published_nothing_is_held_back() -> None:
    for publishes, size_bytes in ((0.0, 100), (3.0, 100), (400.0, 64_000)):
        broker = Broker(1, dearer=0.1, publishes=publishes, size_bytes=size_bytes)
        assert broker.run(10, [Drain(broker, "a")]) > 90, publishes


def test_never_below_the_floor_nor_so_slow_that_it_would_take_for_ever() -> None:
    broker = Broker(2, dearer=5.0)
    drain = Drain(broker, "a")
    broker.run(10, [drain])
    assert broker.run(10, []) == pytest.approx(_FLOOR / _MB * 0.9, rel=0.15)
    broker.yielding.backlog_bytes = 24_000 * _MB  # in ten minutes: 40 MB/s
    broker.run(3, [])
    assert broker.run(10, []) > 30


def test_never_so_slow_that_what_is_published_meanwhile_makes_it_longer() -> None:
    """To several regions: each byte that is published is several to send."""
    broker = Broker(2, dearer=5.0)
    broker.run(10, [Drain(broker, "a")])
    links = [Going(), Going(), Going()]
    for second in range(4):
        for link in links:
            link.unread_bytes, link.published_bytes = 5 * _MB, second * 7 * _MB
        links[2].unread_bytes = 0
        broker.yielding.look_at(links, 1.0)
    assert broker.yielding.backlog_bytes == 10 * _MB and broker.yielding.grows_bytes_per_s == 14 * _MB
    broker.run(3, [])
    assert broker.run(10, []) > 14.5


def test_links_tell_what_they_have_left_and_what_comes_while_they_are_open() -> None:
    with Simulation(1) as sim:

        async def main() -> None:
            instance = Instance(sim, ("us", "eu"))
            await instance.load()
            us = instance.regions["us"]
            links = us.brokers[0].links
            us.brokers[0].machine.run(
                links.obey,
                us.log,
                {"replicatorDispatchRate": {"dispatchThrottlingRateInMsg": -1, "dispatchThrottlingRateInByte": 1000}},
            )
            for _ in range(20):
                us.publish(1, body_bytes=200_000)
            for _ in range(4):
                await asyncio.sleep(1)
                us.publish(1, body_bytes=200_000)
            assert links.yielding.backlog_bytes > 2 * _MB and 100_000 < links.yielding.grows_bytes_per_s < 300_000
            instance.sim.network.cut("us", "eu")
            instance.sim.network.reset("us", "eu")
            await asyncio.sleep(10)
            us.publish(1, body_bytes=200_000)
            await asyncio.sleep(2)
            assert links.yielding.backlog_bytes == links.yielding.grows_bytes_per_s == 0, "it cannot drain"

        sim.run(main(), limit_s=60)


def test_who_waits_behind_one_that_fails_gets_its_turn() -> None:
    class Member:
        live, weight = False, 1

        def __init__(self, on_share: Callable[[int], None]) -> None:
            self.on_share = on_share

    def fails(_: int) -> None:
        raise RuntimeError("a fault of ours")

    now, waking, sent = [0.0], list[float](), list[int]()
    budget: Budget[Any] = Budget(1000.0, lambda: now[0], waking.append)
    budget.spend(1000)
    for on_share in (fails, sent.append):
        assert not budget.may(Member(on_share))
    now[0] = 5.0
    with pytest.raises(RuntimeError):
        budget.run()
    assert len(waking) == 2
    budget.run()
    assert sent


def test_a_floor_of_0_switches_it_off() -> None:
    broker = Broker(3, dearer=5.0, floor=0)
    assert broker.run(5, [Drain(broker, "a")]) > 95


def test_drains_take_turns_while_they_are_slowed() -> None:
    broker = Broker(4, dearer=1.0)
    broker.run(20, [Drain(broker, name) for name in "abcde"])
    assert min(broker.sent.values()) > 0.7 * max(broker.sent.values())


def test_what_was_learned_is_forgotten_after_a_minute_without_drains() -> None:
    broker = Broker(5, dearer=1.0)
    drain = Drain(broker, "a")
    broker.run(10, [drain])
    assert broker.yielding.bytes_per_s is None or broker.yielding.bytes_per_s < 10 * _MB
    broker.now += 100
    broker.dearer = 0.0
    broker.run(8, [])
    assert broker.run(5, []) > 60
