"""Large answers: few at once, few of one address, and never more in memory than a piece of each."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest
from aiohttp import web

from heliograph.model.errors import HeliographError
from region_node.faces.admin.calls.auth_middleware import PRINCIPAL
from region_node.faces.admin.calls.large_answers import PIECE_BYTES, LargeAnswers
from region_node.faces.admin.server.http_connections import AdminConnection, HttpConnections, HttpLimits
from region_node.security.authentication.principal import Principal
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


class Asked(dict[str, Principal]):
    """A request of that role, from that address."""

    def __init__(self, role: str, address: str = "10.0.0.9") -> None:
        super().__init__({PRINCIPAL: Principal(role=role)})
        self.remote = address


def asked(role: str, address: str = "10.0.0.9") -> web.Request:
    return cast(web.Request, Asked(role, address))


def with_answers(test: Callable[[LargeAnswers, Callable[[str], Slow]], Awaitable[None]], **times: float) -> None:
    async def run() -> None:
        answers, body = LargeAnswers(at_once=2, **times), b"x" * SIZE

        async def answer(request: web.Request) -> web.StreamResponse:
            request[PRINCIPAL] = Principal(role="a")
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
        assert not peer.closed
        async with answers.place(asked("a")):
            with pytest.raises(HeliographError, match="too many"):
                async with answers.place(asked("a")):
                    raise AssertionError
        peer.abort()
        await settle()
        async with answers.place(asked("a")), answers.place(asked("a")):
            pass

    with_answers(test, wait_s=0.01)


def test_roles_take_turns_and_addresses_of_one_role() -> None:
    async def test(answers: LargeAnswers, _: Callable[[str], Slow]) -> None:
        went = list[str]()

        async def goes_on(*of: str) -> None:
            async with answers.place(asked(*of)):
                went.append("/".join(of))
                await settle()

        flood = [("a", "x") for _ in range(6)]
        await asyncio.gather(*(goes_on(*each) for each in [*flood, ("a", "y"), ("b", "x")]))
        assert went.index("b/x") <= 3 and went.index("a/y") <= 4 and len(went) == 8

    with_answers(test)


def test_who_takes_slowly_gives_way_to_who_waits() -> None:
    async def test(answers: LargeAnswers, ask: Callable[[str], Slow]) -> None:
        slow = [ask("10.0.0.1"), ask("10.0.0.1")]
        await settle()
        assert not any(peer.closed for peer in slow)
        async with answers.place(asked("b", "10.0.0.1")):
            assert any(peer.closed for peer in slow)
            again = ask("10.0.0.1")
            await asyncio.gather(*(peer.gone.wait() for peer in slow))
            await settle()
            assert not again.closed, "nobody waits now"
            again.abort()
            await settle()

    with_answers(test, hurry_s=0.0)


def test_who_waits_as_the_time_of_a_slow_one_is_just_over_is_counted_no_longer_than_it_waits() -> None:
    async def test(answers: LargeAnswers, ask: Callable[[str], Slow]) -> None:
        async def waits() -> None:
            async with answers.place(asked("b", "10.0.0.2")):
                pass

        slow = [ask("10.0.0.1"), ask("10.0.0.1")]
        await settle()
        waiting = []
        for _ in range(4):  # the later ones come in the passes of the loop in which time-outs are on their way
            waiting.append(asyncio.ensure_future(waits()))
            await asyncio.sleep(0)
        await asyncio.gather(*waiting)
        assert all(peer.closed for peer in slow) and answers._waiting == 0

    with_answers(test, hurry_s=0.0)


def test_whoever_finds_no_place_waits() -> None:
    async def test(answers: LargeAnswers, _: Callable[[str], Slow]) -> None:
        async def third() -> str:
            async with answers.place(asked("a")):
                return "taken"

        async with answers.place(asked("a")):
            async with answers.place(asked("b")):
                waiting = asyncio.ensure_future(third())
                await settle()
                assert not waiting.done()
            assert await waiting == "taken"

    with_answers(test)


def test_whoever_gets_no_place_in_time_is_refused() -> None:
    async def test(answers: LargeAnswers, _: Callable[[str], Slow]) -> None:
        async with answers.place(asked("a")), answers.place(asked("b")):
            with pytest.raises(HeliographError, match="too many"):
                async with answers.place(asked("c")):
                    raise AssertionError

    with_answers(test, wait_s=0.01)


def test_what_is_not_taken_in_time_is_broken_off() -> None:
    async def test(answers: LargeAnswers, ask: Callable[[str], Slow]) -> None:
        peer = ask("10.0.0.1")
        await peer.gone.wait()
        async with answers.place(asked("a")):
            pass

    with_answers(test, send_s=0.01)
