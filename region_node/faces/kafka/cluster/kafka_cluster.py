"""Cluster: which topics and brokers a Kafka client sees, under which names and numbers.

Is: names of topics in both protocols, who leads which partition, making topics that are asked for. Isn't: ownership
itself, or a broker's number (`kafka_nodes`).
Invariants: a partition is led by the owner of its bundle; asking for the leaders of a topic makes an owner where there
is none.
Source: docs/protocols/kafka.md, "Topics and brokers".

    orders                        public/default/orders (the listener's namespace)
    shop/eu/orders                persistent://shop/eu/orders
    partition 2 of orders         persistent://public/default/orders-partition-2, or, where it is not
                                  partitioned, the plain topic itself
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from heliograph.model.admin_paths import topic_path
from heliograph.model.errors import AlreadyExists, HeliographError, NotAllowed, NotFound
from heliograph.model.topic_names import TopicName
from region_node.faces.kafka.cluster.kafka_nodes import KafkaNode
from region_node.faces.kafka.error_codes import Code, Refused
from region_node.faces.kafka.kafka_settings import KafkaSettings
from region_node.topics.serving.topic_ids import TopicIds

if TYPE_CHECKING:
    from global_config.admin import ConfigAdmin
    from region_node.faces.kafka.cluster.leading_regions import LeadingRegions
    from region_node.placement.ownership.broker_calls import BrokerCalls
    from region_node.placement.ownership.broker_records import BrokerRecord
    from region_node.placement.ownership.ownership_service import Ownership
    from region_node.runtime.topic_ports import OwnRegion
    from region_node.topics.serving.topic_service import TopicService

_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}\Z")


class Cluster:
    """The cluster as one broker of it sees it."""

    def __init__(
        self,
        *,
        ownership: Ownership,
        region: OwnRegion,
        topics: TopicService,
        config: ConfigAdmin,
        settings: KafkaSettings,
        ids: TopicIds,
        leading: LeadingRegions,
        calls: BrokerCalls,
    ) -> None:
        """calls: by which parts of topics are deleted that other brokers own."""
        self._ownership, self._view, self._calls, self.region = ownership, topics.view, calls, region
        self.topics, self.config, self.settings, self.ids, self.leading = topics, config, settings, ids, leading

    # -- names ---------------------------------------------------------------------------------------------------------

    def name(self, kafka: str) -> TopicName:
        """Raises Refused for what cannot be a topic here."""
        text = kafka.removeprefix("persistent://")
        local = text.rpartition("/")[2]
        if not _NAME.match(local) or local in (".", "..") or text.count("/") not in (0, 2):
            raise Refused(Code.INVALID_TOPIC_EXCEPTION, f"{kafka[:100]!r} is no topic's name")
        try:
            name = TopicName.parse(f"persistent://{text if '/' in text else f'{self.settings.namespace}/{text}'}")
        except NotAllowed as error:
            raise Refused(Code.INVALID_TOPIC_EXCEPTION, str(error)) from error
        if name.partition >= 0:
            raise Refused(Code.INVALID_TOPIC_EXCEPTION, f"{kafka!r} is a partition, not a topic")
        return name

    def kafka_name(self, name: TopicName) -> str:
        if name.namespace == self.settings.namespace:
            return name.local
        return f"{name.namespace}/{name.local}"

    def spellings(self, name: TopicName) -> list[str]:
        """Every way in which a client may name it; the first is `kafka_name`."""
        whole = f"{name.namespace}/{name.local}"
        plain = [name.local] if name.namespace == self.settings.namespace else []
        return [*plain, whole, *(f"persistent://{text}" for text in (*plain, whole))]

    async def partitions(self, name: TopicName) -> int:
        """How many partitions Kafka's clients see; 0: the topic is not there, or was deleted. Raises NotFound (no such
        namespace).
        """
        if self._view.namespace(name.namespace) is None:
            raise NotFound(f"namespace {name.namespace} does not exist")
        if self.topics.tombstone_of(name):
            return 0
        count = self._view.partitions(str(name))
        return count or int(await self.topics.exists(str(name)))

    def partitioned(self, name: TopicName) -> int:
        """How many partitions it has, as far as is known here; 0: it is plain, or not there."""
        return self._view.partitions(str(name))

    def part(self, name: TopicName, index: int) -> TopicName:
        """The topic that holds a partition."""
        return name.with_partition(index) if self._view.partitions(str(name)) else name

    def may_have(self, name: TopicName, index: int) -> bool:
        """Whether that partition can be there, as far as is known without asking anybody."""
        return 0 <= index < (self._view.partitions(str(name)) or 1)

    async def ensure(self, name: TopicName) -> int:
        """The same as `partitions`, and makes the topic where its namespace lets clients do that."""
        count = await self.partitions(name)
        if count or self.topics.tombstone_of(name) or not self.topics.creation.may_create(str(name)):
            return count
        await self.create(name, self.settings.num_partitions)
        return self.settings.num_partitions

    async def create(self, name: TopicName, partitions: int) -> None:
        """Raises AlreadyExists, NotAllowed; returns once this broker knows of it."""
        if await self.partitions(name):
            raise AlreadyExists(f"{name} exists already")
        async with self.topics.creation.making(name, partitions):
            await self.ids.forget(name)
            try:
                await self.config.create_partitioned(str(name), partitions)
            except AlreadyExists:
                if self._view.partitions(str(name)) not in (0, partitions):
                    raise
            await self._seen(str(name), partitions)

    async def grow(self, name: TopicName, partitions: int) -> None:
        """Raises TooManyTopics, and what the configuration raises; returns once this broker knows of it."""
        async with self.topics.creation.making(name, partitions - self._view.partitions(str(name))):
            await self.config.update_partitioned(str(name), partitions)
            await self._seen(str(name), partitions)

    async def delete_part(self, part: TopicName) -> None:
        """Deletes a partition, or a plain topic, where it is owned; one that was never used is no error. Raises what
        its owner raises.
        """
        try:
            owner = await self._ownership.owner(str(part))
            if owner is self._ownership.record:
                await self.topics.delete_topic(str(part), force=True)
            else:
                await self._calls.call(owner, "DELETE", f"{topic_path(str(part))}?force=true&onlyHere=true")
        except NotFound:
            return

    async def check_room(self, name: TopicName, partitions: int) -> None:
        """Raises TooManyTopics where a topic cannot have so many partitions."""
        await self.topics.creation.check_room(name, partitions - self._view.partitions(str(name)))

    async def _seen(self, topic: str, partitions: int) -> None:
        from region_node.faces.kafka.metadata_wait import until

        await until(lambda: self._view.partitions(topic) >= partitions, self._view.on_change)

    async def names(self, namespaces: list[str] | None = None) -> list[TopicName]:
        """Topics that there are, partitioned ones once."""
        out: list[TopicName] = []
        for namespace in namespaces if namespaces is not None else [self.settings.namespace]:
            if self._view.namespace(namespace) is None:
                continue
            out += [TopicName.parse(text) for text in self.topics.partitioned(namespace)]
            names = (TopicName.parse(text) for text in await self.topics.topics(namespace))
            out += [name for name in names if name.partition < 0 and not self._view.partitions(str(name))]
        return [name for name in dict.fromkeys(out) if name.persistent and _NAME.match(name.local)]

    # -- brokers -------------------------------------------------------------------------------------------------------

    def node(self, record: BrokerRecord, tls: bool) -> KafkaNode | None:
        """None where that broker has no such listener."""
        return self.leading.node(record.listeners, tls)

    def nodes(self, tls: bool) -> list[KafkaNode]:
        found = (self.node(record, tls) for record in self._ownership.brokers())
        return sorted((node for node in found if node is not None), key=lambda node: node.number)

    def shown(self, tls: bool) -> list[KafkaNode]:
        """The brokers that clients are told of: also other regions', where the listener's namespace is active-passive
        and may go on there.
        """
        others = self.leading.others(tls) if self.leading.active_passive(self.settings.namespace) else []
        return [*self.nodes(tls), *others]

    async def leaders(self, name: TopicName, count: int, tls: bool) -> list[KafkaNode | None]:
        """Returns the leader of each of `count` partitions, by index; None: nobody, or nobody with such a listener."""
        if region := self.leading.elsewhere(name.namespace):
            parts = [str(self.part(name, index)) for index in range(count)]
            return [self.leading.leader(region, part, name.namespace, tls) for part in parts]
        table = self._ownership.bundles(name.namespace)
        if table is None:
            return [None] * count
        partitioned = bool(self._view.partitions(str(name)))
        bundles = [table.of(str(name.with_partition(index) if partitioned else name)) for index in range(count)]
        found: dict[int, KafkaNode | None] = {}
        for bundle in dict.fromkeys(bundles):
            found[bundle] = await self._leader(name.namespace, bundle, tls)
        return [found[bundle] for bundle in bundles]

    async def coordinator(self, name: TopicName, tls: bool) -> KafkaNode | None:
        """Returns the owner of a topic's own bundle, which coordinates what is named so, in the region that leads the
        listener's namespace; None: as in `leaders`. Raises NotFound (no such namespace).
        """
        if region := self.leading.elsewhere(self.settings.namespace):
            return self.leading.leader(region, str(name), name.namespace, tls)
        if self._view.namespace(name.namespace) is None:
            raise NotFound(f"namespace {name.namespace} does not exist")
        table = self._ownership.bundles(name.namespace)
        return await self._leader(name.namespace, table.of(str(name)), tls) if table is not None else None

    async def _leader(self, namespace: str, bundle: int, tls: bool) -> KafkaNode | None:
        record = self._ownership.present_owner(namespace, bundle)
        if record is None:
            try:
                record = await self._ownership.bundle_owner(namespace, bundle)
            except HeliographError:
                return None
        return self.node(record, tls)

    def owns(self, name: TopicName) -> bool:
        return self._ownership.owns(str(name))

    def coordinates(self, name: TopicName) -> bool:
        """Whether what is named so is coordinated by this broker."""
        return self.owns(name) and not self.leading.elsewhere(self.settings.namespace)

    def __repr__(self) -> str:
        return f"Cluster({self.settings.namespace})"

    def rows(self, nodes: list[KafkaNode]) -> list[dict[str, Any]]:
        """As Metadata and DescribeCluster show them."""
        return [{"node_id": n.number, "broker_id": n.number, "host": n.host, "port": n.port} for n in nodes]
