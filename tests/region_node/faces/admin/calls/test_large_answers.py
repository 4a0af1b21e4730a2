"""Large answers: few at once, few of one address, and never more in memory than a piece of each."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiohttp import web

from heliograph.model.errors import HeliographError
from region_node.faces.admin.calls.large_answers import PIECE_BYTES, LargeAnswers
from region_node.faces.admin.server.http_connections import AdminConnection, HttpConnections, HttpLimits
from tests.region_node.faces.admin.server.http_peer import Peer, settle

SIZE = 5 * PIECE_BYTES


class Slow(Peer):
    """A client that takes nothing until it is told to."""

    def __init__(self, protocol: AdminConnection, address: str) -> None:
        self.paused, self.gone = False, asyncio.Event()
        super().__init__(protocol, address)

    def close(self) -> None:
        super().close()
        self.gone.set()

    abort = close

    def write(self, data: Any) -> None:
        super().write(data)
        if not self.paused and len(self.written) > 1000:
            self.paused = True
            self.protocol.pause_writing()

    def take(self) -> None:
        if self.paused:
            self.paused = False
            self.protocol.resume_writing()


def asked(address: str) -> web.Request:
    return cast(web.Request, SimpleNamespace(remote=address))


def with_answers(test: Callable[[LargeAnswers, Callable[[str], Slow]], Awaitable[None]], **times: float) -> None:
    async def run() -> None:
        answers, body = LargeAnswers(at_once=2, of_address=1, **times), b"x" * SIZE

        async def answer(request: web.Request) -> web.StreamResponse:
            async with answers.place(request):
                return await answers.send(request, {}, (b"head", body))

        app = web.Application()
        app.router.add_get("/", answer)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        assert runner.server is not None
        connections = HttpConnections(HttpLimits(), runner.server)

        def ask(address: str) -> Slow:
            peer = Slow(connections(), address)
            peer.protocol.data_received(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            return peer

        try:
            await test(answers, ask)
        finally:
            connections.close()
            await runner.cleanup()

    asyncio.run(run())


def test_no_more_is_handed_over_than_a_client_takes() -> None:
    async def test(_: LargeAnswers, ask: Callable[[str], Slow]) -> None:
        peer, seen = ask("10.0.0.1"), list[int]()
        for _ in range(20):
            await settle()
            seen.append(len(peer.written))
            peer.take()
        head = peer.written.index(b"\r\n\r\n") + 4
        assert peer.written[head:] == b"head" + b"x" * SIZE
        assert max(after - before for before, after in itertools.pairwise(seen)) <= PIECE_BYTES

    with_answers(test)


def test_the_place_of_a_client_that_has_gone_is_free() -> None:
    async def test(answers: LargeAnswers, ask: Callable[[str], Slow]) -> None:
        peer = ask("10.0.0.1")
        await settle()
        with pytest.raises(HeliographError, match="1 such answers to"):
            async with answers.place(asked("10.0.0.1")):
                raise AssertionError
        assert not peer.closed
        peer.abort()
        await settle()
        async with answers.place(asked("10.0.0.1")), answers.place(asked("10.0.0.2")):
            pass

    with_answers(test)


def test_whoever_finds_no_place_waits() -> None:
    async def test(answers: LargeAnswers, _: Callable[[str], Slow]) -> None:
        async def third() -> str:
            async with answers.place(asked("10.0.0.3")):
                return "taken"

        async with answers.place(asked("10.0.0.1")):
            async with answers.place(asked("10.0.0.2")):
                waiting = asyncio.ensure_future(third())
                await settle()
                assert not waiting.done()
            assert await waiting == "taken"

    with_answers(test)


def test_whoever_gets_no_place_in_time_is_refused() -> None:
    async def test(answers: LargeAnswers, _: Callable[[str], Slow]) -> None:
        async with answers.place(asked("10.0.0.1")), answers.place(asked("10.0.0.2")):
            with pytest.raises(HeliographError, match="too many"):
                async with answers.place(asked("10.0.0.3")):
                    raise AssertionError

    with_answers(test, wait_s=0.01)


def test_what_is_not_taken_in_time_is_broken_off() -> None:
    async def test(answers: LargeAnswers, ask: Callable[[str], Slow]) -> None:
        peer = ask("10.0.0.1")
        await peer.gone.wait()
        async with answers.place(asked("10.0.0.1")):
            pass

    with_answers(test, send_s=0.01)
