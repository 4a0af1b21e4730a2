"""GroupNode: a member of a group, the table that its log drives, and the listener for clients: what the metadata of a
region and the global configuration have in common.

Is: the parts of such a node, their start and end, and what an operator asks of its members. Isn't: how members reach
each other (a transport is given), or what lies in the table.
Invariants: `failed` returns never; a change of the members is made by the leader, and answered once it is committed.
"""

from __future__ import annotations

import asyncio
import ssl as tls
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol

from heliograph.kv import history
from heliograph.kv.metadata_store import TXN_BYTES_MAX
from heliograph.kv.server.metadata_server import MetaServer, ServerSettings
from heliograph.kv.server.metadata_service import Forwarder, MembersPort, MetaService, ServiceSettings
from heliograph.kv.state_machine import KvMachine
from heliograph.model.errors import CorruptData, DiskFailed, MetadataUnavailable
from heliograph.raft.actions import CoreSettings
from heliograph.raft.member.raft_node import MemberState, RaftNode, RaftSettings, RaftTransport
from heliograph.raft.membership import AddLearner, Promote, Remove
from heliograph.raft.messages import Config
from heliograph.runtime.clock import Clock, Rng
from heliograph.runtime.disk import Disk


def _stamping(service: ServiceSettings, rng: Rng) -> ServiceSettings:
    return replace(service, stamp=partial(history.beginning, rng))


def raft_settings(*, election_timeout_s: float, heartbeat_s: float) -> RaftSettings:
    """With room for the largest transaction in a command."""
    core = CoreSettings(election_timeout_s=election_timeout_s, heartbeat_s=heartbeat_s)
    return RaftSettings(core=core, command_bytes_max=TXN_BYTES_MAX + (256 << 10), waiting_bytes_max=32 << 20)


class GroupTransport(RaftTransport, Protocol):
    """A Raft transport that is told of each configuration, and ends."""

    def on_config(self, config: Config) -> None: ...

    async def stop(self) -> None: ...


class GroupNode:
    """desk: makes what answers what is asked of its members. peers: the first voters; joining: this node was none of
    them (see RaftNode).
    """

    def __init__(
        self,
        *,
        desk: Callable[[RaftNode, KvMachine], MembersPort],
        node_id: str,
        peers: Sequence[str],
        joining: bool,
        disk: Disk,
        transport: GroupTransport,
        clock: Clock,
        rng: Rng,
        host: str,
        port: int,
        ssl: tls.SSLContext | None,
        raft: RaftSettings,
        service: ServiceSettings,
        server: ServerSettings,
        forwarder: Forwarder | None = None,
        hint: Callable[[str], str] = lambda node: "",
        on_raft: Callable[[bytes], None] | None = None,
        machine: KvMachine | None = None,
    ) -> None:
        """machine: a durable one keeps its table by itself; None: one in memory, made again from snapshots and the log.
        All members must have the same settings of it.
        """
        self.node_id = node_id
        self.machine = KvMachine() if machine is None else machine
        self._transport = transport
        self.raft = RaftNode(
            node_id=node_id,
            peers=sorted(peers),
            joining=joining,
            machine=self.machine,
            disk=disk,
            transport=transport,
            settings=raft,
            clock=clock,
            rng=rng,
        )
        self.service = MetaService(
            self.raft, self.machine, clock=clock, settings=_stamping(service, rng), forwarder=forwarder, hint=hint
        )
        self.service.desk = desk(self.raft, self.machine)
        self.service.on_damage = self.raft.table_damaged
        self.raft.on_role_change = self.service.on_role_change
        self.raft.on_config = transport.on_config
        self.server = MetaServer(
            self.service,
            host,
            port,
            node=node_id,
            ssl=ssl,
            settings=server,
            on_raft=on_raft,
            learns=lambda: self.raft.learns,
        )

    @property
    def port(self) -> int:
        return self.server.port

    async def start(self) -> int:
        """Replays the log and binds the listener; returns its port. Raises CorruptData, OSError."""
        await self.raft.start()
        return await self.server.start()

    async def failed(self) -> None:
        """Returns never; raises what stopped this member for good (its disk), so that its process can end."""
        failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def on_failed(error: BaseException) -> None:
            if failure.done():
                return
            if isinstance(error, CorruptData | MetadataUnavailable):
                failure.set_exception(type(error)(f"the metadata node {self.node_id!r} ends: {error}"))
            else:
                failure.set_exception(
                    DiskFailed(f"the log of the metadata node {self.node_id!r} cannot be written: {error}")
                )

        self.raft.on_failed = on_failed
        if self.raft.failed is not None:
            on_failed(self.raft.failed)
        await failure

    async def stop(self) -> None:
        await self.server.stop()
        await self.service.stop()
        await self.raft.stop()
        await self._transport.stop()
        if self.machine.kept is not None:
            self.machine.kept.close()

    # -- members, on the leader; errors as of RaftNode.change and RaftNode.transfer_leadership -------------------------

    def members(self) -> list[MemberState]:
        return self.raft.members()

    async def add_learner(self, member: str, address: str, *, timeout_s: float = 5.0) -> bool:
        return await self.raft.change(AddLearner(member, address), timeout_s=timeout_s)

    async def promote(self, member: str, *, timeout_s: float = 5.0) -> bool:
        return await self.raft.change(Promote(member), timeout_s=timeout_s)

    async def remove(self, member: str, *, timeout_s: float = 5.0) -> bool:
        return await self.raft.change(Remove(member), timeout_s=timeout_s)

    async def transfer_leadership(self, to: str) -> bool:
        return await self.raft.transfer_leadership(to)
