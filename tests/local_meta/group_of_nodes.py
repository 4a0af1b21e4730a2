"""A region's metadata nodes on the simulator, with clients that write."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from geo_tests.sim.simulation import Machine, Simulation
from geo_tests.sim.table import SimTable
from heliograph.kv.metadata_client import ClientSettings, MetaClient
from heliograph.model.errors import NotAllowed
from heliograph.raft.core import CoreSettings
from heliograph.raft.member.raft_node import RaftSettings
from local_meta.node import LocalMetaNode, LocalMetaSettings

PORT = 7001
SETTINGS = LocalMetaSettings(
    raft=RaftSettings(
        core=CoreSettings(election_timeout_s=0.5, heartbeat_s=0.1),
        snapshot_entries=60,
        keep_entries=10,
        segment_bytes=64 << 10,
    )
)
"""Snapshots come often, so that who lags gets one, with the group in it."""


class Region:
    """One founder, m0, and nodes that wait to be added; writers that go on all the time."""

    def __init__(self, sim: Simulation, keeps: bool = False) -> None:
        """keeps: the nodes keep their tables themselves, and make snapshots only for each other."""
        self.sim, self.keeps = sim, keeps
        self.nodes: dict[str, LocalMetaNode] = {}
        self.start("m0")
        machine = sim.machine("c")
        machine.start(_idle)
        self.client: MetaClient = machine.run(
            lambda: MetaClient(
                [f"m{i}:{PORT}" for i in range(4)],
                clock=machine.clock,
                rng=machine.rng,
                settings=ClientSettings(timeout_s=8),
            )
        )
        machine.run(self.client._run)
        self.written = 0
        self.writing = True

    def start(self, name: str) -> None:
        self.sim.machine(name).start(self._serve)

    async def _serve(self, machine: Machine) -> None:
        joining = machine.host != "m0"
        node = LocalMetaNode(
            node_id=machine.host,
            disk=machine.disk("meta"),
            clock=machine.clock,
            rng=machine.rng,
            host=machine.host,
            port=PORT,
            peers={"m0": f"m0:{PORT}"},
            joining=joining,
            table=SimTable(machine.disk("table")) if self.keeps else None,
            settings=SETTINGS,
        )
        self.nodes[machine.host] = node
        await node.start()

    async def ask(self, verb: str, member: str = "", address: str = "") -> tuple[dict[str, Any], bool]:
        return await self.sim.machine("c").ask(lambda: self.client.members(verb, member, address))

    async def write(self) -> None:
        """One after the other; each must be answered."""
        while self.writing:
            await self.sim.machine("c").ask(lambda: self.client.put(f"/k/{self.written}", b"v"))
            self.written += 1

    async def grow(self, name: str) -> None:
        self.start(name)
        assert (await self.ask("add", name, f"{name}:{PORT}"))[1]
        for _ in range(200):
            try:
                await self.ask("promote", name)
                return
            except NotAllowed as error:
                soon = ("behind", "not committed", "does not answer", "empty folder")
                assert any(each in str(error) for each in soon), error
            await asyncio.sleep(0.05)
        raise AssertionError(f"{name} never caught up")


async def _idle(_: Machine) -> None:
    pass


def simulate(
    main: Callable[[Simulation, Region], Coroutine[Any, Any, None]], seed: int = 1, keeps: bool = False
) -> None:
    with Simulation(seed) as sim:

        async def run() -> None:
            await main(sim, Region(sim, keeps))

        sim.run(run(), limit_s=300)
