"""Bookies on the simulated network, and a writer through the real client."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

from geo_tests.sim.simulation import Machine, Simulation
from storage.bookie.bookie_settings import BookieSettings
from storage.bookie.serving.bookie_server import BookieServer
from storage.ledger.bookies.bookie_client import BookieClient, BookieClientSettings
from storage.ledger.bookies.bookie_port import BookiePort
from tests.storage.bookie.history import SMALL, block, make_bookie

PORT = 3181


class Cluster:
    """One bookie machine, and clients in the test's own process."""

    def __init__(self, sim: Simulation, settings: BookieSettings = SMALL) -> None:
        self.sim, self.machine, self.settings = sim, sim.machine("bookie"), settings
        self.bad: list[str] = []
        self.sim.machine("client").start(_idle)
        self.start()

    def start(self) -> None:
        self.machine.start(self._serve)

    async def _serve(self, machine: Machine) -> None:
        self.bookie = make_bookie(machine.disk("journal"), machine.disk("ledgers"), machine.rng, self.settings)
        self.server = BookieServer(self.bookie, on_bad_peer=self.bad.append)
        await self.server.start("bookie", PORT)

    def client(self, **settings: float) -> BookieClient:
        return BookieClient("b0", "bookie", PORT, rng=random.Random(4), settings=BookieClientSettings(**settings))


async def _idle(_machine: Machine) -> None:
    await asyncio.get_running_loop().create_future()


def scenario(body: Callable[[Cluster], Awaitable[None]], settings: BookieSettings = SMALL) -> None:
    with Simulation(5) as sim:
        cluster = Cluster(sim, settings)

        async def main() -> None:
            await asyncio.sleep(0.1)
            await sim.call("client", body, cluster)  # type: ignore[arg-type]

        sim.run(main())


class Writer:
    """An open writer that notes what it hears."""

    def __init__(self, client: BookiePort, ledger: int) -> None:
        self.client, self.ledger, self.sent = client, ledger, 0
        self.acks: list[int] = []
        self.lost: list[Exception] = []
        client.open_writer(ledger, self.acks.append, self.lost.append)

    def add(self, count: int) -> None:
        self.client.add(self.ledger, self.sent, count, [block(self.ledger, self.sent, count)], self.sent - 1)
        self.sent += count
