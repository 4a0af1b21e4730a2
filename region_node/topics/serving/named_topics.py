"""NamedTopics: what is asked of topics by their names, of those that are loaded and of those that are only stored.

Is: lists of a namespace, schemas, and the calls that load a topic and hand the question on to it. Isn't: loading,
unloading, or deletion (`topic_service`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from heliograph.model.bundles import BundleTable
from heliograph.model.errors import AlreadyExists, NotFound, SubscriptionNotFound
from heliograph.model.positions import AFTER_ALL, BEFORE_ALL, Position
from heliograph.model.topic_names import TopicName
from heliograph.runtime.throttle import RowPace
from region_node.runtime.shared_reads import SharedReads
from region_node.runtime.topic_ports import FactoryPort, LinksPort, ViewPort
from region_node.schemas.compatibility import strategy_of
from region_node.schemas.schema_definition import Schema
from region_node.schemas.schema_registry import SchemaRegistry
from region_node.topics.policies.auto_creation import Creation
from region_node.topics.policies.policy_book import PolicyBook
from region_node.topics.serving.loaded_topics import Loaded
from region_node.topics.serving.publish_gates import Gates
from region_node.topics.topic import Topic

if TYPE_CHECKING:
    from storage.managed_ledger.log.managed_ledger_factory import ManagedLedgerFactory


def joined(names: list[str], more: Sequence[str]) -> list[str]:
    """All of them, sorted, each once. names: sorted, and returned as they are where there is no more: lists are long,
    and sorting what is sorted but for a few takes a fraction.
    """
    return sorted(dict.fromkeys((*names, *more))) if more else names


def under(name: TopicName, names: Iterable[str]) -> list[TopicName]:
    """Those of the full `names` that lie under a topic's name: itself, and each of its partitions. name: without a
    partition.
    """
    text = str(name)
    found = map(TopicName.parse, (each for each in names if each.startswith(text)))
    return [each for each in found if each == name or each.partitioned == name]


async def in_bundle(table: BundleTable, bundle: int | None, names: list[str]) -> list[str]:
    """Those of the names that are in the bundle; others go on in between."""
    found, pace = list[str](), RowPace()
    for topic in names:
        await pace.row()
        if table.of(topic) == bundle:
            found.append(topic)
    return found


class NamedTopics(ABC):
    """The part of `TopicService` that neither loads nor unloads."""

    loaded: Loaded
    on_unsubscribed: list[Callable[[Topic, str], Awaitable[None]]]
    tombstones: Mapping[str, object]
    tombstone_of: Callable[[TopicName], str]
    name_taken: Callable[[TopicName], str]
    view: ViewPort
    schemas: SchemaRegistry
    policies: PolicyBook
    creation: Creation
    gates: Gates
    _names: SharedReads[str, list[str]]
    """Full names of what is stored of a namespace; a list that others have, too."""
    _factory: FactoryPort | ManagedLedgerFactory
    _links: LinksPort

    @abstractmethod
    async def get(self, topic: str, *, create: bool) -> Topic:
        """The loaded topic; see `TopicService`."""

    async def get_for_client(self, topic: str, *, create: bool = True) -> Topic:
        """As `get`; one that is not there is made where its namespace lets clients do so. Raises RegionPassive where it
        would be, and is another cluster's.
        """
        create = create and self.creation.may_create(topic)
        sent_on = self.gates.sent_on(TopicName.parse(topic).namespace) if create else None
        try:
            return await self.get(topic, create=create and sent_on is None)
        except NotFound:
            if sent_on is not None:
                raise sent_on from None
            raise

    # -- lists

    async def topics(self, namespace: str) -> list[str]:
        """Full names of the persistent topics of a namespace, partitions one by one, sorted. Raises NotFound."""
        if self.view.namespace(namespace) is None:
            raise NotFound(f"namespace {namespace} does not exist")
        return await self.undeleted(await self.stored(namespace))

    async def undeleted(self, names: list[str]) -> list[str]:
        """Those of the full names that were not deleted."""
        if not self.tombstones:
            return names
        found, pace = list[str](), RowPace()
        for topic in names:
            await pace.row()
            if not self.tombstone_of(TopicName.parse(topic)):
                found.append(topic)
        return found

    async def stored(self, namespace: str) -> list[str]:
        """Full names of what is stored of a namespace, also of topics that were deleted and have their data still,
        sorted.
        """
        return list(await self._names.of(namespace))

    async def stored_of(self, name: TopicName) -> list[TopicName]:
        """What is stored under a topic's name: itself, and each of its partitions, whether they were declared or not.
        name: without a partition. It costs a look at all names of the namespace: each lies in the metadata by a
        hash of its own.
        """
        return under(name, await self.stored(name.namespace))

    async def listed(self, namespace: str) -> list[str]:
        """The same with the partitions that nobody has used yet: what clients are told."""
        return joined(await self.topics(namespace), await self.declared_partitions(namespace, "persistent"))

    async def declared_partitions(self, namespace: str, domain: str) -> list[str]:
        """Full names of all partitions that the partitioned topics of a namespace have, used or not."""
        found, pace = list[str](), RowPace()
        for topic in self.partitioned(namespace):
            if topic.startswith(f"{domain}://"):
                count = self.view.partitions(topic)
                await pace.rows(count)
                found += sorted(f"{topic}-partition-{index}" for index in range(count))
        return found

    def partitioned(self, namespace: str) -> list[str]:
        """Full names of the partitioned topics of a namespace, without those that were deleted and have their data
        still.
        """
        found = self.view.partitioned(namespace)
        return [topic for topic in found if not self.tombstone_of(TopicName.parse(topic))] if self.tombstones else found

    def volatile_topics(self, namespace: str) -> list[str]:
        """Full names of the non-persistent topics of a namespace that this broker has loaded."""
        return sorted(topic.text for topic in self.loaded.of(namespace) if topic.volatile)

    async def count(self, namespace: str) -> int:
        """Counts a namespace's persistent topics, loaded or not, partitions one by one. It costs one question to the
        metadata.
        """
        return await self._factory.count(namespace)

    async def exists(self, topic: str) -> bool:
        """topic: a full name. Whether it is stored, or loaded here."""
        return topic in self.loaded or await self._factory.exists(topic)

    async def created_ms(self, topic: str) -> int:
        """topic: a full name. When it was made, by a wall clock of that time; 0: nothing is stored of it."""
        return await self._factory.created_ms(topic)

    # -- schemas

    def schema_strategy(self, topic: TopicName) -> str:
        """The compatibility strategy that holds for the topic."""
        return strategy_of(self.policies.of(topic).values["schemaCompatibilityStrategy"])

    async def new_schema(self, topic: TopicName, schema: Schema) -> int:
        """The number of a client's schema, which is added where it may be. Raises IncompatibleSchema, InvalidSchema,
        and as `check_takes_schema`.
        """
        await self.check_takes_schema(topic)
        may_create = self.policies.of(topic).on("isAllowAutoUpdateSchema")
        number = await self.schemas.get_or_create(topic, schema, self.schema_strategy(topic), may_create=may_create)
        self._links.schemas_changed(str(topic))
        return number

    async def check_takes_schema(self, topic: TopicName) -> None:
        """Returns where the topic exists, or a client could have it made now. Raises NotFound, NotAllowed (there is no
        room for it).
        """
        base = topic.partitioned
        if self.tombstones and (dead := self.tombstone_of(topic)):
            raise NotFound(dead)
        if str(topic) in self.loaded or self.view.partitions(str(base)) or await self.exists(str(base)):
            return
        if not self.creation.may_create(str(base)):
            raise NotFound(f"{base} does not exist, and clients may not make it: create the topic first")
        await self.creation.check_room(base)
        await self.schemas.check_ahead(base)

    async def schema_of_consumer(self, topic: Topic, schema: Schema) -> None:
        """A consumer's schema is checked against the topic's; it becomes the topic's where there is nothing yet. Raises
        as `new_schema`.
        """
        if topic.unused and not await self.schemas.versions(topic.name):
            await self.new_schema(topic.name, schema)
        else:
            await self.schemas.check_consumer(topic.name, schema, self.schema_strategy(topic.name))

    # -- of one topic

    async def create_subscription(
        self, topic: str, name: str, *, at: Position = AFTER_ALL, properties: dict[str, str] | None = None
    ) -> None:
        """`at`: its mark-delete position (BEFORE_ALL: earliest, AFTER_ALL: latest). Raises AlreadyExists."""
        loaded = await self.get(topic, create=False)
        if name in loaded.subscriptions:
            raise AlreadyExists(f"subscription {name!r} of {loaded.text} exists already")
        await loaded.subscription(name, initial=at, properties=properties)

    async def delete_subscription(self, topic: str, name: str, *, force: bool = False) -> None:
        """Raises as `Topic.delete_subscription`, and what the metadata raises: then it may be back."""
        loaded = await self.get(topic, create=False)
        await loaded.delete_subscription(name, force=force)
        for callback in self.on_unsubscribed:
            await callback(loaded, name)

    async def reset_subscription(
        self, topic: str, name: str, *, publish_ms: int | None = None, at: Position = BEFORE_ALL
    ) -> None:
        """Back (or on) to the first entry published at `publish_ms` or later, or to behind the position `at`."""
        loaded = await self.get(topic, create=False)
        found = loaded.subscriptions.get(name)
        if found is None:
            raise SubscriptionNotFound(f"subscription {name!r} of {loaded.text} does not exist")
        await loaded.seek(found, at if publish_ms is None else await loaded.before_time(publish_ms))

    async def skip_all(self, topic: str, name: str) -> None:
        """Clears the backlog of a subscription."""
        await (await self.get(topic, create=False)).skip_all(name)

    async def terminate(self, topic: str) -> Position:
        return await (await self.get(topic, create=False)).terminate()

    async def position_at(self, topic: str, publish_ms: int) -> Position:
        """The position before the first entry published at `publish_ms` or later."""
        return await (await self.get(topic, create=False)).before_time(publish_ms)

    async def stats(self, topic: str) -> dict[str, Any]:
        """Pulsar's TopicStats of a topic that this broker owns; loads it."""
        loaded = await self.get(topic, create=False)
        return loaded.stats(list(self._links.stats(loaded.text)))
