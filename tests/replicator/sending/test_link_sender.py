"""What one link sends, repeats, and skips, and how far its cursor moves: the core alone, stepped."""

from __future__ import annotations

import random

import pytest

from heliograph.model.positions import BEFORE_ALL, Position
from heliograph.wire.links.link_commands import SkipReason, SkipRecord
from replicator.sending.link_sender import LinkSender, SenderSettings
from replicator.sending.outgoing_runs import OutgoingRun, Send
from tests.replicator.sending.published_topic import WINDOW_BYTES, PublishedTopic, coordinates


def sender(topic: PublishedTopic, mark: Position = BEFORE_ALL) -> LinkSender:
    return LinkSender("eu", topic.state, mark, SenderSettings(filtered_after_s=1.0), "us")


def take_all(topic: PublishedTopic, link: LinkSender, now: float = 0.0) -> list[Send]:
    """Everything from where the link reads on."""
    sends: list[Send] = []
    for ledger, first, run in topic.runs:
        if (ledger, first + run.count - 1) >= link.read_at:
            start = max(0, link.read_at[1] - first) if ledger == link.read_at[0] else 0
            sends += link.take(ledger, first + start, run.cut(start, run.count), now)
    return sends


def published() -> PublishedTopic:
    topic = PublishedTopic()
    for ledger, count in ((1, 2), (1, 3), (4, 1), (4, 2)):
        topic.publish(ledger, count)
    return topic


def test_each_run_goes_with_the_coordinate_before_it_and_the_mark_follows_receipts_alone() -> None:
    topic = published()
    link = sender(topic)
    assert link.room_bytes == 0, "without a connection"
    assert link.opened(topic.vector(), WINDOW_BYTES) is False and link.room_bytes == WINDOW_BYTES
    sends = take_all(topic, link)
    assert coordinates(sends) == topic.positions
    assert [send.previous for send in sends if isinstance(send, OutgoingRun)] == [BEFORE_ALL, (1, 1), (1, 4), (4, 0)]
    assert link.mark == BEFORE_ALL and link.in_flight and link.in_flight_bytes == link.bytes_sent > 0
    link.receipt(topic.origin, (1, 1))
    assert link.mark == (1, 1) and link.room_bytes == WINDOW_BYTES - link.in_flight_bytes
    link.receipt(topic.origin, (1, 3))
    assert link.mark == (1, 1), "half a run is not passed"
    link.receipt(topic.origin, (4, 2))
    assert link.mark == (4, 2) and not link.in_flight and link.backlog()[0] == (0, 0, 0)
    for again in ((1, 1), (4, 2)):
        link.receipt(topic.origin, again)
    assert link.mark == (4, 2) and link.receipts == 3, "what was heard is no news"


def test_what_the_target_holds_already_does_not_go_and_a_cursor_that_is_behind_it_jumps() -> None:
    for held in range(len(published().positions)):
        topic = published()
        link = sender(topic)
        link.opened(topic.vector(topic.positions[held]), WINDOW_BYTES)
        assert link.mark == topic.positions[held]
        assert coordinates(take_all(topic, link)) == topic.positions[held + 1 :]


def test_of_a_run_that_begins_before_what_the_target_holds_only_the_rest_goes() -> None:
    topic = published()
    whole = topic.runs[1]
    link = sender(topic)
    link.opened(topic.vector((1, 2)), WINDOW_BYTES)
    (send,) = link.take(*whole, 0.0)
    assert isinstance(send, OutgoingRun) and send.previous == (1, 2) and coordinates([send]) == [(1, 3), (1, 4)]
    assert link.take(*whole, 0.0) == [] and link.entries_sent == 2


def test_a_gap_of_this_attempt_begins_again_at_the_targets_vector_and_one_of_another_changes_nothing() -> None:
    topic = published()
    link = sender(topic)
    link.opened(topic.vector(), WINDOW_BYTES)
    take_all(topic, link)
    attempt, read_at = link.attempt, link.read_at
    assert link.gap(attempt - 1, topic.vector((1, 1))) is None and link.read_at == read_at
    assert link.gap(attempt, topic.vector((1, 1))) is False
    assert link.attempt == attempt + 1 and link.rewinds == 1 and not link.in_flight
    assert coordinates(take_all(topic, link)) == topic.positions[2:]
    link.disconnected()
    assert link.gap(link.attempt, topic.vector()) is None and link.room_bytes == 0


def test_a_target_that_holds_less_than_it_confirmed_takes_the_mark_back() -> None:
    topic = published()
    link = sender(topic)
    link.opened(topic.vector((4, 2)), WINDOW_BYTES)
    assert link.mark == (4, 2)
    link.disconnected()
    assert link.opened(topic.vector((1, 4)), WINDOW_BYTES) is True
    assert link.mark == (1, 4) and coordinates(take_all(topic, link)) == topic.positions[5:]


@pytest.mark.parametrize("state_knows", (True, False))
def test_a_new_owner_whose_state_is_older_than_the_mark_knows_it_too(state_knows: bool) -> None:
    topic = published()
    if state_knows:
        topic.state.delivered = {"eu": (topic.origin, (1, 1))}
    link = LinkSender("eu", topic.state, (4, 2), SenderSettings(), "us", delivered=(topic.origin, (4, 2)))
    assert link.opened(topic.vector((1, 3)), WINDOW_BYTES) is True
    assert link.mark == (1, 3) and coordinates(take_all(topic, link)) == topic.positions[4:]
    assert link.delivered == (topic.origin, (1, 3)), "it is stored with the mark"


def test_what_the_mark_passed_without_a_confirmation_takes_nothing_back() -> None:
    topic = published()
    link = LinkSender("eu", topic.state, (4, 2), SenderSettings(), "us", delivered=(topic.origin, (1, 3)))
    assert link.opened(topic.vector((1, 3)), WINDOW_BYTES) is False and link.mark == (4, 2)


def test_what_is_not_meant_for_the_target_is_passed_at_once_and_named_after_a_while() -> None:
    topic = PublishedTopic()
    topic.publish(1, 1)
    topic.publish(1, 2, to=("ap",))
    link = sender(topic)
    link.opened(topic.vector(), WINDOW_BYTES)
    assert coordinates(take_all(topic, link, now=10.0)) == [(1, 0)]
    assert link.mark == BEFORE_ALL and link.next_deadline() == 11.0
    link.receipt(topic.origin, (1, 0))
    assert link.mark == (1, 2), "that it was not meant for it needs no answer"
    assert link.filtered(10.999) is None
    record = link.filtered(11.0)
    assert record == SkipRecord(topic.origin, (1, 0), (1, 2), SkipReason.FILTERED, "eu")
    assert link.skipping and link.room_bytes == 0, "nothing goes before it is stored"
    assert link.skip_stored(link.attempt - 1, record) is None
    assert link.skip_stored(link.attempt, record) is record and not link.skipping and link.in_flight
    topic.publish(1, 1)
    (send,) = take_all(topic, link, now=12.0)
    assert isinstance(send, OutgoingRun) and send.previous == (1, 2)


def test_a_run_that_follows_in_time_closes_what_was_filtered_before_it() -> None:
    topic = PublishedTopic()
    for to in ((), ("ap",), ()):
        topic.publish(1, 1, to)
    link = sender(topic)
    link.opened(topic.vector(), WINDOW_BYTES)
    first, second = take_all(topic, link)
    assert isinstance(first, OutgoingRun) and isinstance(second, OutgoingRun) and second.previous == (1, 0)
    assert link.next_deadline() is None and link.filtered(100.0) is None


def test_a_skip_that_was_decided_before_a_rewind_does_not_go() -> None:
    topic = PublishedTopic()
    topic.publish(1, 2, to=("ap",))
    link = sender(topic)
    link.opened(topic.vector(), WINDOW_BYTES)
    take_all(topic, link)
    record, attempt = link.filtered(1.0), link.attempt
    assert record is not None
    link.gap(attempt, topic.vector())
    assert link.skip_stored(attempt, record) is None and link.room_bytes == WINDOW_BYTES


def test_no_more_is_in_flight_than_the_least_of_three_bounds() -> None:
    topic = published()
    link = LinkSender("eu", topic.state, BEFORE_ALL, SenderSettings(window_bytes=1000), "us")
    link.opened(topic.vector(), 5000)
    assert link.room_bytes == 1000
    link.fit(300)
    assert link.room_bytes == 300
    link.fit(None)
    link.disconnected()
    link.opened(topic.vector(), 700)
    assert link.room_bytes == 700


@pytest.mark.parametrize("seed", range(120))
def test_whatever_is_lost_the_target_gets_all_once_in_order_and_the_mark_passes_nothing_it_lacks(seed: int) -> None:
    """A target that takes what fits behind what it holds, and connections that lose what was sent."""
    rng = random.Random(seed)
    topic = PublishedTopic()
    link = sender(topic)
    meant, held, prefix = list[Position](), list[Position](), BEFORE_ALL
    wire: list[OutgoingRun] = []
    ledger = 1
    for step in range(200):
        faults = step < 150
        match rng.randrange(6):
            case 0 if faults:
                ledger += rng.random() < 0.2
                to = rng.choice(((), (), ("eu",), ("ap",)))
                topic.publish(ledger, rng.randrange(1, 4), to)
                meant = meant if to == ("ap",) else [*meant, *topic.positions[-topic.runs[-1][2].count :]]
            case 1 if not link.connected:
                link.opened(topic.vector(prefix), WINDOW_BYTES)
            case 2 if faults and rng.random() < 0.4:
                link.disconnected()
                wire.clear()
            case 3 if link.connected:
                wire += [send for send in take_all(topic, link) if isinstance(send, OutgoingRun)]
            case 4 if wire:
                send = wire.pop(0)
                if send.previous > prefix:
                    assert link.gap(link.attempt, topic.vector(prefix)) is False
                    wire.clear()
                    continue
                held += [at for at in map(send.run.coordinate, range(send.run.count)) if at > prefix]
                prefix = max(prefix, held[-1])
            case 5 if link.connected and prefix > BEFORE_ALL:
                link.receipt(topic.origin, prefix)
            case _:
                pass
        assert held == meant[: len(held)], "each once, and in order"
        assert all(at <= prefix for at in meant if at <= link.mark), "the mark passes nothing that it lacks"
    for _ in range(2):
        if not link.connected:
            link.opened(topic.vector(prefix), WINDOW_BYTES)
        for send in [*wire, *take_all(topic, link)]:
            assert isinstance(send, OutgoingRun) and send.previous <= prefix
            held += [at for at in map(send.run.coordinate, range(send.run.count)) if at > prefix]
            prefix = max(prefix, held[-1])
        wire = []
        if prefix > BEFORE_ALL:
            link.receipt(topic.origin, prefix)
    assert held == meant


def test_the_age_of_the_oldest_stays_exact_while_the_backlog_grows() -> None:
    """What was published shares fewer and fewer points; the first of what is not there keeps the time that it has."""
    topic = PublishedTopic()
    for _ in range(40):
        topic.publish(1, 1)
    link = sender(topic)
    link.opened(topic.vector(), WINDOW_BYTES)
    take_all(topic, link)
    link.receipt(topic.origin, topic.positions[-1])
    assert link.backlog() == ((0, 0, 0), 0)
    topic.publish(1, 1)
    oldest_ms = topic.runs[-1][2].time_ms
    for count in range(1, 3000):
        left, told_ms = link.backlog()
        assert left[0] == count and told_ms == oldest_ms, count
        topic.publish(1, 1)
