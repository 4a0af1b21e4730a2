"""The judge finds each way in which a history may be wrong, and none where it is whole."""

from __future__ import annotations

import pytest

from region_node.chaos.judge import PublishedNumbers, broken, compared, shown

WHOLE = PublishedNumbers(source="us", sent=6, acked=range(6))


def test_a_whole_history_keeps_every_promise() -> None:
    assert compared(WHOLE, range(6)).whole and broken(WHOLE, range(6), "eu") == []


@pytest.mark.parametrize(
    ("numbers", "promise", "text"),
    [
        ([0, 1, 2, 4, 5], "kept", "1 acknowledged messages of us are lost (3)"),
        ([0, 1, 2, 2, 3, 4, 5], "once", "1 messages of us are stored twice (2)"),
        ([0, 1, 3, 2, 4, 5], "in order", "1 messages of us are not in the order of their publisher (2)"),
        ([0, 1, 2, 3, 4, 5, 6], "sent", "1 messages of us were never sent (6)"),
        ([], "kept", "6 acknowledged messages of us are lost (0, 1, 2, 3, … 5)"),
    ],
)
def test_each_broken_promise_is_named(numbers: list[int], promise: str, text: str) -> None:
    (found,) = broken(WHOLE, numbers, "the copy in eu")
    assert (found.promise, found.text) == (promise, text) and str(found) == f"the copy in eu: {text}"


def test_what_was_not_acknowledged_may_be_there_or_not() -> None:
    published = PublishedNumbers(source="us", sent=4, acked=[0, 3])
    assert compared(published, [0, 3]).whole and compared(published, [0, 1, 3]).whole
    assert compared(published, [0, 1]).lost == [3]


def test_a_repeat_far_behind_is_twice_and_not_out_of_order() -> None:
    found = compared(WHOLE, [0, 1, 2, 3, 4, 5, 1])
    assert found.twice == [1] and not found.disordered


def test_order_is_of_a_key_where_there_are_keys() -> None:
    published = PublishedNumbers(source="us", sent=6, acked=range(6), keys=2)
    assert compared(published, [1, 0, 3, 2, 5, 4]).whole
    assert compared(published, [0, 1, 4, 2, 3, 5]).disordered == [2]


def test_no_order_is_asked_of_a_tail_and_all_else_is() -> None:
    published = PublishedNumbers(source="us", sent=6, acked=range(6), tail=[2, 3])
    assert compared(published, [0, 1, 4, 5, 2, 3]).whole and compared(WHOLE, [0, 1, 4, 5, 2, 3]).disordered == [2, 3]
    assert compared(published, [0, 1, 4, 5, 2, 3, 3]).twice == [3] and compared(published, [0, 1, 4, 5, 2]).lost == [3]


def test_many_numbers_are_shown_by_the_first_and_the_last() -> None:
    assert shown([1, 2, 3]) == "1, 2, 3" and shown(range(100)) == "0, 1, 2, 3, … 99"
