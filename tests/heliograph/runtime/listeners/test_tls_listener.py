"""Handshakes are bounded in all, of one address, and in time, on real sockets, by each loop."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop

from heliograph.runtime.listeners.tls_listener import TlsListener, listen
from region_node.security.certificate_authority import ensure_certificates
from region_node.security.tls import client_context, server_context

PATIENCE_S = 60
LOOPS = pytest.mark.parametrize("loop", [None, uvloop.new_event_loop])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("tls")
    ensure_certificates(made, ["us"])
    return made


class Echo(asyncio.Protocol):
    """Answers what it is told, with the address that it sees."""

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.transport.write(data + self.transport.get_extra_info("peername")[0].encode())


@contextlib.asynccontextmanager
async def listening(folder: Path, **bounds: Any) -> AsyncIterator[tuple[TlsListener, int]]:
    files = [str(folder / name) for name in ("ca.pem", "broker.us.pem", "broker.us.key")]
    made = await listen(Echo, "127.0.0.1", 0, ssl=server_context(*files), **bounds)
    assert isinstance(made, TlsListener)
    try:
        yield made, made.sockets[0].getsockname()[1]
    finally:
        made.close()
        await made.wait_closed()


async def answered(folder: Path, port: int, address: str = "127.0.0.1") -> bytes:
    """b"": the connection was closed."""
    context = client_context(*(str(folder / name) for name in ("ca.pem", "broker.us.pem", "broker.us.key")))
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, local_addr=(address, 0))
    except OSError:
        return b""
    writer.write(b"x")
    found = await reader.read(100)
    writer.close()
    return found


async def silent(port: int, address: str = "127.0.0.1") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection that never begins its handshake."""
    return await asyncio.open_connection("127.0.0.1", port, local_addr=(address, 0))


def run(loop: Callable[[], asyncio.AbstractEventLoop] | None, test: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(PATIENCE_S):
            await test()

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(bounded())


@LOOPS
def test_an_address_has_so_many_handshakes_under_way_and_others_come_in(folder: Path, loop: Any) -> None:
    async def test() -> None:
        async with listening(folder, per_address=2) as (listener, port):
            stuck = [await silent(port) for _ in range(2)]
            assert await answered(folder, port) == b"" and listener.refused == 1
            assert await answered(folder, port, "127.0.0.2") == b"x127.0.0.2"
            stuck[0][1].close()
            while not await answered(folder, port):  # it hears of the end a moment later
                pass

    run(loop, test)


@LOOPS
def test_above_all_that_there_may_be_others_wait_until_one_is_over(folder: Path, loop: Any) -> None:
    async def test() -> None:
        async with listening(folder, most=2, gives_way_s=PATIENCE_S) as (listener, port):
            stuck = [await silent(port) for _ in range(2)]
            await silent(port)  # it waits in the kernel, in front of the next one
            waits = asyncio.create_task(answered(folder, port))
            done, _ = await asyncio.wait([waits], timeout=0.1)
            assert not done
            for _, writer in stuck:
                writer.close()
            assert await waits == b"x127.0.0.1" and not listener.refused

    run(loop, test)


@LOOPS
def test_silent_ones_on_all_places_give_way_the_oldest_first(folder: Path, loop: Any) -> None:
    async def test() -> None:
        async with listening(folder, most=3, timeout_s=PATIENCE_S, gives_way_s=0.01) as (listener, port):
            stuck = [await silent(port, f"127.0.0.{1 + number}") for number in range(3)]
            assert await answered(folder, port, "127.0.0.9") == b"x127.0.0.9"
            assert await stuck[0][0].read() == b"" and listener.displaced == 1
            for _ in range(3):
                assert await answered(folder, port)
            assert not stuck[2][0].at_eof()

    run(loop, test)


@LOOPS
def test_a_handshake_that_does_not_finish_is_ended_and_one_that_did_counts_no_more(folder: Path, loop: Any) -> None:
    async def test() -> None:
        async with listening(folder, per_address=1, timeout_s=0.2) as (_, port):
            reader, _ = await silent(port)
            assert await reader.read() == b""
            for _ in range(3):
                while not await answered(folder, port):
                    pass

    run(loop, test)


def test_a_port_that_is_taken_is_an_error_and_leaves_nothing_open(folder: Path) -> None:
    async def test() -> None:
        with socket.create_server(("127.0.0.1", 0)) as other, pytest.raises(OSError, match="in use"):
            await listen(Echo, *other.getsockname(), ssl=ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))

    run(None, test)


def test_without_tls_it_is_a_plain_listener() -> None:
    async def test() -> None:
        made = await listen(Echo, "127.0.0.1", 0, ssl=None)
        assert isinstance(made, asyncio.Server)
        made.close()

    run(None, test)
