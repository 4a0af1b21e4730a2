"""Whose business an entry is: by trees, by what was sent, by what the target holds, and by what was trimmed here."""

from __future__ import annotations

import random

import pytest

from heliograph.model.coordinates import Origin
from heliograph.model.positions import BEFORE_ALL, Position
from heliograph.wire.run import Run
from replicator.dedup.producer_dedup import DedupSettings
from replicator.log.routing_trees import Tree
from replicator.log.topic_state import TopicState
from replicator.sending.delivery_routes import DeliveryRoute

EU: Origin = (2, 1, 7)
STAR = Tree("us", {})
BY_EU = Tree("us", {"ap": "eu"})
BY_US = Tree("eu", {"ap": "us"})


def route(target: str = "ap", mark: Position = BEFORE_ALL) -> DeliveryRoute:
    """From us."""
    state = TopicState(region=1, epoch=1, rng=random.Random(1), deduplication=False, settings=DedupSettings())
    state.restore(b"")
    return DeliveryRoute(target, state, mark, "us")


def run_of_eu() -> Run:
    return Run([b"x"], [1], origin=EU, spans=((1, 7, 1),), checksums=[0])


def holds(made: DeliveryRoute, origin: Origin, through: Position) -> None:
    made.remote.advance(origin, through)


def test_before_what_is_sent_next_lies_what_was_sent_or_is_held_whichever_is_later() -> None:
    made = route()
    assert made.previous(EU) == BEFORE_ALL
    made._sent[EU] = (3, 4)
    assert made.previous(EU) == (3, 4) and made.previous((2, 1, 8)) == BEFORE_ALL
    holds(made, EU, (3, 2))
    assert made.previous(EU) == (3, 4)
    holds(made, EU, (3, 9))
    assert made.previous(EU) == (3, 9)


def test_without_a_tree_a_region_sends_what_was_published_in_it() -> None:
    made = route()
    assert made.ready(made.state.origin) and not made.ready(EU)
    assert not made.pending() and not made._foreign() and not made._relays() and not made._gone((9, 0))


@pytest.mark.parametrize("target", ("ap", "sa"))
def test_the_parent_alone_sends(target: str) -> None:
    """ap gets what is published in eu from us; sa is not named: it gets it from eu."""
    made = route(target)
    made.state.trees.note(EU, (1, 0), Tree("eu", {"ap": "us"}, whole=True))
    made.state.trees.note(made.state.origin, (1, 0), Tree("us", {"ap": "eu"}, whole=True))
    assert made.ready(EU) == made._relays() == (target == "ap")
    assert made._foreign() == ([EU] if target == "ap" else [])
    assert made.ready(made.state.origin) == (target == "sa"), "ap gets it by eu"


def test_a_tree_counts_for_what_lies_behind_its_record() -> None:
    made = route()
    own = made.state.origin
    made.state.trees.note(own, (1, 4), BY_EU)
    assert made.ready(own) and made.pending(), "what lies before the record is the origin's"
    holds(made, own, (1, 3))
    assert made.ready(own) and made.pending(), "and so is the record"
    made._sent[own] = (1, 4)
    assert not made.ready(own) and made.pending(), "it was sent, and is not there yet"
    holds(made, own, (1, 4))
    assert not made.ready(own) and not made.pending()
    made.state.trees.note(own, (1, 9), STAR)
    assert made.pending()
    holds(made, own, (1, 9))
    assert made.ready(own) and not made.pending()


def test_the_origin_takes_over_what_its_parent_does_not_deliver_and_no_more_than_that() -> None:
    made = route()
    own = made.state.origin
    made.state.trees.note(own, (1, 0), Tree("us", {"ap": "eu"}, whole=True))
    made.state.trees.note(EU, (1, 0), Tree("eu", {"ap": "sa"}, whole=True))
    holds(made, own, (1, 4))
    assert not made.ready(own)
    for upto, yes in (((1, 4), False), ((1, 5), True), ((1, 6), True)):
        made.takes_over = upto
        assert made.ready(own) == yes and not made.ready(EU), "another region's is taken over by that one"
    made.takes_over = (1, 6)
    assert made._is_parent(own, BY_EU, (1, 6)) and not made._is_parent(own, BY_EU, (1, 7))
    assert made._is_parent(own, STAR, (9, 9)) and made._is_parent(EU, BY_US, (9, 9))
    made.takes_over = None
    assert not made._is_parent(own, BY_EU, (1, 6))


def test_what_the_target_has_behind_it_is_relayed_no_more() -> None:
    made = route()
    made.state.trees.note(EU, (1, 0), Tree("eu", {"ap": "us"}, whole=True))
    made.state.trees.note(EU, (2, 0), Tree("eu", {}))
    assert made._foreign() == [EU], "what lies between the two records"
    holds(made, EU, (1, 9))
    assert made._foreign() == [EU]
    holds(made, EU, (2, 0))
    assert made._foreign() == [] and not made._relays()


def test_something_may_be_gone_where_the_topic_begins_behind_the_mark() -> None:
    made = route(mark=(5, 3))
    made.state.trees.note(EU, (1, 0), Tree("eu", {"ap": "us"}, whole=True))
    run = run_of_eu()
    made.state.positions.add(run, 5, 4)
    assert made._gone((5, 3)) == made._gone((5, 4)) == made._gone((4, 0)) == [], "it begins right behind it, or before"
    assert made._gone((5, 5)) == made._gone((6, 0)) == [EU]
    empty = route(mark=(5, 3))
    empty.state.trees.note(EU, (1, 0), Tree("eu", {"ap": "us"}, whole=True))
    assert empty._gone((6, 0)) == [], "nothing of it ever came"
    late = route(mark=(5, 3))
    late.state.trees.note(EU, (1, 0), Tree("eu", {"ap": "us"}, whole=True))
    late.state.positions.add(run, 6, 2)
    assert late._gone((6, 2)) == [] and late._gone((6, 3)) == [EU], "it lies before where the topic begins"


def test_a_mark_at_the_end_of_a_ledger_touches_the_next_ledger() -> None:
    made = route(mark=(5, 3))
    made.state.trees.note(EU, (1, 0), Tree("eu", {"ap": "us"}, whole=True))
    made.state.positions.add(run_of_eu(), 5, 1)
    made.state.trees.stored(5, 3)
    made.state.trees.stored(7, 0)
    assert made._gone((7, 0)) == [] and made._gone((7, 1)) == [EU]
