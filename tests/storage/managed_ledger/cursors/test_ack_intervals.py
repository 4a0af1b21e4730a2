"""Intervals against a plain set, as ranges and as bits."""

from __future__ import annotations

import itertools
import random
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage.managed_ledger.cursors.ack_intervals import Intervals
from tests.storage.managed_ledger.cursors.small_intervals import small_intervals

_STEP = st.one_of(
    st.tuples(st.just("ids"), st.integers(0, 60), st.integers(0, 12)),
    st.tuples(st.just("add"), st.integers(0, 60), st.integers(0, 12)),
    st.tuples(st.just("cut"), st.integers(0, 60), st.just(0)),
)


@pytest.mark.parametrize(("ranges_max", "chunk"), [(1024, 1 << 16), (2, 16), (0, 7)])
@settings(max_examples=200, deadline=None)
@given(steps=st.lists(_STEP, max_size=40))
def test_it_is_a_set_in_as_few_ranges_as_can_be(ranges_max: int, chunk: int, steps: list[tuple[str, int, int]]) -> None:
    ours, model = small_intervals(ranges_max, chunk)(), set[int]()
    for what, at, size in steps:
        if what == "add":
            new = set(range(at, at + size)) - model
            assert ours.add(at, at + size) == len(new)
            model |= new
        elif what == "ids":
            some = [at + 3 * number % 14 for number in range(size)] * 2
            assert ours.add_ids(some) == len({*some} - model)
            model |= {*some}
        else:
            gone = {x for x in model if x < at}
            assert ours.remove_below(at) == len(gone)
            model -= gone
        pairs = list(ours.pairs())
        assert {x for start, stop in pairs for x in range(start, stop)} == model
        assert ours.count == len(model) and bool(ours) == bool(model) and ours.ranges == len(pairs)
        assert all(before[1] < after[0] for before, after in itertools.pairwise(pairs)) and all(a < b for a, b in pairs)
        for x in range(0, 75, 3):
            assert (x in ours) == (x in model)
            assert ours.end_of(x) == next(y for y in range(x, 99) if y not in model)
        gaps = list(ours.gaps(5, 50))
        assert {x for start, stop in gaps for x in range(start, stop)} == set(range(5, 50)) - model
        assert all(before[1] < after[0] for before, after in itertools.pairwise(gaps)), "no gap in two pieces"


def test_many_holes_cost_a_bit_each() -> None:
    ours, order = Intervals(), list(range(0, 200_000, 2))
    random.Random(1).shuffle(order)
    for entry in order:
        ours.add(entry, entry + 1)
    assert ours.count == 100_000 and ours.chunks is not None
    assert sum(sys.getsizeof(bits) for bits in ours.chunks.values()) < 200_000 / 8 * 1.2
    assert ours.add(1, 199_999) == 99_999 and list(ours.pairs()) == [(0, 199_999)]
    assert ours.remove_below(199_999) == 199_999 and ours.chunks is None and not ours
