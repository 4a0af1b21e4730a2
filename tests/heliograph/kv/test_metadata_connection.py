"""A client of the metadata that stood still does not take its server for silent."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from geo_tests.sim.simulation import Machine, Simulation
from heliograph.kv.metadata_connection import FrameTaker, MetaConnection
from heliograph.wire.metadata_frames import FEATURES, MAGIC, Frame, body, frame


class Server(asyncio.Protocol):
    """A metadata server that says that it is there each half second."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.write(frame(Frame.HELLO, 0, body(MAGIC, FEATURES, "m0", True, 1)))
        self.beat()

    def beat(self) -> None:
        self.transport.write(frame(Frame.HEARTBEAT, 0, b""))
        asyncio.get_running_loop().call_later(0.5, self.beat)


class Taker:
    def on_frame(self, kind: int, request: int, payload: bytes) -> None: ...

    def on_leader_heard(self, hears: bool) -> None: ...


@pytest.mark.parametrize("stood_s", [4.0, 6.0, 600.0])
def test_a_client_of_the_metadata_that_stood_still_keeps_its_connection(stood_s: float) -> None:
    with Simulation(seed=1) as sim:
        node, broker = sim.machine("node"), sim.machine("broker")

        async def serve(_: Machine) -> None:
            await sim.loop.create_server(Server, "node", 1)
            await asyncio.sleep(10_000)

        async def connect(_: Machine) -> bool:
            made = lambda: MetaConnection(cast(FrameTaker, Taker()), "broker", 5.0)  # noqa: E731
            _, connection = await sim.loop.create_connection(made, "node", 1)
            await asyncio.wait([connection.lost], timeout=stood_s + 10)
            return connection.lost.done()

        async def main() -> None:
            node.start(serve)
            connected = broker.start(connect)
            await asyncio.sleep(1.0)
            life = broker.stop()  # with its machine: what is sent to it comes again later
            assert life is not None
            sim.network.cut("node", "broker")
            await asyncio.sleep(stood_s)
            sim.network.heal("node", "broker")
            sim.loop.go_on(life)
            assert not await connected

        sim.run(main(), limit_s=3600)
