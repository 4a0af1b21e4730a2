"""What a link says of entries that its region does not have any more, and that its target lacks."""

from __future__ import annotations

import pytest

from heliograph.model.positions import BEFORE_ALL, Position
from heliograph.wire.links.link_commands import SkipReason, SkipRecord
from heliograph.wire.run import Run
from replicator.log.routing_trees import Tree
from replicator.sending.link_sender import LinkSender, SenderSettings
from tests.replicator.sending.published_topic import WINDOW_BYTES, PublishedTopic

DEAD = (1, 1, 99)


def opened(topic: PublishedTopic, held: Position | None = None, mark: Position = BEFORE_ALL) -> LinkSender:
    link = LinkSender("eu", topic.state, mark, SenderSettings(), "us")
    link.opened(topic.vector(held), WINDOW_BYTES)
    return link


def published() -> PublishedTopic:
    topic = PublishedTopic()
    for ledger, count in ((1, 5), (2, 4), (3, 2)):
        topic.publish(ledger, count)
    return topic


@pytest.mark.parametrize("held", [None, (1, 0), (1, 4), (2, 1)])
def test_exactly_what_is_trimmed_and_the_target_lacks_is_named(held: Position | None) -> None:
    topic = published()
    link = opened(topic, held)
    record = link.trimmed((3, 0))
    after = held or BEFORE_ALL
    assert record == SkipRecord(topic.origin, after, (2, 3), SkipReason.TRIMMED, "eu")
    assert link.skipping and link.room_bytes == 0, "it goes out once it is stored, and nothing before it"
    assert link.skip_stored(link.attempt, record) is record
    assert link.trimmed((3, 0)) is None and link.read_at == (3, 0), "a range is named once on an attempt"
    assert link.mark == after, "the mark waits until the target has it"
    link.receipt(topic.origin, (2, 3))
    assert link.mark == (2, 3)


@pytest.mark.parametrize(("held", "mark"), [((2, 3), BEFORE_ALL), ((3, 1), BEFORE_ALL), (None, (2, 3))])
def test_what_was_delivered_or_needs_no_sending_is_not_named(held: Position | None, mark: Position) -> None:
    topic = published()
    link = opened(topic, held, mark)
    assert link.trimmed((3, 0)) is None and link.read_at == (3, 0) and not link.skipping


def test_the_reason_is_the_one_that_was_given_and_the_end_may_lie_inside_of_a_ledger() -> None:
    topic = PublishedTopic()
    for _ in range(5):
        topic.publish(1, 1)
    link = opened(topic)
    record = link.trimmed((1, 3), SkipReason.DELETED)
    assert record == SkipRecord(topic.origin, BEFORE_ALL, (1, 2), SkipReason.DELETED, "eu")


def test_of_each_origin_of_this_region_the_range_is_named_by_itself() -> None:
    topic = PublishedTopic()
    topic.publish(1, 3)
    topic.state._epoch = 2  # as it is when the region was started anew after a loss
    topic.state.begin_epoch((1, 2))
    topic.publish(2, 3)
    old, new = topic.state.past[0][0], topic.origin
    topic.publish(3, 1)
    link = opened(topic)
    for origin, through in ((old, (1, 2)), (new, (2, 2))):
        record = link.trimmed((3, 0))
        assert record == SkipRecord(origin, BEFORE_ALL, through, SkipReason.TRIMMED, "eu")
        assert link.skip_stored(link.attempt, record) is record
    assert link.trimmed((3, 0)) is None


def test_incarnations_that_were_deleted_are_named_once_to_a_target_that_is_there() -> None:
    topic = published()
    topic.state.dead = ((DEAD, (7, 3)),)
    link = LinkSender("eu", topic.state, BEFORE_ALL, SenderSettings(), "us")
    assert link.of_the_dead() == [], "without a connection"
    link.opened(topic.vector(), WINDOW_BYTES)
    assert link.of_the_dead() == [SkipRecord(DEAD, BEFORE_ALL, (7, 3), SkipReason.DELETED, "eu")]
    assert link.of_the_dead() == [], "once on an attempt"
    assert topic.state.reasons.of("eu", DEAD, (7, 3)) is SkipReason.DELETED
    vector = topic.vector()
    vector.advance(DEAD, (7, 1))
    link.gap(link.attempt, vector)
    assert link.of_the_dead() == [SkipRecord(DEAD, (7, 1), (7, 3), SkipReason.DELETED, "eu")]
    vector.advance(DEAD, (7, 3))
    link.gap(link.attempt, vector)
    assert link.of_the_dead() == []
    assert link.lacks(None) is None, "without trees nothing of other regions is this one's to name"


@pytest.mark.parametrize("relayed_first", [True, False])
def test_nothing_is_left_to_name_once_the_target_got_it_from_elsewhere(relayed_first: bool) -> None:
    """Of another region's origin that was this region's to relay, and is trimmed here: the mark waits for the target,
    whoever serves it.
    """
    topic, eu = published(), (2, 1, 7)
    topic.state.trees.note(eu, (1, 0), Tree("eu", {"ap": "us"}, whole=True))
    topic.state.positions.add(Run([b"x"], [1], origin=eu, spans=((1, 7, 1),), checksums=[0]), 2, 1)
    topic.state.vector.advance(eu, (1, 7))
    link = LinkSender("ap", topic.state, BEFORE_ALL, SenderSettings(), "us")
    held = topic.vector((2, 3))
    link.opened(held, WINDOW_BYTES)
    link.mark = (1, 1)
    assert link.trimmed((3, 0)) is None
    link.take(3, 0, topic.runs[2][2], 0.0)
    arrived = [(eu, (1, 7)), (topic.origin, (3, 1))]
    for origin, through in arrived if relayed_first else reversed(arrived):
        assert link.mark < (3, 1), "it may lack some of it still"
        link.receipt(origin, through)
    assert link.mark == (3, 1)
