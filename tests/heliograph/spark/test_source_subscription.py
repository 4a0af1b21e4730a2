"""A query whose subscription was moved or removed by somebody else: it fails where it lacks messages, and goes on where
it had read what is gone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark.sql.streaming.datasource import ReadMaxBytes
from pyspark.sql.types import BinaryType, StructField, StructType

from heliograph.client.block_reader import TopicSnapshot
from heliograph.model.coordinates import Origin
from heliograph.model.errors import Trimmed
from heliograph.model.positions import Position
from heliograph.spark.scan.offsets import TopicPlace, encode
from heliograph.spark.scan.task_planning import Bundle
from heliograph.spark.source import HeliographStreamReader

OWN, TOPIC = (1, 1, 7), "persistent://a/b/t"


@dataclass
class Copy:
    """One topic: its ledgers and their entries, and where the subscription stands. `asked`: how often that was.
    last: of a topic whose ledgers are all gone.
    """

    ledgers: dict[int, int]
    standing: Position | None = None
    trimmed: bool = False
    asked: int = 0
    moves: list[Position] = field(default_factory=list)
    last: Position = (-1, -1)

    def snapshots(self, topics: list[str]) -> dict[str, TopicSnapshot]:
        rows = tuple((ledger, count, 10 * count) for ledger, count in sorted(self.ledgers.items()) if count)
        last = max(((ledger, count - 1) for ledger, count in self.ledgers.items()), default=self.last)
        return {topic: TopicSnapshot(topic, rows, last, OWN, {1: "us"}, (), self.trimmed) for topic in topics}

    def partitions(self, topic: str) -> int:
        return 0

    def vector(self, topic: str, at: Position | None = None) -> dict[Origin, Position]:
        return {} if at is None else {OWN: at}

    def vectors(self, positions: Mapping[str, Position]) -> dict[str, dict[Origin, Position]]:
        return {topic: self.vector(topic, at) for topic, at in positions.items()}

    def held(self, subscription: str, topics: Any) -> dict[str, Position]:
        self.asked += 1
        return {} if self.standing is None else dict.fromkeys(topics, self.standing)

    def hold(self, subscription: str, positions: Mapping[str, Position]) -> None:
        self.moves.append(positions[TOPIC])
        self.standing = max(self.standing or positions[TOPIC], positions[TOPIC])  # as brokers do: never back


def query(copy: Copy, hold_again_s: float = 30.0, **more: str) -> HeliographStreamReader:
    options = {"admin_url": "http://none", "topic": TOPIC, "subscription": "s", "columns": "raw", **more}
    made = HeliographStreamReader(StructType([StructField("value", BinaryType())]), options, hold_again_s=hold_again_s)
    made._connected = copy  # type: ignore[assignment]
    return made


def on(made: HeliographStreamReader, start: dict[str, Any]) -> dict[str, Any]:
    """The next offset, as a checkpoint holds it."""
    return dict(json.loads(json.dumps(made.latestOffset(start, ReadMaxBytes(1 << 40)))))


def at(offset: dict[str, Any]) -> str:
    return str(offset["topics"][TOPIC]["at"])


@pytest.mark.parametrize("standing", [(1, 20), (2, 5), None])
def test_what_a_policy_took_from_the_query_ends_it(standing: Position | None) -> None:
    copy = Copy({1: 10})
    read = on(query(copy), query(copy).initialOffset())
    assert at(read) == "1:10"
    copy.ledgers, copy.trimmed, copy.standing = {2: 30}, True, standing  # ten more came into ledger 1, and it went
    with pytest.raises(Trimmed, match=r"subscription s .*fail_on_data_loss"):
        query(copy).latestOffset(read, ReadMaxBytes(1 << 40))
    assert copy.standing == standing, "what shows that messages are lacking stays as it is, for the next start"
    with pytest.raises(Trimmed):
        query(copy).partitions(read, {**read, "topics": {TOPIC: {**read["topics"][TOPIC], "at": "2:30"}}})
    assert at(on(query(copy, fail_on_data_loss="false"), read)) == "2:30"


def test_a_query_that_had_read_it_all_goes_on_and_asks_once() -> None:
    copy = Copy({1: 10})
    made = query(copy)
    read = on(made, made.initialOffset())
    read = on(made, read)
    assert copy.standing == (1, 10)
    copy.ledgers, copy.trimmed = {2: 0}, True
    for _ in range(3):
        assert at(on(made, read)) == "1:10"
    assert copy.asked == 2, "at its start, and once it stood in a ledger that is gone"
    copy.ledgers[2] = 5
    assert at(on(made, read)) == "2:5"


def test_a_subscription_is_used_though_nothing_comes() -> None:
    copy = Copy({1: 10})
    made = query(copy)
    read = on(made, made.initialOffset())
    for _ in range(3):
        assert on(made, read) == read
    assert copy.moves == [(1, 0), (1, 10)]
    made = query(copy, hold_again_s=0.0)
    for _ in range(3):
        assert on(made, read) == read
    assert copy.moves[2:] == [(1, 10)] * 3


@pytest.mark.parametrize(("hold_again_s", "again"), [(0.0, 2), (1e9, 0)])
def test_the_subscription_of_a_topic_that_moved_here_is_used_though_nothing_comes(
    hold_again_s: float, again: int
) -> None:
    """The checkpoint names it by another region's copy until something of it is read here."""
    copy = Copy({1: 10})
    made = query(copy, hold_again_s=hold_again_s)
    places = {TOPIC: TopicPlace("eu", (7, 3), {OWN: (7, 2)})}
    made._region, made._other = "us", {TOPIC}
    made._done(copy, places)  # type: ignore[arg-type]
    assert copy.moves == [], "it is not known yet where it goes on"
    made._came[TOPIC] = {OWN: (7, 2)}, (1, 4)
    made._held[TOPIC] = (9, 9)  # of a region that was asked before
    made._done(copy, places)  # type: ignore[arg-type]
    assert copy.moves == []
    made._hold(copy, {TOPIC: (1, 4)})  # type: ignore[arg-type]
    for _ in range(2):
        made._done(copy, places)  # type: ignore[arg-type]
    assert copy.moves == [(1, 4)] * (1 + again)


def test_a_commit_that_comes_late_hides_nothing() -> None:
    """Spark says it at any time, also between a policy's move and the next look."""
    copy = Copy({1: 10})
    made = query(copy, hold_again_s=0.0)
    read = on(made, on(made, made.initialOffset()))
    copy.ledgers, copy.trimmed, copy.standing = {2: 30}, True, (2, 5)
    made.commit(read)
    assert copy.moves[-1] == (1, 10) and copy.standing == (2, 5)
    with pytest.raises(Trimmed):
        on(made, read)


def planned(made: HeliographStreamReader, start: dict[str, Any], stop: dict[str, Any]) -> list[tuple[int, int, int]]:
    """(ledger, first, last) of what the batch's tasks read."""
    tasks = [task for task in made.partitions(start, stop) if isinstance(task, Bundle)]
    return [(r.ledger, r.first, r.last) for task in tasks for r in task.ranges]


@pytest.mark.parametrize(("subscription", "standing"), [("", None), ("s", (5, 100)), ("s", None), ("s", (5, 50))])
def test_a_batch_that_runs_again_on_an_idle_topic_that_was_trimmed_is_not_empty(
    subscription: str, standing: Position | None
) -> None:
    copy = Copy({5: 50})
    made = query(copy, subscription=subscription)
    start = on(made, made.initialOffset())
    copy.ledgers = {5: 100}
    stop = on(made, start)
    assert (at(start), at(stop)) == ("5:50", "5:100")
    assert planned(query(copy, subscription=subscription), start, stop) == [(5, 50, 74), (5, 75, 99)]
    copy.ledgers, copy.trimmed, copy.standing, copy.last = {}, True, standing, (5, 99)
    with pytest.raises(Trimmed, match="fail_on_data_loss"):
        query(copy, subscription=subscription).partitions(start, stop)
    assert planned(query(copy, subscription=subscription, fail_on_data_loss="false"), start, stop) == []
    if standing != (5, 50):
        with pytest.raises(Trimmed, match="fail_on_data_loss"):  # and where no batch was planned: as soon as it is gone
            on(query(copy, subscription=subscription), start)
    assert on(query(copy, subscription=subscription), stop) == stop, "all was read"


@pytest.mark.parametrize("subscription", ["", "s"])
def test_a_batch_that_runs_again_with_a_topic_that_came_in_it_has_all_that_it_had(subscription: str) -> None:
    copy = Copy({5: 10, 6: 10})
    start = json.loads(json.dumps(encode({})))
    stop = on(query(copy, subscription=subscription), start)
    halves = [(5, 0, 9), (6, 0, 9)]
    assert planned(query(copy, subscription=subscription), start, stop) == halves
    copy.ledgers, copy.trimmed = {6: 10, 7: 3}, True
    with pytest.raises(Trimmed, match="batch from 5:0 to 6:9, and entries of it were deleted"):
        query(copy, subscription=subscription).partitions(start, stop)
    assert planned(query(copy, subscription=subscription, fail_on_data_loss="false"), start, stop) == [
        (6, 0, 4),
        (6, 5, 9),
    ]
