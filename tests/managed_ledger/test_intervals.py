"""Intervals against a plain set."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from storage.managed_ledger.intervals import Intervals

_STEP = st.one_of(
    st.tuples(st.just("add"), st.integers(0, 60), st.integers(0, 12)),
    st.tuples(st.just("cut"), st.integers(0, 60), st.just(0)),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(_STEP, max_size=40))
def test_it_is_a_set_in_as_few_ranges_as_can_be(steps: list[tuple[str, int, int]]) -> None:
    ours, model = Intervals(), set[int]()
    for what, at, size in steps:
        if what == "add":
            new = set(range(at, at + size)) - model
            assert ours.add(at, at + size) == len(new)
            model |= new
        else:
            gone = {x for x in model if x < at}
            assert ours.remove_below(at) == len(gone)
            model -= gone
        pairs = list(ours.pairs())
        assert {x for start, stop in pairs for x in range(start, stop)} == model
        assert ours.count == len(model) and len(ours) == len(pairs)
        assert all(before[1] < after[0] for before, after in itertools.pairwise(pairs)) and all(a < b for a, b in pairs)
        for x in range(0, 75, 3):
            assert (x in ours) == (x in model)
            assert ours.end_of(x) == next(y for y in range(x, 99) if y not in model)
        gaps = {x for start, stop in ours.gaps(5, 50) for x in range(start, stop)}
        assert gaps == set(range(5, 50)) - model
