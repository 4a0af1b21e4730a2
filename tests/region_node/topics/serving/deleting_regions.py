"""Regions of one instance, as deletion sees them: of each the admin interface and the Kafka face of a broker, over fake
storage; the global configuration is real, and all have it.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from global_config.admin import ConfigAdmin
from heliograph.kv.in_process_store import EmbeddedStore
from heliograph.kv.state_machine import KvMachine
from heliograph.model.admin_paths import dr_path, namespace_path, path_of, topic_path
from heliograph.model.configuration.configuration_records import NamespacePolicies, TenantInfo
from heliograph.model.errors import MetadataUnavailable
from heliograph.runtime.clock import CautiousClock
from region_node.faces.admin.calls import region_facts
from region_node.faces.admin.calls.admin_context import Admin
from region_node.faces.admin.server.admin_server import AdminServer
from region_node.faces.admin.server.http_connections import HttpConnections, HttpLimits
from region_node.process.broker_safety import BrokerDeletions
from region_node.security.authentication.authentication_service import Authentication
from region_node.security.authentication.internal_tokens import InternalTokens, RegionSecrets
from region_node.security.authorization import deleted_topic_grants
from region_node.security.authorization.security_service import open_security
from region_node.security.settings import SecuritySettings
from region_node.topics.producers import Producer
from region_node.topics.serving.deferred_deletion import Tombstones, TombstoneSettings
from region_node.topics.serving.deletion_everywhere import DeletionEverywhere
from region_node.topics.serving.topic_service import Deletions
from replicator.health.incoming_stats import IncomingStats
from tests.region_node.faces.admin.server.http_peer import Peer
from tests.region_node.faces.kafka.harness import Client, Face

NAMESPACE = "public/default"
TOPIC = f"persistent://{NAMESPACE}/orders"
DAY_S = 24 * 3600
_TURNS_MAX = 5000


class Silent:
    """The connection of a producer that never says anything."""

    def producer_closed(self, producer: Producer) -> None: ...

    def producer_ready(self, producer: Producer) -> None: ...

    async def alive(self) -> bool:
        return True

    def hold_reading(self, hold: bool, reason: object = None) -> None: ...


class Region:
    """A broker of it. `store`: its way to the configuration, which a test may cut (`unavailable`)."""

    def __init__(self, name: str, machine: KvMachine) -> None:
        self.name, self.store = name, EmbeddedStore(machine)
        self._parts: Any = SimpleNamespace(config=self.store)
        self.face = Face(region=name, config=self.store, deletions=self._deletions)
        self._parts.topics = self.topics = self.face.topics
        face: Any = self.face
        leases: Any = SimpleNamespace(store=self.store, gate=lambda namespace: None)
        links: Any = SimpleNamespace(each=list, stats=lambda topic: [], incoming=IncomingStats())
        nothing: Any = None
        rng = random.Random(1)
        self._secrets = RegionSecrets(EmbeddedStore(), rng, face.clock)
        self._brokers = InternalTokens(self._secrets, name, "another", face.clock)
        authentication = Authentication(SecuritySettings(anonymous_role="tester"), {}, self._brokers)
        self.server = AdminServer(
            Admin(
                region=name,
                ownership=face.owner,
                topics=self.topics,
                links=links,
                view=face.view,
                config=face.admin,
                clock=face.clock,
                step_ages=nothing,
                audit=face.audit,
                version="1",
                config_status=nothing,
                tombstones=self.tombstones,
                leases=leases,
                security=replace(open_security(), authentication=authentication),
            )
        )

    def _deletions(self, face: Face) -> Deletions:
        runtime = SimpleNamespace(rng=random.Random(1), clock=face.clock)
        self._parts.ownership, self._parts.view, self._parts.runtime = face.owner, face.view, runtime
        self.tombstones = Tombstones(
            self.store,
            BrokerDeletions(self._parts),
            region=self.name,
            clock=CautiousClock(face.clock),
            settings=TombstoneSettings(sweep_s=0.01),
        )
        return Deletions(
            forget_grants=lambda name: deleted_topic_grants.forget(face.admin, face.view, name),
            tombstones=self.tombstones,
            everywhere=DeletionEverywhere(self.tombstones, face.view, face.policies),
        )

    async def start(self) -> None:
        await self._secrets.start()
        await self.face.view.ready()
        await self.face.leading.start()
        await self.face.broker.positions.start()
        await self.server._runner.setup()
        assert self.server._runner.server is not None
        self._connections = self.server._connections = HttpConnections(HttpLimits(), self.server._runner.server)

    async def hear(self) -> None:
        """From now on it knows what was deleted, and purges what is due; until then it is away."""
        await self.tombstones.start()
        self.tombstones.run()

    async def close(self) -> None:
        await self.tombstones.stop()
        self._connections.close()
        await self.server._runner.cleanup()
        await self.face.close()

    # -- what clients do ----------------------------------------------------------------------------------------------

    async def rest(self, method: str, path: str, given: Any = None, *, by_broker: bool = False) -> tuple[int, Any]:
        """(status, the answer's JSON). by_broker: another one of the region asks."""
        body = b"" if given is None else json.dumps(given).encode()
        head = f"{method} {path} HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
        if by_broker:
            head += f"\r\nAuthorization: {self._brokers.header()}"
        peer = Peer(self._connections(), "10.0.0.1")
        peer.protocol.data_received(f"{head}\r\n\r\n".encode() + body)
        for _ in range(_TURNS_MAX):
            await asyncio.sleep(0)
            said, ended, answer = peer.written.partition(b"\r\n\r\n")
            if ended and (int(said.split()[1]) == 204 or _is_whole(said, answer)):
                peer.close()
                return int(said.split()[1]), json.loads(answer) if answer else None
        raise AssertionError(f"no answer to {method} {path}: {peer.written!r}")

    async def delete(self, topic: str = TOPIC, *, partitioned: bool = False, query: str = "") -> tuple[int, Any]:
        """As pulsar-admin's `topics delete` and `delete-partitioned-topic`."""
        return await self.rest("DELETE", f"{topic_path(topic)}{'/partitions' if partitioned else ''}{query}")

    async def create(self, topic: str = TOPIC, *, partitions: int = 0) -> tuple[int, Any]:
        path = topic_path(topic)
        return await (self.rest("PUT", f"{path}/partitions", partitions) if partitions else self.rest("PUT", path))

    async def undelete(self, name: str = TOPIC) -> int:
        return (await self.rest("DELETE", deletion(name)))[0]

    async def listed(self) -> list[str]:
        return list((await self.rest("GET", f"/admin/v2/persistent/{NAMESPACE}"))[1])

    async def kafka(self, api: str, version: int, fields: dict[str, Any]) -> dict[str, Any]:
        return await Client(self.face.listener).ask(api, version, fields)

    async def delete_by_kafka(self, topic: str = "orders") -> tuple[int, str]:
        """(error code, its sentence)."""
        asked = {"topics": [{"name": topic, "topic_id": bytes(16)}], "timeout": 1000}
        (row,) = (await self.kafka("delete_topics", 6, asked))["responses"]
        return row["error_code"], row["error_message"] or ""

    async def create_by_kafka(self, topic: str = "orders", partitions: int = 2) -> tuple[int, str]:
        wanted = {"name": topic, "num_partitions": partitions, "replication_factor": 1}
        asked = {"topics": [{**wanted, "assignments": [], "configs": []}], "timeout": 1000}
        (row,) = (await self.kafka("create_topics", 7, asked))["topics"]
        return row["error_code"], row["error_message"] or ""

    async def listed_by_kafka(self) -> list[str]:
        return sorted(row["name"] for row in (await self.kafka("metadata", 9, {"topics": None}))["topics"])

    async def stored(self) -> list[str]:
        """What lies here of the namespace, whoever may use it."""
        return await self.topics.stored(NAMESPACE)

    async def published(self, topic: str = TOPIC) -> None:
        """A link, or a producer, has brought something of it."""
        await self.topics.get(topic, create=True)

    async def connect(self, topic: str = TOPIC) -> None:
        """A producer has it open."""
        (await self.topics.get(topic, create=False)).producers.add(Producer(1, "p", Silent()))


def deletion(name: str) -> str:
    """name: of a topic, or a namespace."""
    if "://" not in name:
        return f"{dr_path(name)}/deletion"
    return path_of(f"{dr_path(NAMESPACE)}/deletions/{{topic}}", topic=name)


def _is_whole(head: bytes, body: bytes) -> bool:
    size = next((line.split()[1] for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")), b"0")
    return len(body) >= int(size)


def asking(monkeypatch: pytest.MonkeyPatch, *regions: Region) -> None:
    """What one region asks another goes there without a network between them."""
    by_name = {region.name: region for region in regions}

    async def elsewhere(admin: Any, request: Any, region: str, method: str, path: str, given: Any = None) -> Any:
        status, answer = await by_name[region].rest(method, path, given)
        if status >= 400:
            raise MetadataUnavailable(f"region {region} answered {status}: {answer}")
        return answer

    monkeypatch.setattr(region_facts, "elsewhere", elsewhere)


async def until(what: Callable[[], Awaitable[bool]], why: str) -> None:
    """Many sweeps may pass until it holds."""
    for _ in range(_TURNS_MAX):
        if await what():
            return
        await asyncio.sleep(0.002)
    raise AssertionError(f"it never came to be that {why}")


async def elapse(regions: Sequence[Region], seconds: float) -> None:
    for region in regions:
        region.face.clock.now += seconds


def with_regions(
    test: Callable[[Region, Region], Awaitable[None]], *, namespace: Sequence[str] = ("us", "eu"), heard: bool = True
) -> None:
    """namespace: the regions that it is in. heard: eu is there from the beginning."""

    async def run() -> None:
        machine = KvMachine()
        config = ConfigAdmin(EmbeddedStore(machine))
        for name in ("us", "eu"):
            await config.create_region(name)
            await config.begin_metadata(name, f"made in {name}")
        await config.create_tenant("public", TenantInfo(allowed_regions=("us", "eu")))
        await config.create_namespace(NAMESPACE, NamespacePolicies(regions=tuple(namespace)))
        us, eu = (Region(name, machine) for name in ("us", "eu"))
        try:
            for region in (us, eu):
                await region.start()
            await us.hear()
            if heard:
                await eu.hear()
            await test(us, eu)
        finally:
            for region in (us, eu):
                await region.close()

    asyncio.run(run())


async def without_grace(region: Region) -> None:
    """What an operator says who wants names to be free at once."""
    status, _ = await region.rest("POST", f"{namespace_path(NAMESPACE)}/deletionGrace", 0)
    assert status == 204
