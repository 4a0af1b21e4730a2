"""Servers of the metadata and their clients over the simulated network."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, cast

from geo_tests.sim.simulation import Machine, Simulation
from heliograph.kv import history
from heliograph.kv.client_history import AnotherHistory
from heliograph.kv.metadata_client import ClientSettings, MetaClient
from heliograph.kv.metadata_store import prefix_end
from heliograph.kv.server.metadata_server import MetaServer, ServerSettings
from heliograph.kv.server.metadata_service import MetaService, ServiceSettings
from heliograph.kv.state_machine import KvMachine, MachineSettings
from heliograph.wire.metadata_frames import FEATURES, MAGIC, Frame, body, frame
from tests.heliograph.kv.replica import LogReplica, SharedLog

PORT = 7001


class Group:
    """Servers over one shared log, each on a machine of its own; the first one leads."""

    def __init__(
        self,
        sim: Simulation,
        names: tuple[str, ...] = ("m0",),
        machine: MachineSettings | None = None,
        server: ServerSettings | None = None,
        stamps: bool = False,
    ) -> None:
        """stamps: leaders put theirs, as those of a real node do."""
        self.sim, self.log, self.machine, self.server = sim, SharedLog(), machine, server
        self.stamps = stamps
        self.services: dict[str, MetaService] = {}
        self.servers: dict[str, MetaServer] = {}
        self.names = names
        for name in names:
            self.start(name)

    def start(self, name: str) -> None:
        self.sim.machine(name).start(self._serve)

    async def _serve(self, machine: Machine) -> None:
        replica = LogReplica(self.log, machine.host, KvMachine(settings=self.machine))
        replica.catch_up()
        settings = ServiceSettings(stamp=partial(history.beginning, machine.rng) if self.stamps else None)
        service = MetaService(
            replica, replica.machine, clock=machine.clock, settings=settings, hint=lambda node: f"{node}:{PORT}"
        )
        replica.on_role_change = service.on_role_change
        self.services[machine.host] = service
        self.servers[machine.host] = MetaServer(service, machine.host, PORT, node=machine.host, settings=self.server)
        await self.servers[machine.host].start()
        if machine.host == self.names[0]:
            self.log.elect(machine.host)

    def pass_on(self, name: str) -> None:
        """That node passes requests on to the leader from now on, which answers a little later."""
        self.services[name]._forwarder = self

    async def forward(self, to: str, request: bytes, *, timeout_s: float) -> bytes:
        await asyncio.sleep(0.01)
        return await self.services[to].handle_forwarded(request)

    def replica(self, name: str = "m0") -> LogReplica:
        return self.log.replicas[name]

    def elect(self, name: str) -> None:
        self.sim.machine(name).run(self.log.elect, name)

    def client(
        self,
        name: str = "c",
        on_another_history: Callable[[AnotherHistory], None] = lambda found: None,
        **settings: Any,
    ) -> MetaClient:
        machine = self.sim.machine(name)
        if not machine.running:
            machine.start(_idle)
        made: MetaClient = machine.run(
            lambda: MetaClient(
                [f"{n}:{PORT}" for n in self.names],
                clock=machine.clock,
                rng=machine.rng,
                settings=ClientSettings(**settings),
                on_another_history=on_another_history,
            )
        )
        machine.run(made._run)  # its connection belongs to that machine, whoever calls
        return made


async def _idle(_: Machine) -> None:
    pass


def simulate(
    main: Callable[[Simulation, Group], Coroutine[Any, Any, None]],
    names: tuple[str, ...] = ("m0",),
    seed: int = 1,
    *,
    machine: MachineSettings | None = None,
    server: ServerSettings | None = None,
    stamps: bool = False,
    limit_s: float = 300,
) -> None:
    with Simulation(seed) as sim:

        async def run() -> None:
            group = Group(sim, names, machine, server, stamps)
            await asyncio.sleep(0.1)
            await main(sim, group)

        sim.run(run(), limit_s=limit_s)


class Mirror:
    """What a watch told."""

    def __init__(self, client: MetaClient, prefix: str) -> None:
        self.table: dict[str, tuple[bytes, int]] = {}
        self.told: list[tuple[str, bytes | None]] = []
        self.stop = client.watch(prefix, self.on_change)

    def on_change(self, key: str, value: bytes | None, version: int) -> None:
        self.told.append((key, value))
        if value is None:
            assert key in self.table, f"{key} was deleted, and had never been told"
            del self.table[key]
        else:
            assert key not in self.table or self.table[key][1] < version
            self.table[key] = (value, version)


def watches_while_all_breaks(
    seed: int, *, machine: MachineSettings | None = None, server: ServerSettings | None = None
) -> None:
    """Writers go on while connections break and the watch moves between nodes that lag."""

    async def main(sim: Simulation, group: Group) -> None:
        rng = sim.rng("test")
        writer, reader = group.client("w"), group.client("r")
        mirror = Mirror(reader, "/k/")
        for _ in range(120):
            key = f"/k/{rng.randrange(12)}"
            if rng.random() < 0.4:
                await writer.delete(key)
            else:
                await writer.put(key, bytes([rng.randrange(256)]))
            node = rng.choice(group.names)
            match rng.randrange(8):
                case 0:
                    sim.network.reset("r", node)
                case 1:
                    group.replica(node).lag = node != "m0" and not group.replica(node).lag
                case 2:
                    sim.network.cut("r", node)
                    await asyncio.sleep(rng.uniform(0, 8))
                    sim.network.heal("r", node)
                case 3:
                    snapshot = group.replica("m0").machine.snapshot()
                    behind = group.replica("m2")
                    if behind.machine.index < group.replica("m0").machine.index:
                        sim.machine("m2").run(behind.machine.restore, snapshot)
                case _:
                    await asyncio.sleep(rng.uniform(0, 0.1))
        for replica in group.log.replicas.values():
            replica.lag = False
            sim.machine(replica.node).run(replica.catch_up)
        await asyncio.sleep(20)
        want = {key: (value, version) for key, value, version in await writer.range("/k/", prefix_end("/k/"))}
        assert mirror.table == want

    simulate(main, ("m0", "m1", "m2"), seed, machine=machine, server=server)


class Raw(asyncio.Protocol):
    def __init__(self) -> None:
        self.data = b""
        self.lost = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.data += data

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set()


HELLO = frame(Frame.HELLO, 0, body(MAGIC, FEATURES, "test"))
