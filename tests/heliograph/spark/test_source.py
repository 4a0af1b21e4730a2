"""The driver's side of a stream, beside what it reads: as whom it asks, and how a micro-batch is cut when topics go."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes
from pyspark.sql.types import BinaryType, StructField, StructType

from heliograph.client.block_reader import CoordinatePlace, TopicSnapshot
from heliograph.model.coordinates import Origin
from heliograph.model.errors import ConfigError, MetadataUnavailable, NotFound
from heliograph.model.positions import Position
from heliograph.spark.scan.offsets import TopicPlace, decode, encode
from heliograph.spark.scan.task_planning import Bundle
from heliograph.spark.scan.topic_groups import TopicSelection
from heliograph.spark.source import HeliographDataSource, HeliographStreamReader
from tests.heliograph.client.serving import Handler, Servers
from tests.heliograph.spark.scan import moving_regions as moves

TOPICS = [f"persistent://a/b/t{number}" for number in range(4)]


class Region:
    """One broker that owns all topics, of two ledgers each. tokens: what requests came with. asked: by POST, of which
    topics. gone, anew: deleted topics.
    """

    def __init__(self) -> None:
        self.tokens: list[str | None] = []
        self.asked: list[str] = []
        self.gone: set[str] = set()
        self.anew: set[str] = set()
        self.two = 1
        self.open: dict[str, int] = {}
        self.name = "us"
        self.partitions = 0
        region = self

        class Broker(Handler):
            def do_GET(self) -> None:
                if self.path.endswith("/vector"):
                    return self.say({"vector": []})
                if "/positions/" in self.path:
                    return self.say({"status": "found", "position": [2, 7], "following": None})
                if self.path.endswith("/partitions"):
                    return self.say({"partitions": region.partitions})
                self.say([topic for topic in TOPICS if topic not in region.gone])

            def do_POST(self) -> None:
                given = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                region.asked += given.get("topics") or given["positions"]
                names = [topic for topic in given.get("topics") or given["positions"] if topic not in region.gone]
                found: dict[str, Any] = {}
                for topic in names:
                    if self.path.endswith("vectors"):
                        found[topic] = [{"origin": [1, 1, 7], "prefix": [2, 9], "missing": []}]
                    else:
                        size = 1000 * (1 + TOPICS.index(topic))
                        found[topic] = {
                            "ledgers": region.ledgers(size),
                            "last_confirmed": [2, 9],
                            "origin": [1, 1, 7],
                            "trimmed": False,
                        }
                        if topic in region.anew:
                            found[topic] |= {
                                "ledgers": [{"ledger": 9, "entries": 3, "size_bytes": size}],
                                "last_confirmed": [9, 2],
                                "origin": [1, 1, 8],
                            }
                self.say({"found": found, "elsewhere": {}, "missing": {}, "later": {}, "regions": {"1": region.name}})

            def say(self, what: Any) -> None:
                region.tokens.append(self.headers["Authorization"])
                self.answer(json.dumps(what).encode())

        self.servers = Servers(Broker, 1)

    def ledgers(self, size: int) -> list[dict[str, int]]:
        return [{"ledger": 1, "entries": 7, "size_bytes": size}] * self.two + [
            self.open or {"ledger": 2, "entries": 10, "size_bytes": size}
        ]

    @property
    def url(self) -> str:
        return f"http://{self.servers.addresses[0]}"


@pytest.fixture
def region() -> Iterator[Region]:
    made = Region()
    yield made
    made.servers.close()


def query(region: Region, **more: str) -> HeliographStreamReader:
    options = {"admin_url": region.url, "namespace": "a/b", "columns": "raw", **more}
    return HeliographStreamReader(StructType([StructField("value", BinaryType())]), options)


def test_a_stream_asks_with_the_token_that_its_file_holds_now(region: Region, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("first\n")
    made = query(region, token_file=str(file))
    start = made.initialOffset()
    assert set(region.tokens) == {"Bearer first"}
    file.write_text("second\n")
    region.tokens.clear()
    made.latestOffset(start, ReadMaxBytes(1 << 30))
    assert set(region.tokens) == {"Bearer second"}, "no query outlives its first token otherwise"


@pytest.mark.parametrize(("two", "gone"), [(1, 0), (1, 1), (0, 2), (0, 3)])
def test_a_micro_batch_keeps_its_cuts_when_one_of_its_topics_is_deleted(region: Region, two: int, gone: int) -> None:
    region.two = two
    made = query(region, task_bytes="2500", tasks_min="1")
    start = json.loads(json.dumps(made.initialOffset()))
    if not two:  # the batch begins within the ledger that it ends in
        for place in start["topics"].values():
            place["at"] = "2:3"
    stop = json.loads(json.dumps(made.latestOffset(start, ReadMaxBytes(1 << 30))))

    def cuts() -> list[list[tuple[str, int, int]]]:
        return [
            [(r.topic, r.first, r.last) for r in task.ranges]
            for task in made.partitions(start, stop)
            if isinstance(task, Bundle)
        ]

    before = cuts()
    assert len(before) >= 3
    left = [[part for part in task if part[0] != TOPICS[gone]] for task in before]
    for deleted in (region.gone, region.anew):
        region.gone.clear()
        deleted.add(TOPICS[gone])
        assert cuts() == left, "the sink's producers and sequence ids go by task"


def test_what_a_micro_batch_leaves_is_in_the_progress(region: Region) -> None:
    made = query(region)
    start = json.loads(json.dumps(made.initialOffset()))
    whole = sum(2 * 1000 * (1 + number) for number in range(4))
    stop = made.latestOffset(start, ReadMaxBytes(whole // 2))
    told = made.reportLatestOffset()
    assert set(told["topics"]) == set(TOPICS) and {each["at"] for each in told["topics"].values()} == {"2:10"}
    assert 0.4 * whole < told["bytes"] < 0.6 * whole and 4 * 17 * 0.4 < told["messages"] < 4 * 17 * 0.6
    made.latestOffset(json.loads(json.dumps(stop)), ReadAllAvailable())
    assert made.reportLatestOffset() == {"bytes": 0, "messages": 0, "topics": {}}


def test_a_partition_that_nobody_has_used_is_none_yet(region: Region, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a partitioned topic that the user names: brokers make a partition when it is first used."""
    monkeypatch.setattr(f"{__name__}.TOPICS", [f"persistent://a/b/t-partition-{number}" for number in range(4)])
    region.partitions, region.gone = 3, {TOPICS[1], TOPICS[3]}
    named = {"namespace": "", "topic": "persistent://a/b/t", "discovery_interval_s": "0"}
    source = HeliographDataSource({"admin_url": region.url, "columns": "raw", **named})
    tasks = source.reader(StructType([StructField("value", BinaryType())])).partitions()
    assert {r.topic for task in tasks if isinstance(task, Bundle) for r in task.ranges} == {TOPICS[0], TOPICS[2]}
    made = query(region, **named)
    start = made.latestOffset(json.loads(json.dumps(made.initialOffset())), ReadMaxBytes(1 << 30))
    assert set(start["topics"]) == {TOPICS[0], TOPICS[2]}
    region.partitions, region.gone = 4, {TOPICS[3]}  # one is used, another one is added
    assert set(made.latestOffset(json.loads(json.dumps(start)), ReadMaxBytes(1 << 30))["topics"]) == set(TOPICS[:3])
    region.partitions = 0  # as a partition has none itself
    with pytest.raises(NotFound, match="t-partition-3 is not there"):
        query(region, namespace="", topic=TOPICS[3]).initialOffset()


def test_what_is_not_there_yet_is_looked_for_as_often_as_new_topics_are(
    region: Region, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{__name__}.TOPICS", [f"persistent://a/b/t-partition-{number}" for number in range(4)])
    for unused in (set(TOPICS[1:]), set(TOPICS)):
        region.partitions, region.gone = 4, unused
        made = query(region, namespace="", topic="persistent://a/b/t", discovery_interval_s="100000")
        start = made.latestOffset(json.loads(json.dumps(made.initialOffset())), ReadMaxBytes(1 << 30))
        region.asked.clear()
        made.latestOffset(start, ReadMaxBytes(1 << 30))
        assert set(region.asked) <= set(TOPICS) - unused, (
            "a broker reads the metadata for each of the others, at every trigger"
        )


def test_a_query_that_does_not_begin_at_the_beginning_asks_about_many_topics_at_once(region: Region) -> None:
    start = query(region, starting="latest").initialOffset()
    assert {place["at"] for place in start["topics"].values()} == {"2:10"}
    assert all(place["vector"] == place["above"] == {"1.1.7": "2:9"} for place in start["topics"].values())
    assert len(region.tokens) == 3, "which topics there are, what they hold, and what lies before"


class Arriving:
    """A region where something of us arrives before each answer, until all is there."""

    def __init__(self, us: moves.Region, eu: moves.Region) -> None:
        self.world, self.us, self.eu = moves.World(random.Random(1)), us, eu

    def _arrives(self, count: int = 1) -> moves.Region:
        self.world.carry(self.us, self.eu, count)
        return self.eu

    def snapshots(self, topics: Any) -> dict[str, TopicSnapshot]:
        return {topic: self._arrives().snapshot() for topic in topics}

    def vector(self, topic: str, at: Position | None = None) -> dict[Origin, Position]:
        return self._arrives().vector(topic, at)

    def find(self, topic: str, origin: Origin, at: Position) -> CoordinatePlace:
        return self._arrives().find(topic, origin, at)


@pytest.mark.parametrize("skipped", [0, 2])
def test_what_arrives_while_an_unfinished_micro_batch_is_planned_in_another_region_is_in_it(skipped: int) -> None:
    """It is held back until all is there; what the region says last may not be in what it said first. skipped: of the
    end, not meant for that region.
    """
    us, eu = moves.Region(1), moves.Region(2)
    for _ in range(12):
        us.publish()
    start, stop = TopicPlace("us", (3, 0), {}), TopicPlace("us", (3, 12), {us.own: (3, 11)})
    if skipped:
        del us.ledgers[3][-skipped:]
        us.held[us.own] = (3, 11 - skipped)
    made = HeliographStreamReader(
        StructType([StructField("value", BinaryType())]),
        {"admin_url": "http://none", "namespace": "a/b", "topics_pattern": "t", "columns": "raw"},
    )
    arriving = Arriving(us, eu)
    made._connected = arriving  # type: ignore[assignment]
    refused = 0
    while True:
        if skipped and eu.held.get(us.own) == us.last:
            eu.held[us.own] = (3, 11)  # a SKIP says that the others do not come
        try:
            tasks = made.partitions(encode({moves.TOPIC: start}), encode({moves.TOPIC: stop}))
            break
        except MetadataUnavailable:
            refused += 1
    assert sum(r.last - r.first + 1 for task in tasks if isinstance(task, Bundle) for r in task.ranges) == 12 - skipped
    assert refused, "else nothing came in between"


@pytest.mark.parametrize("two", [0, 1])
def test_a_batch_with_an_ending_is_cut_alike_when_it_runs_again(region: Region, two: int) -> None:
    """By a job with a name: its rows are known by their tasks. The last ledger grows meanwhile, and its bytes an entry
    change.
    """
    region.two, cuts = two, []
    options = {
        "admin_url": region.url,
        "topic": TOPICS[0],
        "ending": "1.1.7:2:7",
        "task_bytes": "30000",
        "tasks_min": "2",
    }
    for entries, size in ((10, 100_000), (500, 9_000_000)):
        region.open = {"ledger": 2, "entries": entries, "size_bytes": size}
        made = HeliographDataSource(options).reader(StructType([StructField("value", BinaryType())]))
        cuts.append(
            [
                [(r.ledger, r.first, r.last) for r in task.ranges]
                for task in made.partitions()
                if isinstance(task, Bundle)
            ]
        )
    assert cuts[0] == cuts[1] and len(cuts[0]) > 1 and cuts[0][-1][-1][-1] == 7


def test_a_topic_that_the_next_region_lacks_as_a_whole_is_no_gap(region: Region) -> None:
    """It was made in us a moment before us went down: its messages are on their way, and would be counted as read."""
    made = query(region)
    start = json.loads(json.dumps(made.initialOffset()))
    stop = json.loads(json.dumps(made.latestOffset(start, ReadMaxBytes(1 << 30))))
    stop["topics"] |= {topic: start["topics"][topic] for topic in TOPICS[:3]}
    region.gone.add(TOPICS[3])
    assert [task.ranges for task in query(region).partitions(start, stop) if isinstance(task, Bundle)] == [()] * 2, (
        "deleted, where it was"
    )
    region.name = "eu"
    with pytest.raises(MetadataUnavailable, match=r"t3: .*which has not arrived in region eu"):
        query(region).partitions(start, stop)
    assert query(region, fail_on_data_loss="false").partitions(start, stop)
    region.gone |= set(TOPICS)
    with pytest.raises(MetadataUnavailable, match="which has not arrived"):
        query(region).partitions(start, stop)


def test_a_topic_that_a_group_took_over_and_that_has_not_arrived_keeps_its_place(
    region: Region, tmp_path: Path
) -> None:
    """Topics moved between groups while the job moved to another region: that one is read there from its place on."""
    places = {topic: TopicPlace("us", (2, 4), {(1, 1, 7): (2, 3)}) for topic in TOPICS[2:]}
    told = tmp_path / "group.json"
    TopicSelection(None, frozenset(TOPICS[:2]), places).write(told)
    region.gone.add(TOPICS[3])
    made = query(region, group_file=str(told))
    start = json.loads(json.dumps(made.initialOffset()))
    assert decode(start) == places
    stop = json.loads(json.dumps(made.latestOffset(start, ReadMaxBytes(1 << 30))))
    assert decode(stop)[TOPICS[3]] == places[TOPICS[3]] and decode(stop)[TOPICS[2]].at == (2, 10)
    assert {r.topic for task in made.partitions(start, stop) if isinstance(task, Bundle) for r in task.ranges} == {
        TOPICS[2]
    }
    region.gone.clear()
    made = query(region, group_file=str(told))
    arrived = made.latestOffset(stop, ReadMaxBytes(1 << 30))
    ranges = [r for task in made.partitions(stop, arrived) if isinstance(task, Bundle) for r in task.ranges]
    assert {r.topic for r in ranges} == {TOPICS[3]}
    assert sorted(entry for r in ranges for entry in range(r.first, r.last + 1)) == [4, 5, 6, 7, 8, 9]


def test_what_makes_no_sense_is_refused(region: Region) -> None:
    with pytest.raises(ConfigError, match="of a batch read"):
        query(region, ending="2026-01-31")
    with pytest.raises(ConfigError, match="none is declared"):
        HeliographDataSource({"admin_url": region.url, "namespace": "a/b", "columns": "json"}).schema()
