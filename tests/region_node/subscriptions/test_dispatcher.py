"""Dispatchers over a fake ledger: permits, order, redelivery, and what must never happen, under any order of events."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from heliograph.model.errors import BookieUnavailable, ConsumerBusy, EntriesLost, NotAllowed
from heliograph.model.positions import Position
from heliograph.wire.run import FLAG_HIDDEN, Run
from region_node.runtime.ready_queue import BoundedReads
from region_node.subscriptions.consumer import Consumer, SubscriptionType
from region_node.subscriptions.key_shared_dispatcher import KeySharedDispatcher
from region_node.subscriptions.rate_limits import Bucket, DispatchThrottle
from region_node.subscriptions.shared_dispatcher import FEW_CONSUMERS, SharedDispatcher
from region_node.subscriptions.subscription import Rules
from tests.region_node.subscriptions.dispatch_world import Sink, Timers, World, run
from tests.region_node.topics.fake_storage import FakeClock


class Turns:
    """Lets those who drain a backlog go when the test says so."""

    def __init__(self) -> None:
        self.waiting: list[Any] = []
        self.spent: list[int] = []

    def count_also(self, left: Callable[[], int]) -> None:
        self.left = left

    def may(self, member: Any) -> bool:
        self.waiting.append(member)
        return False

    def spend(self, size_bytes: int) -> None:
        self.spent.append(size_bytes)


def test_reads_that_wait_behind_one_that_fails_are_begun_at_once() -> None:
    async def main() -> None:
        world, begun = World(), list[int]()
        reads = BoundedReads(world.tasks, 2)

        async def fails(number: int) -> None:
            begun.append(number)
            await asyncio.sleep(0)
            raise RuntimeError("a fault of ours")

        for number in range(7):
            reads.start(partial(fails, number))
        for _ in range(30):
            await world.settle()
        assert begun == list(range(7)) and len(world.tasks) == 0 and reads._free == 2
        await world.tasks.close()

    asyncio.run(main())


def test_who_catches_up_gives_way_and_who_is_at_the_tail_or_looks_at_one_place_does_not() -> None:
    async def main() -> None:
        world, turns = World(), Turns()
        reads = BoundedReads(world.tasks, 2, turns)
        world.subscription._reads = reads
        size, entries = 200_000, 20
        world.ledger.append_run(Run([bytes(size)] * entries, [size] * entries), lambda *_: None, None)
        world.ledger.cache = False
        consumer = world.join(SubscriptionType.EXCLUSIVE)
        while not turns.waiting:
            world.subscription.flow(consumer, 1)
            await world.settle()
            assert len(world.entries(consumer)) < 10
        before = len(world.entries(consumer))
        assert before >= 5, "a mebibyte goes at once"
        world.subscription.flow(consumer, 100)
        await world.settle()
        assert len(world.entries(consumer)) == before and len(turns.waiting) == 1, "and no more without a turn"
        assert turns.left == reads.take_left
        left = reads.take_left()
        assert (entries - before) * size <= left == reads.take_left(), "as long as it waits"
        read, answers = world.ledger.read, asyncio.Event()

        async def slowly(*arguments: Any) -> Any:
            await answers.wait()
            return await read(*arguments)

        world.ledger.read = slowly  # type: ignore[method-assign]
        turns.waiting.pop().on_share(1)
        await world.settle()
        assert [reads.take_left() for _ in range(3)] == [left] * 3, "and as long as its bookies take"
        answers.set()
        await world.settle()
        while turns.waiting:
            turns.waiting.pop().on_share(1)
            await world.settle()
        assert world.entries(consumer) == list(range(entries)) and turns.spent
        assert reads.take_left() and not reads.take_left(), "it has caught up"
        world.ledger.cache = True
        spent = len(turns.spent)
        world.append(3)
        await world.settle()
        assert len(world.entries(consumer)) == entries + 3 and len(turns.spent) == spent
        world.ledger.cache = False
        world.append(1)
        await world.settle()
        assert len(world.entries(consumer)) == entries + 4 and not turns.waiting, "it was at the tail meanwhile"
        await world.tasks.close()

    asyncio.run(main())


@pytest.mark.parametrize("commit", [True, False])
def test_a_transaction_acknowledges_nothing_that_was_no_part_of_the_subscription(commit: bool) -> None:
    async def test(w: World) -> None:
        w.append(10)
        await w.settle()
        ledger = w.ledger.ledger
        w.cursor.reset((ledger, 3))
        transactions = w.subscription.transactions
        transactions.ack((0, 2), [(ledger, 9)], [])
        transactions.ack_cumulative((0, 1), (ledger, 7))
        w.ledger.unread = True  # of what lies before every cursor, nothing is asked for
        w.subscription.begin_earlier((ledger, 0), (ledger, 3), [(ledger, 5, 5)])
        consumer = w.join(permits=100)
        await w.settle()
        assert w.entries(consumer) == [1, 2, 3, 5, 8], "what it acknowledged is not given out while it may still commit"
        transactions.end((0, 1), commit=commit, low=0)
        await w.settle()
        assert [n for n in range(10) if w.cursor.is_acked((ledger, n))] == ([0, 4, 6, 7] if commit else [0])
        assert sorted(w.entries(consumer)) == ([1, 2, 3, 5, 8] if commit else [1, 2, 3, 4, 5, 6, 7, 8])

    run(test)


def test_exclusive_is_alone() -> None:
    async def test(w: World) -> None:
        w.join(SubscriptionType.EXCLUSIVE)
        for kind in SubscriptionType:
            with pytest.raises((ConsumerBusy, NotAllowed)):
                w.join(kind)

    run(test)


class SomeLeadership:
    """Of a subscription that is active in one region at a time."""

    def __init__(self) -> None:
        self.open = False

    def waiting(self) -> str:
        return "" if self.open else "it is active in region eu"


def test_consumers_that_leave_at_once_are_news_to_others_once_and_to_each_other_never() -> None:
    async def test(w: World) -> None:
        leaving = [w.join(SubscriptionType.FAILOVER) for _ in range(100)]
        staying = [w.join(SubscriptionType.FAILOVER, name=f"d{number}") for number in range(100)]
        for sink in w.sinks.values():
            sink.active.clear()
        w.subscription.remove(*leaving)
        assert [w.sinks[consumer].active for consumer in staying] == [[True], *[[False]] * 99]
        w.subscription.disconnect()
        assert sum(len(sink.active) for sink in w.sinks.values()) == 100 and w.subscription.dispatcher is None
        assert [w.sinks[consumer].closed for consumer in (*leaving, *staying)] == [0] * 100 + [1] * 100

    run(test)


def test_what_consumers_held_that_leave_at_once_goes_out_again() -> None:
    async def test(w: World) -> None:
        leaving, stays = [w.join(permits=2) for _ in range(20)], w.join()
        w.append(40)
        await w.settle()
        w.subscription.remove(*leaving)
        w.subscription.flow(stays, 100)
        await w.settle()
        assert w.entries(stays) == list(range(40)) and w.subscription.held == 40
        assert (w.subscription.messages_out, w.subscription.messages_redelivered) == (40, 40)
        w.subscription.disconnect()
        assert (w.subscription.messages_out, w.subscription.messages_redelivered) == (80, 80) and not stays.pending

    run(test)


def test_consumers_hear_whether_it_is_their_regions_turn() -> None:
    async def test(w: World) -> None:
        leadership = SomeLeadership()
        w.subscription.obey(Rules(leadership=leadership))
        first, second = (w.join(SubscriptionType.FAILOVER, permits=10) for _ in range(2))
        w.append(3)
        await w.settle()
        assert [w.sinks[c].active[-1] for c in (first, second)] == [False, False] and not w.entries(first), (
            "it is another region's turn"
        )
        leadership.open = True
        w.subscription.obey(Rules(leadership=leadership))
        w.subscription.tell_leadership()
        await w.settle()
        assert w.sinks[first].active == [False, True] and w.entries(first) == [0, 1, 2], "told once, when it comes"
        assert not any(w.sinks[second].active)
        leadership.open = False
        w.subscription.tell_leadership()
        assert not w.sinks[first].active[-1], "and when it is gone"
        w.subscription.remove(first)
        assert not w.sinks[second].active[-1], "who takes its place is not active either"
        w.subscription.obey(Rules())
        assert w.sinks[second].active[-1], "in every region again"

    run(test)


def test_failover_moves_to_the_next_and_starts_behind_the_mark_delete_position() -> None:
    async def test(w: World) -> None:
        w.append(10)
        b = w.join(SubscriptionType.FAILOVER, 5, name="b")
        await w.settle()
        a = w.join(SubscriptionType.FAILOVER, 100, name="a")
        await w.settle()
        assert w.entries(b) == [0, 1, 2, 3, 4] and w.entries(a) == list(range(10))
        assert w.sinks[b].active == [True, False] and w.sinks[a].active == [True]
        low = w.join(SubscriptionType.FAILOVER, 100, name="0", priority=5)
        w.subscription.ack_cumulative(a, (10, 6))
        w.subscription.remove(a)
        w.subscription.flow(b, 100)
        await w.settle()
        assert w.entries(b) == [0, 1, 2, 3, 4, 7, 8, 9] and w.sinks[low].active == [False, False]

    run(test)


def test_a_read_that_a_rewind_overtook_is_dropped() -> None:
    async def test(w: World) -> None:
        w.append(20)
        consumer = w.join(SubscriptionType.EXCLUSIVE, 5)
        await w.settle()
        w.ledger.cache, w.ledger.read_turns = False, 10
        w.subscription.flow(consumer, 100)
        for _ in range(4):
            await asyncio.sleep(0)
        w.subscription.redeliver(consumer, None)
        await w.settle()
        assert w.entries(consumer) == [*range(5), *range(20)]

    run(test)


def test_shared_goes_round_by_entry() -> None:
    async def test(w: World) -> None:
        consumers = [w.join(permits=100) for _ in range(3)]
        w.append(30)
        await w.settle()
        assert [len(w.entries(c)) for c in consumers] == [10, 10, 10]
        assert sorted(e for c in consumers for e in w.entries(c)) == list(range(30))

    run(test)


def test_shared_skips_who_has_no_permits_and_serves_the_first_level_first() -> None:
    async def test(w: World) -> None:
        first, second = w.join(permits=3), w.join(permits=100, priority=1)
        w.join(permits=0)
        w.append(10)
        await w.settle()
        assert len(w.entries(first)) == 3 and len(w.entries(second)) == 7

    run(test)


def test_redelivery_counts_and_a_consumer_that_goes() -> None:
    async def test(w: World) -> None:
        a = w.join(permits=100)
        w.append(6)
        await w.settle()
        w.subscription.redeliver(a, [(10, 2), (10, 3), (10, 99)])
        await w.settle()
        assert w.sinks[a].got[6:] == [((10, 2), 1, 1), ((10, 3), 1, 1)]
        w.subscription.ack(a, [(10, 0), (10, 2)])
        b = w.join(permits=100)
        w.subscription.remove(a)
        await w.settle()
        assert w.sinks[b].got == [((10, 1), 1, 1), ((10, 3), 1, 2), ((10, 4), 1, 1), ((10, 5), 1, 1)]
        assert b.unacked == 4

    run(test)


def test_limits_on_what_is_unacknowledged() -> None:
    async def test(w: World) -> None:
        w.subscription.obey(Rules(unacked_consumer_max=5, unacked_max=8))
        w.ledger.hold = True
        a = w.join(permits=100)
        for _ in range(12):
            w.append(1)
        for _ in range(12):
            w.ledger.release(1)
            await w.settle()
        assert len(w.entries(a)) == 5 and a.blocked
        b = w.join(permits=100)
        w.subscription.wake()
        await w.settle()
        assert len(w.entries(b)) == 3
        w.subscription.ack(a, [(10, e) for e in w.entries(a)])
        await w.settle()
        assert len(w.entries(a)) + len(w.entries(b)) == 12

    run(test)


class RunningClock(FakeClock):
    """A fifth of a second goes by at each look."""

    def monotonic(self) -> float:
        self.now += 0.2
        return self.now


@pytest.mark.parametrize("kind", [SubscriptionType.SHARED, SubscriptionType.KEY_SHARED, SubscriptionType.EXCLUSIVE])
def test_tokens_that_come_within_a_pass_are_for_the_next_one(kind: SubscriptionType) -> None:
    async def test(w: World) -> None:
        clock = RunningClock()
        throttle = DispatchThrottle([Bucket(5, 0, clock.now)], clock, Timers().wheel)
        w.subscription.obey(Rules(throttle=throttle))
        w.append(100)
        await w.settle()
        consumers = [w.join(kind, permits=100) for _ in range(1 if kind is SubscriptionType.EXCLUSIVE else 3)]
        dispatcher, cached, looks = w.subscription.dispatcher, w.ledger.cached, 0

        def counted(*arguments: int) -> Any:
            nonlocal looks
            looks += 1
            return cached(*arguments)

        w.ledger.cached = counted  # type: ignore[method-assign]
        assert dispatcher is not None
        dispatcher.run_ready()
        assert sum(len(w.entries(consumer)) for consumer in consumers) == 5 and looks == 1

    run(test)


def test_who_holds_too_much_goes_on_at_half_of_it() -> None:
    async def test(w: World) -> None:
        w.subscription.obey(Rules(unacked_consumer_max=6))
        w.ledger.hold = True
        a = w.join(permits=100)
        for _ in range(8):
            w.append(1)
        for _ in range(8):
            w.ledger.release(1)
            await w.settle()
        assert (
            w.entries(a) == list(range(6))
            and a.blocked
            and w.subscription.stats(0, 0)["consumers"][0]["blockedConsumerOnUnackedMsgs"]
        )
        w.subscription.ack(a, [(10, 0), (10, 1)])
        await w.settle()
        assert len(w.entries(a)) == 6 and a.blocked
        w.subscription.ack(a, [(10, 2)])
        await w.settle()
        assert len(w.entries(a)) == 8 and not a.blocked
        w.subscription.obey(Rules(unacked_consumer_max=6, unacked_max=4))
        w.append(1)
        w.ledger.release()
        await w.settle()
        assert len(w.entries(a)) == 8 and w.subscription.stats(0, 0)["blockedSubscriptionOnUnackedMsgs"]
        w.subscription.ack(a, [(10, 3), (10, 4)])
        await w.settle()
        assert len(w.entries(a)) == 8
        w.subscription.ack(a, [(10, 5)])
        await w.settle()
        assert len(w.entries(a)) == 9

    run(test)


@pytest.mark.parametrize("kind", [SubscriptionType.SHARED, SubscriptionType.KEY_SHARED, SubscriptionType.FAILOVER])
def test_parts_of_batches(kind: SubscriptionType) -> None:
    async def test(w: World) -> None:
        a = w.join(kind, permits=100)
        w.append(3, counts=[8, 8, 1])
        await w.settle()
        assert w.entries(a) == [0, 1, 2] and a.permits == 83
        w.subscription.ack_batch(a, (10, 0), 0b00001111)
        w.subscription.ack_batch(a, (10, 0), 0b11110110)
        w.subscription.ack_batch(a, (10, 99), 1)
        if kind is not SubscriptionType.FAILOVER:
            assert a.unacked == 17 - 6 and a.messages_acked == 6
            assert isinstance(w.subscription.dispatcher, SharedDispatcher) and w.subscription.dispatcher.unacked == 11
        w.subscription.redeliver(a, None)
        await w.settle()
        assert w.entries(a)[3:] == [0, 1, 2] and w.sinks[a].ack_sets == {(10, 0): 0b0110} and a.permits == 83 - 11
        w.subscription.ack_batch(a, (10, 0), 0b1001)
        assert w.cursor.mark_delete == (10, 0)
        w.subscription.ack(a, [(10, 1), (10, 2)])
        assert w.cursor.backlog_entries == 0 and a.unacked == 0

    run(test)


@pytest.mark.parametrize("kind", [SubscriptionType.SHARED, SubscriptionType.KEY_SHARED])
def test_a_read_that_fails_is_tried_again_by_the_tick(kind: SubscriptionType) -> None:
    async def test(w: World) -> None:
        a = w.join(kind, 100)
        w.append(3)
        await w.settle()
        w.ledger.cache = False
        read, tries = w.ledger.read, 0

        async def failing(*_: Any) -> Any:
            nonlocal tries
            tries += 1
            raise BookieUnavailable("gone")

        w.ledger.read = failing  # type: ignore[assignment, method-assign]
        w.subscription.redeliver(a, None)
        await w.settle()
        assert tries == 1 and len(w.entries(a)) == 3
        w.subscription.tick(1.0)
        await w.settle()
        assert tries == 2
        w.ledger.read = read  # type: ignore[method-assign]
        w.subscription.tick(2.0)
        await w.settle()
        assert w.entries(a) == [0, 1, 2] * 2

    run(test)


KINDS = [SubscriptionType.EXCLUSIVE, SubscriptionType.SHARED, SubscriptionType.KEY_SHARED]


def take_all(w: World, consumer: Consumer) -> None:
    w.subscription.ack(consumer, [position for position, _, _ in w.sinks[consumer].got])


@pytest.mark.parametrize("kind", KINDS)
def test_before_what_is_lost_consumers_are_closed_once_they_hold_nothing(kind: SubscriptionType) -> None:
    async def test(w: World) -> None:
        w.ledger.cache = False
        w.append(10)
        w.ledger.lost = EntriesLost(10, 3, 6)
        a = w.join(kind, 100)
        await w.settle()
        assert w.entries(a) == [0, 1, 2] and not w.sinks[a].closed
        for _ in range(3):  # what it has may still be acknowledged
            w.subscription.tick(1.0)
            await w.settle()
        assert not w.sinks[a].closed
        take_all(w, a)
        await w.settle()
        w.subscription.tick(1.0)
        assert w.sinks[a].closed == 1 and not w.subscription.consumers
        w.ledger.lost = None  # it was brought back
        b = w.join(kind, 100)
        await w.settle()
        assert w.entries(b) == [3, 4, 5, 6, 7, 8, 9]

    run(test)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_lost_is_passed_over_where_the_brokers_say_so(kind: SubscriptionType) -> None:
    async def test(w: World) -> None:
        w.ledger.cache = False
        w.append(10)
        w.ledger.lost = EntriesLost(10, 3, 6)
        w.subscription.obey(Rules(skips_lost=True))
        a = w.join(kind, 100)
        await w.settle()
        assert w.entries(a) == [0, 1, 2, 7, 8, 9]
        take_all(w, a)
        assert w.cursor.mark_delete == (10, 9) and not w.sinks[a].closed
        w.append(2)
        await w.settle()
        assert w.entries(a)[-2:] == [10, 11]

    run(test)


@pytest.mark.parametrize("last", [0, 6, 9])
@pytest.mark.parametrize("kind", KINDS)
def test_a_beginning_that_is_lost_is_passed_over_once(kind: SubscriptionType, last: int) -> None:
    async def test(w: World) -> None:
        w.ledger.cache = False
        w.append(10)
        w.ledger.lost = EntriesLost(10, 0, last)
        w.subscription.obey(Rules(skips_lost=True))
        a = w.join(kind, 100)
        await w.settle()
        w.append(1)
        await w.settle()
        assert w.entries(a) == list(range(last + 1, 11)) and w.ledger.reads <= 5

    run(test)


@pytest.mark.parametrize("skips", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_entries_that_are_lost_after_they_went_out_once(kind: SubscriptionType, skips: bool) -> None:
    async def test(w: World) -> None:
        w.append(10)
        if skips:
            w.subscription.obey(Rules(skips_lost=True))
        a = w.join(kind, 100)
        await w.settle()
        assert w.entries(a) == list(range(10))
        w.ledger.cache, w.ledger.lost = False, EntriesLost(10, 3, 6)
        w.subscription.redeliver(a, None)
        for _ in range(4):
            w.subscription.tick(1.0)
            await w.settle()
        assert w.entries(a)[10:] == ([0, 1, 2, 7, 8, 9] if skips else [0, 1, 2])
        w.subscription.ack(a, [(10, entry) for entry in (0, 1, 2, 7, 8, 9)])
        await w.settle()
        w.subscription.tick(1.0)
        await w.settle()
        assert w.cursor.mark_delete == ((10, 9) if skips else (10, 2))
        assert w.sinks[a].closed == (not skips)

    run(test)


def test_cumulative_acknowledgement_is_not_for_shared() -> None:
    async def test(w: World) -> None:
        consumer = w.join()
        with pytest.raises(NotAllowed):
            w.subscription.ack_cumulative(consumer, (10, 0))

    run(test)


def test_a_reader_of_thousands_of_entries_gets_ranges() -> None:
    async def test(w: World) -> None:
        for _ in range(20):
            w.append(500)
        await w.settle()
        calls = 0
        sink = Sink()

        class Counting(Sink):
            def deliver(self, *args: Any) -> None:
                nonlocal calls
                calls += 1
                sink.deliver(*args)

        consumer = Consumer(1, "c", Counting())
        w.subscription.add(consumer, SubscriptionType.EXCLUSIVE)
        w.subscription.flow(consumer, 100_000)
        await w.settle()
        assert [p[1] for p, _, _ in sink.got] == list(range(10_000))
        assert calls <= 40

    run(test)


@pytest.mark.parametrize("kind", [SubscriptionType.SHARED, SubscriptionType.KEY_SHARED])
def test_who_holds_what_another_acknowledges_is_found_without_asking_all(kind: SubscriptionType) -> None:
    class Pending(dict[Position, int]):
        def __contains__(self, position: object) -> bool:
            nonlocal looks
            looks += 1
            return super().__contains__(position)

    looks = 0

    async def test(w: World) -> None:
        many = [w.join(kind) for _ in range(100)]
        for consumer in many:
            consumer.pending = Pending(consumer.pending)
        w.append(200)
        for consumer in many:
            w.subscription.flow(consumer, 1000)
        await w.settle()
        positions = [p for consumer in many for p in consumer.pending]
        assert len(positions) == 200
        never, before = [(0, n) for n in range(300)], looks
        w.subscription.ack(many[0], [*never, *positions])
        for position in positions:
            w.subscription.ack_batch(many[0], position, 1)
        assert looks - before <= 3 * 700, "a few for each id"
        assert not any(c.pending or c.unacked for c in many) and w.cursor.backlog_entries == 0

    run(test)


@pytest.mark.parametrize("kind", [SubscriptionType.SHARED, SubscriptionType.KEY_SHARED])
def test_not_all_consumers_are_asked_for_room_for_each_entry(kind: SubscriptionType) -> None:
    async def test(w: World) -> None:
        many = [w.join(kind) for _ in range(100)]
        dispatcher, asked = w.subscription.dispatcher, 0
        assert isinstance(dispatcher, SharedDispatcher)
        room = dispatcher._room

        def counted(consumer: Consumer) -> bool:
            nonlocal asked
            asked += 1
            return room(consumer)

        dispatcher._room = counted  # type: ignore[method-assign]
        w.append(400)
        await w.settle()
        if isinstance(dispatcher, KeySharedDispatcher):  # all are of one key, whose owner has no room
            owner = dispatcher.ranges.owner(dispatcher._hash(w.ledger.runs[0][2].parts[0]))
            next(consumer for consumer in reversed(many) if consumer is not owner).permits = 1000
        else:
            for consumer in many:
                consumer.permits = 4
        w.subscription.wake()
        await w.settle()
        waiting = dispatcher.redelivering if isinstance(dispatcher, KeySharedDispatcher) else 0
        assert sum(len(consumer.pending) for consumer in many) + waiting == 400
        assert asked < 4000, "ten for each entry, and not a hundred"
        for consumer in many:
            consumer.permits = 300
        asked = 0
        assert dispatcher._limit() >= 512 and asked == 2, "no read brings more than two take"

    run(test)


@pytest.mark.parametrize("kind", [SubscriptionType.SHARED, SubscriptionType.KEY_SHARED])
@pytest.mark.parametrize("again", [False, True])
def test_all_consumers_are_asked_for_room_once_a_pass_and_what_goes_out_again_is_bounded(
    kind: SubscriptionType, again: bool
) -> None:
    async def test(w: World) -> None:
        w.append(3000)
        await w.settle()
        first = w.join(kind, permits=3000)
        if not again:
            w.cursor.ack([(w.ledger.last_confirmed[0], entry) for entry in range(0, 3000, 2)])
        await w.settle()
        many = [w.join(kind, priority=number // 50) for number in range(100)]
        w.subscription.remove(first)
        if not again:
            w.subscription.dispatcher.rewind()
        dispatcher, asked = w.subscription.dispatcher, 0
        assert isinstance(dispatcher, SharedDispatcher)
        room = dispatcher._room

        def counted(consumer: Consumer) -> bool:
            nonlocal asked
            asked += 1
            return room(consumer)

        dispatcher._room = counted  # type: ignore[method-assign]
        if again:
            w.append(100)
        await w.settle()
        for consumer in many:
            consumer.permits = 4000
        asked = 0
        dispatcher.run_ready()
        went = sum(len(consumer.pending) for consumer in many)
        assert 512 <= went < 2048 and asked < 2 * went and dispatcher.queued
        await w.settle()
        assert sum(len(consumer.pending) for consumer in many) == (3100 if again else 1500)

    run(test)


@pytest.mark.parametrize("seed", range(150))
@pytest.mark.parametrize("kind", [SubscriptionType.SHARED, SubscriptionType.FAILOVER])
def test_every_entry_arrives_and_none_after_its_acknowledgement(seed: int, kind: SubscriptionType) -> None:
    """Beside those that take something are, at times, so many that take nothing that one, two, or three more make them
    many; in a quarter of the runs there are few at all times.
    """
    beside = (0, *range(FEW_CONSUMERS, FEW_CONSUMERS - 3, -1))[seed % 4] if kind is SubscriptionType.SHARED else 0

    async def test(w: World) -> None:
        rng = random.Random(seed)
        here, idle = list[Consumer](), list[Consumer]()
        acked: set[Position] = set()
        owed: dict[Consumer, int] = {}
        seen: dict[Consumer, int] = {}

        def check() -> None:
            for consumer, sink in w.sinks.items():
                for position, messages, _ in sink.got[seen.get(consumer, 0) :]:
                    assert position not in acked, "delivered after its acknowledgement"
                    assert owed[consumer] > 0, "delivered without a permit"
                    owed[consumer] -= messages
                seen[consumer] = len(sink.got)
            held = [p for c in w.subscription.consumers for p in c.pending]
            assert len(held) == len(set(held)), "held by two consumers"
            if (holders := getattr(w.subscription.dispatcher, "_holders", None)) is not None:
                assert holders == {p: c for c in w.subscription.consumers for p in c.pending}

        for _ in range(120):
            if rng.random() < 0.1:
                for consumer in idle:
                    w.subscription.remove(consumer)
                idle = [] if idle else [w.join(kind, priority=1) for _ in range(beside)]
                owed |= dict.fromkeys(idle, 0)
            match rng.randrange(10):
                case 0 | 1:
                    count = rng.randrange(1, 9)
                    flags = [FLAG_HIDDEN * (rng.random() < 0.2) for _ in range(count)] if rng.random() < 0.3 else None
                    counts = [rng.randrange(1, 5) for _ in range(count)] if rng.random() < 0.3 else None
                    w.append(count, counts, flags)
                case 2:
                    w.ledger.cache, w.ledger.read_turns = rng.random() < 0.5, rng.randrange(6)
                case 3 if len(here) < 4:
                    here.append(w.join(kind, priority=rng.randrange(2)))
                    owed[here[-1]] = 0
                case 4 if here and rng.random() < 0.4:
                    w.subscription.remove(here.pop(rng.randrange(len(here))))
                case 5 | 6 if here:
                    consumer = rng.choice(here)
                    permits = rng.randrange(1, 20)
                    owed[consumer] += permits
                    w.subscription.flow(consumer, permits)
                case 7 if here:
                    consumer = rng.choice(here)
                    got = [p for p, _, _ in w.sinks[consumer].got if p not in acked]
                    some = rng.sample(got, min(len(got), rng.randrange(5)))
                    check()
                    acked |= set(some)
                    w.subscription.ack(consumer, some)
                case 8 if here:
                    consumer = rng.choice(here)
                    got = [p for p, _, _ in w.sinks[consumer].got]
                    w.subscription.redeliver(
                        consumer, rng.sample(got, min(len(got), 3)) if rng.random() < 0.7 else None
                    )
                case 9 if here:
                    consumer = rng.choice(here)
                    sink = w.sinks[consumer]
                    if rng.random() < 0.5:
                        sink.writable = not sink.writable
                    else:
                        consumer.busy = not consumer.busy
                    w.subscription.wake()
            if rng.random() < 0.5:
                await asyncio.sleep(0)
            check()
            if rng.random() < 0.03:
                w.ledger.rollover()
        w.ledger.cache = True
        last = w.join(kind)
        owed[last] = 0
        for consumer in list(w.subscription.consumers):
            w.sinks[consumer].writable, consumer.busy = True, False
            owed[consumer] += 100_000
            w.subscription.flow(consumer, 100_000)
            w.subscription.redeliver(consumer, None)
        await w.settle()
        check()
        hidden = {
            (ledger, first + i) for ledger, first, r in w.ledger.runs if r.flags for i in range(r.count) if r.flags[i]
        }
        delivered = {p for sink in w.sinks.values() for p, _, _ in sink.got}
        assert delivered == set(w.ledger.positions()) - hidden
        for consumer in w.subscription.consumers:
            w.subscription.ack(consumer, [p for p, _, _ in w.sinks[consumer].got])
        w.subscription.ack(last, sorted(delivered))
        assert w.cursor.backlog_entries == 0
        if kind is SubscriptionType.SHARED:
            assert all(c.unacked == 0 and not c.pending for c in w.subscription.consumers)

    run(test)


@pytest.mark.parametrize("kind", [SubscriptionType.SHARED, SubscriptionType.KEY_SHARED])
def test_counts_of_other_regions_go_with_the_message_until_it_is_acknowledged(kind: SubscriptionType) -> None:
    async def test(w: World) -> None:
        w.append(5)
        await w.settle()
        positions = [(w.ledger.last_confirmed[0], n) for n in range(5)]
        w.subscription.count_redeliveries({positions[1]: 4, positions[3]: 2})
        first = w.join(kind, permits=100)
        await w.settle()
        assert [count for _, _, count in w.sinks[first].got] == [0, 4, 0, 2, 0], "told before anybody was here"
        w.subscription.redeliver(first, [positions[1], positions[2]])
        w.subscription.count_redeliveries({positions[1]: 3, positions[2]: 9})
        await w.settle()
        assert sorted((p, count) for p, _, count in w.sinks[first].got[5:]) in (
            [(positions[1], 5), (positions[2], 1)],
            [(positions[1], 5), (positions[2], 9)],
        )
        assert w.subscription.redeliveries(10) == {positions[1]: 5, positions[2]: 9, positions[3]: 2}, (
            "a count only rises"
        )
        assert w.subscription.redeliveries(2) == {positions[1]: 5, positions[2]: 9}, "of the oldest"
        w.cursor.ack([positions[1]])  # by another region: no consumer here says so
        assert w.subscription.redeliveries(10) == {positions[2]: 9, positions[3]: 2}

    run(test)
