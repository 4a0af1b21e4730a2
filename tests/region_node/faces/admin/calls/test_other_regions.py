"""A caller's credentials go to another region by TLS, or stay on this machine, and only where they are for it; and what
its refusal says.
"""

from __future__ import annotations

import asyncio
import base64
import json
import re
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from heliograph.model.configuration.configuration_records import RegionInfo
from heliograph.model.errors import MetadataUnavailable, NotAllowed
from region_node.faces.admin.calls.auth_middleware import ORIGINAL
from region_node.faces.admin.calls.other_regions import elsewhere, parsed
from region_node.faces.admin.server import console_server
from region_node.security.allowed_urls import UrlList

TOKEN = {"Authorization": "Bearer abc.def.ghi"}


def admin_of(admin_url: str, **audiences: str) -> Any:
    """`us`, with `eu` at that URL. audiences: region -> its audience, as the settings here name it."""
    info = RegionInfo(name="eu", number=2, admin_url=admin_url)
    view = SimpleNamespace(region=lambda name: info if name == "eu" else None)
    return SimpleNamespace(region="us", view=view, urls=UrlList(()), outward=None, audiences=audiences)


async def by_console(admin: Any, headers: dict[str, str]) -> Any:
    path = "/heliograph/v1/status"
    request = make_mocked_request(
        "GET", f"/console/at/eu{path}", headers=headers, match_info={"region": "eu", "path": path[1:]}
    )
    request.read = _nothing  # type: ignore[method-assign]
    return await console_server.passed_on(admin, request)


async def _nothing() -> bytes:
    return b""


async def by_handler(admin: Any, headers: dict[str, str]) -> Any:
    return await elsewhere(admin, SimpleNamespace(headers=headers), "eu", "GET", "/heliograph/v1/status")


WAYS = pytest.mark.parametrize("ask", (by_handler, by_console))


@WAYS
@pytest.mark.parametrize("url", ("http://eu.invalid:8080", "http://192.0.2.1:8080", "http://localhost.eu.invalid"))
def test_no_token_goes_to_another_machine_in_clear(ask: Any, url: str) -> None:
    with pytest.raises(NotAllowed, match=r"heliograph clusters update eu --url https://") as refused:
        asyncio.run(ask(admin_of(url), TOKEN))
    assert "abc" not in str(refused.value) and "broker.admin_tls_port" in str(refused.value)


def token(claims: Any) -> dict[str, str]:
    """With these claims, as nobody has signed it."""
    middle = base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")
    return {"Authorization": f"Bearer e30.{middle}.AA"}


@WAYS
@pytest.mark.parametrize(
    "headers",
    [
        token({"sub": "root"}),
        token({"aud": "us-brokers"}),
        token({"aud": ["us-brokers", "eu"]}),
        token({"aud": "eu-brokers-2"}),
        token({"aud": "x eu-brokers"}),
        token({"aud": {"eu-brokers": 1}}),
        token({"aud": [["eu-brokers"]]}),
        token(["eu-brokers"]),
        TOKEN,
        {"Authorization": "Bearer eu-brokers"},
        {"Authorization": "Basic cm9vdDpldS1icm9rZXJz"},
    ],
)
def test_what_is_not_for_a_region_is_not_passed_on_to_it(ask: Any, headers: dict[str, str]) -> None:
    """The region could use it where it is taken: a region that is taken over would be the caller elsewhere."""
    with pytest.raises(NotAllowed, match=r"security\.region_audiences.* in aud, or ask region eu itself"):
        asyncio.run(ask(admin_of("https://eu.invalid:8443", eu="eu-brokers"), headers))


@WAYS
@pytest.mark.parametrize(
    ("headers", "audiences"),
    [
        (token({"aud": "eu-brokers"}), {"eu": "eu-brokers"}),
        (token({"aud": ["us-brokers", "eu-brokers"]}), {"eu": "eu-brokers"}),
        (token({"aud": "us-brokers"}), {"ap": "ap-brokers"}),
        ({}, {"eu": "eu-brokers"}),
    ],
)
def test_what_is_for_a_region_or_for_all_is_passed_on(
    ask: Any, headers: dict[str, str], audiences: dict[str, str]
) -> None:
    with pytest.raises(MetadataUnavailable, match="does not answer"):
        asyncio.run(ask(admin_of("https://eu.invalid:8443", **audiences), headers))


@WAYS
def test_who_brings_nothing_may_be_passed_on_in_clear(ask: Any) -> None:
    with pytest.raises(MetadataUnavailable, match="does not answer"):
        asyncio.run(ask(admin_of("http://eu.invalid:8080"), {}))


@WAYS
def test_regions_of_one_machine_pass_tokens_on(ask: Any) -> None:
    heard: list[str | None] = []

    async def answer(request: web.Request) -> web.Response:
        heard.append(request.headers.get("Authorization"))
        return web.json_response({})

    async def main() -> None:
        app = web.Application()
        app.router.add_get("/heliograph/v1/status", answer)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = site._server.sockets[0].getsockname()[1]  # type: ignore[union-attr]
        await ask(admin_of(f"http://127.0.0.1:{port}"), TOKEN)
        await runner.cleanup()

    asyncio.run(main())
    assert heard == [TOKEN["Authorization"]]


async def refused_with(status: int, headers: dict[str, str]) -> tuple[str, dict[str, str]]:
    """What `elsewhere` says, and what the other region was sent."""
    heard: dict[str, str] = {}

    async def answer(request: web.Request) -> web.Response:
        heard.update(request.headers)
        return web.json_response({"reason": "no, you"}, status=status)

    app = web.Application()
    app.router.add_get("/heliograph/v1/status", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = site._server.sockets[0].getsockname()[1]  # type: ignore[union-attr]
    try:
        with pytest.raises(MetadataUnavailable if status == 503 else NotAllowed) as refused:
            await by_handler(admin_of(f"http://127.0.0.1:{port}"), headers)
    finally:
        await runner.cleanup()
    return str(refused.value), heard


def test_a_region_that_has_done_it_may_have_nothing_to_say() -> None:
    async def answer(request: web.Request) -> web.Response:
        return web.Response(status=204)

    async def main() -> None:
        app = web.Application()
        app.router.add_get("/heliograph/v1/status", answer)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        try:
            assert await by_handler(admin_of(site.name), {}) is None
        finally:
            await runner.cleanup()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("status", "headers", "says"),
    [
        (401, {}, "a certificate proves that here alone, .* ask with a token that region eu takes too"),
        (401, TOKEN, "eu does not take the caller's credentials, .*no, you"),
        (403, TOKEN, "eu does not let whoever asks do that there: .*no, you"),
        (503, TOKEN, "eu answered 503"),
    ],
)
def test_a_region_that_refuses_whoever_asks_is_not_away(status: int, headers: dict[str, str], says: str) -> None:
    told, _ = asyncio.run(refused_with(status, headers))
    assert re.search(says, told)


def test_a_proxy_says_there_too_for_whom_it_speaks() -> None:
    _, heard = asyncio.run(refused_with(403, TOKEN | {ORIGINAL: "alice", "X-Other": "x"}))
    assert heard[ORIGINAL] == "alice" and "X-Other" not in heard


def test_an_answer_that_does_not_end_takes_no_more_memory_than_its_bound() -> None:
    sent = 0

    async def answer(request: web.Request) -> web.StreamResponse:
        nonlocal sent
        response = web.StreamResponse()
        await response.prepare(request)
        for _ in range(200):
            await response.write(bytes(1 << 20))
            sent += 1
        return response

    async def main() -> None:
        app = web.Application()
        app.router.add_get("/heliograph/v1/status", answer)
        runner = web.AppRunner(app, shutdown_timeout=0)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = site._server.sockets[0].getsockname()[1]  # type: ignore[union-attr]
        with pytest.raises(MetadataUnavailable, match="more than 16 MiB: ask it there for /heliograph/v1/status"):
            await by_handler(admin_of(f"http://127.0.0.1:{port}"), {})
        await runner.cleanup()

    asyncio.run(main())
    assert sent < 100


@pytest.mark.parametrize("long", [False, True])
def test_a_long_answer_is_parsed_piece_by_piece(long: bool) -> None:
    piece_bytes = 200 if long else 1 << 30
    topics = {f"t{number}": {"entries": number, "regions": ["eu", None, 1.5], "é": "x"} for number in range(1000)}
    given = {"topics": topics, "missing": [f"m{number}" for number in range(1000)], "text": "y" * 300, "empty": {}}

    async def main() -> None:
        parsing, turns = asyncio.ensure_future(parsed(json.dumps(given).encode(), piece_bytes=piece_bytes)), 0
        while not parsing.done():
            await asyncio.sleep(0)
            turns += 1
        assert parsing.result() == given and list(parsing.result()["topics"]) == list(topics)
        assert (turns > 6) == long

    asyncio.run(main())


@pytest.mark.parametrize("text", ["[" + "[]," * 1000 + "[]]", "[" * 20 + '"' + "x" * 500 + '"' + "]" * 20, "[1," * 300])
def test_an_answer_of_too_many_values_or_none_at_all_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        asyncio.run(parsed(text.encode(), piece_bytes=200, values_max=1000))


@pytest.mark.parametrize("number", ("Infinity", "-Infinity", "NaN", "1e999", "-1e999"))
def test_a_number_that_nobody_can_count_with_is_no_json(number: str) -> None:
    for raw in (number, f"[[{number}, 0]]", f'{{"through": [1, {number}], "more": [{"0, " * 50}0]}}'):
        for piece_bytes in (1 << 10, 8):
            with pytest.raises(ValueError):
                asyncio.run(parsed(raw.encode(), piece_bytes=piece_bytes))
    assert asyncio.run(parsed(b"[1e3, 2.5, -0.0, 17]")) == [1000.0, 2.5, 0.0, 17]
