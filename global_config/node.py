"""ConfigNode: one region's voter of the global configuration.

Is: a Raft member across regions, the table that its log drives, and a listener for its own region's processes. Isn't: what the table means
(`global_config.view`, `global_config.admin`), or how the regions are connected (`global_config.transport`).
Invariants: a write needs a majority of regions; from a minority it fails within `request_timeout_s`, with a sentence that says so; watches, and so the
copies in brokers, go on meanwhile, and say how stale they are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from global_config.transport import AloneTransport, ConfigTransport
from heliograph.model.errors import DiskFailed
from heliograph.raft.core import CoreSettings
from heliograph.raft.machine import KvMachine
from heliograph.raft.node import RaftNode, RaftSettings
from heliograph.raft.server import MetaServer, ServerSettings
from heliograph.raft.service import MetaService, ServiceSettings
from heliograph.raft.store import TXN_BYTES_MAX
from heliograph.runtime.clock import Clock, Rng
from heliograph.runtime.disk import Disk

__all__ = ["ConfigNode", "ConfigNodeSettings", "ConfigTransport"]

COMMAND_BYTES_MAX = TXN_BYTES_MAX + (256 << 10)


def _raft_settings() -> RaftSettings:
    core = CoreSettings(election_timeout_s=1.5, heartbeat_s=0.25)
    return RaftSettings(core=core, command_bytes_max=COMMAND_BYTES_MAX, waiting_bytes_max=32 << 20)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigNodeSettings:
    """The time-outs of the core allow for round trips of 400 ms between regions."""

    raft: RaftSettings = field(default_factory=_raft_settings)
    server: ServerSettings = field(default_factory=ServerSettings)
    request_timeout_s: float = 5.0


class ConfigNode:
    """node_id: the region's name. peers: all voters, with or without this one. transport: None for a group of one."""

    def __init__(
        self,
        *,
        node_id: str,
        peers: Sequence[str],
        disk: Disk,
        transport: ConfigTransport | None,
        clock: Clock,
        rng: Rng,
        host: str = "127.0.0.1",
        port: int = 0,
        settings: ConfigNodeSettings | None = None,
    ) -> None:
        settings = settings or ConfigNodeSettings()
        self.node_id = node_id
        self.peers = sorted({node_id, *peers})
        self.machine = KvMachine()
        self.transport: ConfigTransport = transport or AloneTransport()
        self.raft = RaftNode(
            node_id=node_id,
            peers=self.peers,
            machine=self.machine,
            disk=disk,
            transport=self.transport,
            settings=settings.raft,
            clock=clock,
            rng=rng,
        )
        needed = len(self.peers) // 2 + 1
        text = (
            f"the global configuration cannot be reached: {needed} of its {len(self.peers)} regions must run and reach each other, and {node_id!r} hears no "
            "leader; configuration writes wait until they are connected again, messages and reads of the copy here go on"
        )
        self.service = MetaService(
            self.raft,
            self.machine,
            clock=clock,
            settings=ServiceSettings(request_timeout_s=settings.request_timeout_s, unavailable_text=text),
            forwarder=self.transport if len(self.peers) > 1 else None,
        )
        self.raft.on_role_change = self.service.on_role_change
        self.transport.on_forward(self.service.handle_forwarded)
        self.server = MetaServer(self.service, host, port, node=node_id, settings=settings.server)
        self.raft_port = 0

    @property
    def port(self) -> int:
        return self.server.port

    async def start(self) -> int:
        """Binds both listeners and replays the log; returns the port for the region's processes. Raises ConfigError, CorruptData, OSError."""
        self.raft_port = await self.transport.start()
        await self.raft.start()
        return await self.server.start()

    async def failed(self) -> None:
        """Returns never; raises what stopped this voter for good (its disk), so that its process can end."""
        failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def on_failed(error: BaseException) -> None:
            if not failure.done():
                failure.set_exception(DiskFailed(f"the log of the metadata node {self.node_id!r} cannot be written: {error}"))

        self.raft.on_failed = on_failed
        if self.raft.failed is not None:
            on_failed(self.raft.failed)
        await failure

    async def stop(self) -> None:
        await self.server.stop()
        await self.service.stop()
        await self.raft.stop()
        await self.transport.stop()
