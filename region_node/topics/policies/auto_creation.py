"""Creation: which topics come into being because a client asks for them, and how.

Is: the policies `autoTopicCreation` and `maxTopics`. Isn't: the making of a topic
(`region_node.topics.serving.topic_service`), or of partitions (the global configuration).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

from heliograph.model.configuration.drill_shadows import is_marked
from heliograph.model.errors import AlreadyExists, NotAllowed, NotFound
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
    """`exists`, `count`: of what is stored in this region. taken: why nothing can be made under a name, as what had it
    was deleted and is not gone yet; "": it can.
    """

    def __init__(
        self,
        policies: PolicyBook,
        view: ViewPort,
        exists: Callable[[str], Awaitable[bool]],
        count: Callable[[str], Awaitable[int]],
        partition: MakePartitions | None,
        taken: Callable[[TopicName], str] = lambda _: "",
    ) -> None:
        self._policies, self._view, self._exists, self._count, self._partition = (
            policies,
            view,
            exists,
            count,
            partition,
        )
        self._taken = taken
        self._coming: list[tuple[TopicName, int]] = []
        """Partitioned topics that are being declared here, and how many partitions they will have then."""

    def may_create(self, topic: str) -> bool:
        """Whether a client that asks for a topic that is not there makes it."""
        name = TopicName.parse(topic)
        if 0 <= name.partition < self._view.partitions(str(name.partitioned)):
            return True
        return bool(self._policies.of_namespace(name.namespace).part("autoTopicCreation", "allowAutoTopicCreation"))

    async def make_partitions(self, topic: str) -> int:
        """A client asks how many partitions a topic has: one that is not there is made with as many as its namespace
        says; 0: plain. Raises NotFound: it was deleted, and is not gone yet.
        """
        name = TopicName.parse(topic)
        if taken := self._taken(name):
            raise NotFound(taken)
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
        async with self.making(name, count):
            with suppress(AlreadyExists):
                await self._partition(topic, count)
        return count

    async def check_room(self, name: TopicName, partitions: int = 0) -> None:
        """Raises TooManyTopics where the namespace, or its tenant, has as many topics as it may have, AlreadyExists
        where the name is that of what was deleted and is not gone yet. partitions: a partitioned topic gets so many
        more; 0: one topic is made.

        Partitions count from when they are declared on, but for one that is made now: it is one of those. The shadow
        of a drill is nobody's: its topics, which the drill bounds, count in no tenant's quota and are refused by none.
        """
        if taken := self._taken(name):
            raise AlreadyExists(taken)
        quota = self._view.tenant_quota(name.tenant)
        of_tenant = 0 if quota is None or self._is_shadow(name.namespace) else quota.max_topics
        most = self._policies.of_namespace(name.namespace).limit("maxTopics")
        member = 0 <= name.partition < self._view.partitions(str(name.partitioned))
        together = (
            [each for each in self._view.namespaces(name.tenant) if not self._is_shadow(each)] if of_tenant else ()
        )
        stored = dict[str, int]()
        if (
            (of_tenant or most)
            and (partitions or name.persistent)
            and (partitions or not await self._exists(str(name)))
        ):
            for each in {name.namespace, *together}:
                stored[each] = await self._count(each)
        # from here on nothing is awaited: of two that ask for the last room at once, one gets it (`making`)
        if partitions and self._declared(name.namespace, name) + partitions > PARTITIONS_OF_NAMESPACE_MAX:
            raise TooManyTopics(
                f"{name.namespace} has {self._declared(name.namespace, name)} partitions, and may have "
                f"{PARTITIONS_OF_NAMESPACE_MAX}: delete partitioned topics, or take another namespace"
            )
        if not stored:
            return
        there = {each: max(count, 0 if member else self._declared(each, name)) for each, count in stored.items()}
        if of_tenant and (count := sum(there[each] for each in together)) + (partitions or 1) > of_tenant:
            raise TooManyTopics(
                f"tenant {name.tenant} has {count} topics, partitions each, and may have {of_tenant}: ask an operator "
                "for more"
            )
        if most and there[name.namespace] + (partitions or 1) > most:
            raise TooManyTopics(f"Exceed maximum number of topics in namespace. {name.namespace} has {most}")

    @asynccontextmanager
    async def making(self, name: TopicName, partitions: int) -> AsyncIterator[None]:
        """The partitioned topic gets so many more within it: nobody else of this broker has their room, also while its
        view does not show them yet. Raises as `check_room`.
        """
        await self.check_room(name, partitions)
        coming = name, self._view.partitions(str(name)) + partitions
        self._coming.append(coming)
        try:
            yield
        finally:
            self._coming.remove(coming)

    def _is_shadow(self, namespace: str) -> bool:
        return is_marked(namespace, self._view.namespace(namespace))

    def _declared(self, namespace: str, beside: TopicName) -> int:
        """Partitions that were declared in a namespace, and those of other topics that are being declared here."""
        coming = dict[TopicName, int]()
        for name, count in self._coming:
            if name.namespace == namespace and name != beside:
                coming[name] = max(count, coming.get(name, 0))
        return self._view.partitions_in(namespace) + sum(
            max(0, count - self._view.partitions(str(name))) for name, count in coming.items()
        )
