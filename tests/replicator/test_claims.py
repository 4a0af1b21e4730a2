"""Ranges of coordinates: adding and subtracting agree with sets of entries, and bad fields are refused."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

import pytest

from heliograph.model.coordinates import Range
from heliograph.model.errors import CorruptData
from heliograph.model.positions import BEFORE_ALL, Position
from heliograph.wire import link as wire
from replicator.claims import PARTLY_MAX, RANGES_MAX, Claims, insert, subtract
from replicator.subscription_state import HERE, SubscriptionState, Todo

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
            assert all(a < b for a, b in ranges) and all(x[1] < y[0] for x, y in pairwise(ranges)), "disjoint, ascending, apart"
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
    assert len(claims.ranges[ORIGIN]) == RANGES_MAX and claims.ranges[ORIGIN][0] == ((0, -1), (0, 3)), "the lowest are kept"
    assert Claims.read(claims.fields()).ranges == claims.ranges
    for entry in range(3000):
        claims.add_partly((ORIGIN, (0, entry)), (1 << 10_000) - 1)
    claims.bound()
    frame = wire.claims_frame(1, "orders", claims.fields())
    assert 1 << 20 < sum(map(len, frame)) < 4 << 20, "it fits into a frame"
    assert (ORIGIN, (0, 0)) in claims.partly and (ORIGIN, (0, 2999)) not in claims.partly


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
    assert SubscriptionState.load(3, SubscriptionState(3).stored()).base is None
    for bad in ("", "{}", "null", '{"version":2,"epoch":[0,0],"base":null}', '{"version":1,"epoch":[0],"base":null}', '{"version":1,"epoch":[0,0],"base":[1]}'):
        with pytest.raises(CorruptData):
            SubscriptionState.load(3, bad)


def test_the_rule_in_one_place() -> None:
    """Lower: told again. Higher: taken over as a whole. The same: the union, from the lower of two beginnings."""
    state = SubscriptionState(1, (0, 0), {ORIGIN: (5, 6), (2, 1, 1): (0, 3)})
    theirs = Claims((0, 0), {ORIGIN: (5, 2)})
    theirs.add(ORIGIN, (5, 9), (5, 11))
    assert state.heard("eu", theirs) and state.base == {ORIGIN: (5, 2)} and state.rebase
    state.rebase = False
    held: dict[Any, Position] = {ORIGIN: (5, 10)}
    assert state.todo(lambda origin: held.get(origin, BEFORE_ALL)) == [
        Todo(HERE, ORIGIN, BEFORE_ALL, (5, 2)),
        Todo("eu", ORIGIN, (5, 9), (5, 10)),
    ]
    state.applied(Todo("eu", ORIGIN, (5, 9), (5, 10)))
    held[ORIGIN] = (6, 0)
    assert Todo("eu", ORIGIN, (5, 10), (5, 11)) in state.todo(lambda origin: held.get(origin, BEFORE_ALL)), "what waited comes when it is here"
    state.reset()
    assert state.epoch == (1, 1) and state.base is None
    state.begin({})
    assert not state.heard("eu", theirs) and not state.others, "behind: nothing of it counts"
    later = Claims((1, 2), {ORIGIN: (5, 0)})
    assert state.heard("eu", later) and state.epoch == (1, 2) and state.base == {ORIGIN: (5, 0)} and state.rebase
