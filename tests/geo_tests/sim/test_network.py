"""The simulator's network: order, latency, backpressure, ends of connections, cuts."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from geo_tests.sim.simulation import Machine, Simulation
from geo_tests.sim.transport import WINDOW_BYTES


class Sink(asyncio.Protocol):
    """Keeps what it reads."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.reads = 0
        self.events: list[str] = []
        self.transport: asyncio.Transport
        self.changed = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.events.append("made")

    def data_received(self, data: bytes) -> None:
        assert data
        self.data += data
        self.reads += 1
        self.changed.set()

    def eof_received(self) -> None:
        self.events.append("eof")

    def connection_lost(self, exc: Exception | None) -> None:
        self.events.append(type(exc).__name__ if exc else "lost")
        self.changed.set()

    def pause_writing(self) -> None:
        self.events.append("pause")

    def resume_writing(self) -> None:
        self.events.append("resume")


class Echo(Sink):
    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self.transport.write(data)


def pair(
    seed: int, main: Callable[[Simulation, Machine, list[Sink], Sink], Awaitable[None]], kind: type[Sink] = Sink
) -> None:
    """Runs `main(sim, server machine, accepted protocols, client protocol)` with one connection from "client" (zone eu)
    to "server" (zone us).
    """
    with Simulation(seed) as sim:
        accepted: list[Sink] = []

        def accept() -> Sink:
            accepted.append(kind())
            return accepted[-1]

        async def serve(machine: Machine) -> None:
            await machine.loop.create_server(accept, machine.host, 7000)

        async def dial() -> Sink:
            _, protocol = await asyncio.get_running_loop().create_connection(Sink, "server", 7000)
            return protocol

        async def run() -> None:
            sim.network.latency("us", "eu", 0.040, 0.050)
            machine, client = sim.machine("server", zone="us"), sim.machine("client", zone="eu")
            assert machine.zone == "us" and client.zone == "eu"
            machine.start(serve)
            await asyncio.sleep(0.01)
            protocol = await sim.call("client", dial)
            await main(sim, machine, accepted, protocol)

        sim.run(run(), limit_s=1000)


@pytest.mark.parametrize("seed", range(20))
def test_bytes_arrive_in_order_after_the_latency(seed: int) -> None:
    async def main(sim: Simulation, _: Machine, accepted: list[Sink], client: Sink) -> None:
        start = sim.now()
        sent = bytes(range(256)) * 40
        for at in range(0, len(sent), 100):
            client.transport.writelines([sent[at : at + 50], memoryview(sent)[at + 50 : at + 100]])
            await asyncio.sleep(0.001)
        while len(client.data) < len(sent):
            client.changed.clear()
            await client.changed.wait()
            assert sim.now() - start >= 0.08
        assert accepted[0].data == client.data == sent
        assert accepted[0].reads > 5

    pair(seed, main, Echo)


def test_reads_are_cut_at_random() -> None:
    sizes = set()

    async def main(sim: Simulation, _: Machine, accepted: list[Sink], client: Sink) -> None:
        client.transport.write(b"x" * 1000)
        await asyncio.sleep(1)
        assert len(accepted[0].data) == 1000
        sizes.add(accepted[0].reads)

    for seed in range(40):
        pair(seed, main)
    assert len(sizes) > 1


def test_backpressure() -> None:
    async def main(sim: Simulation, _: Machine, accepted: list[Sink], client: Sink) -> None:
        await asyncio.sleep(0.1)
        server = accepted[0]
        server.transport.pause_reading()
        client.transport.write(b"x" * WINDOW_BYTES)
        assert client.events == ["made"] and client.transport.get_write_buffer_size() == 0
        client.transport.write(b"y" * 100_000)
        assert client.events == ["made", "pause"] and client.transport.get_write_buffer_size() == 100_000
        await asyncio.sleep(10)
        assert not server.data
        server.transport.resume_reading()
        await asyncio.sleep(1)
        assert server.data == b"x" * WINDOW_BYTES + b"y" * 100_000
        assert client.events == ["made", "pause", "resume"]

    pair(1, main)


def test_close_sends_what_is_buffered() -> None:
    async def main(sim: Simulation, _: Machine, accepted: list[Sink], client: Sink) -> None:
        client.transport.write(b"x" * (WINDOW_BYTES + 10))
        client.transport.close()
        client.transport.write(b"ignored")
        assert client.transport.is_closing()
        await asyncio.sleep(1)
        assert len(accepted[0].data) == WINDOW_BYTES + 10
        assert client.events[-1] == "lost" and accepted[0].events == ["made", "eof", "lost"]

    pair(1, main)


@pytest.mark.parametrize("seed", range(10))
def test_abort(seed: int) -> None:
    async def main(sim: Simulation, _: Machine, accepted: list[Sink], client: Sink) -> None:
        await asyncio.sleep(0.1)
        client.transport.write(b"x" * 10)
        client.transport.abort()
        await asyncio.sleep(1)
        assert client.events == ["made", "lost"]
        assert accepted[0].events in (["made", "eof", "lost"], ["made", "ConnectionResetError"])

    pair(seed, main)


def test_buffered_protocols() -> None:
    class Buffered(asyncio.BufferedProtocol):
        def __init__(self) -> None:
            self.buffer, self.data = bytearray(7), bytearray()

        def get_buffer(self, sizehint: int) -> bytearray:
            return self.buffer

        def buffer_updated(self, nbytes: int) -> None:
            assert 0 < nbytes <= 7
            self.data += self.buffer[:nbytes]

    with Simulation(1) as sim:
        accepted = Buffered()

        async def main() -> None:
            server = await sim.loop.create_server(lambda: accepted, None, 0)
            transport, _ = await sim.loop.create_connection(Sink, None, server.sockets[0].getsockname()[1])
            transport.write(bytes(range(200)))
            await asyncio.sleep(1)
            assert accepted.data == bytes(range(200))

        sim.run(main())


def test_half_close() -> None:
    async def main(sim: Simulation, _: Machine, accepted: list[Sink], client: Sink) -> None:
        client.transport.write(b"request")
        client.transport.write_eof()
        await asyncio.sleep(1)
        assert accepted[0].data == b"request" and accepted[0].events[:2] == ["made", "eof"]

    pair(1, main)


@pytest.mark.parametrize("seed", range(10))
def test_a_kill_is_seen_by_peers(seed: int) -> None:
    async def main(sim: Simulation, machine: Machine, accepted: list[Sink], client: Sink) -> None:
        await asyncio.sleep(0.1)
        machine.kill()
        await asyncio.sleep(1)
        assert client.events[-1] in ("lost", "ConnectionResetError")
        assert accepted[0].events == ["made"]
        with pytest.raises(ConnectionRefusedError):
            await sim.loop.create_connection(Sink, "server", 7000)

    pair(seed, main)


def test_a_power_cut_is_silent_until_the_machine_is_back() -> None:
    async def main(sim: Simulation, machine: Machine, accepted: list[Sink], client: Sink) -> None:
        async def nothing(_: Machine) -> None:
            pass

        await asyncio.sleep(0.1)
        machine.power_cut()
        client.transport.write(b"hello?")
        await asyncio.sleep(100)
        assert client.events == ["made"]
        machine.start(nothing)
        await asyncio.sleep(3)
        assert client.events == ["made", "ConnectionResetError"]
        assert accepted[0].data == b""

    pair(1, main)


def test_cut_both_ways_and_heal() -> None:
    outcomes = set()

    async def main(sim: Simulation, _: Machine, accepted: list[Sink], client: Sink) -> None:
        await asyncio.sleep(0.1)
        sim.network.cut("us", "eu")
        client.transport.write(b"through the cut")
        accepted[0].transport.write(b"back")
        dialing = asyncio.ensure_future(sim.call("client", sim.loop.create_connection, Sink, "server", 7000))
        await asyncio.sleep(20)
        assert accepted[0].data == b"" and client.data == b"" and not dialing.done()
        sim.network.heal("us", "eu")
        await asyncio.sleep(2)
        if client.events == ["made"]:
            assert accepted[0].data == b"through the cut" and client.data == b"back"
        else:
            assert client.events[-1] == accepted[0].events[-1] == "ConnectionResetError"
        outcomes.add(client.events[-1])
        await dialing

    for seed in range(20):
        pair(seed, main)
    assert outcomes == {"made", "ConnectionResetError"}


def test_cut_one_way() -> None:
    async def main(sim: Simulation, _: Machine, accepted: list[Sink], client: Sink) -> None:
        await asyncio.sleep(0.1)
        sim.network.cut("us", "eu", one_way=True)
        client.transport.write(b"to us")
        accepted[0].transport.write(b"to eu")
        await asyncio.sleep(5)
        assert accepted[0].data == b"to us" and client.data == b""

    pair(1, main)


def test_reset() -> None:
    async def main(sim: Simulation, _: Machine, accepted: list[Sink], client: Sink) -> None:
        await asyncio.sleep(0.1)
        client.transport.write(b"lost")
        sim.network.reset("eu", "us")
        await asyncio.sleep(1)
        assert client.events == accepted[0].events == ["made", "ConnectionResetError"]
        assert accepted[0].data == b""

    pair(1, main)


def test_streams_and_addresses() -> None:
    with Simulation(3) as sim:

        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write((await reader.readline()).upper())
            await writer.drain()
            writer.close()
            await writer.wait_closed()

        async def main() -> None:
            server = await asyncio.start_server(handle, "127.0.0.1", 0)
            port = server.sockets[0].getsockname()[1]
            with pytest.raises(OSError, match="in use"):
                await sim.call("test", asyncio.start_server, handle, "127.0.0.1", port)
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"hello\n")
            assert await reader.readline() == b"HELLO\n"
            assert await reader.read() == b""
            writer.close()
            server.close()
            await server.wait_closed()
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection("127.0.0.1", port)

        sim.run(main())


def test_the_same_seed_gives_the_same_run() -> None:
    def trace(seed: int) -> list[tuple[float, int]]:
        seen: list[tuple[float, int]] = []

        async def main(sim: Simulation, _: Machine, accepted: list[Sink], client: Sink) -> None:
            for size in range(1, 50):
                client.transport.write(b"x" * size)
                await asyncio.sleep(0.003)
                seen.append((sim.now(), len(client.data)))

        pair(seed, main, Echo)
        return seen

    assert trace(5) == trace(5) != trace(6)
