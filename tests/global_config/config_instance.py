"""A configuration node in each of three regions over a WAN in memory, and a client beside each."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from geo_tests.sim.simulation import Machine, Simulation
from global_config.node import ConfigNode, ConfigNodeSettings
from heliograph.kv.metadata_client import ClientSettings, MetaClient
from tests.global_config.mesh import Mesh, MeshTransport

PORT = 7002
REGIONS = ("ap", "eu", "us")


class Instance:
    """A configuration node in each region, with a client beside it."""

    def __init__(
        self, sim: Simulation, regions: tuple[str, ...] = REGIONS, settings: ConfigNodeSettings | None = None
    ) -> None:
        self.sim, self.mesh, self.regions, self.settings = sim, Mesh(sim.rng("mesh")), regions, settings
        self.nodes: dict[str, ConfigNode] = {}
        self.clients: dict[str, MetaClient] = {}
        self.joining: dict[str, None] = {}
        """Nodes that are no founders."""
        for name in regions:
            self.start(name)
            self.clients[name] = self.client(name)

    def start(self, name: str) -> None:
        self.sim.machine(name).start(self._serve)

    def join(self, name: str) -> None:
        """Starts a node that is to be added, with a client beside it."""
        self.joining[name] = None
        self.start(name)
        self.clients[name] = self.client(name)

    async def _serve(self, machine: Machine) -> None:
        node = ConfigNode(
            node_id=machine.host,
            peers=self.regions,
            joining=machine.host in self.joining,
            disk=machine.disk("config"),
            transport=MeshTransport(self.mesh, machine.host),
            clock=machine.clock,
            rng=machine.rng,
            host=machine.host,
            port=PORT,
            settings=self.settings,
        )
        self.nodes[machine.host] = node
        await node.start()

    def client(self, region: str, **settings: Any) -> MetaClient:
        machine = self.sim.machine(f"{region}-client", zone=region)
        if not machine.running:
            machine.start(_idle)
        made: MetaClient = machine.run(
            lambda: MetaClient(
                [f"{region}:{PORT}"], clock=machine.clock, rng=machine.rng, settings=ClientSettings(**settings)
            )
        )
        machine.run(made._run)
        return made

    def leader(self) -> str:
        return next(name for name in self.regions if self.sim.machine(name).running and self.nodes[name].raft.is_leader)


async def _idle(_: Machine) -> None:
    pass


def simulate(
    main: Callable[[Simulation, Instance], Coroutine[Any, Any, None]],
    seed: int = 1,
    regions: tuple[str, ...] = REGIONS,
    settings: ConfigNodeSettings | None = None,
) -> None:
    with Simulation(seed) as sim:

        async def run() -> None:
            await main(sim, Instance(sim, regions, settings))

        sim.run(run(), limit_s=900)
