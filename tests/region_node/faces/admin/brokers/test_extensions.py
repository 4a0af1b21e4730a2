"""A long answer of blocks lets others go on, and ends where whoever asked may not read any more."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from heliograph.model.positions import Position
from heliograph.wire.run import Run
from region_node.faces.admin.brokers import extensions
from region_node.faces.admin.calls.auth_middleware import PRINCIPAL
from region_node.faces.admin.calls.call_parameters import called
from region_node.faces.admin.topics import bulk_reads
from region_node.security.authentication.principal import Principal

LAST = 1000
Handler = Callable[[Any, Any], Awaitable[Any]]


class World:
    """A topic of one ledger, read an entry at a time by a role whose token lasts 10 s; `before`: called before each
    read, with the entry that it is of.
    """

    def __init__(self) -> None:
        self.reads, self.now_ms, self.granted, self.open = 0, 1_000, True, False
        self.before: Callable[[int], None] = lambda at: None
        self.last_confirmed = (1, LAST)
        self.rights = SimpleNamespace(changes=0, may=lambda principal, action, topic: self.granted)
        topic = SimpleNamespace(readable=self, text="persistent://t/n/x")
        self.admin: Any = SimpleNamespace(
            topic=lambda request: topic,
            log=mock.AsyncMock(),
            loaded=mock.AsyncMock(return_value=topic),
            security=SimpleNamespace(rights=self.rights, authentication=SimpleNamespace(open=False)),
            clock=SimpleNamespace(wall_ms=lambda: self.now_ms),
        )

    async def read(self, at: Position, entries_max: int, bytes_max: int) -> list[tuple[int, int, Run]]:
        self.before(at[1])
        self.reads += 1
        return [(1, at[1], Run([b"x"], [1]))]

    def take_back(self) -> None:
        self.rights.changes += 1
        self.granted = False

    async def ask(self, handler: Handler) -> tuple[int, bool]:
        """How often was read, and whether the answer was cut off."""
        request = make_mocked_request("GET", f"/?first=1:0&last=1:{LAST}", transport=mock.Mock())
        request[PRINCIPAL] = Principal(role="reader", expires_ms=11_000)
        await called(handler, self.admin, request)
        assert request.transport is not None
        return self.reads, bool(request.transport.abort.called)  # type: ignore[attr-defined]


async def many(admin: Any, request: web.Request) -> Any:
    row = ("persistent://t/n/x", 1, 0, LAST)
    return await bulk_reads.blocks(admin, request, bulk_reads.Ranges(ranges=[row]))


@pytest.mark.parametrize("handler", [extensions.blocks, many])
def test_blocks_end_with_the_token_or_the_grant(handler: Handler) -> None:
    def ends_at(happens: Callable[[World], object]) -> tuple[int, bool]:
        world = World()
        world.before = lambda at: happens(world) if at == 5 else None  # type: ignore[assignment, return-value]
        return asyncio.run(world.ask(handler))

    assert ends_at(lambda world: None) == (LAST + 1, False)
    assert ends_at(lambda world: setattr(world, "now_ms", 11_000)) == (6, True)
    assert ends_at(World.take_back) == (6, True)
    assert ends_at(lambda world: setattr(world.rights, "changes", 7)) == (LAST + 1, False), "it may still"


@pytest.mark.parametrize("handler", [extensions.blocks, many])
def test_others_go_on_between_two_reads(handler: Handler) -> None:
    async def test() -> None:
        world, turns = World(), 0
        asking = asyncio.ensure_future(world.ask(handler))
        while not asking.done():
            await asyncio.sleep(0)
            turns += 1
        assert turns > world.reads == LAST + 1

    asyncio.run(test())
