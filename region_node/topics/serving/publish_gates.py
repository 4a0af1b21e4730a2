"""Gates: whether the topics of this broker take messages now, and when their clients are sent on to another cluster.

Is: what stands before the publishers of each loaded topic, an active-passive namespace's gate or, above it, a migration
that an operator began for this region or for a namespace in it; which clients of a migrated topic go on, and when.
Isn't: who is active (`region_node.dr`), the record of a migration (`global_config.cluster_migrations`), or frames.
Invariants: from the moment this broker hears of a migration nothing is published; a producer goes on once no link has
anything left of its topic, a consumer once its subscription has acknowledged all that was appended until then: what was
published here is replicated, and read, before what is published there. What links bring later does not hold consumers:
it is where it came from, too.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import TYPE_CHECKING

from global_config import keys
from heliograph.model.configuration.configuration_records import ClusterMigration
from heliograph.model.errors import HeliographError, RegionPassive
from heliograph.model.positions import Position
from heliograph.runtime.task_set import TaskSet
from region_node.runtime.topic_ports import LeadershipGatePort, LinksPort, Segments, ViewPort
from region_node.subscriptions.subscription import Subscription
from region_node.topics.policies.policy_updates import in_slices
from region_node.topics.serving.loaded_topics import Loaded

if TYPE_CHECKING:
    from region_node.topics.topic import Topic

VISITS_MAX = 2000
GateOf = Callable[[str], LeadershipGatePort | None]


class Migration:
    """Stands before one topic: a gate that stays shut, and says where to go. `target`: what it was made from."""

    __slots__ = ("_end", "_index", "_links", "_topic", "_undrained", "target")

    def __init__(self, topic: Topic, target: ClusterMigration, links: LinksPort, undrained: dict[Topic, None]) -> None:
        """undrained: where it puts its topic while consumers have something left to read here."""
        self._topic, self.target, self._links, self._undrained = topic, target, links, undrained
        self._index = 0 if topic.volatile else topic.ledger.next_index
        self._end: Position | None = None
        """Of the last entry that was appended, or on its way, when the gate was shut; None: one is still on its way."""
        self._settle()

    @property
    def leadership(self) -> int:
        return 0

    @property
    def epoch(self) -> int:
        return 0

    @property
    def open(self) -> bool:
        return False

    def refusal(self) -> RegionPassive:
        """With an address once every link has what was published here."""
        self._settle()  # a producer is told behind its receipts, and publishes nothing elsewhere before
        if any(link.backlog_entries for link in self._links.stats(self._topic.text)):
            return RegionPassive(
                f"{self._topic.text} is migrated to another cluster once its links have delivered their backlog: try "
                "again"
            )
        return elsewhere(self._topic.text, self.target)

    def enter(self, done: Callable[[Segments], None], failed: Callable[[HeliographError], None]) -> RegionPassive:
        return self.refusal()

    def check_consumer(self, name: str, *, new_ends_here: bool) -> None:
        """Raises RegionPassive where there is nothing for it here. new_ends_here: a subscription that is made now would
        begin at the end.
        """
        found = self._topic.subscriptions.get(name)
        if found is None:
            self._undrained[self._topic] = None
        if new_ends_here if found is None else self.of_consumers(found) is not None:
            raise elsewhere(self._topic.text, self.target)

    def of_consumers(self, subscription: Subscription) -> RegionPassive | None:
        """Where its consumers go on; None: it has something left here."""
        if self._has_left(subscription):
            self._undrained[self._topic] = None
            return None
        return elsewhere(self._topic.text, self.target)

    def _has_left(self, subscription: Subscription) -> bool:
        if self._topic.volatile:
            return False
        self._settle()
        cursor = subscription.cursor
        return self._end is None or (cursor.mark_delete < self._end and bool(cursor.backlog_entries))

    def _settle(self) -> None:
        """The end is known as soon as nothing is on its way any more, be it stored or failed: later, what links bring
        would be before it, too.
        """
        if self._end is None and not self._topic.volatile:
            ledger = self._topic.ledger
            if ledger.confirmed_index >= min(self._index, ledger.next_index):
                self._end = ledger.last_confirmed


def elsewhere(what: str, target: ClusterMigration) -> RegionPassive:
    urls = target.broker_service_url, target.broker_service_url_tls
    return RegionPassive(f"{what} is migrated: go on at {urls[0] or urls[1]}", *urls, migrated=True)


class Gates:
    """`loaded`: full name -> topic, as it is at the time. `of`: a namespace's gate, where it is active-passive."""

    def __init__(
        self, loaded: Loaded, view: ViewPort, links: LinksPort, region: str, tasks: TaskSet, of: GateOf | None = None
    ) -> None:
        self._of: GateOf = of or (lambda _: None)
        self._loaded, self._view, self._links, self._region, self._tasks = loaded, view, links, region, tasks
        self._undrained: dict[Topic, None] = {}
        self.close = view.on_change(self._on_config)

    def target(self, namespace: str) -> ClusterMigration | None:
        """To where the clients of a namespace are sent on; None: they are served here."""
        own = self._region
        found = self._view.migration(own)
        if found is None or not found.urls or not (found.migrated or own in self._view.migrated_in(namespace)):
            return None
        return found

    def sent_on(self, namespace: str) -> RegionPassive | None:
        """Why a topic of it that is not there is not made here."""
        target = self.target(namespace)
        return None if target is None else elsewhere(namespace, target)

    def elsewhere(self, namespace: str) -> RegionPassive | None:
        """Why nothing is published to a namespace here, and where to go instead where that is known; None: it is."""
        gate = self._of(namespace)
        refused = self.sent_on(namespace) or (None if gate is None else gate.refusal())
        return refused if isinstance(refused, RegionPassive) else None

    def give(self, topic: Topic) -> None:
        gate, target = self._of(topic.name.namespace), self.target(topic.name.namespace)
        topic.log.stand_behind(gate)
        if target is None:
            topic.migration = None
        elif topic.migration is None or topic.migration.target != target:
            topic.migration = Migration(topic, target, self._links, self._undrained)
            self._undrained[topic] = None
        topic.gate = topic.migration or gate

    def leadership_changed(self, namespace: str) -> None:
        """Another region may be the active one of a namespace: producers that would not be heard here are closed,
        behind their receipts.
        """
        self._give_all(self._loaded.of(namespace))

    def tick(self) -> None:
        """Consumers that have read everything here are sent on. Of very many topics some are looked at each time."""
        for topic in list(islice(self._undrained, VISITS_MAX)):
            del self._undrained[topic]
            if topic.closed or topic.migration is None:
                continue
            for subscription in list(topic.subscriptions.values()):
                if subscription.consumers and topic.migration.of_consumers(subscription) is not None:
                    subscription.disconnect()

    def _on_config(self, key: str) -> None:
        topics: list[Topic] = []
        if key.startswith(keys.MIGRATED):
            topics = self._loaded.of(key.removeprefix(keys.MIGRATED))
        elif key.startswith(keys.MIGRATIONS) and self._loaded and key == keys.migration(self._region):
            topics = list(self._loaded.values())
        in_slices(self._tasks, topics, self._give_all)

    def _give_all(self, topics: list[Topic]) -> None:
        for topic in topics:
            if topic.closed:  # what it has on its way is confirmed yet
                topic.log.stand_behind(self._of(topic.name.namespace))
            else:
                self.give(topic)
                if topic.gate is not None and not topic.gate.open:
                    topic.close_producers()
