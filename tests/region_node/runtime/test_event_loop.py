"""Connections by name, in the event loop of a process."""

from __future__ import annotations

import asyncio
import gc
import ssl
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import uvloop

from region_node.process import role_process
from region_node.runtime.event_loop import EventLoop
from region_node.security.certificate_authority import ensure_certificates

UNKNOWN: tuple[str, Any] = "localhost", "no-such-service"
"""What no look-up finds, and no other machine is asked for."""


def left_alone(factory: Callable[[], asyncio.AbstractEventLoop]) -> list[str]:
    """What the loop says of connections that were given up before their names were found not to be there."""
    said: list[str] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: said.append(context["message"]))
        for _ in range(4):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0):
                    await loop.create_connection(asyncio.Protocol, *UNKNOWN)
        for _ in range(32):  # in line behind them
            with pytest.raises(OSError, match="Servname"):
                await loop.getaddrinfo(*UNKNOWN)
        gc.collect()
        await asyncio.sleep(0)

    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(main())
    return said


def test_nobody_is_told_of_a_look_up_that_was_given_up() -> None:
    assert left_alone(EventLoop) == []
    if not left_alone(uvloop.new_event_loop):
        pytest.fail("uvloop does so by itself now: this class is needed no more")


def test_processes_run_in_it() -> None:
    assert role_process._loop_factory() is EventLoop


class TwoAddresses(EventLoop):
    """Every name has two, at the first of which nobody listens."""

    async def getaddrinfo(self, host: Any, port: Any, **options: Any) -> Any:
        first = await super().getaddrinfo("127.0.0.2", port, **options)
        return [*first, *await super().getaddrinfo("127.0.0.1", port, **options)]


def in_it(main: Callable[[], Coroutine[Any, Any, None]], loop: type[EventLoop] = EventLoop) -> None:
    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(main())


def test_a_name_of_which_one_address_does_not_answer() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(asyncio.Protocol, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        for host in ("a.example", "127.0.0.1"):
            transport, _ = await loop.create_connection(asyncio.Protocol, host, port)
            assert transport.get_extra_info("peername") == ("127.0.0.1", port)
            transport.abort()
        server.close()
        await server.wait_closed()
        with pytest.raises(ConnectionRefusedError):
            await loop.create_connection(asyncio.Protocol, "a.example", port)

    in_it(main, TwoAddresses)


def test_the_name_is_what_a_certificate_must_hold(tmp_path: Path) -> None:
    ensure_certificates(tmp_path, ["eu"])

    async def main() -> None:
        loop = asyncio.get_running_loop()
        own = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        own.load_cert_chain(tmp_path / "broker.eu.pem", tmp_path / "broker.eu.key")
        server = await loop.create_server(asyncio.Protocol, "127.0.0.1", 0, ssl=own)
        port = server.sockets[0].getsockname()[1]
        checks = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
        transport, _ = await loop.create_connection(asyncio.Protocol, "localhost", port, ssl=checks)
        assert transport.get_extra_info("ssl_object").server_hostname == "localhost"
        transport.abort()
        with pytest.raises(ssl.SSLCertVerificationError, match="other"):
            await loop.create_connection(asyncio.Protocol, "localhost", port, ssl=checks, server_hostname="other")
        server.close()

    in_it(main)
