"""Creation: which topics come into being because a client asks for them, and how.

Is: the policies `autoTopicCreation` and `maxTopics`. Isn't: the making of a topic
(`region_node.topics.serving.topic_service`), or of partitions (the global configuration).
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Sequence

from heliograph.model.errors import AlreadyExists, NotAllowed
from heliograph.model.topic_names import TopicName
from region_node.runtime.topic_ports import ViewPort
from region_node.topics.policies.policy_book import PolicyBook

PARTITIONS_OF_NAMESPACE_MAX = 1_000_000
"""So many partitions may the partitioned topics of a namespace have together, also where no quota says less: whoever
lists its topics is told of each.
"""
MakePartitions = Callable[[str, int], Awaitable[None]]


class TooManyTopics(NotAllowed):
    """The namespace has as many as it may have."""


class Creation:
    """`exists`, `count`: of what is stored in this region."""

    def __init__(
        self,
        policies: PolicyBook,
        view: ViewPort,
        exists: Callable[[str], Awaitable[bool]],
        count: Callable[[str], Awaitable[int]],
        partition: MakePartitions | None,
        *,
        allowed: bool,
    ) -> None:
        self._policies, self._view, self._exists, self._count, self._partition, self._allowed = (
            policies,
            view,
            exists,
            count,
            partition,
            allowed,
        )

    def may_create(self, topic: str) -> bool:
        """Whether a client that asks for a topic that is not there makes it."""
        name = TopicName.parse(topic)
        if 0 <= name.partition < self._view.partitions(str(name.partitioned)):
            return True
        return self._allowed and bool(
            self._policies.of_namespace(name.namespace).part("autoTopicCreation", "allowAutoTopicCreation")
        )

    async def make_partitions(self, topic: str) -> int:
        """A client asks how many partitions a topic has: one that is not there is made with as many as its namespace
        says; 0: plain.
        """
        name = TopicName.parse(topic)
        count = self._view.partitions(topic)
        wanted = self._policies.of_namespace(name.namespace)
        if (
            count
            or name.partition >= 0
            or wanted.part("autoTopicCreation", "topicType") != "partitioned"
            or not self.may_create(topic)
        ):
            return count
        if self._partition is None or await self._exists(topic):
            return 0
        count = int(wanted.part("autoTopicCreation", "defaultNumPartitions"))
        await self.check_room(name, count)
        with contextlib.suppress(AlreadyExists):
            await self._partition(topic, count)
        return count

    async def check_room(self, name: TopicName, partitions: int = 0) -> None:
        """Raises TooManyTopics where the namespace, or its tenant, has as many topics as it may have. partitions: a
        partitioned topic gets so many more; 0: one topic is made.

        Partitions count from when they are declared on, but for one that is made now: it is one of those.
        """
        declared = self._view.partitions_in
        if partitions and declared(name.namespace) + partitions > PARTITIONS_OF_NAMESPACE_MAX:
            raise TooManyTopics(
                f"{name.namespace} has {declared(name.namespace)} partitions, and may have "
                f"{PARTITIONS_OF_NAMESPACE_MAX}: delete partitioned topics, or take another namespace"
            )
        if not partitions and not name.persistent:
            return
        quota = self._view.tenant_quota(name.tenant)
        of_tenant = 0 if quota is None else quota.max_topics
        most = self._policies.of_namespace(name.namespace).limit("maxTopics")
        if not (of_tenant or most) or (not partitions and await self._exists(str(name))):
            return
        member = 0 <= name.partition < self._view.partitions(str(name.partitioned))

        async def there(namespaces: Sequence[str]) -> int:
            return sum([max(await self._count(each), 0 if member else declared(each)) for each in namespaces])

        if of_tenant and (count := await there(self._view.namespaces(name.tenant))) + (partitions or 1) > of_tenant:
            raise TooManyTopics(
                f"tenant {name.tenant} has {count} topics, partitions each, and may have {of_tenant}: ask an operator "
                "for more"
            )
        if most and await there([name.namespace]) + (partitions or 1) > most:
            raise TooManyTopics(f"Exceed maximum number of topics in namespace. {name.namespace} has {most}")
