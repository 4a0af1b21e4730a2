"""Vector: properties of prefixes, missing ranges, and the encoding."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heliograph.model.coordinates import MISSING_MAX, REGION_MISSING_MAX, Vector
from heliograph.model.errors import CorruptData
from heliograph.model.positions import BEFORE_ALL

ORIGIN = (1, 1, 7)
LATER = (1, 2, 7)
positions = st.tuples(st.integers(0, 4), st.integers(0, 9))
changes = st.lists(
    st.tuples(st.sampled_from(["advance", "skip", "fill"]), st.sampled_from([ORIGIN, LATER]), positions, positions),
    max_size=25,
)
EVERY = [(ledger, entry) for ledger in range(5) for entry in range(10)]


def built(
    steps: list[tuple[str, tuple[int, int, int], tuple[int, int], tuple[int, int]]],
) -> tuple[Vector, dict[tuple[int, int, int], set[tuple[int, int]]]]:
    """The vector, and the set of positions that each origin holds, by brute force."""
    vector, prefix = Vector(), dict.fromkeys((ORIGIN, LATER), BEFORE_ALL)
    missing: dict[tuple[int, int, int], set[tuple[int, int]]] = {ORIGIN: set(), LATER: set()}
    for what, origin, a, b in steps:
        after, through = min(a, b), max(a, b)
        if what == "advance":
            vector.advance(origin, through)
            prefix[origin] = max(prefix[origin], through)
        elif what == "skip":
            vector.skip(origin, after, through)
            missing[origin] |= {p for p in EVERY if max(after, prefix[origin]) < p <= through}
            prefix[origin] = max(prefix[origin], through) if through > max(after, prefix[origin]) else prefix[origin]
        else:
            vector.fill(origin, after, through)
            missing[origin] -= {p for p in EVERY if after < p <= through}
    return vector, {o: {p for p in EVERY if p <= prefix[o]} - missing[o] for o in prefix}


@given(changes)
def test_it_holds_what_a_set_of_positions_holds(steps: list) -> None:  # type: ignore[type-arg]
    vector, held = built(steps)
    for origin, wanted in held.items():
        assert {p for p in EVERY if vector.holds(origin, p)} == wanted
        ranges = vector.missing(origin)
        assert all(a < b for a, b in ranges) and all(x[1] <= y[0] for x, y in pairwise(ranges))
        assert not ranges or ranges[-1][1] <= vector.prefix(origin)


@given(changes)
def test_the_encoding_brings_the_same_vector_back(steps: list) -> None:  # type: ignore[type-arg]
    vector, _ = built(steps)
    assert Vector.decode(vector.encode()) == vector == vector.copy()
    assert Vector.decode(memoryview(vector.encode())).encode() == vector.encode()


@given(changes, changes)
def test_merging_never_takes_a_prefix_back(a: list, b: list) -> None:  # type: ignore[type-arg]
    (one, held), (two, _) = built(a), built(b)
    merged = one.copy()
    merged.merge(two)
    for origin in (ORIGIN, LATER):
        assert merged.prefix(origin) == max(one.prefix(origin), two.prefix(origin))
        assert all(merged.holds(origin, p) for p in held[origin])


@given(changes, st.data())
def test_damaged_bytes_are_refused_or_are_another_valid_vector(steps: list, data: st.DataObject) -> None:  # type: ignore[type-arg]
    blob = bytearray(built(steps)[0].encode())
    match data.draw(st.sampled_from(["cut", "flip", "add"])):
        case "cut":
            del blob[data.draw(st.integers(0, len(blob) - 1)) :]
        case "flip":
            blob[data.draw(st.integers(0, len(blob) - 1))] ^= data.draw(st.integers(1, 255))
        case "add":
            blob += b"\0"
    try:
        vector = Vector.decode(blob)
    except CorruptData:
        return
    assert Vector.decode(vector.encode()) == vector


def test_missing_ranges_are_bounded_and_never_name_too_little() -> None:
    vector = Vector()
    for i in range(MISSING_MAX + 50):
        vector.advance(ORIGIN, (1, 2 * i))
        vector.skip(ORIGIN, (1, 2 * i), (1, 2 * i + 1))
    assert len(vector.missing(ORIGIN)) == MISSING_MAX
    assert not any(vector.holds(ORIGIN, (1, 2 * i + 1)) for i in range(MISSING_MAX + 50))


def test_an_older_epochs_tail_is_not_below_anything_newer() -> None:
    vector = Vector()
    vector.advance(LATER, (9, 9))
    assert not vector.holds(ORIGIN, (1, 0)) and vector.prefix(ORIGIN) == BEFORE_ALL


def test_an_unknown_version_is_named() -> None:
    with pytest.raises(CorruptData, match="format 9"):
        Vector.decode(b"\x09\0\0")


def test_a_regions_origins_share_their_missing_ranges_and_no_other_regions() -> None:
    vector = Vector()
    vector.skip((2, 1, 1), (0, 0), (0, 1))
    vector.skip((2, 1, 1), (0, 5), (0, 6))
    for incarnation in range(8):
        for number in range(600):
            vector.advance((1, 1, incarnation), (number, 0))
            vector.skip((1, 1, incarnation), (number, 0), (number, 1))
    found = [vector.missing((1, 1, incarnation)) for incarnation in range(8)]
    assert sum(map(len, found)) == REGION_MISSING_MAX and len(vector.missing((2, 1, 1))) == 2
    for ranges in found:
        assert ranges[0][0] <= (0, 0) and ranges[-1] == ((599, 0), (599, 1)), "it names too much, never too little"


def test_origins_with_one_missing_range_each_keep_it() -> None:
    vector = Vector()
    for incarnation in range(REGION_MISSING_MAX + 2):
        vector.skip((1, 1, incarnation), (0, 0), (0, 1))
    assert len(vector) == REGION_MISSING_MAX + 2
    assert all(vector.missing(origin) == (((0, 0), (0, 1)),) for origin in vector)


def test_which_ranges_are_joined_is_the_same_after_a_replay() -> None:
    vector = Vector()
    for incarnation in (3, 2, 1):
        for number in range(REGION_MISSING_MAX // 4):
            vector.skip((1, 1, incarnation), (number, 0), (number, 1))
    for number in range(REGION_MISSING_MAX // 4):
        vector.skip((1, 1, 0), (number, 0), (number, 1))
    loaded = Vector.decode(vector.encode())
    for each in (vector, loaded):
        each.skip((1, 1, 9), (0, 0), (0, 1))
    assert vector == loaded
