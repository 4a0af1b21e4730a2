"""The supervisor's questions to brokers: their credentials follow the brokers' secret."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web

from region_node.instance.nodes.status import InstanceStatus


class Tokens:
    """The header that is known, and the one that the metadata has; `asked`: for which of them."""

    def __init__(self) -> None:
        self.asked: list[bool] = []

    async def header(self, region: str, *, anew: bool = False) -> dict[str, str]:
        self.asked.append(anew)
        return {"Authorization": "new" if anew else "old"}


@pytest.mark.parametrize(
    ("counts", "answer", "asked"),
    [
        ("", {"here": 1}, []),
        ("old", {"here": 1}, [False]),
        ("new", {"here": 1}, [False, True]),
        ("no", None, [False, True]),
    ],
)
def test_a_refused_token_is_made_anew_once(counts: str, answer: dict[str, Any] | None, asked: list[bool]) -> None:
    async def broker(request: web.Request) -> web.Response:
        good = not counts or request.headers.get("Authorization") == counts
        return web.json_response({"here": 1}, status=200 if good else 401)

    async def run() -> None:
        app = web.Application()
        app.router.add_get("/x", broker)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        node = SimpleNamespace(name="b", ports={"admin": runner.addresses[0][1]})
        plan: Any = SimpleNamespace(region=lambda name: SimpleNamespace(brokers=[node]))
        processes: Any = SimpleNamespace(children={"b": SimpleNamespace(pid=1)})
        tokens: Any = Tokens()
        try:
            assert await InstanceStatus(Path(), lambda: plan, processes, tokens).ask("us", "/x") == answer
        finally:
            await runner.cleanup()
        assert tokens.asked == asked

    asyncio.run(run())
