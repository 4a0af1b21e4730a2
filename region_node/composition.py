"""Composition: the one place that builds and connects the objects of a role.

Is: what each role is made of (a broker's part lies in `broker_role`), the order in which its parts start, and the reverse in which they stop.
Isn't: a decision, or a setting's meaning.
Invariants: a role imports only what it runs, when it is built (an idle bookie holds no HTTP, gRPC, or protobuf); the parts know nothing of this
module; the same functions build a process of a region and a node of the simulator, which gives its own Runtime.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING

from heliograph.model.errors import ConfigError, DiskFailed
from region_node.runtime import Role, Runtime, closing, data_path, meta_client
from region_node.settings import ProcessSettings

if TYPE_CHECKING:
    from global_config.node import ConfigNode
    from global_config.transport import ConfigTransport
    from local_meta.node import LocalMetaNode
    from region_node.broker_role import BrokerRole
    from storage.bookie.bookie import Bookie
    from storage.bookie.collector import Collector
    from storage.bookie.registration import Registration

__all__ = ["Role", "Runtime", "build", "build_bookie", "build_broker", "build_config", "build_meta", "system_runtime"]


def system_runtime() -> Runtime:
    """This machine."""
    from heliograph.runtime.clock import SystemClock, system_rng
    from heliograph.runtime.system_disk import SystemDisk

    return Runtime(SystemClock(), system_rng(), SystemDisk, os.getpid())


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
    from region_node.broker_role import BrokerRole

    return BrokerRole(settings, runtime)


# -- metadata and configuration -----------------------------------------------------------------------------------------


class MetaRole:
    """A voter of the region's local metadata."""

    def __init__(self, settings: ProcessSettings, runtime: Runtime) -> None:
        self.settings, self._runtime = settings, runtime
        self.node: LocalMetaNode | None = None

    async def start(self) -> dict[str, int]:
        from local_meta.node import LocalMetaNode, LocalMetaSettings

        own = self.settings.meta_node
        self.node = LocalMetaNode(
            node_id=own.node_id or self.settings.node_id,
            disk=self._runtime.disk(data_path(self.settings, "meta")),
            clock=self._runtime.clock,
            rng=self._runtime.rng,
            host=self.settings.bind,
            port=own.port,
            peers=own.peers,
            settings=self._runtime.of(LocalMetaSettings),
        )
        return {"meta": await self.node.start()}

    async def stop(self) -> None:
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

    async def start(self) -> dict[str, int]:
        from global_config.node import ConfigNode, ConfigNodeSettings

        own = self.settings.config_node
        self.node = ConfigNode(
            node_id=own.node_id or self.settings.region,
            peers=sorted(own.peers),
            disk=self._runtime.disk(data_path(self.settings, "config")),
            transport=self._transport(),
            clock=self._runtime.clock,
            rng=self._runtime.rng,
            host=self.settings.bind,
            port=own.port,
            settings=self._runtime.of(ConfigNodeSettings),
        )
        ports = {"config": await self.node.start()}
        return ports | ({"config_raft": self.node.raft_port} if self.node.raft_port else {})

    def _transport(self) -> ConfigTransport | None:
        """None where this region is alone."""
        own, tls = self.settings.config_node, self.settings.tls
        if not set(own.peers) - {own.node_id or self.settings.region}:
            return None
        if self._runtime.config_transport is not None:
            return self._runtime.config_transport(self.settings)
        from global_config.grpc_transport import ConfigTls, GrpcTransport

        secrets = None
        if tls is not None:
            if not tls.config_cert or not tls.config_key:
                raise ConfigError("tls: config_cert and config_key are not set; configuration nodes of several regions need both")
            secrets = ConfigTls(ca=Path(tls.ca).read_bytes(), cert=Path(tls.config_cert).read_bytes(), key=Path(tls.config_key).read_bytes())
        node = own.node_id or self.settings.region
        return GrpcTransport(node, own.peers, rng=self._runtime.rng, host=self.settings.bind, port=own.raft_port, tls=secrets)

    async def stop(self) -> None:
        if self.node is not None:
            await self.node.stop()

    async def failed(self) -> None:
        assert self.node is not None
        await self.node.failed()


# -- bookie ---------------------------------------------------------------------------------------------------------------


class BookieRole:
    """A bookie, its listener, and its registration in the local metadata."""

    def __init__(self, settings: ProcessSettings, runtime: Runtime) -> None:
        self.settings, self._runtime = settings, runtime
        self._stops: list[Callable[[], Awaitable[None]]] = []
        self.bookie: Bookie
        self.collector: Collector | None = None
        self._failed: asyncio.Future[None]

    async def start(self) -> dict[str, int]:
        from storage.bookie.bookie import Bookie, BookieSettings
        from storage.bookie.registration import Registration
        from storage.bookie.server import BookieServer

        own, disk, rng = self.settings.bookie, self._runtime.disk, self._runtime.rng
        self._failed = asyncio.get_running_loop().create_future()
        name = own.bookie_id or self.settings.node_id
        journal, ledgers = own.journal_dir or data_path(self.settings, "journal"), data_path(self.settings, "ledgers")
        ledger_disk = disk(ledgers)
        self.bookie = Bookie(
            disk(journal),
            ledger_disk,
            self._runtime.of(BookieSettings),
            bookie_id=name,
            instance=self.settings.region,
            rng=rng,
            zeroing=disk(journal),
            reads=disk(ledgers),
        )
        self._stops.append(closing(self.bookie.close))
        self.bookie.start()
        server = BookieServer(self.bookie)
        self._stops.append(server.stop)
        ports = {"bookie": await server.start(self.settings.bind, own.port)}
        if own.http_port >= 0:
            ports["http"] = await self._open_http(own.http_port)
        meta = meta_client(self.settings.meta, self._runtime)
        self._stops.append(closing(meta.close))
        registration = Registration(
            meta,
            bookie_id=name,
            host=own.advertised_host or self.settings.bind,
            port=ports["bookie"],
            http_port=ports.get("http", 0),
            writable=lambda: self.bookie.writable,
            clock=self._runtime.clock,
            rng=rng,
            rack=own.rack,
            free_bytes=ledger_disk.free_bytes,
        )
        self._stops.append(registration.stop)
        self.bookie.on_state = lambda: self._on_state(registration)
        await registration.start()
        if own.gc_interval_s:
            from storage.bookie.collector import Collector, CollectorSettings

            self.collector = Collector(self.bookie, meta, CollectorSettings(interval_s=own.gc_interval_s), rng=rng)
            self._stops.append(self.collector.stop)
            self.collector.start()
        return ports

    async def stop(self) -> None:
        """Leaves the metadata first, so that brokers stop choosing it; then ends connections, then the disks."""
        while self._stops:
            await self._stops.pop()()

    async def failed(self) -> None:
        await asyncio.shield(self._failed)

    def _on_state(self, registration: Registration) -> None:
        registration.changed()
        if self.bookie.failure and not self._failed.done():
            self._failed.set_exception(DiskFailed(self.bookie.failure))

    async def _open_http(self, port: int) -> int:
        from region_node.bookie_http import BookieHttp, HttpConnection

        loop = asyncio.get_running_loop()
        pages = BookieHttp(self.bookie, lambda: self.collector)
        server = await loop.create_server(lambda: HttpConnection(pages.answer), self.settings.bind, port)
        self._stops.append(closing(server.close))
        return int(server.sockets[0].getsockname()[1])
