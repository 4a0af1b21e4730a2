"""LocalMetaNode: one voter of a region's metadata.

Is: a Raft member, the table that its log drives, and the listener for clients and voters. Isn't: what lies in the table (`local_meta.keys`).
Always a Raft group, also with one voter: the log is the truth, and there is no second code path.
"""

from __future__ import annotations

import asyncio
import ssl as tls
from collections.abc import Mapping
from dataclasses import dataclass, field

from heliograph.model.errors import DiskFailed
from heliograph.raft.core import CoreSettings
from heliograph.raft.machine import KvMachine
from heliograph.raft.node import RaftNode, RaftSettings
from heliograph.raft.server import MetaServer, ServerSettings
from heliograph.raft.service import MetaService, ServiceSettings
from heliograph.raft.store import TXN_BYTES_MAX
from heliograph.runtime.clock import Clock, Rng
from heliograph.runtime.disk import Disk
from local_meta.transport import FrameTransport

COMMAND_BYTES_MAX = TXN_BYTES_MAX + (256 << 10)


def _raft_settings() -> RaftSettings:
    core = CoreSettings(election_timeout_s=0.5, heartbeat_s=0.1)
    return RaftSettings(core=core, command_bytes_max=COMMAND_BYTES_MAX, waiting_bytes_max=32 << 20)


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalMetaSettings:
    raft: RaftSettings = field(default_factory=_raft_settings)
    service: ServiceSettings = field(default_factory=ServiceSettings)
    server: ServerSettings = field(default_factory=ServerSettings)


class LocalMetaNode:
    """peers: node id -> `host:port` of each voter's listener; only this node, or nothing, for a group of one."""

    def __init__(
        self,
        *,
        node_id: str,
        disk: Disk,
        clock: Clock,
        rng: Rng,
        host: str = "127.0.0.1",
        port: int = 0,
        peers: Mapping[str, str] | None = None,
        ssl: tls.SSLContext | None = None,
        peer_ssl: tls.SSLContext | None = None,
        settings: LocalMetaSettings | None = None,
    ) -> None:
        """ssl: of the listener. peer_ssl: with which this node calls the other voters."""
        settings = settings or LocalMetaSettings()
        addresses = {node_id: f"{host}:{port}", **(peers or {})}
        self.node_id = node_id
        self.machine = KvMachine()
        self.transport = FrameTransport(node_id, addresses, rng=rng, ssl=peer_ssl)
        self.raft = RaftNode(
            node_id=node_id,
            peers=sorted(addresses),
            machine=self.machine,
            disk=disk,
            transport=self.transport,
            settings=settings.raft,
            clock=clock,
            rng=rng,
        )
        self.service = MetaService(self.raft, self.machine, clock=clock, settings=settings.service, hint=lambda node: addresses.get(node, ""))
        self.raft.on_role_change = self.service.on_role_change
        self.server = MetaServer(
            self.service, host, port, node=node_id, ssl=ssl, settings=settings.server, on_raft=self.transport.on_frame if len(addresses) > 1 else None
        )

    @property
    def port(self) -> int:
        return self.server.port

    async def start(self) -> int:
        """Replays the log and binds the listener; returns its port. Raises CorruptData, OSError."""
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
