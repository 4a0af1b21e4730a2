"""Budget and fairness: a huge backlog does not starve live topics, nor they it; the budget is kept; weights count. On
virtual time, seeded.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable

import pytest

from replicator.bandwidth.fair_shares import BACKLOG_EVERY, Budget, FairShares

LIVE_BYTES = 1 << 20


class Topic:
    """A link's side: bytes that wait, each with the time they came."""

    def __init__(self, world: World, weight: int = 1) -> None:
        self.world, self.weight, self.sent_bytes, self.worst_s = world, weight, 0, 0.0
        self.waiting: list[tuple[float, int]] = []

    @property
    def live(self) -> bool:
        return sum(size for _, size in self.waiting) <= LIVE_BYTES

    def add(self, size: int) -> None:
        self.waiting.append((self.world.now, size))
        self.pump(1 << 22)

    def on_share(self, upto_bytes: int) -> None:
        self.pump(upto_bytes)

    def pump(self, upto: int) -> None:
        if not self.waiting or not self.world.budget.may(self):
            return
        sent = 0
        while self.waiting and sent < upto:
            since, size = self.waiting[0]
            piece = min(size, 16 << 10)
            self.waiting[:1] = [(since, size - piece)] if size > piece else []
            if size == piece:
                self.worst_s = max(self.worst_s, self.world.now - since)
            sent += piece
            if sent >= self.world.budget.share_bytes * self.weight:
                break
        self.world.budget.spend(sent)
        self.sent_bytes += sent
        if self.waiting:
            self.world.after(0.0, lambda: self.pump(1 << 22))


class World:
    def __init__(self, bytes_per_s: float) -> None:
        self.now, self._count = 0.0, 0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self.budget: Budget[Topic] = Budget(bytes_per_s, lambda: self.now, lambda s: self.after(s, self.budget.run))

    def after(self, seconds: float, act: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._events, (self.now + seconds, self._count, act))

    def run(self, until: float) -> None:
        while self._events and self._events[0][0] <= until:
            self.now, _, act = heapq.heappop(self._events)
            act()
        self.now = until


@pytest.mark.parametrize("seed", range(20))
def test_one_huge_backlog_does_not_starve_live_topics_and_the_budget_is_kept(seed: int) -> None:
    rng = random.Random(seed)
    rate = rng.choice((1e6, 5e6, 20e6))
    world = World(rate)
    huge = Topic(world)
    topics = [Topic(world) for _ in range(rng.randrange(1, 40))]
    huge.add(1 << 30)
    for topic in topics:  # together half of the budget
        size, at = int(rate / 2 / len(topics) / 10), rng.random() * 0.1
        while at < 30:
            world.after(at, lambda topic=topic, size=size: topic.add(size))  # type: ignore[misc]
            at += 0.1
    world.run(30)
    assert abs(world.budget.spent_bytes / 30 / rate - 1) < 0.05, "the budget is kept, and used"
    assert max(topic.worst_s for topic in topics) < 1.0, "a live topic's lag is bounded beside a huge one"
    assert huge.sent_bytes > world.budget.spent_bytes / BACKLOG_EVERY / 4, "and the backlog moves"


def test_backlogs_share_by_weight_and_move_though_live_topics_want_everything() -> None:
    world = World(10e6)
    light, heavy = Topic(world), Topic(world, weight=4)
    light.add(1 << 30)
    heavy.add(1 << 30)
    world.run(10)
    assert 3.5 < heavy.sent_bytes / light.sent_bytes < 4.5
    live = [Topic(world) for _ in range(10)]
    before = light.sent_bytes + heavy.sent_bytes
    for topic in live:
        for n in range(3000):
            world.after(n * 0.01, lambda topic=topic: topic.add(20_000) if topic.live else None)  # type: ignore[misc]
    world.run(40)
    assert light.sent_bytes + heavy.sent_bytes - before > 30 * 10e6 / BACKLOG_EVERY / 2


def test_who_waits_is_served_once_in_its_lane() -> None:
    class Fixed:
        def __init__(self, live: bool) -> None:
            self.live, self.weight = live, 1

        def on_share(self, upto_bytes: int) -> None:
            pass

    shares: FairShares[Fixed] = FairShares()
    live, backlog = [Fixed(True) for _ in range(3)], [Fixed(False) for _ in range(2)]
    for member in (*backlog, *live, *live):
        shares.wait(member)
    assert len(shares) == 5
    shares.forget(live[1])
    assert [shares.next() for _ in range(5)] == [live[0], live[2], backlog[0], backlog[1], None]
