"""A broker's Kafka face over fake storage, and clients that speak to it through transports in memory.

Is: the real listener, coordinator, configuration, and metadata (embedded); only ledgers and the owner of bundles are
fakes. Isn't: a Kafka client.
"""

from __future__ import annotations

import asyncio
import random
import struct
from collections.abc import Callable, Coroutine
from typing import Any

from global_config.admin import ConfigAdmin
from global_config.view import ConfigView
from heliograph.kv.in_process_store import EmbeddedStore
from heliograph.model.bundles import BundleTable
from heliograph.model.configuration.configuration_records import NamespacePolicies, RegionInfo, TenantInfo
from heliograph.model.ledger_metadata import LedgerInfo
from heliograph.model.positions import Position
from heliograph.runtime.clock import Clocks
from heliograph.runtime.compute_thread import Offload
from heliograph.wire.kafka.message_codec import BY_NAME, decode_fields, encode_fields
from region_node.faces.kafka.administration.topic_cleanup import Cleaning
from region_node.faces.kafka.cluster.kafka_cluster import Cluster
from region_node.faces.kafka.cluster.kafka_nodes import LISTENER, node_url
from region_node.faces.kafka.cluster.leading_regions import LeadingRegions
from region_node.faces.kafka.connection.kafka_connection import KafkaConnection
from region_node.faces.kafka.connection.kafka_listener import KafkaListener
from region_node.faces.kafka.kafka_settings import KafkaSettings
from region_node.faces.kafka.log.large_conversions import WAITING_MAX
from region_node.faces.kafka.session.kafka_broker import Accounts, KafkaBroker
from region_node.faces.kafka.shared_rows import RowStores
from region_node.placement.ownership.broker_calls import BrokerCalls
from region_node.placement.ownership.broker_records import BrokerRecord
from region_node.schemas.schema_registry import SchemaRegistry
from region_node.security.audit_log import AuditLog
from region_node.security.authentication.authentication_service import Authentication
from region_node.security.authorization.authorization_service import Authorization
from region_node.security.authorization.security_service import Security
from region_node.security.settings import SecuritySettings
from region_node.topics.policies.policy_book import PolicyBook
from region_node.topics.serving.loaded_topics import Loaded, TopicsHere
from region_node.topics.serving.topic_ids import TopicIds
from region_node.topics.serving.topic_service import Deletions, OwnBundles, TopicService
from region_node.usage.tenant_usage import Usage
from tests.region_node.faces.pulsar.harness import FakeTransport, settle
from tests.region_node.topics.fake_storage import FakeClock, FakeFactory, FakeLedger, FakeRegion, NotedLinks


class KafkaLedger(FakeLedger):
    """Offsets are message indexes: what the log asks beyond what subscriptions do."""

    @property
    def confirmed_index(self) -> int:
        return 0 if not self.runs else self.runs[-1][2].first_index + self.runs[-1][2].messages

    def next_position(self, position: Position) -> Position:
        return next((found for found in self.positions() if found > position), (self.ledger, self.next))

    def _infos(self) -> list[LedgerInfo]:
        infos: dict[int, LedgerInfo] = {}
        for ledger, _, run in self.runs:
            before = infos.get(ledger, LedgerInfo(ledger, first_index=run.first_index))
            infos[ledger] = LedgerInfo(
                ledger, before.entries + run.count, before.size_bytes + run.size_bytes, first_index=before.first_index
            )
        return list(infos.values())


class KafkaFactory(FakeFactory):
    def made(self, topic: str) -> KafkaLedger:
        return KafkaLedger(topic)


class OwnerOfAll:
    """One broker, which owns every bundle."""

    region = "us"

    def __init__(self) -> None:
        self.record = BrokerRecord("b", {LISTENER: node_url(0, "127.0.0.1", 9092)})

    def brokers(self) -> list[BrokerRecord]:
        return [self.record]

    def present_owner(self, namespace: str, bundle: int) -> BrokerRecord:
        return self.record

    async def bundle_owner(self, namespace: str, bundle: int) -> BrokerRecord:
        return self.record

    async def owner(self, topic: str) -> BrokerRecord:
        return self.record

    def owns(self, topic: str) -> bool:
        return True

    def bundles(self, namespace: str) -> BundleTable:
        return BundleTable.equal(4)


class Client:
    """One connection. `answers`: frames that came, without their sizes."""

    def __init__(self, listener: KafkaListener, address: str = "127.0.0.1") -> None:
        self.protocol = KafkaConnection(listener.opened, listener.broker, listener.staging, tls=False)
        self.transport = FakeTransport(self.protocol, address)  # type: ignore[arg-type]
        self.protocol.connection_made(self.transport)
        self.session = self.protocol.session

    def raw(self, data: bytes) -> None:
        """As a transport hands it over: in as many reads as its buffers take."""
        at = 0
        while at < len(data) and not self.protocol.closed:
            buffer = self.protocol.get_buffer(-1)
            taken = min(len(buffer), len(data) - at)
            buffer[:taken] = data[at : at + taken]
            del buffer  # no transport keeps it: a frame grows in its place
            self.protocol.buffer_updated(taken)
            at += taken

    def answers(self) -> list[bytes]:
        data, self.transport.written = b"".join(self.transport.written), []
        out: list[bytes] = []
        while data:
            size = int.from_bytes(data[:4], "big")
            assert len(data) >= 4 + size, "an answer that is cut off"
            out.append(data[4 : 4 + size])
            data = data[4 + size :]
        return out

    async def ask(self, name: str, version: int, fields: dict[str, Any]) -> dict[str, Any]:
        self.raw(request(name, version, fields))
        for _ in range(200):
            await settle(5)
            if found := self.answers():
                return decode_fields(
                    name,
                    version,
                    found[0][5 if BY_NAME[name].is_flexible(version) and name != "api_versions" else 4 :],
                    answer=True,
                )
        raise AssertionError(f"no answer to {name}")


def request(name: str, version: int, fields: dict[str, Any], correlation: int = 1) -> bytes:
    """A request as it goes over a connection."""
    api = BY_NAME[name]
    head = struct.pack(">hhih", api.key, version, correlation, -1) + (b"\0" if api.is_flexible(version) else b"")
    body = head + encode_fields(name, version, fields, answer=False)
    return len(body).to_bytes(4, "big") + body


class Face:
    """`listener`: of the broker; its ticks are the loop's."""

    def __init__(
        self,
        security: SecuritySettings | None = None,
        leadership: Any = None,
        leading: Any = None,
        *,
        region: str = "us",
        config: Any = None,
        deletions: Callable[[Face], Deletions] = lambda _: Deletions(),
        **settings: Any,
    ) -> None:
        """security: by it roles may do things or not; None: everybody may do everything. leadership: of groups; None:
        they work in every region. leading: of namespaces; None: every region leads. config: the configuration, where
        others have it too. deletions: made of the face once its configuration and policies are there.
        """
        self.clock, self.factory, rng = FakeClock(), KafkaFactory(), random.Random(1)
        self.meta, self.config = EmbeddedStore(), EmbeddedStore() if config is None else config
        self.view, self.admin, self.owner = ConfigView(self.config), ConfigAdmin(self.config), OwnerOfAll()
        self.ids = TopicIds(self.meta, rng, self.view.incarnation)
        self.leading = LeadingRegions(
            "us", 0, self.view.region, leading and leading.ports(self.config, self.meta, self.clock)
        )
        own = KafkaSettings(**{"port": 0, "rebalance_delay_ms": 0, **settings})
        self.policies = PolicyBook(self.meta, self.view, {})
        self.topics = TopicService(
            region=FakeRegion(RegionInfo(name=region, number=1)),
            factory=self.factory,
            links=NotedLinks(),
            meta=self.meta,
            schemas=SchemaRegistry(self.meta, lambda: 1, self.clock),
            here=TopicsHere(Loaded(), self.policies, self.view),
            bundles=OwnBundles(owns=lambda topic: True),
            clock=self.clock,
            rng=rng,
            deletions=deletions(self),
        )
        self.audit, rights = AuditLog(self.clock), security or SecuritySettings()
        self.broker = KafkaBroker(
            cluster=Cluster(
                ownership=self.owner,  # type: ignore[arg-type]
                region=FakeRegion(RegionInfo(name="us", number=1)),
                topics=self.topics,
                config=self.admin,
                settings=own,
                ids=self.ids,
                leading=self.leading,
                calls=BrokerCalls(),
            ),
            meta=self.meta,
            accounts=Accounts(
                Security(Authentication(rights, {}), Authorization(rights, self.view)),
                self.audit,
                Usage(),
                RowStores(self.config, self.meta, lambda: True, lambda: True),
            ),
            clocks=Clocks(self.clock, self.clock),
            rng=rng,
            converting=Offload(WAITING_MAX),
            leadership=leadership,
        )
        self.cleaning = Cleaning(self.broker)
        self.listener = KafkaListener(self.broker)

    async def start(self) -> None:
        await self.view.ready()
        await self.leading.start()
        await self.admin.create_region("us")
        await self.admin.create_tenant("public", TenantInfo(allowed_regions=("us",)))
        await self.admin.create_namespace("public/default", NamespacePolicies(regions=("us",)))
        await self.broker.positions.start()

    async def close(self) -> None:
        self.cleaning.close()
        self.broker.coordinator.close()
        self.broker.positions.close()
        self.ids.close()
        self.broker.quotas.close()
        self.broker.close()
        await self.leading.close()
        await self.listener.close()
        await self.topics.close()
        self.view.close()


def with_face(test: Callable[[Face], Coroutine[Any, Any, None]], **settings: Any) -> None:
    """Runs an async test with a broker of its own."""

    async def run() -> None:
        face = Face(**settings)
        try:
            await face.start()
            await test(face)
        finally:
            await face.close()

    asyncio.run(run())
