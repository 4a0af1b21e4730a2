"""A broker asks another one of its region over HTTP."""

from __future__ import annotations

import asyncio
import ssl

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from heliograph.model.errors import MetadataUnavailable, NotFound
from region_node.placement.ownership.broker_calls import BrokerCalls
from region_node.placement.ownership.broker_records import BrokerRecord


def test_answers_are_read_and_refusals_raised() -> None:
    async def main() -> None:
        asked: list[tuple[str, str | None]] = []

        async def answer(request: web.Request) -> web.Response:
            asked.append((request.rel_url.raw_path, request.headers.get("Authorization")))
            match request.match_info["what"]:
                case "some":
                    return web.json_response({"given": await request.json()})
                case "none":
                    return web.Response(status=204)
                case "absent":
                    return web.Response(status=404, text="no such topic")
            return web.Response(status=503, text="not well")

        app = web.Application()
        app.router.add_route("*", "/a%2Fb/{what}", answer)
        server = TestServer(app)
        await server.start_server()
        calls = BrokerCalls(lambda: {"Authorization": "Bearer own"})
        record = BrokerRecord("b2", admin_url=str(server.make_url("/")))
        try:
            assert await calls.call(record, "POST", "/a%2Fb/some", [1]) == {"given": [1]}
            assert await calls.call(record, "PUT", "/a%2Fb/none") is None
            with pytest.raises(NotFound, match="broker b2: no such topic"):
                await calls.call(record, "GET", "/a%2Fb/absent")
            with pytest.raises(MetadataUnavailable, match="broker b2 answered 503: not well"):
                await calls.call(record, "GET", "/a%2Fb/ill")
            assert asked[0] == ("/a%2Fb/some", "Bearer own"), "the path goes as it was given, with who asks"
        finally:
            await calls.close()
            await server.close()
        with pytest.raises(MetadataUnavailable, match=r"broker b2 has no admin port .* set broker\.admin_port"):
            await BrokerCalls(inside=ssl.create_default_context()).call(record, "GET", "/")

    asyncio.run(main())


def test_who_never_asked_has_nothing_to_close() -> None:
    asyncio.run(BrokerCalls().close())
