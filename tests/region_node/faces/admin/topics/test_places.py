"""Of how many ranges the places are told in one answer."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any
from unittest import mock

import msgspec
import pytest

from heliograph.model.errors import NotAllowed
from region_node.faces.admin.calls.auth_middleware import PRINCIPAL
from region_node.faces.admin.topics.bulk_reads import PLACES_MAX, Places, objects

ROW = (1, 0, 0)


def test_a_topic_and_a_request_have_a_bound_of_ranges() -> None:
    named = {"t": [ROW] * 1001}
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"ranges": named}, Places)
    many = Places(ranges={f"t{number}": [ROW] * 1000 for number in range(PLACES_MAX // 1000)} | {"u": [ROW]})
    with pytest.raises(NotAllowed, match=f"ask for {PLACES_MAX:,} at most"):
        asyncio.run(objects(mock.Mock(), mock.Mock(), many))


def test_others_go_on_while_very_many_are_looked_up() -> None:
    async def test() -> None:
        log = SimpleNamespace(ledger=SimpleNamespace(ledgers=list))
        admin: Any = SimpleNamespace(
            places=None,
            sealing=None,
            here=mock.AsyncMock(),
            log=mock.AsyncMock(return_value=log),
            security=SimpleNamespace(rights=SimpleNamespace(may=lambda *_: True)),
        )
        given = Places(ranges={f"persistent://t/n/{number}": [ROW] * 1000 for number in range(10)}, bookies=False)
        asking, turns = asyncio.ensure_future(objects(admin, {PRINCIPAL: None}, given)), 0  # type: ignore[arg-type]
        while not asking.done():
            await asyncio.sleep(0)
            turns += 1
        assert sum(map(len, asking.result()["found"].values())) == PLACES_MAX and turns > 8

    asyncio.run(test())
