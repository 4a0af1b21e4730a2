"""BrokerRole: a broker, from its connections to its listeners.

Is: the part of the composition that builds and connects a broker's objects, in the order in which they start. Isn't: a decision of any of them.
Invariants: a client is answered only once everything behind it is there; a drain comes before anything is closed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from heliograph import __version__
from heliograph.model.errors import NotFound, Unauthorized
from heliograph.model.leadership import is_subscription
from heliograph.model.names import TopicName
from heliograph.model.routes import delivers
from heliograph.runtime.disk import Buffer
from region_node.runtime import Runtime, closing, meta_client, replicator_tls
from region_node.settings import ProcessSettings
from region_node.tls import Certificates, client_context, server_context
from region_node.usage import Usage

if TYPE_CHECKING:
    from global_config.deferred import DeferredEdits
    from heliograph.raft.client import MetaClient
    from region_node.balance.rules import IsolationRules
    from region_node.balance.service import Balancer
    from region_node.clusters import PulsarClusters
    from region_node.dr.canary import Canary
    from region_node.dr.leases import WriteLeases
    from region_node.dr.promises import Promises
    from region_node.dr.schedule import DrillSchedule
    from region_node.dr.tombstones import Tombstones
    from region_node.dr.turns import SubscriptionTurns
    from region_node.kafka.broker import KafkaBroker
    from region_node.ownership.records import BrokerRecord
    from region_node.ownership.service import Ownership
    from region_node.pulsar.listener import LookupAnswer, PulsarListener
    from region_node.region_epoch import RegionEpoch
    from region_node.region_level import RegionLevel
    from region_node.security.service import Security
    from region_node.tiering import BrokerTier
    from region_node.topics.service import TopicService
    from region_node.transactions.naming import RegionView
    from region_node.transactions.service import Transactions
    from replicator.log import ReplicatedLog
    from replicator.manager import LinkManager
    from storage.ledger.autorecovery import AutoRecovery
    from storage.managed_ledger.appends import Appends
    from storage.managed_ledger.cache import EntryCache


class PulsarLookup:
    """Ownership, as the Pulsar listener asks it."""

    def __init__(self, ownership: Ownership, topics: TopicService) -> None:
        self._ownership, self._topics = ownership, topics

    async def lookup(self, topic: str, listener: str, authoritative: bool) -> LookupAnswer:
        from region_node.pulsar.listener import LookupAnswer

        found = await self._ownership.lookup(topic, listener, authoritative)
        return LookupAnswer(found.url, found.url_tls, found.redirect, authoritative=found.redirect)

    async def partitions(self, topic: str, create: bool) -> int:
        count = await self._ownership.partitions(topic, create)
        if count or create:
            return count or await self._topics.creation.make_partitions(topic)
        name = TopicName.parse(topic)
        if name.persistent and not (0 <= name.partition < self._topics.view.partitions(str(name.partitioned)) or await self._topics.exists(str(name))):
            raise NotFound(f"topic {name} does not exist")
        return 0


class BrokerRole:
    """Topics, links, and ownership of bundles, with their faces: Pulsar listeners and the admin interface."""

    def __init__(self, settings: ProcessSettings, runtime: Runtime) -> None:
        self.settings, self._runtime = settings, runtime
        self._stops: list[Callable[[], Awaitable[None]]] = []
        self.view: RegionView
        self.meta: MetaClient
        self.config: MetaClient
        self.links: LinkManager
        self.clusters: PulsarClusters
        self.topics: TopicService
        self.ownership: Ownership
        self.balancer: Balancer
        self.isolation: IsolationRules
        self.level: RegionLevel
        self.listener: PulsarListener
        self.kafka: KafkaBroker | None = None
        """None where no Kafka port is set."""
        self.security: Security
        self._usage = Usage()
        self.recovery: AutoRecovery
        self.tier: BrokerTier
        self._entry_cache: EntryCache
        self._appends: Appends
        self._epoch: RegionEpoch
        self.deferred: DeferredEdits
        self.drills: DrillSchedule | None = None
        self.leases: WriteLeases
        self.turns: SubscriptionTurns
        self.canary: Canary
        self.promises: Promises
        self.tombstones: Tombstones
        self.transactions: Transactions | None = None

    async def start(self) -> dict[str, int]:
        await self._connect()
        await self._build_topics()
        await self._build_security()
        ports = await self._listen()
        self._build_canary()
        await self._open_admin(ports)
        self._stops.append(closing(self._certificates.watch()))
        await self.tier.tiering.start()
        await self.isolation.start()
        await self.ownership.start(self._record(ports))
        self.view.announce()
        self.balancer.start()
        self._stops.append(self.balancer.stop)
        if self.settings.broker.auto_recovery.enabled:
            await self.recovery.start()
        self.canary.start()
        self.promises.start()
        self.tombstones.run()
        if self.drills is not None:
            await self.drills.start()
        return ports

    async def stop(self) -> None:
        """Drains first, then ends what was started, the newest first."""
        while self._stops:
            await self._stops.pop()()

    async def failed(self) -> None:
        await self._epoch.replaced()

    # -- start, in this order -----------------------------------------------------------------------------------------

    async def _connect(self) -> None:
        from global_config.admin import ConfigAdmin
        from global_config.deferred import DeferredEdits
        from region_node.dr.leases import LeaseSettings, WriteLeases
        from region_node.region_epoch import RegionEpoch
        from region_node.store_metrics import StoreCounts
        from region_node.transactions.naming import RegionView

        self._certificates = Certificates(self.settings.tls, self.settings.region)
        self.meta = meta_client(self.settings.meta, self._runtime, self._certificates.dialer("broker", "meta"))
        self._stops.append(closing(self.meta.close))
        self.config = meta_client(self.settings.config, self._runtime, self._certificates.dialer("broker", "config"))
        self._stops.append(closing(self.config.close))
        coordinators = self.settings.broker.transactions.coordinators if self.settings.broker.transaction_coordinator_enabled else 0
        self._store_counts = StoreCounts("metadata-store", self.meta), StoreCounts("configuration-metadata-store", self.config)
        self.view = RegionView(self.config, self.settings.region, coordinators)
        await self.view.ready()
        self.deferred = DeferredEdits(self.config, self.meta, self.view, region=self.settings.region, clock=self._runtime.clock)
        self._stops.append(self.deferred.stop)
        await self.deferred.start()
        self._epoch = RegionEpoch(self.settings.region, self.meta, self.view, ConfigAdmin(self.config), self._runtime.rng)
        self._stops.append(self._epoch.stop)
        await self._epoch.start()
        self.leases = WriteLeases(
            self.config,
            region=self.settings.region,
            broker=self.settings.node_id,
            clock=self._runtime.clock,
            url_of=lambda region: info.service_url if (info := self.view.region(region)) is not None else "",
            on_change=self._on_leadership,
            settings=self._runtime.of(LeaseSettings),
        )
        self._stops.append(self.leases.stop)
        await self.leases.start()

    async def _build_topics(self) -> None:
        from global_config.admin import ConfigAdmin
        from heliograph.model.levels import SPLIT_BUNDLES
        from heliograph.runtime.usage import memory_limit_bytes
        from region_node.balance.divider import BundleDivider
        from region_node.balance.gauge import BrokerGauge
        from region_node.balance.quotas import QuotaBook
        from region_node.balance.rules import IsolationRules
        from region_node.balance.service import Balancer
        from region_node.clusters import PulsarClusters
        from region_node.dr.turns import SubscriptionTurns
        from region_node.ownership.bundles import BundleBook
        from region_node.ownership.service import Ownership
        from region_node.region_level import RegionLevel
        from region_node.replicated_schemas import ReplicatedSchemas
        from region_node.replicated_subscriptions import ReplicatedSubscriptions
        from region_node.security import grants
        from region_node.security.urls import ListedRegions, UrlList
        from region_node.tiering import BrokerTier
        from region_node.topics.filter_book import load_filters
        from region_node.topics.service import TopicService, TopicSettings
        from region_node.transactions.service import Transactions
        from replicator.audit_storage import BookieCopies
        from replicator.manager import LinkManager, LinkSettings
        from storage.ledger.autorecovery import AutoRecovery
        from storage.ledger.bookie_client import BookieClient
        from storage.ledger.context import LedgerSettings
        from storage.ledger.pool import BookiePool
        from storage.managed_ledger.cache import EntryCache
        from storage.managed_ledger.factory import ManagedLedgerFactory
        from storage.managed_ledger.orphans import OrphanCollector
        from storage.managed_ledger.settings import ManagedLedgerSettings

        clock, rng, own = self._runtime.clock, self._runtime.rng, self.settings.broker
        tls = self._certificates.dialer("broker", "bookie")
        pool = BookiePool(self.meta, lambda bookie, host, port: BookieClient(bookie, host, port, rng=rng, ssl=tls), rng, racks_min=own.racks_min)
        self._stops.append(closing(pool.close))
        await pool.ready()
        self._entry_cache = EntryCache(own.cache_mb << 20, own.entry_cache())
        factory = ManagedLedgerFactory(
            self.meta,
            pool,
            self._entry_cache,
            self._runtime.of(ManagedLedgerSettings) if ManagedLedgerSettings in self._runtime.tuned else own.managed_ledger,
            clock,
            rng,
            ledger_settings=self._runtime.of(LedgerSettings),
        )
        self._appends = factory.appends
        self._stops.append(factory.close)
        orphans = OrphanCollector(factory.context, own.auto_recovery.orphan_grace_s)
        self.recovery = AutoRecovery(factory.context, self.settings.node_id, own.auto_recovery, orphans.sweep)
        self._stops.append(self.recovery.stop)
        self.tier = BrokerTier(
            region=self._epoch.info,
            name=self.settings.region,
            factory=factory,
            view=self.view,
            config=ConfigAdmin(self.config),
            topics=lambda: self.topics,
            collects=lambda: self.recovery.auditor,
            disk=self._runtime.disk,
            clock=clock,
            rng=rng,
            settings=own.tiered,
            ownership=lambda: self.ownership,
        )
        self._stops.append(self.tier.tiering.stop)
        self.links = LinkManager(
            region=self.settings.region,
            view=ListedRegions(self.view, UrlList(listed)) if (listed := self.settings.security.allowed_urls) else self.view,
            connect=replicator_tls(self.settings.tls, lambda *files: self._certificates.keep(client_context, *files)),
            clock=clock,
            rng=rng,
            settings=replace(self._runtime.of(LinkSettings), audit=own.audit, compression=own.link_compression, budget=own.link_budget),
        )
        self.links.auditor.storage = BookieCopies(factory.context)
        self._stops.append(self.links.close)
        self.links.subscriptions = ReplicatedSubscriptions(lambda: self.topics)
        book = BundleBook(self.meta, self.view)
        self.topics = TopicService(
            region=self._epoch.info,
            factory=factory,
            view=self.view,
            links=self.links,
            meta=self.meta,
            owns=lambda topic: self.ownership.owns(topic),
            arrival=lambda topic: self.ownership.arrival(topic),
            context=factory.context,
            filters=load_filters(own.entry_filters),
            bundles=book.of,
            clock=clock,
            rng=rng,
            settings=replace(
                self._runtime.of(TopicSettings),
                batch_index_acks=own.batch_index_acks,
                policies=own.policies,
                compaction=own.compaction,
                loads_max=own.topic_loads_max,
            ),
            create_partitioned=ConfigAdmin(self.config).create_partitioned,
        )
        self.clusters = self.links.clusters = PulsarClusters(self.settings.region, self.view, self.links, lambda: self.topics.schemas)
        self.topics.gate_of = self.leases.gate
        self.topics.forget_grants = lambda name: grants.forget(ConfigAdmin(self.config), self.view, name)
        self.turns = SubscriptionTurns(self.leases, self.config, lambda: self.topics, region=self.settings.region, clock=clock)
        self.topics.turn_of = self.turns.of
        self._stops.append(self.turns.stop)
        await self.turns.start()
        await self._build_tombstones()
        self._stops.append(self.topics.close)
        schemas = self.links.schemas = ReplicatedSchemas(
            self.meta,
            self.topics.schemas,
            region_number=lambda: self._epoch.info().number,
            partitions=self.view.partitions,
            changed=self.links.schemas_changed,
            unpark=self.links.unpark,
        )
        self._stops.append(closing(schemas.close))
        self.isolation = IsolationRules(self.meta, self.view, self.settings.region)
        self._stops.append(closing(self.isolation.stop))
        self.ownership = Ownership(
            region=self.settings.region,
            broker=self.settings.node_id,
            meta=self.meta,
            view=self.view,
            host=self.topics,
            clock=clock,
            rng=rng,
            settings=own.ownership,
            place=lambda candidates, bundle: self.balancer.place(candidates, bundle),
            permit=self.isolation.permitted,
            book=book,
        )
        self._stops.append(self.ownership.stop)
        self.topics.share_groups(self.settings.node_id, lambda: self.ownership.lease)
        if own.transaction_coordinator_enabled:
            self.transactions = Transactions(
                meta=self.meta,
                topics=lambda: self.topics,
                ownership=lambda: self.ownership,
                view=self.view,
                clock=clock,
                rng=rng,
                settings=own.transactions,
            )
            self._stops.append(self.transactions.close)
        self.level = RegionLevel(self.settings.region, self.meta, self.view, ConfigAdmin(self.config), self.ownership.brokers)
        self._stops.append(closing(self.level.close))
        self.level.check_own()
        self.balancer = Balancer(
            broker=self.settings.node_id,
            mover=self.ownership,
            meta=self.meta,
            gauge=BrokerGauge(self.topics.loaded, self.ownership.bundles, clock),
            clock=clock,
            rng=rng,
            settings=own.balance,
            divider=BundleDivider(self.ownership, self.topics.loaded, factory, lambda: self.level.reach(SPLIT_BUNDLES, "splitting a bundle")),
            upkeep=self.level.upkeep,
            quotas=QuotaBook(self.meta, self.ownership.bundles, own.balance.capacity(memory_limit_bytes())),
        )

    async def _build_security(self) -> None:
        from heliograph.runtime.offload import Offload
        from region_node.security.issuers import fetch
        from region_node.security.service import build_security

        offload = Offload()
        self._stops.append(closing(offload.close))
        own, node = self.settings.security, self.settings.node_id
        self.security = await build_security(
            own, self.view, self.meta, offload, region=self.settings.region, node=node, fetch=fetch, clock=self._runtime.clock, rng=self._runtime.rng
        )

    async def _listen(self) -> dict[str, int]:
        from heliograph.runtime.usage import open_files_max
        from region_node.pulsar.listener import ListenerSettings, PulsarListener
        from region_node.pulsar.revoking import Revoking
        from replicator.receiver import LinkReceiver, ReceiverSettings
        from replicator.receiver_budget import ReceiverBudget

        own, bind = self.settings.broker, self.settings.bind

        async def open_log(topic: str, source_region: str) -> ReplicatedLog:
            policies = self.view.namespace(TopicName.parse(topic).namespace)
            if policies is not None and source_region not in policies.regions:
                raise Unauthorized(f"{topic}: its namespace is not replicated with region {source_region}")
            loaded = await self.topics.get(topic, create=True)
            if not delivers(loaded.policies.values.get("replicationRoutes"), source_region, self.settings.region):
                raise Unauthorized(f"{topic}: no route leads from {source_region} to {self.settings.region} (policy replicationRoutes)")
            return cast("ReplicatedLog", loaded.log)

        budget = ReceiverBudget()

        def receive(write: Callable[[Sequence[Buffer]], None], peer: str) -> LinkReceiver:
            return LinkReceiver(
                write,
                open_log,
                self._runtime.clock,
                region=self.settings.region,
                region_number=self._region_number,
                peer=peer,
                settings=self._runtime.of(ReceiverSettings),
                budget=budget,
                incoming=self.links.incoming,
                auditor=self.links.auditor,
                schemas=self.links.schemas,
            )

        self.listener = PulsarListener(
            topics=self.topics,
            lookup=PulsarLookup(self.ownership, self.topics),
            link_receivers=receive,
            security=self.security,
            usage=self._usage,
            transactions=self.transactions,
            clusters=self.clusters,
            settings=ListenerSettings(
                broker_entry_metadata=own.broker_entry_metadata,
                message_bytes_max=own.message_bytes_max,
                connections_max=own.connections_max or max(1000, open_files_max() - 1000),
                connections_per_address=self.settings.security.connections_per_address,
                proxy_protocol=self.settings.security.proxy_protocol,
            ),
            clock=self._runtime.clock,
            rng=self._runtime.rng,
        )
        self._stops.append(self.listener.close)
        self._stops.append(closing(Revoking(self.listener, self.view).close))
        ports: dict[str, int] = {}
        if own.port >= 0:
            ports["pulsar"] = await self.listener.start(bind, own.port)
        if own.shared_port:
            ports["shared"] = await self.listener.start(bind, own.shared_port, reuse_port=True)
        if own.tls_port >= 0:
            ports["pulsar_tls"] = await self.listener.start(bind, own.tls_port, ssl=self._certificates.for_clients())
        if own.shared_tls_port:
            ports["shared_tls"] = await self.listener.start(bind, own.shared_tls_port, ssl=self._certificates.for_clients(), reuse_port=True)
        if own.link_port or (self.settings.tls is not None and self.settings.tls.replicator_cert):
            tls = replicator_tls(self.settings.tls, lambda *files: self._certificates.keep(server_context, *files))
            ports["link"] = await self.listener.start(bind, own.link_port, ssl=tls, link=True)
        ports.update(await self._listen_kafka())
        return ports

    async def _listen_kafka(self) -> dict[str, int]:
        own, bind = self.settings.broker.kafka, self.settings.bind
        if max(own.port, own.tls_port) < 0:
            return {}
        from global_config.admin import ConfigAdmin
        from region_node.kafka.broker import KafkaBroker
        from region_node.kafka.cleaning import Cleaning
        from region_node.kafka.cluster import Cluster, own_number
        from region_node.kafka.coordinator import Coordinator
        from region_node.kafka.listener import KafkaListener

        config = ConfigAdmin(self.config)
        self.kafka = KafkaBroker(
            topics=self.topics,
            cluster=Cluster(ownership=self.ownership, view=self.view, topics=self.topics, config=config, settings=own),
            config=config,
            meta=self.meta,
            security=self.security,
            usage=self._usage,
            settings=own,
            region=self.settings.region,
            region_number=lambda: self._epoch.info().number,
            clock=self._runtime.clock,
            rng=self._runtime.rng,
        )
        self.kafka.number = await own_number(self.meta, self.settings.node_id)
        await self.kafka.positions.start()
        self._stops.append(closing(self.kafka.positions.close))
        self.kafka.coordinator = Coordinator(self.kafka)
        self._stops.append(closing(self.kafka.coordinator.close))
        self._stops.append(closing(Cleaning(self.kafka).close))
        if self.transactions is not None:
            from region_node.kafka.transactions import KafkaTransactions

            self.kafka.transactions = KafkaTransactions(self.kafka, self.transactions)
        listener = KafkaListener(self.kafka)
        self._stops.append(listener.close)
        ports: dict[str, int] = {}
        if own.port >= 0:
            ports["kafka"] = await listener.start(bind, own.port)
        if own.tls_port >= 0:
            ports["kafka_tls"] = await listener.start(bind, own.tls_port, ssl=self._certificates.for_clients())
        return ports

    async def _open_admin(self, ports: dict[str, int]) -> None:
        self._stops.append(self._drain)
        own, bind = self.settings.broker, self.settings.bind
        if own.admin_port < 0:
            return
        from global_config.admin import ConfigAdmin
        from region_node.admin.context import Admin
        from region_node.admin.disaster import conductor_for
        from region_node.admin.schedules import OwnCredentials
        from region_node.admin.server import AdminServer
        from region_node.admin.transactions import way_to_others
        from region_node.dr.schedule import DrillSchedule
        from region_node.dr.signing import Signer
        from region_node.security.urls import UrlList

        admin = Admin(
            region=self.settings.region,
            ownership=self.ownership,
            topics=self.topics,
            links=self.links,
            view=self.view,
            config=ConfigAdmin(self.config, self.deferred),
            clock=self._runtime.clock,
            version=__version__,
            config_status=self.config.status,
            members={"metadata": self.meta.members, "config": self.config.members},
            recovery=self.recovery,
            security=self.security,
            authenticate_metrics=self.settings.security.authenticate_metrics,
            inside=self._certificates.dialer("broker", "broker"),
            usage=self._usage,
            urls=UrlList(self.settings.security.allowed_urls),
            entry_cache=self._entry_cache,
            appends=self._appends,
            lookups=self.listener.lookups,
            metrics_topics_max=own.metrics_topics_max,
            metrics_consumers=own.metrics_consumers,
            connection_counts=lambda: self.listener.counts(),
            stores=self._store_counts,
            tier=self.tier,
            face_samples=self.kafka.samples if self.kafka is not None else None,
            balancer=self.balancer,
            isolation=self.isolation,
            leases=self.leases,
            turns=self.turns,
            deferred=self.deferred,
            promises=self.promises,
            tombstones=self.tombstones,
            signer=Signer(self.settings.region, self.meta, self.config, self._runtime.rng),
            canary=self.canary,
            transactions=self.transactions,
        )
        way_to_others(admin)
        if self.kafka is not None:
            topics = self.topics
            self.kafka.delete_part = lambda part: admin.at_owner(part, "DELETE", "?force=true", lambda text: topics.delete_topic(text, force=True))
        self.drills = DrillSchedule(self.config, lambda: conductor_for(admin, OwnCredentials(own.drill_token_file)), clock=self._runtime.clock)
        self._stops.insert(-1, self.drills.stop)
        server = AdminServer(admin)
        self._stops.insert(-1, server.stop)
        ports["admin"] = await server.start(bind, own.admin_port)
        if own.shared_admin_port:
            ports["shared_admin"] = await server.start(bind, own.shared_admin_port, shared=True)
        if own.admin_tls_port >= 0:
            ports["admin_tls"] = await server.start(bind, own.admin_tls_port, tls=self._certificates.for_clients())
        if (inside := self._certificates.listener("broker", "broker")) is not None:
            ports["admin_inside"] = await server.start(bind, own.inside_port, tls=inside)

    async def _build_tombstones(self) -> None:
        from global_config.admin import ConfigAdmin
        from heliograph.model.errors import NotFound
        from region_node.dr.switching import Switching
        from region_node.dr.tombstones import Tombstone, Tombstones

        async def names(found: Tombstone) -> list[str]:
            if found.whole:
                return await self.topics.stored(found.topic)
            name = TopicName.parse(found.topic)
            return [str(name.with_partition(index)) for index in range(found.partitions)] or [found.topic]

        async def owned(found: Tombstone) -> list[str]:
            return [name for name in await names(found) if await self.ownership.owner(name) is self.ownership.record]

        async def purge(found: Tombstone) -> bool:
            for name in await owned(found):
                if await self.topics.exists(name):
                    await self.topics.purge(name)
            return not any([await self.topics.exists(name) for name in await names(found)])

        async def forget(found: Tombstone) -> None:
            config = ConfigAdmin(self.config)
            await Switching(self.config, self._runtime.clock.wall_ms).forget(found.topic)
            try:
                await (config.delete_namespace if found.whole else config.delete_partitioned)(found.topic)
            except NotFound:
                pass  # it was plain, or somebody was faster

        async def back(found: Tombstone) -> None:
            for name in await owned(found):
                await self.topics.get(name, create=False)

        self.tombstones = Tombstones(
            self.config,
            region=self.settings.region,
            clock=self._runtime.clock,
            unload=self.topics.unload_deleted,
            purge=purge,
            forget=forget,
            back=back,
        )
        self.topics.tombstones = self.tombstones.known
        self.topics.tombstone_of = lambda name: found.reason if (found := self.tombstones.of(name)) is not None else ""
        self._stops.append(self.tombstones.stop)
        await self.tombstones.start()

    def _build_canary(self) -> None:
        from region_node.dr.canary import Canary
        from region_node.dr.promises import Promises

        self.promises = Promises(
            gates=self.leases.core.gates,
            topics=lambda: list(self.topics.loaded.values()),
            links=self.links,
            region=self.settings.region,
            clock=self._runtime.clock,
            call_later=self.links.timers.after,
        )

        own, bind = self.settings.broker.canary, self.settings.bind

        async def owns(topic: str) -> bool:
            return await self.ownership.owner(topic) is self.ownership.record

        async def open_port() -> None:
            if own.port:
                await self.listener.start(bind, own.port, reuse_port=True)

        async def close_port() -> None:
            if own.port:
                self.listener.stop_listening(own.port)

        self.canary = Canary(
            broker=self.settings.node_id,
            topics=self.topics,
            owns=owns,
            clock=self._runtime.clock,
            settings=own,
            open_port=open_port,
            close_port=close_port,
        )
        self._stops.append(self.canary.stop)

    async def _drain(self) -> None:
        await self.ownership.drain(self.settings.broker.drain_timeout_s)

    # -- values -------------------------------------------------------------------------------------------------------

    def _on_leadership(self, namespace: str) -> None:
        if hasattr(self, "turns"):  # what is heard before there are topics holds for them when they are loaded
            (self.turns.changed if is_subscription(namespace) else self.topics.leadership_changed)(namespace)

    def _region_number(self, name: str) -> int | None:
        found = self.view.region(name)
        return None if found is None else found.number

    def _record(self, ports: dict[str, int]) -> BrokerRecord:
        from region_node.ownership.records import HTTPS, INSIDE, LINK_LISTENER, BrokerRecord

        host = self.settings.broker.advertised_host or self.settings.bind
        listeners = {"": f"pulsar://{host}:{ports['pulsar']}" if "pulsar" in ports else ""}
        if "pulsar_tls" in ports:
            listeners["tls"] = f"pulsar+ssl://{host}:{ports['pulsar_tls']}"
        if "link" in ports:
            listeners[LINK_LISTENER] = f"{'pulsar' if self.settings.tls is None else 'pulsar+ssl'}://{host}:{ports['link']}"
        listeners.update(self.settings.broker.listeners)
        if self.kafka is not None:
            from region_node.kafka.cluster import LISTENER, TLS_LISTENER, node_url

            for port, name in (("kafka", LISTENER), ("kafka_tls", TLS_LISTENER)):
                if port in ports:
                    listeners[name] = node_url(self.kafka.number, self.settings.broker.kafka.advertised_host or host, ports[port])
        if "admin_tls" in ports:
            listeners[HTTPS] = f"https://{host}:{ports['admin_tls']}"
        if "admin_inside" in ports:
            listeners[INSIDE] = f"https://{host}:{ports['admin_inside']}"
        admin_url = f"http://{host}:{ports['admin']}" if "admin" in ports else ""
        return BrokerRecord(self.settings.node_id, listeners, admin_url, self._runtime.pid)
