"""Ranges of coordinates: adding and subtracting agree with sets of entries, and bad fields are refused."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

import pytest

from heliograph.model.coordinates import Range
from heliograph.model.errors import CorruptData
from heliograph.model.positions import BEFORE_ALL, Position
from heliograph.wire.links import link_commands as wire
from replicator.subscriptions.ack_claims import PARTLY_MAX, RANGES_MAX, Claims, Epoch, insert, subtract
from replicator.subscriptions.subscription_state import HERE, SubscriptionState, Todo

ORIGIN = (1, 1, 7)
UNIVERSE: list[Position] = [(ledger, entry) for ledger in range(4) for entry in range(8)]


def members(ranges: list[Range]) -> set[Position]:
    return {p for p in UNIVERSE if any(after < p <= through for after, through in ranges)}


@pytest.mark.parametrize("seed", range(200))
def test_ranges_are_sets(seed: int) -> None:
    rng = random.Random(seed)
    ends: list[Position] = [BEFORE_ALL, *UNIVERSE, (1, -1), (3, -1)]
    sides: list[tuple[list[Range], set[Position]]] = []
    for _ in range(2):
        ranges: list[Range] = []
        expected: set[Position] = set()
        for _ in range(rng.randrange(12)):
            after, through = sorted(rng.sample(ends, 2))
            insert(ranges, after, through)
            expected |= members([(after, through)])
            assert all(a < b for a, b in ranges) and all(x[1] < y[0] for x, y in pairwise(ranges)), (
                "disjoint, ascending, apart"
            )
        assert members(ranges) == expected
        sides.append((ranges, expected))
    (one, a), (other, b) = sides
    assert members(subtract(one, other)) == a - b and members(subtract(other, one)) == b - a
    assert not subtract(one, one)


def test_bounds() -> None:
    claims = Claims((0, 0), {})
    for ledger in range(RANGES_MAX + 50):
        claims.add(ORIGIN, (ledger, -1), (ledger, 3))
    claims.bound()
    assert len(claims.ranges[ORIGIN]) == RANGES_MAX and claims.ranges[ORIGIN][0] == ((0, -1), (0, 3)), (
        "the lowest are kept"
    )
    assert Claims.read(claims.fields()).ranges == claims.ranges
    for entry in range(3000):
        claims.add_partly((ORIGIN, (0, entry)), (1 << 10_000) - 1)
    claims.bound()
    frame = wire.claims_frame(1, "orders", claims.fields())
    assert 1 << 20 < sum(map(len, frame)) < 4 << 20, "it fits into a frame"
    assert (ORIGIN, (0, 0)) in claims.partly and (ORIGIN, (0, 2999)) not in claims.partly


def test_each_origin_has_its_share_of_the_room() -> None:
    claims = Claims((0, 0), {})
    for number, count in ((1, 5 * RANGES_MAX), (2, RANGES_MAX // 10), (3, RANGES_MAX * 7 // 10), (4, 0)):
        for ledger in range(count):
            claims.add((number, 1, 7), (ledger, -1), (ledger, 3))
    assert claims.bound() and {origin[0]: len(ranges) for origin, ranges in claims.ranges.items()} == {
        1: RANGES_MAX * 9 // 20,
        2: RANGES_MAX // 10,
        3: RANGES_MAX * 9 // 20,
    }
    assert not claims.bound()


def test_what_is_left_out_is_left_out_every_time() -> None:
    """Else a region would have news in every round, and tell all of it again and again."""
    state = SubscriptionState(1, (0, 0), {})
    said = Claims((0, 0), {})
    for entry in range(PARTLY_MAX + 500):
        said.add_partly((ORIGIN, (0, entry)), 0b11)
        said.add(ORIGIN, (entry + 1, -1), (entry + 1, 3))
    state.claim(said)
    version = state.version
    assert len(state.mine.partly) == PARTLY_MAX and len(state.mine.ranges[ORIGIN]) == RANGES_MAX
    state.claim(said)
    assert state.version == version


@pytest.mark.parametrize(
    "fields",
    (
        [],
        [[0, 0], []],
        [[0, -1], [], []],
        [[0, 0], [[1, 1, 7, -1, -1, [0, 5, 0, 3]]], []],
        [[0, 0], [[1, 1, 7, -1, -1, [0, 1, 0, 3, 0, 2, 0, 4]]], []],
        [[0, 0], [[1, 1, 7, -1, -1, [0, 1, 0]]], []],
        [[0, 0], [[1, 1, 7, -1, -1, []], [1, 1, 7, -1, -1, []]], []],
        [[0, 0], [[1, 1, 7, -1]], []],
        [[0, 0], [], [[1, 1, 7, 0, 0, "x"]]],
        [["a", 0], [], []],
    ),
)
def test_bad_fields_are_refused(fields: list[Any]) -> None:
    with pytest.raises(CorruptData):
        Claims.read(fields)


def test_what_is_stored_with_the_cursor() -> None:
    state = SubscriptionState(3, (2, 1), {ORIGIN: (5, 6)})
    again = SubscriptionState.load(3, state.stored())
    assert (again.epoch, again.base) == ((2, 1), {ORIGIN: (5, 6)})
    assert again.start is None and SubscriptionState.load(3, SubscriptionState(3, start=(4, 2)).stored()).start == (
        4,
        2,
    )
    assert SubscriptionState.load(3, '{"version":1,"epoch":[0,0],"base":null}').start is None, (
        "as an earlier version stored it"
    )
    assert SubscriptionState.load(3, SubscriptionState(3).stored()).base is None
    for bad in (
        "",
        "{}",
        "null",
        '{"version":2,"epoch":[0,0],"base":null}',
        '{"version":1,"epoch":[0],"base":null}',
        '{"version":1,"epoch":[0,0],"base":[1]}',
    ):
        with pytest.raises(CorruptData):
            SubscriptionState.load(3, bad)


def test_the_rule_in_one_place() -> None:
    """Lower: told again. Higher: taken over as a whole. The same: the union, from the lower of two beginnings."""
    state = SubscriptionState(1, (0, 0), {ORIGIN: (5, 6), (2, 1, 1): (0, 3)})
    theirs = Claims((0, 0), {ORIGIN: (5, 2)})
    theirs.add(ORIGIN, (5, 9), (5, 11))
    assert state.heard("eu", theirs) and state.base == {ORIGIN: (5, 2)} and state.rebase and state.kept
    state.begun_at((4, 4))
    assert not state.rebase and state.start == (4, 4)
    held: dict[Any, Position] = {ORIGIN: (5, 10)}
    assert state.todo(lambda origin: held.get(origin, BEFORE_ALL)) == [
        Todo(HERE, ORIGIN, BEFORE_ALL, (5, 2)),
        Todo("eu", ORIGIN, (5, 9), (5, 10)),
    ]
    state.applied(Todo("eu", ORIGIN, (5, 9), (5, 10)))
    held[ORIGIN] = (6, 0)
    assert Todo("eu", ORIGIN, (5, 10), (5, 11)) in state.todo(lambda origin: held.get(origin, BEFORE_ALL)), (
        "what waited comes when it is here"
    )
    state.reset((4, 7))
    assert state.epoch == (1, 1) and state.base is None and state.start == (4, 7)
    state.begin({})
    assert not state.heard("eu", theirs) and not state.others, "behind: nothing of it counts"
    later = Claims((1, 2), {ORIGIN: (5, 0)})
    assert (
        state.heard("eu", later)
        and state.epoch == (1, 2)
        and state.base == {ORIGIN: (5, 0)}
        and state.rebase
        and not state.kept
    )


def said_by(rng: random.Random, epoch: Epoch) -> Claims:
    claims = Claims(epoch, {(number, 1, 7): rng.choice(UNIVERSE) for number in rng.sample((1, 2, 3), rng.randrange(4))})
    for _ in range(rng.randrange(6)):
        claims.add((rng.randrange(1, 4), 1, 7), *sorted(rng.sample(UNIVERSE, 2)))
    return claims


def joined(state: SubscriptionState) -> tuple[Any, ...]:
    """What counts: the epoch, the beginning, and by claimer what is acknowledged."""
    claimed = {
        region: {origin: members(ranges) for origin, ranges in claims.ranges.items() if ranges}
        for region, claims in state.others.items()
    }
    return state.epoch, state.base, claimed


@pytest.mark.parametrize("seed", range(100))
def test_the_join_is_the_same_in_whatever_order_and_however_often_it_is_heard(seed: int) -> None:
    """Commutative, associative, idempotent: regions that made a subscription on their own, and resets among them, end
    in one truth.
    """
    rng = random.Random(seed)
    epochs = [(0, 0)] if seed % 2 else [(0, 0), (1, 1), (1, 2)]
    bases = {epoch: dict(said_by(rng, epoch).base) for epoch in epochs if epoch != (0, 0)}
    said = []
    for _ in range(5):
        claims = said_by(rng, rng.choice(epochs))
        claims.base = bases.get(claims.epoch, claims.base)  # a reset has one beginning, the one who made it says which
        said.append((rng.choice(("us", "eu", "ap")), claims))
    own = said_by(rng, (0, 0)).base
    outcomes = []
    for _ in range(6):
        order = rng.sample(said, len(said)) + rng.choices(said, k=rng.randrange(4))
        state = SubscriptionState(9, (0, 0), dict(own), (0, 0))
        while order:
            if rng.random() < 0.4:  # a region hands on in one piece what it was told in two
                region, claims = order.pop()
                for also in [
                    (r, c) for r, c in order if r == region and c.epoch == claims.epoch and c.base == claims.base
                ]:
                    order.remove(also)
                    both = Claims(claims.epoch, claims.base)
                    both.merge(claims)
                    both.merge(also[1])
                    claims = both
                state.heard(region, claims)
            else:
                state.heard(*order.pop())
        again = [state.heard(region, claims) for region, claims in said]
        assert len(again) == len(said)
        outcomes.append(joined(state))
    assert all(outcome == outcomes[0] for outcome in outcomes), outcomes
    epoch, base, _ = outcomes[0]
    if epoch == (0, 0):
        every = [own, *(claims.base for _, claims in said)]
        assert base == {origin: min(b[origin] for b in every) for origin in own if all(origin in b for b in every)}, (
            "the lowest of all beginnings"
        )
    else:
        assert epoch == max(claims.epoch for _, claims in said) and base == bases[epoch], (
            "a reset wins over whoever only made it"
        )


def test_two_states_that_hear_of_each_other_are_one() -> None:
    one, two = (
        SubscriptionState(1, (0, 0), {ORIGIN: (2, 3)}, (2, 3)),
        SubscriptionState(2, (0, 0), {ORIGIN: (1, 5), (2, 1, 7): (0, 4)}, (7, 7)),
    )
    for state, after, through in ((one, (2, 5), (2, 6)), (two, (1, 5), (1, 7))):
        claims = Claims((0, 0), state.base or {})
        claims.add(ORIGIN, after, through)
        state.claim(claims)
    before = (one.mine.ranges, two.mine.ranges)
    assert one.heard("two", two.mine) and two.heard("one", one.mine) and one.heard("two", two.mine)
    assert one.base == two.base == {ORIGIN: (1, 5)} and one.epoch == two.epoch == (0, 0)
    assert (one.mine.ranges, two.mine.ranges) == before, "what each acknowledged counts on"


def test_claims_are_bounded_over_all_their_origins() -> None:
    """A frame of many origins could hold RANGES_MAX ranges of each."""

    def row(number: int, count: int) -> list[Any]:
        return [number, 1, 7, -1, -1, [at for i in range(count) for at in (0, 2 * i, 0, 2 * i + 1)]]

    half = RANGES_MAX // 2
    assert sum(map(len, Claims.read([[0, 0], [row(1, half), row(2, half)], []]).ranges.values())) == RANGES_MAX
    for rows in ([row(1, half), row(2, half), row(3, 1)], [row(at, 0) for at in range(1 << 16)], [[1, 2]]):
        with pytest.raises(CorruptData):
            Claims.read([[0, 0], rows, []])
