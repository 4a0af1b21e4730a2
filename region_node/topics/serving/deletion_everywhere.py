"""DeletionEverywhere: what deleting a topic, or a namespace, means where other regions have it too.

Is: which topics other regions may have, and their deletion in two steps, in all of them, whichever tool asks for it:
`heliograph dr delete`, Pulsar's REST, Kafka's DeleteTopics. Isn't: the tombstones themselves (`deferred_deletion`), the
deletion of what one region alone has (`topic_service`), or a client's rights.
Invariants: what another region may have is never deleted in one region alone by a tool that does not say so: a link
would bring it back.
Source: docs/operating/deletion.md.
"""

from __future__ import annotations

from collections.abc import Iterable

from global_config.view import ConfigView
from heliograph.model.configuration.tombstones import Tombstone
from heliograph.model.errors import ConsumerBusy, NotAllowed, NotFound, ProducerBusy
from heliograph.model.topic_names import TopicName
from region_node.topics.policies.policy_book import PolicyBook
from region_node.topics.serving.deferred_deletion import Tombstones
from region_node.topics.topic import Topic


class DeletionEverywhere:
    """What a broker asks before it deletes, and does where other regions may have the same."""

    def __init__(self, tombstones: Tombstones, view: ConfigView, policies: PolicyBook) -> None:
        self._tombstones, self._view, self._policies = tombstones, view, policies

    def holds(self, name: TopicName) -> bool:
        """Whether a topic, or one of its partitions, is deleted everywhere: it is stored, and its namespace, or a
        policy of the topic, has it in more regions than one, or had. A policy that keeps a topic in one region does not
        change that: what others had got by then, they have still.
        """
        if not name.persistent:
            return False
        of_all = self._view.topic_policies(str(name.partitioned))
        return (
            self.holds_namespace(name.namespace)
            or self._several(self._policies.of(name).values.get("replication") or ())
            or self._several((of_all.policies.get("replication") if of_all is not None else None) or ())
        )

    def holds_namespace(self, namespace: str) -> bool:
        """Whether a namespace is deleted everywhere: it has more regions than one, or one that left it may have its
        copy still.
        """
        found = self._view.namespace(namespace)
        return found is not None and self._several((*found.regions, *found.left))

    def _several(self, regions: Iterable[str]) -> bool:
        """Whether they are several that are there; Pulsar clusters are none: their copies are their own."""
        return len({region for region in regions if self._view.region(region) is not None}) > 1

    def grace_s(self, namespace: str) -> float:
        """How long what the stock tools delete can be brought back."""
        return float(self._policies.of_namespace(namespace).limit("deletionGrace"))

    async def topic(self, name: TopicName, *, by: str, grace_s: float | None = None) -> Tombstone:
        """Deletes the whole topic, with all its partitions. grace_s: None: as its namespace says. Raises as
        `Tombstones.bury`, NotAllowed (it is a partition of a topic that is there).
        """
        namespace = name.namespace
        if name.partition >= 0 and self._view.partitions(str(name.partitioned)):
            raise NotAllowed(
                f"{name} is a partition, and other regions have it: delete {name.partitioned} with all of them, or, "
                "with onlyHere=true, what this region has of it"
            )
        return await self._tombstones.bury(
            str(name),
            where_copies_may_be(self._view, namespace),
            grace_s=self.grace_s(namespace) if grace_s is None else grace_s,
            by=by,
            partitions=self._view.partitions(str(name)),
        )

    async def namespace(self, namespace: str, *, by: str, grace_s: float | None = None) -> Tombstone:
        """Deletes every topic in it, its policies, and its name. grace_s: None: as it says itself, and what was deleted
        in it before can be brought back as long as it could. Raises as `Tombstones.bury`, NotFound.
        """
        if grace_s is None:
            grace_s = max(self.grace_s(namespace), self._tombstones.longest_s(namespace))
        return await self._tombstones.bury(
            namespace,
            where_copies_may_be(self._view, namespace),
            grace_s=grace_s,
            by=by,
        )


def where_copies_may_be(view: ConfigView, namespace: str) -> tuple[str, ...]:
    """The regions of a namespace, and those that may have left it with their copies: all in which a broker ran. Raises
    NotFound.
    """
    policies = view.namespace(namespace)
    if policies is None:
        raise NotFound(f"namespace {namespace} does not exist")
    ran = [info.name for info in view.regions() if info.metadata_instance]
    return tuple(dict.fromkeys([*policies.regions, *ran]))


def check_not_elsewhere(topic: Topic, name: str) -> None:
    """Raises NotAllowed where other regions may have the subscription of that name too, and would make it here again
    when the topic is loaded anew.
    """
    found = topic.subscriptions.get(name)
    if found is not None and found.replicated and topic.log.linked:
        raise NotAllowed(
            f"subscription {name} of {topic.text} is replicated: other regions have it too, and would bring it back. "
            "Delete it in each of them, by `heliograph subscriptions delete --only-here`, or switch its replication "
            "off in each (replicatedSubscriptionStatus), and then delete it"
        )


def check_unused(topic: str, producers: int, consumers: int) -> None:
    """Raises ProducerBusy or ConsumerBusy where some are connected."""
    if producers:
        raise ProducerBusy(f"{topic} has {producers} connected producer(s)")
    if consumers:
        raise ConsumerBusy(f"{topic} has {consumers} connected consumer(s)")
