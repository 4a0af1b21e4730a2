"""Why something is missing is told where a record said it, and for what it said it of."""

from __future__ import annotations

from itertools import pairwise

from heliograph.model.positions import BEFORE_ALL, Position
from heliograph.wire.links.link_commands import SkipReason
from replicator.coordinates.skip_reasons import HERE, RANGES_MAX, Reasons

ORIGIN = (1, 1, 5)
DELETED, EXPIRED, LOST = SkipReason.DELETED, SkipReason.EXPIRED, SkipReason.LOST


def at(entry: int) -> Position:
    return (3, entry)


def test_reasons_are_told_where_they_are_known() -> None:
    reasons = Reasons()

    reasons.note(HERE, ORIGIN, at(4), at(9), SkipReason.DELETED)
    reasons.note(HERE, ORIGIN, at(4), at(9), SkipReason.DELETED)
    reasons.note(HERE, ORIGIN, at(9), at(12), SkipReason.EXPIRED)
    reasons.note(HERE, ORIGIN, at(12), at(14), SkipReason.EXPIRED)
    missing = ((BEFORE_ALL, at(2)), (at(3), at(6)), (at(8), at(20)))
    told = [
        (BEFORE_ALL, at(2), None),
        (at(3), at(4), None),
        (at(4), at(6), SkipReason.DELETED),
        (at(8), at(9), SkipReason.DELETED),
        (at(9), at(14), SkipReason.EXPIRED),
        (at(14), at(20), None),
    ]
    assert reasons.explain(HERE, ORIGIN, missing) == told
    again = Reasons()
    again.load(reasons.dump())
    assert again.explain(HERE, ORIGIN, missing) == told and again.dump() == reasons.dump()
    assert reasons.of(HERE, ORIGIN, at(4)) is None and reasons.of("eu", ORIGIN, at(5)) is None
    for entry in range(20, 20 + 4 * RANGES_MAX, 2):
        reasons.note(HERE, ORIGIN, at(entry), at(entry + 1), SkipReason.LOST)
    assert len(reasons.dump()[0][-1]) == RANGES_MAX and reasons.of(HERE, ORIGIN, at(5)) is None


def test_a_range_begins_behind_its_first_position_and_ends_with_its_last() -> None:
    reasons = Reasons()
    assert not reasons
    reasons.note(HERE, ORIGIN, at(4), at(6), DELETED)
    assert reasons and [reasons.of(HERE, ORIGIN, at(entry)) for entry in (4, 5, 6, 7)] == [None, DELETED, DELETED, None]
    assert reasons.explain(HERE, ORIGIN, [(at(5), at(6))]) == [(at(5), at(6), DELETED)]
    assert reasons.explain(HERE, ORIGIN, [(at(6), at(9))]) == [(at(6), at(9), None)], "what ends where it begins"
    assert reasons.explain(HERE, ORIGIN, [(at(1), at(4))]) == [(at(1), at(4), None)], "what begins where it ends"
    assert reasons.explain(HERE, ORIGIN, []) == []
    for region, origin in (("eu", ORIGIN), (HERE, (1, 2, 5))):
        assert reasons.explain(region, origin, [(at(5), at(6))]) == [(at(5), at(6), None)], "another's"


def test_what_is_replayed_again_changes_nothing_and_what_reaches_further_adds_the_rest() -> None:
    reasons = Reasons()
    reasons.note("eu", ORIGIN, at(4), at(4), DELETED)
    assert not reasons and reasons.dump() == [], "nothing lies in it"
    reasons.note("eu", ORIGIN, at(4), at(9), DELETED)
    once = reasons.dump()
    for after, through in ((4, 9), (5, 8), (0, 3), (4, 5)):
        reasons.note("eu", ORIGIN, at(after), at(through), LOST)
        assert reasons.dump() == once
    reasons.note("eu", ORIGIN, at(7), at(12), DELETED)
    assert reasons.dump() == [["eu", *ORIGIN, [[*at(4), *at(12), int(DELETED)]]]], "one range"
    reasons.note("eu", ORIGIN, at(10), at(14), LOST)
    reasons.note("eu", ORIGIN, at(20), at(22), LOST)
    ranges = [(4, 12, DELETED), (12, 14, LOST), (20, 22, LOST)]
    assert reasons.dump() == [["eu", *ORIGIN, [[*at(a), *at(b), int(why)] for a, b, why in ranges]]]


def test_reasons_cover_what_is_missing_once_and_in_order() -> None:
    reasons = Reasons()
    for after, through, why in ((2, 4, DELETED), (4, 6, EXPIRED), (8, 10, LOST)):
        reasons.note(HERE, ORIGIN, at(after), at(through), why)
    known = {3: DELETED, 4: DELETED, 5: EXPIRED, 6: EXPIRED, 9: LOST, 10: LOST}
    for low in range(13):
        for high in range(low + 1, 13):
            told = reasons.explain(HERE, ORIGIN, [(at(low), at(high))])
            assert told[0][0] == at(low) and told[-1][1] == at(high)
            assert all(one[1] == other[0] for one, other in pairwise(told))
            entries = {entry: why for (_, a), (_, b), why in told for entry in range(a + 1, b + 1)}
            assert entries == {entry: known.get(entry) for entry in range(low + 1, high + 1)}
    assert len(reasons.explain(HERE, ORIGIN, [(at(0), at(3)), (at(9), at(12))])) == 4


def test_topics_that_nobody_skipped_anything_of_share_one_empty_table() -> None:
    one, other = Reasons(), Reasons()
    one.note(HERE, ORIGIN, at(1), at(2), LOST)
    other.load([])
    assert one and not other and not Reasons()
    other.load(one.dump())
    assert other.dump() == one.dump() and not Reasons()
