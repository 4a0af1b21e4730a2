"""TopicService: all topics that this broker has loaded.

Is: loading (once, whoever asks), unloading, deletion, policies that change while a topic is loaded, the broker's one
tick for statistics.
Isn't: what is asked of topics by their names (`named_topics`), the decision who owns a bundle, frames, or storage.
Invariants: a topic is loaded at most once at a time; it is loaded only while `owns` says so; what is being unloaded, or
deleted, is not handed out.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Protocol

from heliograph.kv.metadata_store import MetadataStore
from heliograph.model.bundles import HASHES, BundleTable
from heliograph.model.configuration.policy_table import Applied
from heliograph.model.configuration.tombstones import Tombstone
from heliograph.model.errors import (
    AlreadyExists,
    HeliographError,
    NotFound,
    NotOwner,
    TopicClosed,
)
from heliograph.model.positions import Position
from heliograph.model.topic_names import TopicName
from heliograph.runtime.clock import Clock, Rng
from heliograph.runtime.recent_latencies import Recent
from heliograph.runtime.throttle import RowPace
from region_node.compaction.compacted_view import Compacted
from region_node.compaction.compactor import Compactor
from region_node.compaction.settings import CompactorSettings
from region_node.runtime.logged_tasks import logged_tasks
from region_node.runtime.prometheus_text import Sample
from region_node.runtime.ready_queue import BoundedReads, ReadyQueue
from region_node.runtime.shared_reads import SharedReads
from region_node.runtime.topic_ports import FactoryPort, LeadershipOf, LinksPort, LogPort, OwnRegion
from region_node.schemas.schema_registry import SchemaRegistry
from region_node.subscriptions.delayed_delivery import DelayWheel
from region_node.subscriptions.filter_plugins import FilterBook
from region_node.topics.limits.resource_group_usage import GroupUse
from region_node.topics.nonpersistent_log import MemoryLog
from region_node.topics.policies.auto_creation import Creation, MakePartitions
from region_node.topics.policies.policy_maintenance import PolicyMaintenance
from region_node.topics.policies.policy_updates import PolicyApplier
from region_node.topics.producer_epochs import topic_epoch_key
from region_node.topics.serving.deletion_everywhere import DeletionEverywhere, check_unused
from region_node.topics.serving.loaded_topics import TopicsHere
from region_node.topics.serving.named_topics import NamedTopics
from region_node.topics.serving.publish_gates import GateOf, Gates
from region_node.topics.serving.topic_activity import Activity
from region_node.topics.serving.topic_ids import topic_id_key
from region_node.topics.serving.topic_listing import TopicLists
from region_node.topics.topic import Topic, TopicBroker
from region_node.transactions.participants.holding_topics import HoldingTopics
from replicator.log.deletion import recall, remember
from replicator.log.replicated_log import ReplicatedLog
from storage.managed_ledger.log.shadow_ledger import SHADOW_SOURCE

if TYPE_CHECKING:
    from replicator.health.tracing import Tracing
    from storage.ledger.known_losses import KnownLosses
    from storage.ledger.ledger_context import LedgerContext
    from storage.managed_ledger.log.managed_ledger_factory import ManagedLedgerFactory

log = logging.getLogger("region_node.topics")


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSettings:
    reads_max: int = 32
    """Reads of backlog under way at once, in the whole broker."""
    loads_max: int = 64
    """Topics that are loaded at once; others wait for their turn, as they came."""
    tick_s: float = 1.0
    """Period of the one tick: rates, statistics, and what policies want done. Above 0."""
    batch_index_acks: bool = True
    """Single messages of a batch can be acknowledged; else an entry only once all its messages are."""
    close_timeout_s: float = 10.0
    """How long unloading waits for appends under way."""
    compaction: CompactorSettings = field(default_factory=CompactorSettings)

    def __post_init__(self) -> None:
        assert self.reads_max > 0 and self.tick_s > 0 and self.loads_max > 0


class TombstonesPort(Protocol):
    """`region_node.topics.serving.deferred_deletion.Tombstones`, as topics are refused by it."""

    @property
    def known(self) -> Mapping[str, object]: ...

    def of(self, topic: TopicName) -> Tombstone | None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnBundles:
    """Which topics are this broker's. `owns`: whether one is. `arrival`: waits while a topic's bundle is on its way to
    this broker; None: none ever is. `table`: of a namespace; None: as it was made, where nobody splits any.
    """

    owns: Callable[[str], bool]
    arrival: Callable[[str], Awaitable[None]] | None = None
    table: Callable[[str], BundleTable | None] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Deletions:
    """What goes with a topic, and what stays of it. `forget_grants`: called with each topic, partitions one by one,
    that is about to be deleted: while it has grants its name is not free. `tombstones`: of topics that were deleted and
    still have their data; mostly there are none, and then nobody asks further. `everywhere`: deletes what other regions
    may have; None: none has anything.
    """

    forget_grants: Callable[[TopicName], Awaitable[object]] | None = None
    tombstones: TombstonesPort | None = None
    everywhere: DeletionEverywhere | None = None

    def why(self, name: TopicName) -> str:
        """Why a topic that was deleted is not to be had, though its data is still there; "": it was not."""
        found = self.tombstones.of(name) if self.tombstones is not None else None
        return "" if found is None else found.reason

    def taken(self, name: TopicName) -> str:
        """The same for whoever makes a topic of that name."""
        found = self.tombstones.of(name) if self.tombstones is not None else None
        return "" if found is None else found.taken


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDuties:
    """What every topic of a broker obeys beside its policies. `expiry`: by it messages expire; None: by the broker's
    clock. `gate_of`: of a namespace, where it is active-passive. `leadership_of`: of subscriptions that are active in
    one region at a time. `tracing`: None: nothing is traced. `holds`: committed transactions of other regions are held
    until their other topics have them.
    """

    expiry: Clock | None = None
    filters: FilterBook = field(default_factory=FilterBook)
    gate_of: GateOf | None = None
    leadership_of: LeadershipOf | None = None
    tracing: Tracing | None = None
    holds: bool = False


class TopicService(NamedTopics):
    """`loaded`: full name -> topic."""

    def __init__(
        self,
        *,
        region: OwnRegion,
        factory: FactoryPort | ManagedLedgerFactory,
        links: LinksPort,
        meta: MetadataStore,
        schemas: SchemaRegistry,
        here: TopicsHere,
        bundles: OwnBundles,
        clock: Clock,
        rng: Rng,
        settings: TopicSettings | None = None,
        create_partitioned: MakePartitions | None = None,
        context: LedgerContext | None = None,
        deletions: Deletions | None = None,
        duties: TopicDuties | None = None,
    ) -> None:
        """here: where others know the topics from; `loaded` is filled here. context: None: nothing is compacted."""
        deletions, duties = deletions or Deletions(), duties or TopicDuties()
        self.settings = settings or TopicSettings()
        self.loaded, self.policies, self.view = here.loaded, here.policies, here.view
        self.activity = Activity(clock.monotonic())
        self.tombstones = deletions.tombstones.known if deletions.tombstones is not None else {}
        self.tombstone_of, self.name_taken, self.everywhere = deletions.why, deletions.taken, deletions.everywhere
        self.held = HoldingTopics[Topic]() if duties.holds else None
        """Where it is told that a topic holds a transaction; None: none is held."""
        self._before_deletion: list[Callable[[TopicName], Awaitable[None]]] = []
        self.visitors: list[Callable[[Sequence[Topic]], None]] = []
        """Each is called on the tick, with the topics that something has happened on."""
        self.on_unsubscribed: list[Callable[[Topic, str], Awaitable[None]]] = []
        """Each is called when somebody has deleted a subscription: what another face keeps of it goes too."""
        self.load_times = Recent()
        """Milliseconds until a topic was there, of those that were loaded."""
        self.schemas = schemas
        view = here.view
        self._region, self._factory, self._links, self._owns = region, factory, links, bundles.owns
        self._names = SharedReads(lambda namespace: factory.names(namespace), lambda namespace: namespace.split("/")[0])
        self._arrival, self._forget_grants, self._duties = bundles.arrival, deletions.forget_grants, duties
        self._bundles = (
            bundles.table
            if bundles.table is not None
            else lambda namespace: BundleTable.equal(p.bundles) if (p := view.namespace(namespace)) else None
        )
        self._clock, self._rng = clock, rng
        self._loop = asyncio.get_running_loop()
        self.tasks = logged_tasks()
        self.gates = Gates(self.loaded, view, links, region.name, self.tasks, duties.gate_of)
        self.ready = ReadyQueue(self._loop.call_soon)
        self._unsent: Counter[str] = Counter()
        self._meta = meta
        self.compactor = (
            Compactor(context, meta, clock, self.tasks, self.settings.compaction, lambda: factory.cold)
            if context is not None
            else None
        )
        self.lists = TopicLists(meta, self._loop.call_soon)
        self._wheel = DelayWheel(self._loop.call_later, clock)
        self._reads = BoundedReads(self.tasks, self.settings.reads_max, links.yielding)
        self._maintenance = PolicyMaintenance(
            self._reads, duties.expiry or clock, self._delete_inactive, lambda topic: bool(links.stats(topic.text))
        )
        self._loading: dict[str, asyncio.Future[Topic]] = {}
        self._load_slots = asyncio.Semaphore(self.settings.loads_max)
        self._unloading: dict[str, asyncio.Future[None]] = {}
        self._closed = False
        self._shared = TopicBroker(
            ready=self.ready,
            reads=self._reads,
            tasks=self.tasks,
            clock=clock,
            wheel=self._wheel,
            meta=meta,
            busy=self.activity.busy,
            on_fatal=self._fatal,
            on_held=None if self.held is None else self.held.add,
            leadership_of=duties.leadership_of,
        )
        self.filters = duties.filters
        self._applier = PolicyApplier(
            self.policies, view, links, self._maintenance, self.loaded, region.name, self.tasks, clock, self.filters
        )
        self.creation = Creation(
            self.policies, view, self.exists, self._factory.count, create_partitioned, self.name_taken
        )
        self._group_use: GroupUse | None = None
        self._timer = self._loop.call_later(self.settings.tick_s, self._tick)

    def before_deletion(self, callback: Callable[[TopicName], Awaitable[None]]) -> Callable[[], None]:
        """Calls back with each topic, partitions one by one, right before its data goes: what another face keeps of it
        goes too. Returns "stop".
        """
        self._before_deletion.append(callback)
        return lambda: self._before_deletion.remove(callback)

    def share_groups(self, broker: str, lease: Callable[[], int]) -> None:
        """From now on the rates of resource groups hold over all brokers of the region. lease: what this broker's keys
        hang on, 0 while there is none.
        """
        self._group_use = GroupUse(
            self._applier.groups, broker=broker, lease=lease, meta=self._meta, tasks=self.tasks, clock=self._clock
        )

    def group_samples(self) -> Iterable[Sample]:
        """Metrics of resource groups on this broker, and of what non-persistent topics did not send to other
        regions.
        """
        yield from self._applier.groups.samples(self._region.name)
        for region, messages in sorted(self._unsent.items()):
            yield (
                "heliograph_replication_unsent_messages_total",
                "counter",
                {"cluster": self._region.name, "remote_cluster": region},
                messages,
            )

    @property
    def losses(self) -> KnownLosses | None:
        """What readers of this broker have found to be lost."""
        return self._factory.losses

    def check_not_lost(self, position: Position) -> None:
        """Raises EntriesLost where what lies there was found lately to be lost."""
        if self.losses and (lost := self.losses.at(position, asyncio.get_running_loop().time())) is not None:
            raise lost

    # -- loading

    @property
    def loads_under_way(self) -> int:
        return len(self._loading)

    async def get(self, topic: str, *, create: bool) -> Topic:
        """The loaded topic. Raises NotOwner, NotFound, NotAllowed (a malformed name), and what storage raises."""
        name = TopicName.parse(topic)
        text = str(name)
        while True:
            found = self.loaded.get(text)
            if found is not None and not found.closed:
                return found
            if self._arrival is not None and not self._owns(text):
                await self._arrival(text)
            self._check(name, text)
            if (unloading := self._unloading.get(text)) is not None:
                await asyncio.shield(unloading)
                continue
            loading = self._loading.get(text)
            if loading is None:
                loading = self._loading[text] = self._loop.create_future()
                self.tasks.spawn(self._load_in_slot(name, text, create, loading))
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
        if self.tombstones and (dead := self.tombstone_of(name)):
            raise NotFound(dead)
        if name.partition >= 0 and 0 < self.view.partitions(str(name.partitioned)) <= name.partition:
            raise NotFound(f"{text}: the topic has only {self.view.partitions(str(name.partitioned))} partition(s)")
        if not self._owns(text):
            raise NotOwner(f"this broker does not own {text}")

    async def _load_in_slot(self, name: TopicName, text: str, create: bool, loading: asyncio.Future[Topic]) -> None:
        """After a broker's death its clients come all at once: what is loaded at a time is bounded, so that those who
        are here are served meanwhile.
        """
        waited = self._load_slots.locked()
        try:
            async with self._load_slots:
                if waited:  # maybe long: the topic may be another broker's by now
                    self._check(name, text)
                await self._load(name, text, create, loading)
        except HeliographError as error:
            loading.set_exception(error)
            loading.exception()
        finally:
            self._loading.pop(text, None)
            if not loading.done():
                loading.set_exception(TopicClosed(f"{text} could not be loaded"))
                loading.exception()

    async def _load(self, name: TopicName, text: str, create: bool, loading: asyncio.Future[Topic]) -> None:
        began = self._clock.monotonic()
        try:
            await self.policies.ready()
            if not name.persistent and not create:
                raise NotFound(f"{text} does not exist")
            if create:
                await self.creation.check_room(name)
            opened: LogPort = (
                await self._open_log(text, self.policies.of(name), create)
                if name.persistent
                else MemoryLog(self._unsent)
            )
            try:
                self._check(name, text)  # it may be another broker's by now, or deleted
            except HeliographError:
                await self._close_log(opened)
                raise
            failed: HeliographError | None = getattr(opened.ledger, "failed", None)
            if failed is not None:  # while the rest of it was opened: nobody would hear of it any more
                await self._close_log(opened)
                raise failed
            topic = Topic(name, opened, self._shared, None if self.shadow_source(text) else self.compactor)
            if topic.transactional:
                topic.transactions.watch_held()
            if hasattr(opened.ledger, "on_failed"):
                opened.ledger.on_failed = topic.fatal
            self._applier.apply(topic)
            self.gates.give(topic)
            self.loaded[text] = topic
            self.load_times.add((self._clock.monotonic() - began) * 1000)
            log.info("topic.loaded", extra={"topic": text})
            loading.set_result(topic)
        except HeliographError as error:
            loading.set_exception(error)
            loading.exception()  # whoever asked may be gone

    async def _open_log(self, topic: str, policies: Applied, create: bool) -> LogPort:
        from region_node.topics.shadow_log import ShadowLog

        factory: Any = self._factory
        if source := self.shadow_source(topic):
            return await ShadowLog.follow(
                factory, topic, source, region=self._region.info(), policies=policies, rng=self._rng, create=create
            )
        opened = await ReplicatedLog.open(
            factory,
            topic,
            region=self._region.info(),
            policies=policies,
            clock=self._clock,
            rng=self._rng,
            create=create,
        )
        await recall(opened, self._meta)
        opened.tracing = self._duties.tracing
        return opened

    def shadow_source(self, topic: str) -> str:
        """Full name of the topic that this one shadows, partition by partition; "": it is none."""
        name = TopicName.parse(topic)
        source = self.policies.topic(str(name.partitioned)).properties.get(SHADOW_SOURCE, "")
        return str(TopicName.parse(source).with_partition(name.partition)) if source and name.partition >= 0 else source

    async def load_replicated(self, namespace: str, bundle: int) -> None:
        """After a bundle was acquired: topics that other regions want go on without any client."""
        policies, table = self.view.namespace(namespace), self._bundles(namespace)
        if policies is None or table is None or len(policies.regions) < 2 or bundle >= table.count:
            return
        async for page in self._factory.names_between(namespace, *table.range(bundle)):
            for topic in page:
                try:
                    await self.get(topic, create=False)
                except HeliographError as error:
                    log.warning("topic.load_failed", extra={"topic": topic, "error": str(error)})

    # -- unloading

    def _fatal(self, topic: Topic, error: HeliographError) -> None:
        log.warning("topic.failed", extra={"topic": topic.text, "error": str(error)})
        self.tasks.spawn(self.unload(topic.text))

    async def unload(self, topic: str) -> None:
        """Clients are told to look the topic up again; appends under way are waited for. A topic that is not loaded is
        no error.
        """
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

    async def unload_bundle(self, namespace: str, bundle: int, next_owner: tuple[str, str] | None = None) -> None:
        """next_owner: its URLs without and with TLS, "" where it has none: clients are sent there, and need not look
        the topics up.
        """
        table = self._bundles(namespace)
        loaded = self.loaded.of(namespace) if table is None else self._in_bundle(namespace, table, bundle)
        for topic in loaded:
            topic.next_owner = next_owner
        coming = [name for name in self._coming(namespace) if table is None or table.of(name) == bundle]
        await asyncio.gather(*(self.unload(name) for name in (*(topic.text for topic in loaded), *coming)))

    async def unload_strays(self, namespace: str) -> None:
        """What is loaded of a namespace whose bundles have changed, and is another broker's by now. Nothing is looked
        at but one topic a bundle.
        """
        table = self._bundles(namespace)
        if table is None:
            strays = [topic.text for topic in self.loaded.of(namespace) if not self._owns(topic.text)]
        else:
            found = (self.loaded.between(namespace, low, high) for low, high in pairwise((*table.starts, HASHES)))
            strays = [topic.text for topics in found if topics and not self._owns(topics[0].text) for topic in topics]
        await asyncio.gather(
            *(
                self.unload(name)
                for name in (*strays, *(name for name in self._coming(namespace) if not self._owns(name)))
            )
        )

    def _in_bundle(self, namespace: str, table: BundleTable, bundle: int) -> list[Topic]:
        """What is loaded of one; nothing, where there is no such bundle."""
        return self.loaded.between(namespace, *table.range(bundle)) if bundle in table.ids else []

    def _coming(self, namespace: str) -> list[str]:
        """Full names of what is on its way, in or out: what is deleted here is out before another broker may have
        it.
        """
        return [name for name in (*self._loading, *self._unloading) if TopicName.parse(name).namespace == namespace]

    async def close(self) -> None:
        """Unloads every topic and ends the tick, the watches, and all tasks; a second call does nothing."""
        if self._closed:
            return
        self._closed = True
        self._timer.cancel()
        self._wheel.close()
        self.lists.close()
        self.gates.close()
        if self._group_use is not None:
            self._group_use.close()
        await asyncio.gather(
            self.schemas.checks.close(), *(self.unload(name) for name in [*self.loaded, *self._loading])
        )
        await self.tasks.close()

    # -- making and deleting

    async def create_topic(self, topic: str) -> None:
        """Raises AlreadyExists, and what `get` raises."""
        name = TopicName.parse(topic)
        text = str(name)
        if taken := self.name_taken(name):
            raise AlreadyExists(taken)
        if await self.exists(text):
            raise AlreadyExists(f"{text} exists already")
        await self.get(text, create=True)

    async def delete_topic(self, topic: str, *, force: bool = False, keep_grants: bool = False) -> None:
        """keep_grants: other regions have the topic, too. Raises NotFound, NotOwner, LedgerFenced (it was opened again
        meanwhile); ProducerBusy or ConsumerBusy while producers or consumers are connected, unless `force`.
        """
        loaded = await self.get(topic, create=False)
        if not force:
            consumers = sum(len(subscription.consumers) for subscription in loaded.subscriptions.values())
            check_unused(loaded.text, len(loaded.producers.producers), consumers)
        subscriptions = list(loaded.subscriptions.values())
        async with self._kept_out(loaded.text):
            if self._forget_grants is not None and not keep_grants:
                await self._forget_grants(loaded.name)
            if isinstance(loaded.log, ReplicatedLog):
                await self._delete_data(loaded.name, loaded.log)
            for subscription in subscriptions:
                if subscription.rules.leadership is not None:
                    subscription.rules.leadership.deleted()
            await self._forget(loaded.name)

    async def _delete_data(self, name: TopicName, log: ReplicatedLog | None = None) -> None:
        """log: as it was loaded; nothing of the topic goes where it was opened again since, here or by another broker.
        Raises LedgerFenced then.
        """
        compacted: Compacted | None = None

        async def claimed() -> Sequence[int]:
            nonlocal compacted
            await self._leave(name)
            if log is not None:
                await remember(log, self._meta)
            if self.compactor is None:
                return ()
            compacted, ledgers = await self.compactor.stored(str(name))
            return ledgers

        await self._factory.delete(str(name), claimed, owner=None if log is None else log.ledger.owner)
        if self.compactor is not None:
            await self.compactor.forget_object(str(name), compacted)

    @asynccontextmanager
    async def _kept_out(self, text: str, owned: bool = True) -> AsyncIterator[None]:
        """Unloads it; who asks for it waits until this is over. A topic that was loaded again while it is deleted would
        be left with a log that has failed. Raises NotOwner: once its bundle is on its way to another broker, that one
        deletes it.
        """
        await self.unload(text)
        while (
            text in self.loaded or text in self._loading or text in self._unloading
        ):  # another has unloaded it, and somebody was quicker
            await self.unload(text)
        if owned and not self._owns(text):
            raise NotOwner(f"this broker does not own {text} any more")
        over = self._unloading[text] = self._loop.create_future()
        try:
            yield
        finally:
            self._unloading.pop(text, None)
            over.set_result(None)

    async def unload_deleted(self, topics: Iterable[str]) -> None:
        """Topics that have tombstones, with their partitions, or whole namespaces (`tenant/namespace`): clients and
        links are closed. What is loaded of their namespaces is gone through once, however many topics are given.
        """
        names, pace, failed = set(topics), RowPace(), list[HeliographError]()
        for namespace in sorted({name if "://" not in name else TopicName.parse(name).namespace for name in names}):
            for found in self.loaded.of(namespace):
                await pace.row()
                if names.isdisjoint((namespace, found.text, str(found.name.partitioned))):
                    continue
                try:
                    await self.unload(found.text)
                except HeliographError as error:  # the others go all the same
                    failed.append(error)
        if failed:
            raise failed[0]

    async def purge(self, topic: str, *, owned: bool = True) -> None:
        """Deletes what is stored of a topic that nobody can load any more. owned: by this broker, else by nobody, as
        its namespace is not served here. Raises NotOwner, and what the metadata raises.
        """
        name = TopicName.parse(topic)
        async with self._kept_out(str(name), owned):
            await self._delete_data(name)
            await self._forget(name)

    async def _leave(self, name: TopicName) -> None:
        """Before its data goes: a crash behind this leaves data without an id, and not an id, or a committed offset,
        that speaks of other data later.
        """
        await self._drop_id(name)
        for callback in self._before_deletion:
            await callback(name)

    async def _forget(self, name: TopicName) -> None:
        """What is kept beside its data."""
        if name.partition < 0:
            await self.schemas.delete(name)
            await self.policies.forget(str(name))
        await self._drop_id(name)  # it may have been given another one meanwhile
        await self._meta.delete(topic_epoch_key(name))

    async def _drop_id(self, name: TopicName) -> None:
        """A topic one of whose partitions begins anew is another one to clients that know it by its id."""
        key = topic_id_key(name.partitioned)
        if await self._meta.get(key) is not None:
            await self._meta.delete(key)

    async def _delete_inactive(self, topic: Topic) -> None:
        await self.delete_topic(topic.text, force=bool(topic.subscriptions))

    # -- what holds from now on, and the tick

    def check_now(self) -> None:
        """What policies want done as time goes by is looked at."""
        self._maintenance.look_at_all()

    def _tick(self) -> None:
        self._visit(self._clock.monotonic())
        self._timer = self._loop.call_later(self.settings.tick_s, self._tick)

    def _visit(self, now: float) -> None:
        """Topics on which something happens, and no others: there may be very many that are idle."""
        if self._group_use is not None:
            self._group_use.tick(now)
        visited = self.activity.tick(now)
        for topic in visited:
            if topic.volatile and not topic.closed and topic.forgotten(now):
                self.tasks.spawn(self.unload(topic.text))
        self._maintenance.tick(now, visited)
        self.gates.tick()
        for visitor in self.visitors:
            visitor(visited)
