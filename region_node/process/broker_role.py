"""BrokerRole: a broker, from its connections to its listeners.

Is: the part of the composition that builds and connects a broker's objects, in the order in which they start. Isn't:
what they are (`broker_parts`), a decision of any of them, its listeners (`broker_faces`), or what it has for the loss
of regions (`broker_safety`).
Invariants: a client is answered only once everything behind it is there; a drain comes before anything is closed.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from heliograph.model.configuration.leadership import is_subscription
from heliograph.model.configuration.revocations import REVOCATIONS
from heliograph.model.topic_names import TopicName
from region_node.process.broker_faces import BrokerFaces
from region_node.process.broker_parts import BrokerParts
from region_node.process.role_runtime import (
    Runtime,
    another_history,
    closing,
    meta_client,
    obey_revocations,
    replicator_tls,
    without_absent,
)
from region_node.process.settings import ProcessSettings
from region_node.security.tls import Certificates, client_context

if TYPE_CHECKING:
    from region_node.usage.usage_days import UsageDays
    from replicator.health.tracing import Tracing


class BrokerRole(BrokerParts):
    """Topics, links, and ownership of bundles, with their faces: Pulsar listeners and the admin interface."""

    def __init__(self, settings: ProcessSettings, runtime: Runtime) -> None:
        super().__init__(settings, runtime)
        self.faces = BrokerFaces(self)
        self._days: UsageDays

    async def start(self) -> dict[str, int]:
        await self._connect()
        await self._connect_leases()
        await self._build_security()
        await self._build_topics()
        self._build_days()
        ports = await self.faces.listen()
        self._build_canary()
        await self.faces.open_admin(ports)
        self.stops.append(closing(self.certificates.watch()))
        await self.tier.tiering.start()
        await self.isolation.start()
        record = self.faces.record(ports)
        await self.ownership.start(record)
        self.view.announce()
        self.balancer.start()
        self.stops.append(self.balancer.stop)
        if self.settings.broker.auto_recovery.enabled:
            await self.recovery.start()
        self.reseals.start()
        self.canary.start()
        self.promises.start()
        self.tombstones.run()
        self._days.start()
        self.stored.start()
        if self.drills is not None:
            await self.drills.start()
        return ports

    async def stop(self) -> None:
        """Drains first, then ends what was started, the newest first."""
        async with without_absent(self.stores, self.runtime.clock):
            while self.stops:
                await self.stops.pop()()

    async def failed(self) -> None:
        """Returns where an admin has this broker end. Raises ConfigError where it may serve no longer."""
        await self.told_to_end.before(self.epoch.replaced(), self.level.outgrown())

    # -- start, in this order -----------------------------------------------------------------------------------------

    async def _connect(self) -> None:
        from global_config.admin import ConfigAdmin
        from global_config.deferred_edits import DeferredEdits
        from local_meta.node_level import spoken
        from region_node.metrics.metadata_store_metrics import StoreCounts
        from region_node.placement.balance.balance_book import BalanceBook
        from region_node.placement.ownership.broker_records import LiveBrokers
        from region_node.process.feature_level import RegionLevel
        from region_node.process.region_epoch import RegionEpoch
        from region_node.topics.policies.policy_book import PolicyBook
        from region_node.transactions.coordinators.coordinator_topics import RegionView

        self.certificates = Certificates(self.settings.tls, self.settings.region)
        put_back, dialer = another_history(), self.certificates.dialer("broker", "meta")
        self.meta = meta_client(self.settings.meta, self.runtime, dialer, put_back)
        self.stops.append(closing(self.meta.close))
        self.config = meta_client(self.settings.config, self.runtime, self.certificates.dialer("broker", "config"))
        self.stops.append(closing(self.config.close))
        self.stores += self.meta, self.config
        coordinators = (
            self.settings.broker.transactions.coordinators
            if self.settings.broker.transaction_coordinator_enabled
            else 0
        )
        self.store_counts = (
            StoreCounts("metadata-store", self.meta),
            StoreCounts("configuration-metadata-store", self.config),
        )
        self.view = RegionView(self.config, self.settings.region, coordinators)
        await self.view.ready(fresh_within_s=3.0)
        self.policies = PolicyBook(self.meta, self.view, self.settings.broker.policies, self.runtime.rng)
        self.stops.append(closing(self.policies.close))
        self.live, self.balance = LiveBrokers(), BalanceBook(self.runtime.clock, self.runtime.rng)
        self.deferred = DeferredEdits(
            self.config, self.meta, self.view, region=self.settings.region, clock=self.runtime.clock
        )
        self.stops.append(self.deferred.stop)
        await self.deferred.start()
        region, admin = self.settings.region, ConfigAdmin(self.config, rng=self.runtime.rng)
        self.epoch = RegionEpoch(region, self.meta, self.view, admin, self.runtime.rng, put_back)
        self.stops.append(self.epoch.stop)
        await self.epoch.start()
        self.level = RegionLevel(
            region,
            self.meta,
            self.view,
            admin,
            self.live.all,
            partial(spoken, self.meta, self.meta.members),
            self.runtime.feature_level,
        )
        self.stops.append(closing(self.level.close))
        self.level.check_own()

    async def _connect_leases(self) -> None:
        from region_node.dr.leadership.configuration_age import ConfigurationAge
        from region_node.dr.leadership.effective_leaderships import EffectiveLeaderships
        from region_node.dr.leadership.known_leaderships import KnownLeaderships
        from region_node.dr.leadership.write_leases import LeaseSettings, WriteLeases

        self.leases = WriteLeases(
            self.config,
            region=self.settings.region,
            broker=self.settings.node_id,
            clock=self.runtime.clock,
            url_of=lambda region: info.service_url if (info := self.view.region(region)) is not None else "",
            beside=self._beside,
            age=ConfigurationAge(
                self.config, self.meta, self.settings.region, self.runtime.clock.wall_ms, self.runtime.rng
            ),
            settings=self.runtime.of(LeaseSettings),
        )
        self.stops.append(self.leases.stop)
        await self.leases.start()
        self.leaderships = KnownLeaderships(self.config)
        self.stops.append(self.leaderships.stop)
        await self.leaderships.start()
        effective = EffectiveLeaderships(self.leases.core, self.config, self._regions_of, self.runtime.clock)
        self.stops.append(effective.stop)
        await effective.start()

    async def _build_topics(self) -> None:
        from global_config.admin import ConfigAdmin
        from heliograph.model.feature_levels import LEDGER_PAGES, SPLIT_BUNDLES
        from heliograph.runtime.clock import CautiousClock, StampClock
        from region_node.dr.leadership.subscription_leadership import SubscriptionLeadership
        from region_node.faces.admin.calls.ends_elsewhere import EndsElsewhere
        from region_node.faces.admin.dr.drill_schedules import OwnCredentials
        from region_node.placement.balance.balancer import Balancer
        from region_node.placement.balance.broker_gauge import BrokerGauge
        from region_node.placement.balance.bundle_divider import BundleDivider
        from region_node.placement.balance.bundle_quotas import QuotaBook
        from region_node.placement.isolation.isolation_rules import IsolationRules
        from region_node.placement.ownership.bundle_ranges import BundleBook
        from region_node.placement.ownership.ownership_core import BundleRules
        from region_node.placement.ownership.ownership_service import Ownership
        from region_node.process.broker_limits import of_links, of_topics
        from region_node.process.broker_safety import tombstones_of
        from region_node.replication.pulsar_clusters import ClusterMarkers, PulsarClusters
        from region_node.replication.replicated_schemas import ReplicatedSchemas
        from region_node.replication.replicated_subscriptions import ReplicatedSubscriptions
        from region_node.schemas.schema_registry import SchemaRegistry
        from region_node.security.allowed_urls import ListedRegions, UrlList
        from region_node.security.authorization import deleted_topic_grants
        from region_node.subscriptions.filter_plugins import load_filters
        from region_node.tiering.broker_tier import BrokerTier
        from region_node.tiering.topic_resealing import TopicResealing
        from region_node.topics.serving.deletion_everywhere import DeletionEverywhere
        from region_node.topics.serving.loaded_topics import Loaded, TopicsHere
        from region_node.topics.serving.namespace_cleanup import NamespaceCleanup
        from region_node.topics.serving.topic_service import (
            Deletions,
            OwnBundles,
            TopicDuties,
            TopicService,
            TopicSettings,
        )
        from region_node.transactions.coordinators.named_transactions import NamedTransactions
        from region_node.transactions.coordinators.transaction_calls import TransactionCalls
        from region_node.transactions.coordinators.transaction_service import Transactions
        from replicator.audit.bookie_copies import BookieCopies
        from replicator.manager.link_manager import LinkHosts, LinkManager, LinkSettings
        from replicator.pulsar.cluster_credentials import ClusterFiles
        from storage.ledger.bookies.bookie_client import BookieClient
        from storage.ledger.bookies.bookie_pool import BookiePool
        from storage.ledger.ledger_context import LedgerSettings
        from storage.ledger.repair.autorecovery import AutoRecovery
        from storage.managed_ledger.cache.entry_cache import EntryCache
        from storage.managed_ledger.log.managed_ledger_factory import ManagedLedgerFactory
        from storage.managed_ledger.managed_ledger_settings import ManagedLedgerSettings
        from storage.managed_ledger.resealing.reseal_worker import ResealWorker
        from storage.managed_ledger.retention.orphan_ledgers import OrphanCollector
        from storage.tiered.offload.object_resealing import ObjectResealing

        clock, rng, own = self.runtime.clock, self.runtime.rng, self.settings.broker
        config = ConfigAdmin(self.config, rng=rng, clock=clock)
        self.expiry = CautiousClock(
            clock,
            lambda: [
                ahead for name, ahead in self.links.incoming.clocks().items() if self.view.region(name) is not None
            ],
            lambda: len(self.view.regions()) < 2,
        )
        tls, listed = self.certificates.dialer("broker", "bookie"), self.settings.security.allowed_urls
        pool = BookiePool(
            self.meta,
            lambda bookie, host, port: BookieClient(bookie, host, port, rng=rng, ssl=tls),
            rng,
            racks_min=own.racks_min,
            region_level=lambda: self.level.present,
        )
        self.pool = pool
        self.stops.append(closing(pool.close))
        await pool.ready()
        self.entry_cache = EntryCache(own.cache_mb << 20, own.entry_cache())
        await self._build_sealing()
        factory = ManagedLedgerFactory(
            self.meta,
            pool,
            self.entry_cache,
            self.runtime.of(ManagedLedgerSettings)
            if ManagedLedgerSettings in self.runtime.tuned
            else own.managed_ledger,
            StampClock(self.expiry),
            rng,
            ledger_settings=self.runtime.of(LedgerSettings),
            sealing=self.sealing,
            expiry=self.expiry,
            may_page=lambda: self.level.present >= LEDGER_PAGES,
            ends_elsewhere=EndsElsewhere(
                self.settings.region,
                self.view,
                UrlList(listed),
                self.certificates.outward(),
                OwnCredentials(own.drill_token_file),
                own.region_patience_s,
                self.settings.security.region_audiences,
            ).end_of,
        )
        self.appends = factory.appends
        self.stops.append(factory.close)
        orphans = OrphanCollector(factory.context, own.auto_recovery.orphan_grace_s)
        self.recovery = AutoRecovery(factory.context, self.settings.node_id, own.auto_recovery, orphans.sweep)
        self.stops.append(self.recovery.stop)
        here = TopicsHere(Loaded(), self.policies, self.view)
        schemas = SchemaRegistry(self.meta, lambda: self.epoch.info().number, clock)
        replicated = ReplicatedSchemas(
            self.meta,
            schemas,
            region_number=lambda: self.epoch.info().number,
            partitions=self.view.partitions,
        )
        self.stops.append(closing(replicated.close))
        files = ClusterFiles(self.settings.security.cluster_files, UrlList(listed).names)
        clusters = PulsarClusters(self.settings.region, self.view, schemas, files, clock)
        self.links = LinkManager(
            region=self.settings.region,
            view=ListedRegions(self.view, UrlList(listed)) if listed else self.view,
            connect=replicator_tls(self.settings.tls, lambda *files: self.certificates.keep(client_context, *files)),
            clock=clock,
            rng=rng,
            settings=of_links(self.runtime.of(LinkSettings), own),
            expiry=self.expiry,
            hosts=LinkHosts(
                broker=self.settings.node_id,
                appends=factory.appends,
                brokers=lambda: len(self.live.by_name),
                leaderships=self.leaderships,
                storage=BookieCopies(factory.context),
                subscriptions=ReplicatedSubscriptions(here.loaded),
                schemas=replicated,
                clusters=clusters,
            ),
        )
        self.clusters = ClusterMarkers(clusters, self.links)
        factory.context.losses.ask_elsewhere(self.links.auditor.asked_since)
        self.stops.append(self.links.close)
        book = BundleBook(self.meta, self.view)
        self.subscription_leadership = SubscriptionLeadership(
            self.leases, self.config, here, meta=self.meta, region=self.settings.region, clock=clock
        )
        self.tombstones = tombstones_of(self)
        self.topics = TopicService(
            region=self.epoch,
            factory=factory,
            links=self.links,
            meta=self.meta,
            schemas=schemas,
            here=here,
            bundles=OwnBundles(
                owns=lambda topic: self.ownership.owns(topic),
                arrival=lambda topic: self.ownership.arrival(topic),
                table=book.of,
            ),
            context=factory.context,
            clock=clock,
            rng=rng,
            settings=of_topics(self.runtime.of(TopicSettings), own),
            create_partitioned=config.create_partitioned,
            deletions=Deletions(
                forget_grants=lambda name: deleted_topic_grants.forget(config, self.view, name),
                tombstones=self.tombstones,
                everywhere=DeletionEverywhere(self.tombstones, self.view, here.policies),
            ),
            duties=TopicDuties(
                expiry=self.expiry,
                filters=load_filters(own.entry_filters),
                gate_of=self.leases.gate,
                leadership_of=self.subscription_leadership.of,
                tracing=self._tracing(),
                holds=own.transaction_coordinator_enabled,
            ),
        )
        self.stops.append(self.subscription_leadership.stop)
        await self.subscription_leadership.start()
        self.leases.on_change(self._on_leadership)  # what was heard before holds for topics when they are loaded
        self.stops.append(self.tombstones.stop)
        await self.tombstones.start()
        self.stops += self.topics.close, closing(NamespaceCleanup(self.topics, self.appends).close)
        self.isolation = IsolationRules(self.meta, self.view, self.settings.region)
        self.stops.append(closing(self.isolation.stop))
        self.ownership = Ownership(
            region=self.settings.region,
            broker=self.settings.node_id,
            meta=self.meta,
            view=self.view,
            host=self.topics,
            clock=clock,
            rng=rng,
            settings=own.ownership,
            rules=BundleRules(place=self.balance.place, permit=self.isolation.permitted),
            book=book,
            live=self.live,
        )
        self.stops.append(self.ownership.stop)
        self.tier = BrokerTier(
            region=self.epoch,
            factory=factory,
            view=self.view,
            config=config,
            topics=self.topics,
            collects=lambda: self.recovery.auditor,
            disk=self.runtime.disk,
            clock=self.expiry,
            rng=rng,
            settings=own.tiered,
            ownership=self.ownership,
            level=lambda: self.level.present,
        )
        self.stops.append(self.tier.tiering.stop)
        self.reseals = ResealWorker(
            factory.context,
            self.expiry,
            lambda: self.recovery.auditor,
            lambda: factory.opened,
            TopicResealing(
                lambda: self.topics.compactor,
                lambda: self.topics.loaded.values(),
                self.meta,
                self.sealing,
                clock,
                self.tier,
                ObjectResealing(self.tier.tiering, factory.context, self.tier.stores, own.tiered, self.expiry),
            ),
        )
        self.stops.append(self.reseals.stop)
        self.topics.share_groups(self.settings.node_id, lambda: self.ownership.lease)
        if own.transaction_coordinator_enabled:
            self.transactions = Transactions(
                meta=self.meta,
                topics=self.topics,
                ownership=self.ownership,
                clock=clock,
                rng=rng,
                settings=own.transactions,
                others=TransactionCalls(self.calls),
                named=NamedTransactions() if max(own.kafka.port, own.kafka.tls_port) >= 0 else None,
            )
            self.stops.append(self.transactions.close)
        self.balancer = Balancer(
            broker=self.settings.node_id,
            mover=self.ownership,
            meta=self.meta,
            gauge=BrokerGauge(
                self.topics.loaded,
                self.topics.activity,
                self.ownership.bundles,
                clock,
                self._connections_used,
                self.runtime.usage,
            ),
            book=self.balance,
            settings=own.balance,
            divider=BundleDivider(
                self.ownership,
                self.topics.loaded,
                factory,
                lambda: self.level.reach(SPLIT_BUNDLES, "splitting a bundle"),
            ),
            upkeep=self.level.upkeep,
            quotas=QuotaBook(
                self.meta, self.ownership.bundles, own.balance.capacity(self.runtime.usage.memory_limit_bytes())
            ),
        )

    def _connections_used(self) -> float:
        return len(self.listener.opened.all) / self.listener.settings.connections_max

    async def _build_sealing(self) -> None:
        from heliograph.model.feature_levels import AUTHENTICATED_SEALS, SEALED_RUNS
        from region_node.security.encryption_at_rest import MasterSettings
        from storage.sealing.cipher import BYTES_ALONE, WITH_HEADER
        from storage.sealing.sealing import Sealing, SealingRules

        masters = MasterSettings(self.settings.broker.encryption)
        rules = SealingRules(
            wanted=lambda topic: self.policies.of(TopicName.parse(topic)).on("encryptionAtRest"),
            permit=lambda: self.level.reach_if_spoken(
                AUTHENTICATED_SEALS, SEALED_RUNS, "encryption at rest", lambda: self.balance.paused
            ),
            form=lambda: WITH_HEADER if self.level.present >= AUTHENTICATED_SEALS else BYTES_ALONE,
        )
        self.sealing = Sealing(self.config, self.settings.region, masters, self.expiry, self.runtime.rng, rules)
        self.stops.append(self.sealing.close)
        await self.sealing.start()

    def _tracing(self) -> Tracing | None:
        """What traces messages; None where nothing is traced."""
        own = self.settings.broker.tracing
        if not own.endpoint:
            return None
        from heliograph.runtime.span_export import SpanExport, now_ns
        from replicator.health.tracing import Tracing

        resource = {
            "service.name": "heliograph",
            "service.namespace": self.settings.region,
            "service.instance.id": self.settings.node_id,
        }
        export = SpanExport(own.endpoint, own.headers(), resource, delay_ms=int(own.delay_s * 1000))
        self.stops.append(closing(export.close, blocks=True))
        return Tracing(self.settings.region, own.one_in, now_ns, export.emit)

    def _build_days(self) -> None:
        from heliograph.runtime.clock import Clocks
        from region_node.usage.stored_bytes import StoredBytes
        from region_node.usage.usage_days import UsageDays, stored_by_tenant

        self._days = UsageDays(
            self.meta,
            self.usage,
            lambda: stored_by_tenant(self.topics.loaded.values()),
            broker=self.settings.node_id,
            clocks=Clocks(self.runtime.clock, self.expiry),
            settings=self.settings.broker.usage,
        )
        self.stops.append(self._days.stop)
        self.stored = StoredBytes(
            self.meta,
            self.usage,
            lambda: stored_by_tenant(self.topics.loaded.values()),
            walks=lambda: bool(found := self.ownership.brokers()) and found[0].broker == self.settings.node_id,
            quotas=self.view.tenant_quotas,
            tell_full=self.topics.policies.set_full,
            clock=self.runtime.clock,
            settings=self.settings.broker.usage,
        )
        self.stops.append(self.stored.stop)

    async def _build_security(self) -> None:
        from heliograph.runtime.compute_thread import Offload
        from region_node.placement.ownership.broker_calls import BrokerCalls
        from region_node.security.authentication.internal_tokens import RegionSecrets
        from region_node.security.authentication.jwks_issuers import fetch
        from region_node.security.authorization.security_service import PASSWORDS_WAITING_MAX, build_security
        from region_node.security.revocation_copies import COPIES, RevocationCopies

        offload = Offload(PASSWORDS_WAITING_MAX)
        self.stops.append(closing(offload.close))
        own, node = self.settings.security, self.settings.node_id
        secrets = RegionSecrets(self.meta, self.runtime.rng, self.runtime.clock)
        self.stops.append(closing(secrets.stop))
        self.security = await build_security(
            own,
            self.view,
            secrets,
            offload,
            region=self.settings.region,
            node=node,
            fetch=fetch,
            clock=self.runtime.clock,
            rng=self.runtime.rng,
        )
        copies = RevocationCopies(self.config, self.meta, self.runtime.clock)
        self.stops.append(copies.stop)
        await copies.start()
        revocations, lists = self.security.authentication.revocations, ((self.config, REVOCATIONS), (self.meta, COPIES))
        self.stops.append(obey_revocations(revocations, self.certificates, *lists))
        for store, prefix in lists:
            await store.synced(prefix)
        self.certificates.revoke(revocations.certificates())
        made, inside = self.runtime.broker_calls, self.certificates.dialer("broker", "broker")
        self.calls = BrokerCalls(self.security.authentication.own_header, inside) if made is None else made()
        self.stops.append(self.calls.close)

    def _build_canary(self) -> None:
        from region_node.process.broker_safety import canary_of, promises_of

        self.promises = promises_of(self)
        self.canary = canary_of(self)
        self.stops.append(self.canary.stop)

    # -- values -------------------------------------------------------------------------------------------------------

    def _regions_of(self, namespace: str) -> Sequence[str]:
        return () if (policies := self.view.namespace(namespace)) is None else policies.regions

    def _beside(self) -> Sequence[str] | None:
        """The brokers of this region, once they are known: then this one is among them."""
        found = [record.broker for record in self.live.all()]
        return found if self.settings.node_id in found else None

    def _on_leadership(self, namespace: str) -> None:
        gates, of_subscription = self.topics.gates, is_subscription(namespace)
        (self.subscription_leadership.changed if of_subscription else gates.leadership_changed)(namespace)
