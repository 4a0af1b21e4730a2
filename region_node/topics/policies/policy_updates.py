"""Applying: brings what policies say to loaded topics, when they are loaded and when the policies change.

Is: which topics a change concerns, and what is told to each: its limits and rates, its log, its links. Isn't: where
policies come from (`policy_book`), or what is done as time goes by (`policy_maintenance`).
Invariants: each topic gets what holds when its turn comes, so that changes may overtake each other; a change of many
topics gives way to others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

from heliograph.model.configuration.replication_routes import targets
from heliograph.model.topic_names import TopicName
from heliograph.runtime.clock import Clock
from heliograph.runtime.task_set import TaskSet
from region_node.runtime.topic_ports import LinksPort, ViewPort
from region_node.subscriptions.filter_plugins import FilterBook
from region_node.topics.limits.topic_rates import Groups
from region_node.topics.nonpersistent_log import MemoryLog
from region_node.topics.policies.policy_book import PolicyBook
from region_node.topics.policies.policy_maintenance import PolicyMaintenance
from region_node.topics.topic import Topic

AT_ONCE = 200


class PolicyApplier:
    """`loaded`: full name -> topic, as it is at the time."""

    def __init__(
        self,
        policies: PolicyBook,
        view: ViewPort,
        links: LinksPort,
        maintenance: PolicyMaintenance,
        loaded: Mapping[str, Topic],
        region: str,
        tasks: TaskSet,
        clock: Clock,
        filters: FilterBook | None = None,
    ) -> None:
        self._filters = filters or FilterBook()
        self._policies, self._view, self._links, self._maintenance, self._loaded, self._region, self._tasks = (
            policies,
            view,
            links,
            maintenance,
            loaded,
            region,
            tasks,
        )
        self.groups = Groups(view.resource_group, clock)
        policies.on_change(self._changed)

    def apply(self, topic: Topic) -> None:
        policies = self._policies.of(topic.name)
        topic.obey(policies, self.groups.rates(policies.values.get("resourceGroup", "")), self._filters.of(policies))
        self._maintenance.follow(topic)
        own, namespace = self._region, self._view.namespace(topic.name.namespace)
        wanted = policies.values.get("replication")
        tenant = self._view.tenant(topic.name.tenant) if wanted else None
        regions = [
            name
            for name in wanted or (namespace.regions if namespace is not None else ())
            if self._view.cluster(name) is None and (tenant is None or name in tenant.allowed_regions)
        ]
        elsewhere = targets(policies.values.get("replicationRoutes"), own, regions)
        if isinstance(topic.log, MemoryLog):
            topic.log.not_sent_to([region for region in elsewhere if region != own])
        if topic.volatile:
            return
        if topic.log.deduplication != policies.deduplication:
            topic.log.deduplication = policies.deduplication
        topic.ledger.set_retention(*policies.retention)
        topic.ledger.set_quorums(policies.ensemble, policies.write_quorum, policies.ack_quorum)
        topic.ledger.set_mark_delete_rate(float(policies.part("persistence", "managedLedgerMaxMarkDeleteRate") or 0))
        topic.ledger.set_affinity(policies.affinity.primary, policies.affinity.secondary)
        topic.ledger.follow_sealing()
        if topic.shadow_of:  # its source has the links
            return
        behind = self._behind(own, namespace.clusters if namespace is not None else (), wanted)
        self._links.attach(topic.log, [*elsewhere, *behind])
        self._links.obey(topic.log, policies.values)

    def _behind(self, own: str, clusters: Sequence[str], wanted: Sequence[str] | None) -> list[str]:
        """The Pulsar clusters of a topic that this region is the gateway of. wanted: what a policy of the topic leaves
        of them.
        """
        known = (self._view.cluster(name) for name in clusters if not wanted or name in wanted)
        return [cluster.name for cluster in known if cluster is not None and cluster.gateway == own]

    def _changed(self, namespace: str, base: str) -> None:
        if base:
            parts = (str(TopicName.parse(base).with_partition(index)) for index in range(self._view.partitions(base)))
            topics = [self._loaded[name] for name in (base, *parts) if name in self._loaded]
        else:
            topics = [topic for topic in self._loaded.values() if namespace in ("", topic.name.namespace)]
        in_slices(self._tasks, topics, self._apply_all)

    def _apply_all(self, topics: list[Topic]) -> None:
        for topic in topics:
            if not topic.closed and self._view.namespace(topic.name.namespace) is not None:
                self.apply(topic)


def in_slices(tasks: TaskSet, topics: list[Topic], act: Callable[[list[Topic]], None]) -> None:
    """The first at once; of very many the others later, between what else there is to do."""
    act(topics[:AT_ONCE])
    if len(topics) > AT_ONCE:
        tasks.spawn(_later(topics[AT_ONCE:], act))


async def _later(topics: list[Topic], act: Callable[[list[Topic]], None]) -> None:
    for start in range(0, len(topics), AT_ONCE):
        await asyncio.sleep(0)
        act(topics[start : start + AT_ONCE])
