"""What is to be done of claims, and what is kept of what was done."""

from __future__ import annotations

from heliograph.model.coordinates import Coordinate
from replicator.subscriptions.ack_claims import Claims
from replicator.subscriptions.subscription_state import SubscriptionState

ORIGIN = (1, 1, 7)


def claims(first: int, count: int) -> Claims:
    made = Claims((0, 0), {})
    for entry in range(first, first + count):
        made.add_partly((ORIGIN, (3, entry)), 0b10)
    return made


def test_what_the_cursor_here_says_in_part_is_not_to_be_done_here() -> None:
    state = SubscriptionState(1, base={})
    state.claim(claims(0, 3))
    assert state.todo_partly() == []
    more = Claims((0, 0), {})
    more.add_partly((ORIGIN, (3, 0)), 0b01)
    state.claim(more)  # of a cursor that has been moved since: what both have said is to be done again
    assert state.todo_partly() == [("", (ORIGIN, (3, 0)), 0)]


def test_nothing_is_kept_of_batches_that_are_acknowledged_whole_by_now() -> None:
    state, done = SubscriptionState(1, base={}), dict[Coordinate, int]()
    for first in range(0, 1000, 10):
        state.claim(claims(first, 10))
        state.heard("eu", claims(first, 10))
        for region, coordinate, left in state.todo_partly():
            assert region == "eu" and coordinate not in done
            state.applied_partly(region, coordinate, left)
            done[coordinate] = left
        whole = Claims((0, 0), {})
        whole.add(ORIGIN, (3, -1), (3, first + 9))
        state.claim(whole)
        state.heard("eu", whole)
    assert len(done) == 1000 and state.todo_partly() == [] and not state._applied_partly
