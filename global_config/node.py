"""ConfigNode: one region's voter of the global configuration.

Is: a Raft member across regions, the table that its log drives, and a listener for its own region's processes. Isn't:
what the table means (`global_config.view`, `global_config.admin`), or how the regions are connected
(`global_config.transport.config_transport`).
Invariants: a write needs a majority of regions; from a minority it fails within `request_timeout_s`, with a sentence
that says so; watches, and so the copies in brokers, go on meanwhile, and say how stale they are.
"""

from __future__ import annotations

import ssl as tls
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from global_config.region_write_rights import WriteRights
from global_config.transport.config_transport import AloneTransport, ConfigTransport
from global_config.voters.forced_quorum import HEARD_S, TELL_S, ForcedQuorum
from heliograph.kv.server.members_api import MembersApi
from heliograph.kv.server.metadata_node import GroupNode, raft_settings
from heliograph.kv.server.metadata_server import ServerSettings
from heliograph.kv.server.metadata_service import ServiceSettings
from heliograph.kv.state_machine import KvMachine
from heliograph.raft.member.raft_node import RaftNode, RaftSettings
from heliograph.raft.messages import Config
from heliograph.runtime.clock import Clock, Rng
from heliograph.runtime.disk import Disk
from heliograph.runtime.every import every
from heliograph.runtime.task_set import TaskSet

__all__ = ["ConfigNode", "ConfigNodeSettings", "ConfigTransport"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigNodeSettings:
    """The time-outs of the core allow for round trips of 400 ms between regions."""

    raft: RaftSettings = field(default_factory=partial(raft_settings, election_timeout_s=1.5, heartbeat_s=0.25))
    server: ServerSettings = field(default_factory=ServerSettings)
    request_timeout_s: float = 5.0
    forced_heard_s: float = HEARD_S
    """For so long nothing must have been heard of the lost ones before the quorum is forced."""


class ConfigNode(GroupNode):
    """node_id: the region's name. peers: the first voters, with or without this one; joining: this region was none of
    them, and waits until it is added.

    transport: None for a group that is one and stays one.
    """

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
        joining: bool = False,
        ssl: tls.SSLContext | None = None,
        settings: ConfigNodeSettings | None = None,
    ) -> None:
        """ssl: of the listener for the region's processes; the transport has its own."""
        settings = settings or ConfigNodeSettings()
        self.peers = sorted({node_id, *peers})
        self.transport: ConfigTransport = transport or AloneTransport()
        self._clock, self._settings = clock, settings
        self._tasks = TaskSet("who was left behind is told no more")
        super().__init__(
            desk=self._desk,
            node_id=node_id,
            peers=self.peers,
            joining=joining,
            disk=disk,
            transport=self.transport,
            clock=clock,
            rng=rng,
            host=host,
            port=port,
            ssl=ssl,
            raft=settings.raft,
            service=ServiceSettings(
                rights=lambda machine: WriteRights(machine, clock.wall_ms),
                here=(node_id,),
                request_timeout_s=settings.request_timeout_s,
                unavailable_text=_unavailable_text(node_id),
                begin=self._beginning,
                begins_for_reads=True,
            ),
            server=settings.server,
            forwarder=None if transport is None else transport,
        )
        self.transport.on_forward(self.service.handle_forwarded)
        self.raft.on_config = self._on_config
        self.raft_port = 0

    def _desk(self, raft: RaftNode, machine: KvMachine) -> MembersApi:
        self.forced = ForcedQuorum(raft, machine, self.transport, self._clock, self._settings.forced_heard_s)
        return MembersApi(raft, "config", self.forced)

    def _beginning(self, machine: KvMachine) -> Iterator[bytes]:
        return self.forced.beginning(machine)

    def _on_config(self, config: Config) -> None:
        self.transport.on_config(config)
        outside = bool(config.voters) and self.node_id not in config.members
        self.service.unavailable_text = (
            _superseded_text(self.node_id)
            if self.raft.standing.superseded
            else _outside_text(self.node_id)
            if outside
            else _unavailable_text(self.node_id, len(config.voters))
        )

    async def start(self) -> int:
        """Binds both listeners and replays the log; returns the port for the region's processes. Raises ConfigError,
        CorruptData, OSError.
        """
        self.raft_port = await self.transport.start()
        port = await super().start()
        self._tasks.spawn(every(TELL_S, self.forced.tell, failed=lambda error: None))
        return port

    async def stop(self) -> None:
        await self._tasks.close()
        await super().stop()


def _superseded_text(node: str) -> str:
    return (
        f"the global configuration was forced, without {node!r}: what it has is a copy of before, and counts for "
        f"nothing; give `heliograph config rejoin {node}` to a region that goes on"
    )


def _outside_text(node: str) -> str:
    return (
        f"region {node!r} was removed from the global configuration: what it has is a copy of that day; let it join "
        "under another name, or stop it"
    )


def _unavailable_text(node: str, voters: int = 0) -> str:
    who = f"{voters // 2 + 1} of its {voters} voters" if voters else "a majority of its voters"
    return (
        f"the global configuration cannot be reached: {who} must run and reach each other, and {node!r} hears no "
        "leader; "
        "configuration writes wait until they are connected again, messages and reads of the copy here go on"
    )
