"""A list of revocations of its own for the authentication of a test, without a region."""

from __future__ import annotations

import asyncio
from typing import Any

from global_config.revocation_list import RevocationList
from heliograph.kv.in_process_store import EmbeddedStore
from heliograph.model.configuration.revocations import REVOCATIONS, Revocation, named
from region_node.security.authentication.authentication_service import Authentication


class RevokedHere:
    """`add` and `lift` return once the authentication has heard, and everybody whom it tells."""

    def __init__(self, authentication: Authentication) -> None:
        self.store, self.revocations = EmbeddedStore(), authentication.revocations
        self.list = RevocationList(self.store)
        self.stop = self.revocations.follow(self.store, REVOCATIONS)

    async def add(self, kind: str, name: str, **fields: Any) -> Revocation:
        record = Revocation(kind=kind, name=named(kind, name), since_ms=1_000_000, **fields)
        _, record = await self.list.add(record)
        assert await self.revocations.heard(record, 5.0)
        return record

    async def lift(self, kind: str, name: str) -> None:
        _, after = await self.list.lift(kind, named(kind, name), 1_000_001, "root")
        assert await self.revocations.heard(after, 5.0)


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)
