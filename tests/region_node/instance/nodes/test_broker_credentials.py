"""The supervisor's headers follow the secret of the brokers, and last longer than the metadata's way to it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from heliograph.model.errors import MetadataUnavailable
from region_node.instance.nodes import broker_credentials
from region_node.instance.nodes.broker_credentials import READ_S, SupervisorTokens
from region_node.security.authentication.internal_tokens import REREAD_S
from tests.region_node.topics.fake_storage import FakeClock


class Metadata:
    secret: bytes | None = None
    away = False
    asked = 0

    def __call__(self, *_: Any, **__: Any) -> Metadata:
        return self

    async def get(self, key: str) -> tuple[bytes, int] | None:
        self.asked += 1
        if self.away:
            raise MetadataUnavailable("away")
        return None if self.secret is None else (self.secret, 1)

    def close(self) -> None: ...


def test_the_secret_is_read_once_a_minute_and_kept_while_nobody_says_another(monkeypatch: pytest.MonkeyPatch) -> None:
    metadata, clock, signed = Metadata(), FakeClock(), list[bytes]()
    monkeypatch.setattr(broker_credentials, "MetaClient", metadata)
    monkeypatch.setattr(broker_credentials, "SystemClock", lambda: clock)
    monkeypatch.setattr(broker_credentials, "header", lambda secret, *_: signed.append(secret) or "signed")

    async def run() -> None:
        tokens = SupervisorTokens(lambda region: ("127.0.0.1:1", None))
        assert await tokens.header("us") == {}
        metadata.secret = b"first"
        assert [await tokens.header("us") for _ in range(3)] == [{"Authorization": "signed"}] * 3
        assert metadata.asked == 2
        metadata.secret = b"second"
        clock.now += READ_S
        await tokens.header("us")
        metadata.away = True
        clock.now += READ_S
        assert [await tokens.header("us") for _ in range(3)] == [{"Authorization": "signed"}] * 3
        assert metadata.asked == 4, "one that is away is not asked for each header"
        assert signed == [b"first"] * 3 + [b"second"] * 4
        metadata.away, metadata.secret = False, b"third"
        clock.now += REREAD_S
        await tokens.header("us")
        assert [await tokens.header("us", anew=True) for _ in range(3)] == [{"Authorization": "signed"}] * 3
        assert signed[7:] == [b"second"] + [b"third"] * 3 and metadata.asked == 5

    asyncio.run(run())
