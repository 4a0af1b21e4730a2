"""Connections of the admin interface: how many there may be, and when one is closed. aiohttp's server is the real one,
its sockets are not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast

from aiohttp import web

from heliograph.model.configuration.revocations import ProvenBy
from region_node.faces.admin.calls.auth_middleware import ANSWERED_FIRST, PRINCIPAL
from region_node.faces.admin.server.http_connections import HttpConnections, HttpLimits
from region_node.security.authentication.principal import Principal
from tests.region_node.faces.admin.server.http_peer import Peer, settle

GET = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
POST = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n"


class Site:
    """`late`: moves the time at which connections are looked at."""

    def __init__(self, server: web.Server, limits: HttpLimits) -> None:
        self.connections = HttpConnections(limits, server)

    def connect(self, address: str = "10.0.0.1") -> Peer:
        return Peer(self.connections(), address)

    async def look(self, seconds: float) -> None:
        await settle()
        now = self.connections.loop.time() + seconds
        for connection in list(self.connections.open.values()):
            connection.tick(now)
        await settle()


def with_site(test: Callable[[Site], Awaitable[None]], **limits: Any) -> None:
    async def run() -> None:
        site: list[Site] = []

        @web.middleware
        async def told(request: web.Request, handler: Any) -> web.StreamResponse:
            site[0].connections.begun(request)
            try:
                return await handler(request)
            finally:
                site[0].connections.ended(request)

        async def answer(request: web.Request) -> web.Response:
            return web.Response(text=f"<{await request.text()}>")

        app = web.Application(middlewares=[told])
        app.router.add_route("*", "/", answer)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        assert runner.server is not None
        site.append(Site(runner.server, HttpLimits(**limits)))
        try:
            await test(site[0])
        finally:
            site[0].connections.close()
            await runner.cleanup()

    asyncio.run(run())


def test_there_are_so_many_in_all_and_from_one_address_and_places_are_given_back() -> None:
    async def test(site: Site) -> None:
        first, second, third = site.connect(), site.connect(), site.connect()
        assert third.written.startswith(b"HTTP/1.1 503 ") and b"from one address" in third.written and third.closed
        other = site.connect("10.0.0.2")
        over = site.connect("10.0.0.3")
        assert b"at most 3 are allowed here" in over.written and over.closed and not other.closed
        first.close()
        again = site.connect()
        again.protocol.data_received(GET)
        await settle()
        assert b"200 OK" in again.written and b"<>" in again.written
        for peer in (second, other, again):
            peer.close()
        assert not site.connections.open and not len(site.connections.addresses)

    with_site(test, connections_max=3, connections_per_address=2)


def test_a_header_has_to_come_in_time() -> None:
    async def test(site: Site) -> None:
        silent, slow, whole, waiting = (site.connect() for _ in range(4))
        slow.protocol.data_received(GET[:-2])
        whole.protocol.data_received(GET)
        waiting.protocol.data_received(POST)  # its body has a time of its own
        await site.look(9.0)
        assert not any(peer.closed for peer in (silent, slow, whole, waiting))
        await site.look(11.0)
        assert [peer.closed for peer in (silent, slow, whole, waiting)] == [True, True, False, False]
        waiting.protocol.data_received(b"ab")
        await settle()
        assert b"<ab>" in waiting.written
        await site.look(60.0)
        assert not waiting.closed, "nothing has come behind the answer"
        waiting.protocol.data_received(GET[:5])
        await site.look(9.0)
        assert not waiting.closed
        await site.look(11.0)
        assert waiting.closed

    with_site(test)


def test_what_came_behind_a_request_has_to_become_whole_too() -> None:
    async def test(site: Site) -> None:
        peer = site.connect()
        peer.protocol.data_received(GET)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        peer.protocol.data_received(GET[:9])
        await site.look(11.0)
        assert peer.closed and b"200 OK" in peer.written

    with_site(test)


def test_an_answer_has_to_be_taken() -> None:
    async def test(site: Site) -> None:
        peer, slow = site.connect(), site.connect()
        for one in (peer, slow):
            one.protocol.data_received(GET)
            one.protocol.pause_writing()
        slow.protocol.resume_writing()
        await site.look(59.0)
        assert not peer.closed
        await site.look(61.0)
        assert peer.closed and not slow.closed

    with_site(test)


def test_a_long_answer_that_is_taken_slowly_goes_on() -> None:
    async def test(site: Site) -> None:
        peer = site.connect()
        peer.protocol.data_received(GET)
        peer.unsent = 3000
        peer.protocol.pause_writing()
        for left in (2000, 1000):
            peer.unsent = left
            await site.look(1000.0 * (4000 - left))
            assert not peer.closed, "it has taken some since"
        await site.look(3_000_000.0 + 61.0)
        assert peer.closed

    with_site(test)


def test_who_asked_last_by_what_was_revoked_is_cut_off_and_who_revokes_it_is_answered_first() -> None:
    async def test(site: Site) -> None:
        revoked: list[str] = []

        def of(proof: ProvenBy) -> bool:
            return proof.token in revoked

        def known(token: str) -> dict[str, Any]:
            return {PRINCIPAL: Principal(role="app", proof=ProvenBy(token=token))}

        between, other, asking, revoking, silent = (site.connect() for _ in range(5))
        for peer in (between, other, asking, revoking):
            peer.protocol.data_received(GET)
        await settle()
        between.protocol.proof, other.protocol.proof = ProvenBy(token="a"), ProvenBy(token="b")
        asking.protocol.request = cast(web.BaseRequest, known("a"))
        revoking.protocol.request = cast(web.BaseRequest, {**known("a"), ANSWERED_FIRST: True})
        assert site.connections.end_revoked(of) == 0
        revoked.append("a")
        assert site.connections.end_revoked(of) == 2
        assert [peer.closed for peer in (between, other, asking, revoking, silent)] == [True, False, True, False, False]

    with_site(test)
