"""Delayed delivery: nothing before its time, everything after it, in bounded memory and with one timer."""

from __future__ import annotations

import asyncio
import random
import weakref
from collections.abc import Callable

import pytest

from heliograph.wire.run import Run
from region_node.subscriptions.consumer import SubscriptionType
from region_node.subscriptions.delayed_delivery import DELAYED_MAX, LATEST_MS, SLOT_MS, Delayed, delayed_entries
from region_node.subscriptions.shared_dispatcher import DUE_MAX, SharedDispatcher
from tests.region_node.faces.pulsar.codec import entry
from tests.region_node.subscriptions.dispatch_world import Timers, World

HOUR_MS = 3_600_000


class Woken:
    def __init__(self) -> None:
        self.times = 0

    def wake(self) -> None:
        self.times += 1


@pytest.mark.parametrize("seed", range(80))
def test_nothing_is_early_and_nothing_is_late(seed: int) -> None:
    rng, timers = random.Random(seed), Timers()
    sleeper = Woken()
    waits = Delayed(timers.wheel, sleeper)
    due: dict[tuple[int, int], int] = {}
    for n in range(200):
        for _ in range(rng.randrange(3)):
            at = timers.now_ms + rng.choice([5, 150, 1_000, 61_000, 130_000, HOUR_MS]) + rng.randrange(1000)
            due[rng.randrange(3), n * 10 + rng.randrange(3)] = at
        for position, at in [(p, a) for p, a in due.items() if p[1] // 10 == n]:
            waits.add(position, at, position[1] % 65536)
        before = sleeper.times
        timers.pass_ms(rng.choice([1, 40, 700, 20_000, 90_000]))
        if sleeper.times > before or rng.random() < 0.3:
            while got := waits.due(timers.now_ms, rng.randrange(1, 5)):
                for position, hashed in got:
                    assert due.pop(position) <= timers.now_ms and hashed == position[1] % 65536
        assert all(at + SLOT_MS > timers.now_ms or sleeper.times > before for at in due.values())
        assert waits.count == len(due) == timers.wheel.held
    while due:
        timers.pass_ms(30_000)
        for position, _ in waits.due(timers.now_ms, 1000):
            assert due.pop(position) <= timers.now_ms
        assert all(at > timers.now_ms - SLOT_MS for at in due.values())
    assert timers.wheel.held == 0 and not waits._minutes and not waits._slots


@pytest.mark.parametrize("seed", range(20))
def test_many_of_one_minute_and_a_long_pause_hold_the_loop_for_a_bounded_time(seed: int) -> None:
    rng, timers = random.Random(seed), Timers()
    sleeper = Woken()
    waits = Delayed(timers.wheel, sleeper)
    due: dict[tuple[int, int], int] = {}
    for n in range(150):
        at = due[7, n] = timers.now_ms + 120_000 + rng.choice([rng.randrange(50_000), rng.randrange(HOUR_MS)])
        waits.add((7, n), at)
    if rng.random() < 0.5:  # nobody has room for a long time
        timers.pass_ms(rng.choice([150_000, HOUR_MS // 2, 2 * HOUR_MS]))
    while due:
        slots = sum(len(b) for b in waits._slots.values())
        before = sleeper.times
        got = waits.due(timers.now_ms, 5, deal_max=7)
        assert sum(len(b) for b in waits._slots.values()) <= slots + 3 * 7
        for position, _ in got:
            assert due.pop(position) <= timers.now_ms
        if len(got) < 5 and due:
            while sleeper.times == before:
                timers.pass_ms(SLOT_MS)
                late = timers.now_ms - 2 * SLOT_MS
                assert sleeper.times > before or all(at > late for at in due.values()), (
                    "something is due, and nobody is woken"
                )
    assert timers.wheel.held == 0 and not waits._minutes and not waits._slots


def test_a_clock_that_is_set_to_its_time_makes_nobody_wait_for_the_timer() -> None:
    timers = Timers()
    sleeper = Woken()
    waits = Delayed(timers.wheel, sleeper)
    timers.clock.ahead_s = -3600.0
    waits.add((1, 0), timers.now_ms + HOUR_MS)
    timers.clock.ahead_s = 0.0
    timers.pass_ms(61_000)
    assert sleeper.times and waits.due(timers.now_ms, 10) == [((1, 0), 0)] and timers.waiting == []


@pytest.mark.parametrize("ahead_ms", [30_000, HOUR_MS])
def test_who_was_woken_before_the_clock_was_set_back_is_woken_again(ahead_ms: int) -> None:
    timers = Timers()
    sleeper = Woken()
    waits = Delayed(timers.wheel, sleeper)
    waits.add((1, 0), at := timers.now_ms + ahead_ms)
    timers.pass_ms(ahead_ms + SLOT_MS)  # nobody has room
    timers.clock.ahead_s = -3600.0
    assert waits.due(timers.now_ms, 10) == []
    woken = sleeper.times
    timers.pass_ms(HOUR_MS + SLOT_MS)
    assert sleeper.times > woken and timers.now_ms >= at
    assert waits.due(timers.now_ms, 10) == [((1, 0), 0)]


def test_a_million_delayed_messages_are_small() -> None:
    timers = Timers()
    waits = Delayed(timers.wheel, Woken())
    rng = random.Random(1)
    for n in range(100_000):
        waits.add((7, n), timers.now_ms + 200_000 + rng.randrange(24 * HOUR_MS))
    size = sum(b.buffer_info()[1] * b.itemsize for b in waits._minutes.values())
    assert size == 24 * 100_000 and len(waits._minutes) <= 1_445 and len(timers.waiting) == 1
    waits.add((7, 0), 1 << 62)
    waits.clear()
    assert timers.wheel.held == 0


def test_what_is_delayed() -> None:
    parts = [
        entry(b"x"),
        entry(b"\x98\x01", deliver_at_time=50),
        entry(b"\x98\x01" * 9, deliver_at_time=2000),
        entry(b"\x98\x01"),
        b"\0\0\0\x09junk",
    ]
    for body in (None, b"".join(parts)):
        run = Run(None if body else parts, [len(p) for p in parts], body=body)
        assert delayed_entries(run, 1000) == [(2, 2000)] and delayed_entries(run, 2000) == []
        assert delayed_entries(run, 0) == [(1, 50), (2, 2000)]


def append(w: World, times: list[int], keys: str = "k") -> None:
    parts = [
        entry(b"x", sequence=i, partition_key=keys, **({"deliver_at_time": at} if at else {}))
        for i, at in enumerate(times)
    ]
    w.ledger.append_run(Run(parts, [len(p) for p in parts]), lambda *_: None, None)


def run(test: Callable[[World, Timers], object], delayed_max: int = DELAYED_MAX) -> None:
    async def main() -> None:
        timers = Timers(delayed_max)
        world = World(timers.wheel)
        await test(world, timers)  # type: ignore[misc]
        await world.tasks.close()

    asyncio.run(main())


@pytest.mark.parametrize("kind", [SubscriptionType.SHARED, SubscriptionType.KEY_SHARED])
def test_shared_subscriptions_hold_back_and_others_do_not(kind: SubscriptionType) -> None:
    async def test(w: World, timers: Timers) -> None:
        now = timers.now_ms
        a = w.join(kind, 100)
        append(w, [0, now + 1000, 0, now + 500, now - 9])
        await w.settle()
        assert w.entries(a) == [0, 2, 4] and w.subscription.stats(5, 0)["msgDelayed"] == 2
        w.ledger.cache = False
        timers.pass_ms(600)
        await w.settle()
        assert w.entries(a) == [0, 2, 4, 3] and [r for _, _, r in w.sinks[a].got] == [0] * 4
        w.subscription.ack(a, [(10, 1)])  # before its time
        timers.pass_ms(900)
        await w.settle()
        assert w.entries(a) == [0, 2, 4, 3] and timers.wheel.held == 0
        w.subscription.redeliver(a, None)
        await w.settle()
        assert sorted(w.entries(a)[4:]) == [0, 2, 3, 4]
        w.subscription.remove(a)
        b = w.join(SubscriptionType.EXCLUSIVE, 100)
        append(w, [timers.now_ms + HOUR_MS])
        await w.settle()
        assert w.entries(b)[-1] == 5

    run(test)


def test_who_comes_back_finds_what_waits() -> None:
    count = 7 * DUE_MAX + 1

    async def test(w: World, timers: Timers) -> None:
        a = w.join(permits=count)
        append(w, [timers.now_ms + HOUR_MS] * count)
        await w.settle()
        assert timers.wheel.held == count
        w.subscription.remove(a)
        assert timers.wheel.held == 0
        b = w.join(permits=count)
        timers.pass_ms(HOUR_MS + SLOT_MS)
        await w.settle()
        assert sorted(w.entries(b)) == list(range(count)) and w.entries(a) == []

    run(test)


def test_who_has_gone_is_not_kept_until_its_time() -> None:
    """Also where its entries go out before their time, and where others wait."""
    timers = Timers()
    other = Delayed(timers.wheel, Woken())
    other.add((1, 0), timers.now_ms + HOUR_MS)
    kept: list[weakref.ref[Woken]] = []
    for early in (False, True) * 100:
        sleeper = Woken()
        waits = Delayed(timers.wheel.of("tenant"), sleeper)
        for days in range(3):
            waits.add((1, days), timers.now_ms + days * 24 * HOUR_MS + 5000)
        if early:
            assert len(waits.due(LATEST_MS, 10)) == 3
        timers.wheel.arm(sleeper, timers.now_ms + 200)
        waits.clear()
        timers.pass_ms(300)
        assert sleeper.times == 1, "who waits for something else, too, is woken for that"
        kept.append(weakref.ref(sleeper))
        del waits, sleeper
    assert [one() for one in kept] == [None] * 200
    assert (
        len(timers.wheel._times._heap) < 100 and len(timers.wheel._times._slots) == len(timers.wheel._times._armed) == 1
    )
    other.clear()
    assert timers.waiting == [] and timers.wheel._times._heap == []


def test_more_than_can_be_held_waits_unread() -> None:
    async def test(w: World, timers: Timers) -> None:
        a = w.join(permits=100)
        append(w, [timers.now_ms + 1000] * 25 + [0])
        await w.settle()
        assert timers.wheel.held == 10 and w.entries(a) == []
        timers.pass_ms(1200)
        await w.settle()
        assert sorted(w.entries(a)) == list(range(26))
        assert isinstance(w.subscription.dispatcher, SharedDispatcher) and not w.subscription.dispatcher.redelivering

    run(test, delayed_max=20)


def test_nobody_takes_what_others_need() -> None:
    timers = Timers(delayed_max=1000)

    class Holder:
        def __init__(self, tenant: str) -> None:
            self.share = timers.wheel.of(tenant)
            self.waits = Delayed(self.share, self)

        def wake(self) -> None: ...

        def fill(self) -> int:
            while not self.share.full(self.waits.count):
                self.waits.add((1, self.waits.count), timers.now_ms + 365 * 24 * HOUR_MS)
            return self.waits.count

    greedy = [Holder("greedy") for _ in range(50)]
    assert greedy[0].fill() == 500, "one alone"
    assert greedy[1].fill() == 250, "another beside it"
    for holder in greedy:
        holder.fill()
    assert sum(holder.waits.count for holder in greedy) == 750, "a whole tenant"
    assert Holder("modest").fill() == 125
    assert Holder("late").fill() > 50
    for holder in greedy:
        holder.waits.clear()
    assert greedy[0].share.held == 0 and greedy[0].fill() > 300
