"""Answers that are asked for faster than they are read: they are read from the table as the other side reads."""

from __future__ import annotations

import asyncio

import pytest

from geo_tests.sim.simulation import Simulation
from heliograph.kv.server.metadata_server import ServerSettings
from heliograph.model.errors import MetadataUnavailable
from heliograph.wire.metadata_frames import Frame, body, frame
from tests.heliograph.kv.group import HELLO, PORT, Group, Raw, simulate

SMALL = ServerSettings(buffer_bytes_max=2 << 20)


@pytest.mark.parametrize("node", ["m0", "m1"])
@pytest.mark.parametrize(("kind", "asked"), [(Frame.RANGE, body("/k/", "/k0", 4)), (Frame.GET, body("/k/0"))])
def test_who_asks_for_more_than_it_reads_waits_and_nobody_else(kind: Frame, asked: bytes, node: str) -> None:
    """Also at a node that passes it on."""

    async def main(sim: Simulation, group: Group) -> None:
        group.pass_on("m1")
        client, server = group.client(), group.servers[node]
        for number in range(4):
            await client.put(f"/k/{number}", bytes(500_000 if kind == Frame.GET else 125_000))
        lease = await client.grant(3000)
        _, raw = await asyncio.get_running_loop().create_connection(Raw, node, PORT)
        raw.transport.write(HELLO)
        await asyncio.sleep(0.1)
        raw.transport.pause_reading()
        raw.transport.write(b"".join(frame(kind, number, asked) for number in range(1, 13)))
        await asyncio.sleep(0.5)
        (greedy,) = (each for each in server.connections if each._requests)
        assert greedy._requests >= 8 and not raw.lost.is_set()
        await client.renew(lease)
        assert len(await client.range("/k/", "/k0")) == 4
        raw.transport.resume_reading()
        await asyncio.sleep(1)
        assert not greedy._requests and not raw.lost.is_set() and len(raw.data) > 12 * 500_000
        assert not greedy._expected and not greedy._expected_bytes

    simulate(main, ("m0", "m1"), server=SMALL)


def test_ranges_that_one_barrier_lets_go_on_are_read_over_as_many_passes() -> None:
    async def main(sim: Simulation, group: Group) -> None:
        client, service = group.client(), group.servers["m0"].service
        for number in range(4):
            await client.put(f"/k/{number}", bytes(100_000))
        (connection,) = group.servers["m0"].connections
        connection.pause_writing = lambda: None  # type: ignore[method-assign]
        passes, counted, read = 0, list[int](), service.machine.range

        def count_pass() -> None:
            nonlocal passes
            passes += 1
            if passes < 200:
                asyncio.get_running_loop().call_soon(count_pass)

        def counting(*args: object) -> object:
            counted.append(passes)
            return read(*args)  # type: ignore[arg-type]

        service.machine.range = counting  # type: ignore[method-assign,assignment]
        held = asyncio.Event()

        async def barrier(*, timeout_s: float) -> None:
            await held.wait()

        service.replica.read_barrier = barrier  # type: ignore[method-assign]
        asking = [asyncio.ensure_future(client.range("/k/", "/k0")) for _ in range(6)]
        await asyncio.sleep(0.1)
        asyncio.get_running_loop().call_soon(count_pass)
        held.set()
        assert [len(rows) for rows in await asyncio.gather(*asking)] == [4] * 6
        assert len(set(counted)) == 6 and max(counted) < 200

    simulate(main)


def test_nothing_is_read_for_a_connection_that_is_gone() -> None:
    async def main(sim: Simulation, group: Group) -> None:
        client, service = group.client(), group.servers["m0"].service
        for number in range(4):
            await client.put(f"/k/{number}", bytes(250_000))
        _, raw = await asyncio.get_running_loop().create_connection(Raw, "m0", PORT)
        raw.transport.write(HELLO)
        await asyncio.sleep(0.1)
        raw.transport.pause_reading()
        raw.transport.write(b"".join(frame(Frame.RANGE, each, body("/k/", "/k0", 4)) for each in range(1, 9)))
        await asyncio.sleep(0.5)
        (greedy,) = (each for each in group.servers["m0"].connections if each._requests)
        reads, read = list[object](), service.machine.range

        def counting(*args: object) -> object:
            reads.append(args)
            return read(*args)  # type: ignore[arg-type]

        service.machine.range = counting  # type: ignore[method-assign,assignment]
        greedy.close()
        await asyncio.sleep(2)
        assert not greedy._requests and not reads

    simulate(main, server=SMALL)


def test_an_answer_that_is_not_read_in_time_is_given_up() -> None:
    async def main(sim: Simulation, group: Group) -> None:
        client, server = group.client(), group.servers["m0"]
        await client.put("/k/0", bytes(100_000))
        (connection,) = server.connections
        connection.pause_writing()
        with pytest.raises(MetadataUnavailable, match="ask for less"):
            await connection._paced(1, Frame.RANGE, 5.0)
        connection.resume_writing()
        await connection._paced(1, Frame.RANGE, 5.0)

    simulate(main)
