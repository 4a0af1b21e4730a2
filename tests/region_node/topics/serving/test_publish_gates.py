"""Whether a topic takes messages now, and when its clients are sent on: stepped, over topics that are a few numbers."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest

from heliograph.model.configuration.configuration_records import ClusterMigration
from heliograph.model.configuration.leadership import DRAINING, FENCED, OPEN, Leadership
from heliograph.model.errors import NotEnoughBookies, RegionPassive
from heliograph.model.positions import Position
from heliograph.model.topic_names import TopicName
from region_node.dr.leadership.write_gates import Writing
from region_node.topics.serving.loaded_topics import Loaded
from region_node.topics.serving.publish_gates import VISITS_MAX, Gates
from replicator.log.region_durability import RegionWaits
from tests.replicator.dedup.alias_world import Gate as AliasGate
from tests.replicator.dedup.alias_world import Region, local

GREEN = ClusterMigration(
    migrated=True, broker_service_url="pulsar://green:6650", broker_service_url_tls="pulsar+ssl://g"
)
SOME = ClusterMigration(broker_service_url="pulsar://green:6650")


class OneSubscription:
    def __init__(self, mark_delete: Position, backlog_entries: int) -> None:
        self.cursor = SimpleNamespace(mark_delete=mark_delete, backlog_entries=backlog_entries)
        self.consumers = ["c"]
        self.disconnected = 0

    def disconnect(self) -> None:
        self.disconnected += 1


class OneTopic:
    """Nothing is on its way as long as `next_index` is `confirmed_index`."""

    def __init__(self, text: str = "persistent://t/n/x", volatile: bool = False) -> None:
        self.text, self.name, self.volatile, self.closed = text, TopicName.parse(text), volatile, False
        self.ledger = SimpleNamespace(next_index=3, confirmed_index=3, last_confirmed=(5, 2))
        self.log: Any = SimpleNamespace(stand_behind=self.stand_behind)
        self.log_gate: Any = None
        self.migration: Any = None
        self.gate: Any = None
        self.subscriptions: dict[str, OneSubscription] = {}
        self.producers_closed = 0

    def stand_behind(self, gate: Any) -> None:
        self.log_gate = gate

    def close_producers(self) -> None:
        self.producers_closed += 1


class OneBroker:
    """The configuration, the links, and what is loaded."""

    def __init__(self, *topics: OneTopic, of: Any = None) -> None:
        self.migrations: dict[str, ClusterMigration] = {}
        self.namespaces: dict[str, tuple[str, ...]] = {}
        self.backlogs: list[int] = []
        loaded: Any = Loaded()
        for topic in topics:
            loaded[topic.text] = topic
        view: Any = SimpleNamespace(
            migration=lambda region: self.migrations.get(region),
            migrated_in=lambda namespace: self.namespaces.get(namespace, ()),
            on_change=self._watch,
        )
        links: Any = SimpleNamespace(stats=lambda _: [SimpleNamespace(backlog_entries=left) for left in self.backlogs])
        tasks: Any = None
        self.gates: Any = Gates(loaded, view, links, "us", tasks, of)

    def _watch(self, callback: Any) -> Any:
        self.changed = callback
        return lambda: None

    def migrate(self, target: ClusterMigration | None) -> None:
        self.migrations = {} if target is None else {"us": target}
        self.changed("/migrations/us")


def test_from_the_moment_it_hears_of_it_nothing_is_published_and_until_it_is_taken_back() -> None:
    topic = OneTopic()
    broker = OneBroker(topic)
    broker.gates.give(topic)
    assert topic.gate is None and broker.gates.sent_on("t/n") is None
    broker.migrate(GREEN)
    assert topic.gate is topic.migration and not topic.gate.open and topic.producers_closed == 1
    refused = topic.gate.enter(None, None)
    assert isinstance(refused, RegionPassive) and (refused.url, refused.url_tls) == (
        "pulsar://green:6650",
        "pulsar+ssl://g",
    )
    assert isinstance(broker.gates.sent_on("t/n"), RegionPassive)
    first = topic.migration
    broker.changed("/migrations/us")
    assert topic.migration is first, "what was known of its end is kept"
    broker.migrate(None)
    assert topic.gate is None and topic.migration is None


def test_a_migration_stands_above_an_active_passive_namespaces_gate() -> None:
    topic, passive = OneTopic(), SimpleNamespace(open=False)
    broker = OneBroker(topic, of=lambda _: passive)
    broker.gates.leadership_changed("t/n")
    assert topic.gate is passive and topic.log_gate is passive and topic.producers_closed == 1
    broker.migrate(GREEN)
    assert topic.gate is topic.migration is not None
    broker.migrate(None)
    passive.open = True
    broker.gates.leadership_changed("t/n")
    assert topic.gate is passive and topic.producers_closed == 3, "who is heard here stays"


@pytest.mark.parametrize(
    ("target", "namespaces", "sent_on"),
    [
        (GREEN, {}, True),
        (SOME, {}, False),
        (SOME, {"t/n": ("us",)}, True),
        (SOME, {"t/n": ("eu",)}, False),
        (SOME, {"t/other": ("us",)}, False),
        (ClusterMigration(migrated=True), {}, False),
        (None, {"t/n": ("us",)}, False),
    ],
)
def test_whose_clients_are_sent_on(
    target: ClusterMigration | None, namespaces: dict[str, tuple[str, ...]], sent_on: bool
) -> None:
    broker = OneBroker()
    broker.namespaces = namespaces
    broker.migrate(target)
    assert (broker.gates.target("t/n") is not None) is sent_on


def test_a_producer_goes_on_once_no_link_has_anything_left() -> None:
    topic = OneTopic()
    broker = OneBroker(topic)
    broker.migrate(GREEN)
    for backlogs, url in (([0, 1], ""), ([1], ""), ([0, 0], GREEN.broker_service_url), ([], GREEN.broker_service_url)):
        broker.backlogs = backlogs
        assert topic.gate.refusal().url == url


def test_a_consumer_goes_on_once_all_that_was_appended_until_then_is_acknowledged() -> None:
    topic = OneTopic()
    topic.subscriptions = {"behind": OneSubscription((5, 1), 1), "done": OneSubscription((5, 2), 0)}
    broker = OneBroker(topic)
    broker.migrate(GREEN)
    broker.gates.tick()
    behind, done = topic.subscriptions.values()
    assert not behind.disconnected and done.disconnected == 1
    topic.ledger.next_index = topic.ledger.confirmed_index = 9
    topic.ledger.last_confirmed = (5, 8)  # links bring more: it is where it came from, too
    behind.cursor.mark_delete, behind.cursor.backlog_entries = (5, 2), 6
    broker.gates.tick()
    assert behind.disconnected == 1
    topic.migration.check_consumer("new", new_ends_here=False)
    for name, ends in (("new", True), ("behind", False), ("done", True)):
        with pytest.raises(RegionPassive):
            topic.migration.check_consumer(name, new_ends_here=ends)


def test_what_is_on_its_way_when_the_gate_is_shut_belongs_to_what_must_be_read() -> None:
    topic = OneTopic()
    topic.ledger.next_index = 5
    topic.subscriptions = {"s": OneSubscription((5, 2), 0)}
    broker = OneBroker(topic)
    broker.migrate(GREEN)
    broker.gates.tick()
    (found,) = topic.subscriptions.values()
    topic.ledger.confirmed_index = 4
    broker.gates.tick()
    assert not found.disconnected, "one is still on its way"
    topic.ledger.confirmed_index, topic.ledger.last_confirmed, found.cursor.backlog_entries = 5, (5, 4), 2
    broker.gates.tick()
    assert not found.disconnected
    found.cursor.mark_delete, found.cursor.backlog_entries = (5, 4), 0
    broker.gates.tick()
    assert found.disconnected == 1


def test_what_was_on_its_way_and_failed_is_not_waited_for() -> None:
    topic = OneTopic()
    topic.ledger.next_index = 5
    topic.subscriptions = {"s": OneSubscription((5, 2), 0)}
    broker = OneBroker(topic)
    broker.migrate(GREEN)
    topic.ledger.next_index = 3
    broker.gates.tick()
    assert topic.subscriptions["s"].disconnected == 1


def test_a_topic_that_stores_nothing_has_nothing_left_and_a_closed_one_is_left_alone() -> None:
    volatile, closed = OneTopic("non-persistent://t/n/x", volatile=True), OneTopic()
    for topic in (volatile, closed):
        topic.subscriptions = {"s": OneSubscription((-1, -1), 3)}
    closed.subscriptions["s"].cursor.mark_delete = (5, 2)
    broker = OneBroker(volatile, closed)
    broker.migrate(GREEN)
    closed.closed = True
    broker.gates.tick()
    assert volatile.subscriptions["s"].disconnected == 1 and not closed.subscriptions["s"].disconnected


def test_of_very_many_topics_some_are_looked_at_each_time_and_none_is_forgotten() -> None:
    topics = [OneTopic(f"persistent://t/n/{number}") for number in range(VISITS_MAX + 50)]
    broker = OneBroker(*topics)
    broker.migrations["us"] = GREEN
    for topic in topics:
        topic.subscriptions = {"s": OneSubscription((5, 2), 0)}
        broker.gates.give(topic)
    gone = []
    for _ in range(2):
        broker.gates.tick()
        gone.append(sum(topic.subscriptions["s"].disconnected for topic in topics))
    assert gone == [VISITS_MAX, VISITS_MAX + 50]


@pytest.mark.parametrize("state", (OPEN, DRAINING, FENCED))
@pytest.mark.parametrize("ends", ("confirmed", "failed", "heard elsewhere", "unloading"))
def test_what_was_taken_before_there_was_a_gate_is_waited_for(state: str, ends: str) -> None:
    """It is confirmed whatever the leadership says: until then this broker does not claim to obey one."""
    region, topic, told = Region(1, random.Random(1), AliasGate(0)), OneTopic(), list[str]()
    topic.log = region.log
    writing = Writing("us", ttl_s=6, drift=0.1, now=lambda: 0.0)
    broker = OneBroker(topic, of=writing.gate)
    broker.gates.give(topic)
    waits = RegionWaits(lambda: 0.0, lambda: 0, lambda: None)
    if ends == "heard elsewhere":
        waits.obey({"regions": 2, "degradeAfterMs": 0}, ["eu"])
        region.log.waits = waits
    for first in (0, 1, 0):  # the last one repeats the first
        run = local("p", first, 1)
        region.log.publish(run, lambda _: told.append("confirmed"), lambda _: told.append("failed"))
    topic.closed = ends == "unloading"

    def obeyed(version: int) -> bool:
        return writing.obeyed().obeys("t/n", version)

    writing.on_record("t/n", Leadership(active="us", state=state, to="" if state == OPEN else "eu"), 4)
    broker.gates.leadership_changed("t/n")
    assert not obeyed(4)
    writing.on_renewed(0.0)
    writing.on_registered(5, ["t/n"])
    assert not obeyed(4), "nor by another lease"
    drained: list[int] = []
    gate: Any = writing.gate("t/n")
    gate.on_drained = lambda: drained.append(len(told))
    broker.gates.leadership_changed("t/n")
    if ends == "failed":
        region.ledger.fail(NotEnoughBookies("none"))
    else:
        region.ledger.confirm(1)
        assert not obeyed(4) and not drained
        region.ledger.confirm(9)
    if ends == "heard elsewhere":
        assert not told and not obeyed(4)
        waits.heard("eu", region.log.last_own()[1])
    assert told == ["failed" if ends == "failed" else "confirmed"] * 3 and drained == [3] and obeyed(4)
    writing.on_record("t/n", Leadership(active="us", state=DRAINING, to="eu"), 6)
    assert obeyed(6), "nothing else is on its way"
