"""BrokerParts: the objects that a broker is made of, by name.

Is: what the parts of the composition share (`broker_role`, `broker_faces`, `broker_safety`). Isn't: their making or
their start, whose order `broker_role` has.
Invariants: what has no value here is there once the step of the start that makes it is over, and stays.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from region_node.process.role_runtime import Announcement, Runtime
from region_node.process.settings import ProcessSettings
from region_node.security.audit_log import AuditLog
from region_node.usage.tenant_usage import Usage

if TYPE_CHECKING:
    from global_config.deferred_edits import DeferredEdits
    from heliograph.kv.metadata_client import MetaClient
    from heliograph.runtime.clock import CautiousClock
    from region_node.dr.canary import Canary
    from region_node.dr.leadership.known_leaderships import KnownLeaderships
    from region_node.dr.leadership.subscription_leadership import SubscriptionLeadership
    from region_node.dr.leadership.write_leases import WriteLeases
    from region_node.dr.operations.drill_schedule import DrillSchedule
    from region_node.dr.slo_monitor import Promises
    from region_node.faces.kafka.connection.kafka_listener import KafkaListener
    from region_node.faces.pulsar.connection.pulsar_listener import PulsarListener
    from region_node.metrics.metadata_store_metrics import StoreCounts
    from region_node.placement.balance.balance_book import BalanceBook
    from region_node.placement.balance.balancer import Balancer
    from region_node.placement.isolation.isolation_rules import IsolationRules
    from region_node.placement.ownership.broker_calls import BrokerCalls
    from region_node.placement.ownership.broker_records import LiveBrokers
    from region_node.placement.ownership.ownership_service import Ownership
    from region_node.process.feature_level import RegionLevel
    from region_node.process.region_epoch import RegionEpoch
    from region_node.replication.pulsar_clusters import ClusterMarkers
    from region_node.security.authorization.security_service import Security
    from region_node.security.tls import Certificates
    from region_node.tiering.broker_tier import BrokerTier
    from region_node.topics.policies.policy_book import PolicyBook
    from region_node.topics.serving.deferred_deletion import Tombstones
    from region_node.topics.serving.topic_service import TopicService
    from region_node.transactions.coordinators.coordinator_topics import RegionView
    from region_node.transactions.coordinators.transaction_service import Transactions
    from region_node.usage.stored_bytes import StoredBytes
    from replicator.manager.link_manager import LinkManager
    from storage.ledger.bookies.bookie_pool import BookiePool
    from storage.ledger.repair.autorecovery import AutoRecovery
    from storage.managed_ledger.append_counts import Appends
    from storage.managed_ledger.cache.entry_cache import EntryCache
    from storage.managed_ledger.resealing.reseal_worker import ResealWorker
    from storage.sealing.sealing import Sealing


class BrokerParts:
    """`stops`: what ends them, to be called with the newest first."""

    def __init__(self, settings: ProcessSettings, runtime: Runtime) -> None:
        self.settings, self.runtime = settings, runtime
        self.stops: list[Callable[[], Awaitable[None]]] = []
        self.stores: list[MetaClient] = []
        """The region's metadata and the global configuration, once they are connected to."""
        self.certificates: Certificates
        self.view: RegionView
        self.meta: MetaClient
        self.config: MetaClient
        self.store_counts: tuple[StoreCounts, StoreCounts]
        self.links: LinkManager
        self.clusters: ClusterMarkers
        self.topics: TopicService
        self.ownership: Ownership
        self.balancer: Balancer
        self.isolation: IsolationRules
        self.level: RegionLevel
        self.policies: PolicyBook
        self.live: LiveBrokers
        self.balance: BalanceBook
        self.listener: PulsarListener
        self.kafka: KafkaListener | None = None
        """None where no Kafka port is set."""
        self.security: Security
        self.calls: BrokerCalls
        self.usage = Usage()
        self.audit = AuditLog(runtime.clock)
        self.stored: StoredBytes
        self.pool: BookiePool
        self.recovery: AutoRecovery
        self.reseals: ResealWorker
        self.tier: BrokerTier
        self.sealing: Sealing
        self.entry_cache: EntryCache
        self.appends: Appends
        self.epoch: RegionEpoch
        self.deferred: DeferredEdits
        self.drills: DrillSchedule | None = None
        self.leases: WriteLeases
        self.leaderships: KnownLeaderships
        self.subscription_leadership: SubscriptionLeadership
        self.canary: Canary
        self.promises: Promises
        self.tombstones: Tombstones
        self.expiry: CautiousClock
        """By it goes what goes by time."""
        self.transactions: Transactions | None = None
        self.told_to_end = Announcement()

    async def drain(self) -> None:
        """Gives its bundles to other brokers, for at most `drain_timeout_s`."""
        await self.ownership.drain(self.settings.broker.drain_timeout_s)

    def region_number(self, name: str) -> int | None:
        """None where no region of that name is known."""
        found = self.view.region(name)
        return None if found is None else found.number
