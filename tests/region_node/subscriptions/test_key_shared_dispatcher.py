"""Key_Shared: the hash, the two divisions of hashes, and the order of a key under any order of events."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from heliograph.model.errors import ConsumerAssignError, ConsumerBusy
from heliograph.model.positions import Position
from heliograph.wire.run import Run
from region_node.subscriptions import sticky_keys
from region_node.subscriptions.consumer import Consumer, SubscriptionType
from region_node.subscriptions.key_shared_dispatcher import LOOK_AHEAD_MAX, KeySharedDispatcher
from region_node.subscriptions.sticky_keys import (
    HASHES,
    KEY_BYTES,
    KEY_HASHED_MAX,
    RANGES_MAX,
    AutoSplit,
    ConsistentHash,
    HashRanges,
    Sticky,
    key_hash,
    murmur3_32,
    sticky_key,
)
from region_node.subscriptions.subscription import Rules
from tests.region_node.faces.pulsar.codec import entry
from tests.region_node.subscriptions.dispatch_world import Sink, Timers, World, run

KEYED = SubscriptionType.KEY_SHARED


@pytest.mark.parametrize(
    ("data", "value"),
    [
        (b"", 0),
        (b"a", 0x3C2569B2),
        (b"hello", 0x248BFA47),
        (b"hello, world", 0x149BBB7F),
        (b"The quick brown fox jumps over the lazy dog", 0x2E4FF723),
    ],
)
def test_murmur3(data: bytes, value: int) -> None:
    assert murmur3_32(data) == value


def test_sticky_key() -> None:
    assert sticky_key(entry(b"", partition_key="p", ordering_key=b"o")) == b"o"
    assert sticky_key(entry(b"", partition_key="p")) == b"p"
    assert sticky_key(entry(b"", partition_key="AAEC", partition_key_b64_encoded=True)) == b"\x00\x01\x02"
    assert sticky_key(entry(b"", producer="me", sequence=7)) == b"me-7"
    assert sticky_key(b"junk") == b""


@pytest.mark.parametrize("seed", range(50))
def test_the_ranges_of_auto_split_are_the_whole_and_move_little(seed: int) -> None:
    rng, split, here = random.Random(seed), AutoSplit(), list[Consumer]()
    for _ in range(60):
        before = [split.owner(h) for h in range(0, HASHES, 97)]
        changed: Consumer
        if here and rng.random() < 0.4:
            changed = here.pop(rng.randrange(len(here)))
            split.remove(changed)
        else:
            changed = Consumer(1, "c", Sink())
            here.append(changed)
            split.add(changed)
        ranges = sorted(r for c in here for r in split.ranges(c))
        assert [low for low, _ in ranges] == [0, *[high + 1 for _, high in ranges[:-1]]][: len(ranges)]
        if here:
            assert ranges[-1][1] == HASHES - 1
            for i, h in enumerate(range(0, HASHES, 97)):
                owner = split.owner(h)
                assert owner is not None and any(low <= h <= high for low, high in split.ranges(owner))
                assert before[i] is owner or changed in (before[i], owner)


@pytest.mark.parametrize("seed", range(5))
def test_consistent_hashing_moves_what_it_must_and_comes_back_to_the_same(seed: int) -> None:
    rng, ring, here = random.Random(seed), ConsistentHash(), list[Consumer]()
    for step in range(20):
        before = [ring.owner(h) for h in range(0, HASHES, 97)]
        changed: Consumer
        if here and rng.random() < 0.4:
            changed = here.pop(rng.randrange(len(here)))
            ring.remove(changed)
        else:
            changed = Consumer(1, f"c{rng.randrange(4)}", Sink())
            here.append(changed)
            ring.add(changed)
        ranges = sorted(r for c in here for r in ring.ranges(c))
        assert [low for low, _ in ranges] == [0, *[high + 1 for _, high in ranges[:-1]]][: len(ranges)]
        if not here:
            continue
        assert ranges[-1][1] == HASHES - 1
        for i, h in enumerate(range(0, HASHES, 97)):
            owner = ring.owner(h)
            assert owner is not None and owner in here
            assert before[i] is owner or changed in (before[i], owner), (
                f"step {step}: hash {h} moved between two others"
            )
    again = ConsistentHash()
    names = [f"n{i}" for i in range(5)]
    first, second = ([Consumer(1, name, Sink()) for name in order] for order in (names, names[::-1]))
    other = ConsistentHash()
    for ring_, consumers in ((again, first), (other, second)):
        for consumer in consumers:
            ring_.add(consumer)
    assert all(again.owner(h).name == other.owner(h).name for h in range(0, HASHES, 11))  # type: ignore[union-attr]
    shares = [sum(high + 1 - low for low, high in again.ranges(c)) / HASHES for c in first]
    assert min(shares) > 0.1 and max(shares) < 0.35


def test_points_are_put_in_order_once_for_all_who_come_or_go(monkeypatch: pytest.MonkeyPatch) -> None:
    put, hashed = list[int](), list[str]()

    def in_order(points: Iterable[Any]) -> list[Any]:
        found = sorted(points)
        put.append(len(found))
        return found

    monkeypatch.setattr(sticky_keys, "sorted", in_order, raising=False)

    async def test(w: World) -> None:
        w.subscription.obey(Rules())
        consumers = [w.join(KEYED, 10) for _ in range(30)]
        w.subscription.obey(Rules(consistent=True))
        w.append(1)
        await w.settle()
        assert len(put) == 1 and put[0] > 2000, "not once for each consumer"
        w.subscription.remove(*consumers[:10])
        w.append(1)
        await w.settle()
        assert len(put) == 2
        monkeypatch.setattr(sticky_keys, "murmur3_32", lambda data: hashed.append(data) or 0)
        w.subscription.disconnect()
        assert len(put) == 2 and not hashed, "where all go, nothing is divided"

    run(test)


@pytest.mark.parametrize("ranges", [AutoSplit, ConsistentHash, Sticky])
def test_who_leaves_at_once_leaves_the_same_as_one_after_another(ranges: type[HashRanges]) -> None:
    at_once, in_turn = ranges(), ranges()
    consumers = [Consumer(1, f"c{at % 9}", Sink(), hash_ranges=[(at * 100, at * 100 + 50)]) for at in range(20)]
    for consumer in consumers:
        at_once.add(consumer)
        in_turn.add(consumer)
    leaving = random.Random(3).sample(consumers, 12)
    at_once.remove(*leaving, Consumer(1, "other", Sink()))
    for consumer in leaving:
        in_turn.remove(consumer)
    assert all(at_once.owner(at) is in_turn.owner(at) for at in range(0, HASHES, 37))
    assert all(at_once.ranges(consumer) == in_turn.ranges(consumer) for consumer in consumers)


def test_the_division_changes_while_messages_are_held() -> None:
    async def test(w: World) -> None:
        keys = [f"k{i}" for i in range(40)]
        a, b = w.join(KEYED, 1000), w.join(KEYED, 1000)
        append(w, keys)
        await w.settle()
        w.subscription.obey(Rules(consistent=True))
        append(w, keys)
        await w.settle()
        dispatcher = w.subscription.dispatcher
        assert isinstance(dispatcher, KeySharedDispatcher)
        draining = dispatcher.draining()
        moved = {key for c in (a, b) for key in draining.get(c, {})}
        assert 5 < len(moved) < 35
        for consumer, other in ((a, b), (b, a)):
            hashes = {key_hash(keys[e % 40].encode()) for e in w.entries(consumer) if e >= 40}
            assert not hashes & moved, "went out beside what another holds"
            assert all(dispatcher.ranges.owner(h) is consumer for h in hashes)
            row = next(c for c in w.subscription.stats(0, 0)["consumers"] if c["consumerName"] == consumer.name)
            assert row["drainingHashesCount"] == len(draining.get(consumer, {})) == row["drainingHashesUnackedMessages"]
            assert other is not consumer
        w.subscription.ack(a, [(10, e) for e in range(40)])
        await w.settle()
        assert len(w.entries(a)) + len(w.entries(b)) == 80 and not dispatcher.draining()

    run(test)


def test_sticky_ranges() -> None:
    sticky = Sticky()
    a = Consumer(1, "a", Sink(), hash_ranges=[(0, 9), (100, 199)])
    b = Consumer(2, "b", Sink(), hash_ranges=[(10, 99)])
    sticky.add(a)
    sticky.add(b)
    assert [sticky.owner(h) for h in (0, 9, 10, 99, 100, 199, 200)] == [a, a, b, b, a, a, None]
    for wrong in ([], [(5, 4)], [(0, 70_000)], [(-1, 3)], [(150, 300)], [(300, 400), (400, 500)]):
        with pytest.raises(ConsumerAssignError):
            sticky.check(wrong)
    sticky.remove(a)
    assert sticky.owner(5) is None and sticky.owner(50) is b


class Bound(int):
    """A bound of a range that counts what it is compared with."""

    compared = 0

    def __lt__(self, other: int) -> bool:
        Bound.compared += 1
        return int(self) < int(other)

    def __le__(self, other: int) -> bool:
        Bound.compared += 1
        return int(self) <= int(other)

    def __ge__(self, other: int) -> bool:
        Bound.compared += 1
        return int(self) >= int(other)


def test_many_sticky_ranges_are_not_compared_with_each_other() -> None:
    def every(step: int, first: int) -> list[tuple[int, int]]:
        return [(Bound(at), Bound(at)) for at in range(first, first + step * RANGES_MAX, step)]

    sticky = Sticky()
    for number in range(3):
        sticky.add(Consumer(number, str(number), Sink(), hash_ranges=every(60, 20 * number)))
    Bound.compared = 0
    sticky.check(every(60, 10))
    assert Bound.compared < 50 * RANGES_MAX
    with pytest.raises(ConsumerAssignError, match="overlaps"):
        sticky.check([(15, 19), (1_210, 1_220)])
    with pytest.raises(ConsumerAssignError, match=f"at most {RANGES_MAX}"):
        sticky.check([(at, at) for at in range(61_000, 61_001 + RANGES_MAX)])


def test_a_large_key_is_hashed_by_its_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    hashed = list[int]()

    def counted(data: bytes) -> int:
        hashed.append(len(data))
        return murmur3_32(data)

    monkeypatch.setattr(sticky_keys, "murmur3_32", counted)
    for size in (0, 64, KEY_HASHED_MAX):
        assert key_hash(b"k" * size) == (murmur3_32(b"k" * size) & 0x7FFFFFFF) % HASHES
    large = [bytes([number]) * (5 << 20) for number in range(8)]
    assert len({key_hash(key) for key in large}) > 1 and key_hash(large[0]) == key_hash(bytes(large[0]))
    assert max(hashed) == KEY_HASHED_MAX


def test_of_large_keys_little_is_remembered() -> None:
    async def test(w: World) -> None:
        w.join(KEYED)
        dispatcher = w.subscription.dispatcher
        assert isinstance(dispatcher, KeySharedDispatcher)
        parts = [entry(b"x", partition_key=f"{number}" * (1 << 20), partition_key_b64_encoded=False) for number in "ab"]
        parts += [entry(b"x", partition_key=f"{number:064}") for number in range(98)]
        hashes = [dispatcher._hash(part) for part in parts]
        assert hashes == [dispatcher._hash(part) for part in parts] == [key_hash(sticky_key(part)) for part in parts]
        assert len(dispatcher._known) == len(parts) and sum(map(len, dispatcher._known)) <= KEY_BYTES * len(parts)

    run(test)


@pytest.mark.parametrize("delayed", [False, True])
def test_one_pass_hashes_so_many_bytes_of_new_keys(delayed: bool) -> None:
    async def test(w: World) -> None:
        fields = {"deliver_at_time": 1 << 60} if delayed else {}
        append(w, [f"{number:0{KEY_HASHED_MAX}}" for number in range(200)], **fields)
        await w.settle()
        one = w.join(KEYED, 1000)
        dispatcher = w.subscription.dispatcher
        assert isinstance(dispatcher, KeySharedDispatcher)
        hashed = []
        while dispatcher.queued or not hashed:
            before = len(dispatcher._known)
            dispatcher.queued = False
            dispatcher.run_ready()
            hashed.append(len(dispatcher._known) - before)
        assert hashed == [64, 64, 64, 8]
        assert w.entries(one) == ([] if delayed else list(range(200)))

    async def main() -> None:
        world = World(Timers().wheel)
        await test(world)
        await world.tasks.close()

    asyncio.run(main())


def test_what_must_be_read_again_is_waited_for_without_looking_again_and_again() -> None:
    """Of two thousand keys, none of them cached."""

    async def test(w: World) -> None:
        append(w, [f"{number}" for number in range(2000)])
        one = w.join(KEYED, 2000)
        await w.settle()
        w.ledger.cache = False
        w.join(KEYED, 2000)
        dispatcher = w.subscription.dispatcher
        assert isinstance(dispatcher, KeySharedDispatcher) and len(w.entries(one)) == 2000
        w.subscription.remove(one)
        dispatcher.queued = False
        dispatcher.run_ready()
        assert dispatcher._reading and not dispatcher.queued

    run(test)


def test_who_may_join() -> None:
    async def test(w: World) -> None:
        w.join(KEYED, hash_ranges=[(0, 99)])
        with pytest.raises(ConsumerAssignError):
            w.join(KEYED, hash_ranges=[(99, 100)])
        with pytest.raises(ConsumerAssignError):
            w.join(KEYED, hash_ranges=[])
        with pytest.raises(ConsumerBusy):
            w.join(KEYED)
        with pytest.raises(ConsumerBusy):
            w.join(SubscriptionType.SHARED)
        w.join(KEYED, hash_ranges=[(100, HASHES - 1)])
        stats = w.subscription.stats(0, 0)
        assert stats["keySharedMode"] == "STICKY" and [c["keyHashRanges"] for c in stats["consumers"]] == [
            ["[0, 99]"],
            ["[100, 65535]"],
        ]

    run(test)


def append(w: World, keys: list[str], start: int = 0, **fields: Any) -> None:
    parts = [entry(b"x", sequence=start + i, partition_key=key, **fields) for i, key in enumerate(keys)]
    w.ledger.append_run(Run(parts, [len(p) for p in parts]), lambda *_: None, None)


def test_a_joining_consumer_waits_for_the_older_messages_of_a_key() -> None:
    async def test(w: World) -> None:
        keys = [f"k{i}" for i in range(40)]
        a = w.join(KEYED, 1000)
        append(w, keys)
        await w.settle()
        b = w.join(KEYED, 1000)
        append(w, keys)
        await w.settle()
        moved = [i for i, key in enumerate(keys) if w.subscription.dispatcher.ranges.owner(key_hash(key.encode())) is b]  # type: ignore[union-attr]
        assert 5 < len(moved) < 35 and w.entries(b) == []
        w.subscription.ack(a, [(10, moved[0])])
        await w.settle()
        assert w.entries(b) == [40 + moved[0]]
        w.subscription.remove(a)
        await w.settle()
        assert w.entries(b)[1:41] != [] and sorted(set(w.entries(b))) == sorted({*range(80)} - {moved[0]})
        for key in range(40):
            assert [e for e in w.entries(b) if e % 40 == key] == sorted(e for e in w.entries(b) if e % 40 == key)

    run(test)


def test_out_of_order_does_not_wait() -> None:
    async def test(w: World) -> None:
        keys = [f"k{i}" for i in range(40)]
        w.join(KEYED, 1000, out_of_order=True)
        append(w, keys)
        await w.settle()
        b = w.join(KEYED, 1000, out_of_order=True)
        append(w, keys)
        await w.settle()
        assert len(w.entries(b)) > 5

    run(test)


def test_a_slow_consumer_does_not_hold_the_others_up_and_look_ahead_is_bounded() -> None:
    async def test(w: World) -> None:
        slow, fast = w.join(KEYED, 0), w.join(KEYED, 10_000)
        dispatcher = w.subscription.dispatcher
        assert isinstance(dispatcher, KeySharedDispatcher)
        by_owner: dict[Consumer | None, list[str]] = {slow: [], fast: []}
        for key in (f"k{i}" for i in range(200)):
            by_owner[dispatcher.ranges.owner(key_hash(key.encode()))].append(key)
        keys = [*by_owner[slow][:19], by_owner[fast][0]]
        turns = LOOK_AHEAD_MAX // 19 + 20
        for n in range(turns):
            append(w, keys, 20 * n)
        await settle(w)
        of_fast, got = list(range(19, 20 * turns, 20)), w.entries(fast)
        assert 10 < len(got) < len(of_fast) and got == of_fast[: len(got)]
        assert dispatcher.redelivering == LOOK_AHEAD_MAX
        w.ledger.cache = False
        w.subscription.flow(slow, 20 * turns)
        await settle(w)
        assert len(w.entries(fast)) + len(w.entries(slow)) == 20 * turns
        for key in range(20):
            assert [e for e in w.entries(slow) if e % 20 == key] == sorted(e for e in w.entries(slow) if e % 20 == key)

    async def settle(w: World) -> None:
        for _ in range(20):
            await w.settle()

    run(test)


def model(
    seed: int, *, out_of_order: bool = False, sticky: bool = False, consistent: bool = False
) -> Callable[[World], Any]:
    """consistent: by consistent hashing, and now and then by the other way, while messages are under way."""

    async def test(w: World) -> None:
        rng = random.Random(seed)
        w.subscription.obey(Rules(consistent=consistent))
        keys = [f"k{i}" for i in range(rng.choice([1, 3, 12]))]
        key_of: dict[Position, str] = {}
        here: list[Consumer] = []
        acked: set[Position] = set()
        owed: dict[Consumer, int] = {}
        holder: dict[Position, Consumer] = {}
        cuts = [0, 20_000, 40_000, HASHES]

        class Watching(Sink):
            def deliver(self, consumer: Consumer, ledger: int, first: int, run: Run, redeliveries: Any) -> None:
                for i in range(run.count):
                    self.take(consumer, (ledger, first + i))
                super().deliver(consumer, ledger, first, run, redeliveries)

            def take(self, consumer: Consumer, position: Position) -> None:
                assert position not in acked and position not in holder and owed[consumer] > 0
                owed[consumer] -= 1
                if not out_of_order:
                    for other, key in key_of.items():
                        if key == key_of[position] and other not in acked and (other < position or other in holder):
                            assert holder.get(other) is consumer, f"{position} of {key} went out beside {other}"
                if sticky:
                    assert any(
                        low <= key_hash(key_of[position].encode()) <= high for low, high in consumer.hash_ranges or ()
                    )
                holder[position] = consumer

        def join(which: int) -> None:
            sink = Watching()
            w.names += 1
            ranges = [(cuts[which], cuts[which + 1] - 1)] if sticky else None
            consumer = Consumer(w.names, f"c{w.names}", sink, hash_ranges=ranges, out_of_order=out_of_order)
            w.sinks[consumer], owed[consumer] = sink, 0
            w.subscription.add(consumer, KEYED)
            here.append(consumer)

        def leave(consumer: Consumer) -> None:
            for position in [p for p, c in holder.items() if c is consumer]:
                del holder[position]
            here.remove(consumer)
            w.subscription.remove(consumer)

        def fresh() -> int | None:
            taken = {c.hash_ranges[0][0] for c in here if c.hash_ranges}
            return next((i for i in range(3) if not sticky or cuts[i] not in taken), None)

        for step in range(150):
            match rng.randrange(9):
                case 0 | 1 | 2:
                    chosen = [rng.choice(keys) for _ in range(rng.randrange(1, 9))]
                    key_of |= {(w.ledger.ledger, w.ledger.next + i): key for i, key in enumerate(chosen)}
                    append(w, chosen, step * 10)
                case 3 if len(here) < 4 and (free := fresh()) is not None:
                    join(free)
                case 4 if here and rng.random() < 0.4:
                    leave(rng.choice(here))
                case 5 if here:
                    consumer, permits = rng.choice(here), rng.randrange(1, 20)
                    owed[consumer] += permits
                    w.subscription.flow(consumer, permits)
                case 6 | 7 if holder:
                    some = rng.sample(list(holder), min(len(holder), rng.randrange(1, 6)))
                    consumer = rng.choice(here)
                    for position in some:
                        acked.add(position)
                        del holder[position]
                    w.subscription.ack(consumer, some)
                case 8 if holder and rng.random() < 0.5:
                    consumer = rng.choice(here)
                    mine = [p for p, c in holder.items() if c is consumer]
                    back = None if rng.random() < 0.3 else rng.sample(mine, min(len(mine), 3))
                    for position in mine if back is None else back:
                        del holder[position]
                    w.subscription.redeliver(consumer, back if back is None or back else [(1, 1)])
            if consistent and rng.random() < 0.05:
                w.subscription.obey(Rules(consistent=rng.random() < 0.7))
            if rng.random() < 0.1:
                w.ledger.cache, w.ledger.read_turns = rng.random() < 0.5, rng.randrange(6)
            if rng.random() < 0.6:
                await asyncio.sleep(0)
            if rng.random() < 0.03:
                w.ledger.rollover()
        while (free := fresh()) is not None and len(here) < 4:
            join(free)
        while len(acked) < len(key_of):
            for consumer in here:
                owed[consumer] += 50
                w.subscription.flow(consumer, 50)
            await w.settle()
            assert holder, "nothing goes out any more"
            done = sorted(holder)
            acked |= set(done)
            holder.clear()
            w.subscription.ack(here[0], done)
        await w.settle()
        dispatcher = w.subscription.dispatcher
        assert isinstance(dispatcher, KeySharedDispatcher)
        assert w.cursor.backlog_entries == 0 and dispatcher.unacked == 0 and not dispatcher.redelivering
        assert not dispatcher._held and not dispatcher._hashes

    return test


@pytest.mark.parametrize("seed", range(80))
def test_the_messages_of_a_key_keep_their_order(seed: int) -> None:
    run(model(seed))


@pytest.mark.parametrize("seed", range(30))
def test_the_messages_of_a_key_keep_their_order_with_consistent_hashing(seed: int) -> None:
    run(model(seed, consistent=True))


@pytest.mark.parametrize("seed", range(24))
def test_sticky_consumers_get_their_ranges_only(seed: int) -> None:
    run(model(seed, sticky=True))


@pytest.mark.parametrize("seed", range(24))
def test_out_of_order_delivers_everything(seed: int) -> None:
    run(model(seed, out_of_order=True))
