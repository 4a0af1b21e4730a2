"""Composition: the one place that builds and connects the objects of a role.

Is: what each role is made of (a broker's part lies in `broker_role`), the order in which its parts start, and the
reverse in which they stop.
Isn't: a decision, or a setting's meaning.
Invariants: a role imports only what it runs, when it is built (an idle bookie holds no HTTP, gRPC, or protobuf); the
parts know nothing of this module; the same functions build a process of a region and a node of the simulator, which
gives its own Runtime.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, TypeVar

from heliograph.model.errors import ConfigError, DiskFailed
from region_node.process.role_runtime import (
    Role,
    Runtime,
    closing,
    data_path,
    meta_client,
    obey_revocations,
    without_absent,
)
from region_node.process.settings import ProcessSettings

if TYPE_CHECKING:
    from global_config.node import ConfigNode, ConfigNodeSettings
    from global_config.transport.config_transport import ConfigTransport
    from heliograph.kv.engine.table_store import TableStore
    from heliograph.kv.metadata_client import MetaClient
    from heliograph.runtime.clock import Clock
    from local_meta.node import LocalMetaNode, LocalMetaSettings
    from local_meta.node_level import NodeLevel
    from region_node.bookie.http_access import BookieAccess
    from region_node.process.broker_role import BrokerRole
    from region_node.security.authentication.revocations import Revocations
    from region_node.security.tls import Certificates
    from storage.bookie.maintenance.block_refill import Refill
    from storage.bookie.maintenance.garbage_collector import GarbageCollector
    from storage.bookie.serving.bookie import Bookie
    from storage.bookie.serving.registration import Registration
    from storage.ledger.ledger_context import LedgerContext

__all__ = ["Role", "Runtime", "build", "build_bookie", "build_broker", "build_config", "build_meta", "system_runtime"]


def system_runtime(clock: Clock) -> Runtime:
    """Returns this machine: its chance, its disks, LMDB for the tables of metadata nodes; clock: its clocks."""
    from heliograph.runtime.clock import system_rng
    from heliograph.runtime.system_disk import SystemDisk

    def table(path: str) -> TableStore:
        from heliograph.kv.engine.lmdb_check import check_in_a_child
        from heliograph.kv.engine.lmdb_store import LmdbStore

        return LmdbStore(SystemDisk(path), path, check=check_in_a_child)

    return Runtime(clock, system_rng(), SystemDisk, os.getpid(), table)


def build(role: str, settings: ProcessSettings, runtime: Runtime) -> Role:
    """One of the roles of `settings.ROLES`."""
    builders: dict[str, Callable[[ProcessSettings, Runtime], Role]] = {
        "meta": build_meta,
        "config": build_config,
        "bookie": build_bookie,
        "broker": build_broker,
    }
    return builders[role](settings, runtime)


def build_meta(settings: ProcessSettings, runtime: Runtime) -> MetaRole:
    return MetaRole(settings, runtime)


def build_config(settings: ProcessSettings, runtime: Runtime) -> ConfigRole:
    return ConfigRole(settings, runtime)


def build_bookie(settings: ProcessSettings, runtime: Runtime) -> BookieRole:
    return BookieRole(settings, runtime)


def build_broker(settings: ProcessSettings, runtime: Runtime) -> BrokerRole:
    from region_node.process.broker_role import BrokerRole

    return BrokerRole(settings, runtime)


# -- metadata and configuration ---------------------------------------------------------------------------------------


class MetaRole:
    """A voter of the region's local metadata."""

    def __init__(self, settings: ProcessSettings, runtime: Runtime) -> None:
        self.settings, self._runtime = settings, runtime
        self.node: LocalMetaNode | None = None
        self._level: NodeLevel | None = None
        self._stops: list[Callable[[], Awaitable[None]]] = []

    async def start(self) -> dict[str, int]:
        from local_meta.node import LocalMetaNode, LocalMetaSettings
        from local_meta.node_level import NodeLevel
        from region_node.security.tls import Certificates

        own = self.settings.meta_node
        certificates = Certificates(self.settings.tls, self.settings.region)
        tls = certificates.dialer("meta", "meta")
        self.node = LocalMetaNode(
            node_id=own.node_id or self.settings.node_id,
            disk=self._runtime.disk(data_path(self.settings, "meta")),
            clock=self._runtime.clock,
            rng=self._runtime.rng,
            host=self.settings.bind,
            port=own.port,
            peers=own.peers | own.later,
            joining=own.joining,
            ssl=certificates.listener("meta", "broker", "bookie", "meta"),
            peer_ssl=tls,
            table=self._runtime.table(data_path(self.settings, "meta", "table")),
            settings=_grown(self._runtime.of(LocalMetaSettings), own.later),
        )
        self._stops.append(closing(certificates.watch()))
        port = await self.node.start()
        address = f"{_here(self.settings.bind)}:{port}"
        said = meta_client([address], self._runtime, tls)
        self._level = NodeLevel(said, self.node.node_id, self._runtime.rng, level=self._runtime.feature_level)
        self._level.start()
        if self.settings.tls is not None:
            from region_node.security.authentication.revocations import Revocations
            from region_node.security.revocation_copies import COPIES

            heard = meta_client([address], self._runtime, tls)  # the other one ends once the level is said
            self._stops.append(closing(heard.close))
            self._stops.append(obey_revocations(Revocations(), certificates, (heard, COPIES)))
        return {"meta": port}

    async def stop(self) -> None:
        while self._stops:
            await self._stops.pop()()
        if self._level is not None:
            await self._level.stop()
        if self.node is not None:
            await self.node.stop()

    async def failed(self) -> None:
        assert self.node is not None
        await self.node.failed()


class ConfigRole:
    """A voter of the global configuration, and its region's way to it."""

    def __init__(self, settings: ProcessSettings, runtime: Runtime) -> None:
        self.settings, self._runtime = settings, runtime
        self.node: ConfigNode | None = None
        self._stops: list[Callable[[], Awaitable[None]]] = []

    async def start(self) -> dict[str, int]:
        from global_config.node import ConfigNode, ConfigNodeSettings
        from region_node.security.tls import Certificates

        own = self.settings.config_node
        certificates = Certificates(self.settings.tls, self.settings.region)
        self.node = ConfigNode(
            node_id=own.node_id or self.settings.region,
            peers=sorted(own.peers | own.later),
            joining=own.joining,
            disk=self._runtime.disk(data_path(self.settings, "config")),
            transport=self._transport(certificates),
            clock=self._runtime.clock,
            rng=self._runtime.rng,
            host=self.settings.bind,
            port=own.port,
            ssl=certificates.listener("config", "broker", "config"),
            settings=_grown(self._runtime.of(ConfigNodeSettings), own.later),
        )
        self._stops.append(closing(certificates.watch()))
        ports = {"config": await self.node.start()}
        if own.witness:
            from global_config.voters.witness import WitnessLeadership

            leadership = WitnessLeadership(self.node, self._runtime.clock)
            self._stops.append(leadership.stop)
            leadership.start()
        if self.settings.tls is not None:
            self._obey_revocations(certificates, ports["config"], self.node.transport)
        return ports | ({"config_raft": self.node.raft_port} if self.node.raft_port else {})

    def _obey_revocations(self, certificates: Certificates, port: int, transport: ConfigTransport) -> None:
        """By the table of this node itself."""
        from global_config.transport.grpc_transport import GrpcTransport
        from heliograph.model.configuration.revocations import REVOCATIONS
        from region_node.security.authentication.revocations import Revocations

        address = f"{_here(self.settings.bind)}:{port}"
        own = meta_client([address], self._runtime, certificates.dialer("config", "config"))
        revocations = Revocations()
        self._stops.append(closing(own.close))
        self._stops.append(obey_revocations(revocations, certificates, (own, REVOCATIONS)))
        if isinstance(transport, GrpcTransport):
            revocations.on_change(lambda: transport.revoke(revocations.certificates()))

    def _transport(self, certificates: Certificates) -> ConfigTransport | None:
        """None where this region is alone."""
        own, tls = self.settings.config_node, self.settings.tls
        if not {*own.peers, *own.later} - {own.node_id or self.settings.region}:
            return None
        if self._runtime.config_transport is not None:
            return self._runtime.config_transport(self.settings)
        from global_config.transport.grpc_transport import ConfigTls, GrpcTransport
        from region_node.security.tls import together

        secrets = None
        if tls is not None:
            if not tls.config_cert or not tls.config_key:
                raise ConfigError(
                    "tls: config_cert and config_key are not set; configuration nodes of several regions need both"
                )
            files = (tls.ca, tls.config_cert, tls.config_key)

            def read() -> ConfigTls:
                ca, cert, key = together(*files)  # a pair that is half written must not reach gRPC
                return ConfigTls(ca=ca, cert=cert, key=key)

            secrets = read()
            certificates.follow(files, lambda: transport.renew(read()))
        node = own.node_id or self.settings.region
        transport = GrpcTransport(
            node, own.peers | own.later, rng=self._runtime.rng, host=self.settings.bind, port=own.raft_port, tls=secrets
        )
        return transport

    async def stop(self) -> None:
        while self._stops:
            await self._stops.pop()()
        if self.node is not None:
            await self.node.stop()

    async def failed(self) -> None:
        assert self.node is not None
        await self.node.failed()


G = TypeVar("G", "LocalMetaSettings", "ConfigNodeSettings")


def _grown(settings: G, later: Iterable[str]) -> G:
    """later: the members of its group that were none of the first."""
    return dataclasses.replace(settings, raft=dataclasses.replace(settings.raft, later=tuple(sorted(later))))


def _here(bind: str) -> str:
    """Where a process reaches what it has bound itself."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(bind, bind)


# -- bookie -----------------------------------------------------------------------------------------------------------


class BookieRole:
    """A bookie, its listener, and its registration in the local metadata."""

    def __init__(self, settings: ProcessSettings, runtime: Runtime) -> None:
        self.settings, self._runtime = settings, runtime
        self._stops: list[Callable[[], Awaitable[None]]] = []
        self._stores: list[MetaClient] = []
        self.bookie: Bookie
        self.collector: GarbageCollector | None = None
        self.refill: Refill | None = None
        self._failed: asyncio.Future[None]

    async def start(self) -> dict[str, int]:
        from region_node.security.authentication.revocations import Revocations
        from region_node.security.ca_trust import distrusted
        from region_node.security.revocation_copies import COPIES
        from region_node.security.tls import Certificates
        from storage.bookie.serving.bookie import Bookie, BookieSettings, DirectoryPlace
        from storage.bookie.serving.bookie_server import BookieServer
        from storage.bookie.serving.enrolment import Enrolment
        from storage.bookie.serving.registration import Registration

        own, disk, rng = self.settings.bookie, self._runtime.disk, self._runtime.rng
        self._failed = asyncio.get_running_loop().create_future()
        name = own.bookie_id or self.settings.node_id
        journals, ledgers = own.directories(self.settings.data_dir)
        given = BookieSettings in self._runtime.tuned
        tuned = self._runtime.of(BookieSettings) if given else own.of_storage()
        self.bookie = Bookie(
            [DirectoryPlace(disk(path), disk(path), path if len(journals) > 1 else "") for path in journals],
            [DirectoryPlace(disk(path), disk(path), path if len(ledgers) > 1 else "") for path in ledgers],
            tuned,
            bookie_id=name,
            instance=self.settings.region,
            rng=rng,
            clock=self._runtime.clock,
        )
        self._stops.append(closing(self.bookie.close))
        self.bookie.open()
        server = BookieServer(self.bookie, distrusted=distrusted)
        self._stops.append(server.stop)
        certificates = Certificates(self.settings.tls, self.settings.region)
        ports = {
            "bookie": await server.start(
                self.settings.bind, own.port, ssl=certificates.listener("bookie", "broker", "bookie")
            )
        }
        meta = meta_client(self.settings.meta, self._runtime, certificates.dialer("bookie", "meta"))
        self._stops.append(closing(certificates.watch()))
        self._stops.append(closing(meta.close))
        self._stores.append(meta)
        revocations = Revocations()
        if own.http_port >= 0:
            ports["http"] = await self._open_http(own.http_port, certificates, meta, revocations)
        if self.settings.tls is not None or self.settings.security.authentication:
            self._stops.append(obey_revocations(revocations, certificates, (meta, COPIES)))
        enrolment = Enrolment(self.bookie, meta, rng=rng)
        self._stops.append(enrolment.stop)
        await enrolment.start()
        registration = Registration(
            meta,
            bookie_id=name,
            host=own.advertised_host or self.settings.bind,
            port=ports["bookie"],
            http_port=ports.get("http", 0),
            writable=lambda: self.bookie.writable,
            limbo=lambda: (self.bookie.limbo, self.bookie.in_doubt),
            floor=lambda: self.bookie.floor,
            clock=self._runtime.clock,
            rng=rng,
            rack=own.rack,
            group=own.group,
            free_bytes=self.bookie.free_bytes,
            dropped=lambda: self.bookie.dropped,
            lost_dirs=lambda: self.bookie.lost_dirs,
            gives_entries=own.http_port >= 0 and own.direct_reads > 0,
            level=self._runtime.feature_level,
        )
        self._stops.append(registration.stop)
        self.bookie.on_state = lambda: self._on_state(registration)
        await registration.start()
        if own.gc_interval_s:
            from storage.bookie.maintenance.garbage_collector import CollectorSettings, GarbageCollector

            self.collector = GarbageCollector(
                self.bookie, meta, CollectorSettings(interval_s=own.gc_interval_s), rng=rng
            )
            self._stops.append(self.collector.stop)
            self.collector.start()
        self._start_refill(meta, certificates)
        return ports

    def _start_refill(self, meta: MetaClient, certificates: Certificates) -> None:
        from storage.bookie.maintenance.block_refill import Refill

        async def context() -> LedgerContext:
            from storage.ledger.bookies.bookie_client import BookieClient
            from storage.ledger.bookies.bookie_pool import BookiePool
            from storage.ledger.ledger_context import LedgerContext

            rng, tls = self._runtime.rng, certificates.dialer("bookie", "bookie")
            pool = BookiePool(meta, lambda bookie, host, port: BookieClient(bookie, host, port, rng=rng, ssl=tls), rng)
            try:
                await pool.ready()
            except BaseException:  # the next try has another one
                pool.close()
                raise
            self._stops.append(closing(pool.close))
            return LedgerContext(meta=meta, pool=pool, rng=rng)

        self.refill = Refill(self.bookie, context)
        self._stops.append(self.refill.stop)
        self.refill.start()

    async def stop(self) -> None:
        """Leaves the metadata first, so that brokers stop choosing it; then ends connections, then the disks."""
        async with without_absent(self._stores, self._runtime.clock):
            while self._stops:
                await self._stops.pop()()

    async def failed(self) -> None:
        await asyncio.shield(self._failed)

    def _on_state(self, registration: Registration) -> None:
        registration.changed()
        if self.bookie.lost and not self._failed.done():
            self._failed.set_exception(DiskFailed(self.bookie.lost))

    async def _open_http(
        self, port: int, certificates: Certificates, meta: MetaClient, revocations: Revocations
    ) -> int:
        from heliograph.runtime.listeners.tls_listener import listen
        from region_node.bookie.entry_ranges import RangeReads
        from region_node.bookie.http_face import BookieHttp, HttpConnection
        from region_node.security.read_permits import ReadKeys

        answers_max = self.settings.bookie.direct_reads
        ranges: RangeReads | None = None
        if answers_max:
            keys = ReadKeys(meta, self._runtime.clock)
            self._stops.append(closing(keys.close))
            ranges = RangeReads(self.bookie, keys, answers_max)
        pages, access = (
            BookieHttp(self.bookie, lambda: self.collector, lambda: self.refill, ranges),
            self._access(revocations),
        )
        server = await listen(
            lambda: HttpConnection(pages.answer, access, ranges),
            self.settings.bind,
            port,
            ssl=certificates.pages("bookie"),
        )
        self._stops.append(closing(server.close))
        return int(server.sockets[0].getsockname()[1])

    def _access(self, revocations: Revocations) -> BookieAccess | None:
        """None: nobody is asked for anything."""
        settings, tls = self.settings.security, self.settings.tls
        inside = tls is not None and tls.internal
        if not inside and not settings.authentication and not settings.anonymous_role:
            return None
        from heliograph.runtime.compute_thread import Offload
        from region_node.bookie.http_access import BookieAccess
        from region_node.security.authentication.jwks_issuers import fetch
        from region_node.security.authorization.security_service import PASSWORDS_WAITING_MAX, authentication_of

        offload = Offload(PASSWORDS_WAITING_MAX)
        self._stops.append(closing(offload.close))
        authentication = authentication_of(
            settings, offload, fetch=fetch, clock=self._runtime.clock, rng=self._runtime.rng, revocations=revocations
        )
        return BookieAccess(settings, authentication, region=self.settings.region, inside=inside)
