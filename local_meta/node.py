"""LocalMetaNode: one voter of a region's metadata.

Is: a Raft member, the table that its log drives, and the listener for clients and voters. Isn't: what lies in the table
(`local_meta.keys`), or where its ledger ids go on (`local_meta.ledger_ids`).
Invariant: a table that begins empty has its id before a client's first write.
Always a Raft group, also with one voter: the log is the truth, and there is no second code path.
"""

from __future__ import annotations

import ssl as tls
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from heliograph.kv.durable_state_machine import DurableMachine
from heliograph.kv.engine.table_store import TableStore
from heliograph.kv.server.members_api import MembersApi
from heliograph.kv.server.metadata_node import GroupNode, raft_settings
from heliograph.kv.server.metadata_server import ServerSettings
from heliograph.kv.server.metadata_service import ServiceSettings
from heliograph.kv.state_machine import KvMachine, MachineSettings
from heliograph.raft.member.raft_node import RaftSettings
from heliograph.runtime.clock import Clock, Rng
from heliograph.runtime.disk import Disk
from local_meta.key_rows import KEYS
from local_meta.ledger_ids import beginning
from local_meta.transport import FrameTransport


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalMetaSettings:
    raft: RaftSettings = field(default_factory=partial(raft_settings, election_timeout_s=0.5, heartbeat_s=0.1))
    service: ServiceSettings = field(default_factory=ServiceSettings)
    server: ServerSettings = field(default_factory=ServerSettings)
    machine: MachineSettings = field(default_factory=MachineSettings)
    """All voters of a region must have the same."""


class LocalMetaNode(GroupNode):
    """peers: node id -> `host:port` of each of the first voters' listeners; only this node, or nothing, for a group of
    one.

    joining: this node was none of the first; `peers` then only say where others are.
    """

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
        joining: bool = False,
        ssl: tls.SSLContext | None = None,
        peer_ssl: tls.SSLContext | None = None,
        table: TableStore | None = None,
        settings: LocalMetaSettings | None = None,
    ) -> None:
        """ssl: of the listener. peer_ssl: with which this node calls the other voters. table: what keeps the
        metadata durably; None: it is in memory, and made again from snapshots and the log."""
        settings = settings or LocalMetaSettings()
        machine = KvMachine(settings=settings.machine) if table is None else DurableMachine(table, settings.machine)
        addresses = {node_id: f"{host}:{port}", **(peers or {})}
        self.transport = FrameTransport(node_id, addresses, rng=rng, ssl=peer_ssl)
        super().__init__(
            desk=lambda raft, _: MembersApi(raft, "meta"),
            node_id=node_id,
            peers=sorted(addresses),
            joining=joining,
            disk=disk,
            transport=self.transport,
            clock=clock,
            rng=rng,
            host=host,
            port=port,
            ssl=ssl,
            raft=settings.raft,
            service=replace(settings.service, begin=partial(beginning, clock, rng)),
            server=replace(settings.server, keys=KEYS),
            hint=lambda node: addresses.get(node, "") if node == node_id else self.transport.addresses.of(node),
            on_raft=self.transport.on_frame,
            machine=machine,
        )
