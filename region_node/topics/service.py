"""TopicService: all topics that this broker has loaded.

Is: loading (once, whoever asks), unloading, deletion, policies that change while a topic is loaded, the broker's one tick for statistics.
Isn't: the decision who owns a bundle, frames, or storage.
Invariants: a topic is loaded at most once at a time; it is loaded only while `owns` says so; what is being unloaded is not handed out.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from heliograph.model.errors import (
    AlreadyExists,
    ConsumerBusy,
    HeliographError,
    NotFound,
    NotOwner,
    ProducerBusy,
    SubscriptionNotFound,
    TopicClosed,
)
from heliograph.model.names import TopicName, bundle_of
from heliograph.model.policies import NamespacePolicies, RegionInfo
from heliograph.model.positions import AFTER_ALL, BEFORE_ALL, Position
from heliograph.raft.store import MetadataStore
from heliograph.runtime.clock import Clock, Rng
from region_node.subscriptions.delayed import DelayWheel
from region_node.subscriptions.ready import BoundedReads, ReadyQueue, Tasks
from region_node.topics.epochs import topic_epoch_key
from region_node.topics.listing import TopicLists
from region_node.topics.memory import MemoryLog
from region_node.topics.port import FactoryPort, LinksPort, LogPort, ViewPort
from region_node.topics.schemas import SchemaRegistry
from region_node.topics.topic import Topic

if TYPE_CHECKING:
    from storage.managed_ledger.factory import ManagedLedgerFactory

log = logging.getLogger("region_node.topics")

OpenLog = Callable[[str, NamespacePolicies, bool], Awaitable[LogPort]]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSettings:
    reads_max: int = 32
    """Reads of backlog under way at once, in the whole broker."""
    tick_s: float = 1.0
    """Period of rates."""
    auto_create: bool = True
    batch_index_acks: bool = True
    """Single messages of a batch can be acknowledged; else an entry only once all its messages are."""
    close_timeout_s: float = 10.0
    """How long unloading waits for appends under way."""

    def __post_init__(self) -> None:
        assert self.reads_max > 0 and self.tick_s > 0


class TopicService:
    """`loaded`: full name -> topic. `open_log` is given in tests; else it is `ReplicatedLog.open`."""

    def __init__(
        self,
        *,
        region: Callable[[], RegionInfo],
        factory: FactoryPort | ManagedLedgerFactory,
        view: ViewPort,
        links: LinksPort,
        meta: MetadataStore,
        owns: Callable[[str], bool],
        clock: Clock,
        rng: Rng,
        settings: TopicSettings | None = None,
        open_log: OpenLog | None = None,
    ) -> None:
        self.settings = settings or TopicSettings()
        self.loaded: dict[str, Topic] = {}
        self.schemas = SchemaRegistry(meta)
        self.view = view
        self._region, self._factory, self._links, self._owns = region, factory, links, owns
        self._clock, self._rng = clock, rng
        self._open_log = open_log or self._open_replicated
        self._loop = asyncio.get_running_loop()
        self.tasks = Tasks()
        self.ready = ReadyQueue(self._loop.call_soon)
        self._meta = meta
        self.lists = TopicLists(meta, self._loop.call_soon)
        self._wheel = DelayWheel(self._loop.call_later, clock)
        self._reads = BoundedReads(self.tasks, self.settings.reads_max)
        self._loading: dict[str, asyncio.Future[Topic]] = {}
        self._unloading: dict[str, asyncio.Future[None]] = {}
        self._closed = False
        self._stop_view = view.on_change(self._policy_changed)
        self._timer = self._loop.call_later(self.settings.tick_s, self._tick)

    # -- loading

    async def get(self, topic: str, *, create: bool) -> Topic:
        """The loaded topic. Raises NotOwner, NotFound, NotAllowed (a malformed name), and what storage raises."""
        name = TopicName.parse(topic)
        text = str(name)
        while True:
            found = self.loaded.get(text)
            if found is not None and not found.closed:
                return found
            self._check(name, text)
            if (unloading := self._unloading.get(text)) is not None:
                await asyncio.shield(unloading)
                continue
            loading = self._loading.get(text)
            if loading is None:
                loading = self._loading[text] = self._loop.create_future()
                self.tasks.spawn(self._load(name, text, create, loading))
                return await asyncio.shield(loading)
            try:
                return await asyncio.shield(loading)
            except NotFound:
                if not create:
                    raise

    def _check(self, name: TopicName, text: str) -> None:
        if self._closed:
            raise TopicClosed("the broker is stopping: look the topic up again")
        if self.view.namespace(name.namespace) is None:
            raise NotFound(f"namespace {name.namespace} does not exist")
        if name.partition >= 0 and 0 < self.view.partitions(str(name.partitioned)) <= name.partition:
            raise NotFound(f"{text}: the topic has only {self.view.partitions(str(name.partitioned))} partition(s)")
        if not self._owns(text):
            raise NotOwner(f"this broker does not own {text}")

    async def _load(self, name: TopicName, text: str, create: bool, loading: asyncio.Future[Topic]) -> None:
        try:
            policies = self._policies(name)
            if not name.persistent and not create:
                raise NotFound(f"{text} does not exist")
            opened: LogPort = await self._open_log(text, policies, create) if name.persistent else MemoryLog()
            if self._closed or not self._owns(text):
                await self._close_log(opened)
                raise NotOwner(f"this broker does not own {text} any more")
            topic = Topic(name, opened, ready=self.ready, reads=self._reads, tasks=self.tasks, clock=self._clock, wheel=self._wheel, meta=self._meta)
            topic.on_fatal = self._fatal
            if hasattr(opened.ledger, "on_failed"):
                opened.ledger.on_failed = topic.fatal
            self._apply(topic, self._policies(name))
            self.loaded[text] = topic
            log.info("topic.loaded", extra={"topic": text})
            loading.set_result(topic)
        except HeliographError as error:
            loading.set_exception(error)
            loading.exception()  # whoever asked may be gone
        finally:
            self._loading.pop(text, None)
            if not loading.done():
                loading.set_exception(TopicClosed(f"{text} could not be loaded"))
                loading.exception()

    def _policies(self, name: TopicName) -> NamespacePolicies:
        policies = self.view.namespace(name.namespace)
        if policies is None:
            raise NotFound(f"namespace {name.namespace} does not exist")
        return policies

    async def _open_replicated(self, topic: str, policies: NamespacePolicies, create: bool) -> LogPort:
        from replicator.log import ReplicatedLog

        factory: Any = self._factory
        opened: Any = await ReplicatedLog.open(
            factory, topic, region=self._region(), policies=policies, clock=self._clock, rng=self._rng, create=create
        )
        checked: LogPort = opened
        return checked

    def _apply(self, topic: Topic, policies: NamespacePolicies) -> None:
        if topic.volatile:
            return
        if topic.log.deduplication != policies.deduplication:
            topic.log.deduplication = policies.deduplication
        topic.ledger.set_retention(policies.retention_minutes, policies.retention_mb)
        own = self._region().name
        self._links.attach(topic.log, [region for region in policies.regions if region != own])

    def _policy_changed(self, key: str) -> None:
        for topic in list(self.loaded.values()):
            if key in ("", f"/namespaces/{topic.name.namespace}") and not topic.closed:
                policies = self.view.namespace(topic.name.namespace)
                if policies is not None:
                    self._apply(topic, policies)

    async def load_replicated(self, namespace: str, bundle: int) -> None:
        """After a bundle was acquired: topics that other regions want go on without any client."""
        policies = self.view.namespace(namespace)
        if policies is None or len(policies.regions) < 2:
            return
        for topic in await self._factory.names(namespace):
            if bundle_of(topic, policies.bundles) == bundle:
                try:
                    await self.get(topic, create=False)
                except HeliographError as error:
                    log.warning("topic.load_failed", extra={"topic": topic, "error": str(error)})

    # -- unloading

    def _fatal(self, topic: Topic, error: HeliographError) -> None:
        log.warning("topic.failed", extra={"topic": topic.text, "error": str(error)})
        self.tasks.spawn(self.unload(topic.text))

    async def unload(self, topic: str) -> None:
        """Clients are told to look the topic up again; appends under way are waited for. A topic that is not loaded is no error."""
        text = str(TopicName.parse(topic))
        if (loading := self._loading.get(text)) is not None:
            await asyncio.gather(asyncio.shield(loading), return_exceptions=True)
        if (unloading := self._unloading.get(text)) is not None:
            await asyncio.shield(unloading)
            return
        found = self.loaded.get(text)
        if found is None:
            return
        done = self._unloading[text] = self._loop.create_future()
        try:
            found.disconnect()
            if not found.volatile:
                await self._links.detach(found.log)
            await self._close_log(found.log)
        finally:
            self.loaded.pop(text, None)
            self._unloading.pop(text, None)
            done.set_result(None)
            log.info("topic.unloaded", extra={"topic": text})

    async def _close_log(self, opened: LogPort) -> None:
        try:
            await asyncio.wait_for(opened.close(), self.settings.close_timeout_s)
        except (HeliographError, TimeoutError) as error:  # fenced or out of bookies: the next owner recovers the ledger
            log.warning("topic.close_failed", extra={"error": str(error)})

    async def unload_bundle(self, namespace: str, bundle: int) -> None:
        policies = self.view.namespace(namespace)
        bundles = policies.bundles if policies is not None else 1
        names = [t.text for t in self.loaded.values() if t.name.namespace == namespace and bundle_of(t.text, bundles) == bundle]
        names += [n for n in self._loading if TopicName.parse(n).namespace == namespace and bundle_of(n, bundles) == bundle]
        await asyncio.gather(*(self.unload(name) for name in names))

    async def close(self) -> None:
        """Unloads everything."""
        if self._closed:
            return
        self._closed = True
        self._timer.cancel()
        self._wheel.close()
        self.lists.close()
        if callable(self._stop_view):
            self._stop_view()
        await asyncio.gather(*(self.unload(name) for name in [*self.loaded, *self._loading]))
        await self.tasks.close()

    # -- administration

    async def topics(self, namespace: str) -> list[str]:
        """Full names of the persistent topics of a namespace, partitions one by one. Raises NotFound."""
        if self.view.namespace(namespace) is None:
            raise NotFound(f"namespace {namespace} does not exist")
        return sorted(await self._factory.names(namespace))

    def volatile_topics(self, namespace: str) -> list[str]:
        """Full names of the non-persistent topics of a namespace that this broker has loaded."""
        return sorted(text for text, topic in self.loaded.items() if topic.volatile and topic.name.namespace == namespace)

    async def create_topic(self, topic: str) -> None:
        """Raises AlreadyExists, and what `get` raises."""
        text = str(TopicName.parse(topic))
        if text in self.loaded or await self._factory.exists(text):
            raise AlreadyExists(f"{text} exists already")
        await self.get(text, create=True)

    async def delete_topic(self, topic: str, *, force: bool = False) -> None:
        """Raises NotFound, NotOwner; ProducerBusy or ConsumerBusy while there are producers or subscriptions, unless `force`."""
        loaded = await self.get(topic, create=False)
        if not force:
            if loaded.producers.producers:
                raise ProducerBusy(f"{loaded.text} has {len(loaded.producers.producers)} connected producer(s)")
            if loaded.subscriptions:
                raise ConsumerBusy(f"{loaded.text} has {len(loaded.subscriptions)} subscription(s)")
        await self.unload(loaded.text)
        if not loaded.volatile:
            await self._factory.delete(loaded.text)
        if loaded.name.partition < 0:
            await self.schemas.delete(loaded.name)
        await self._meta.delete(topic_epoch_key(loaded.name))

    async def create_subscription(
        self, topic: str, name: str, *, at: Position = AFTER_ALL, properties: dict[str, str] | None = None
    ) -> None:
        """`at`: its mark-delete position (BEFORE_ALL: earliest, AFTER_ALL: latest). Raises AlreadyExists."""
        loaded = await self.get(topic, create=False)
        if name in loaded.subscriptions:
            raise AlreadyExists(f"subscription {name!r} of {loaded.text} exists already")
        await loaded.subscription(name, initial=at, properties=properties)

    async def delete_subscription(self, topic: str, name: str, *, force: bool = False) -> None:
        await (await self.get(topic, create=False)).delete_subscription(name, force=force)

    async def reset_subscription(self, topic: str, name: str, *, publish_ms: int | None = None, at: Position = BEFORE_ALL) -> None:
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

    def _tick(self) -> None:
        now = self._clock.monotonic()
        for topic in self.loaded.values():
            topic.tick(now)
            if topic.forgotten(now):
                self.tasks.spawn(self.unload(topic.text))
        self._timer = self._loop.call_later(self.settings.tick_s, self._tick)
