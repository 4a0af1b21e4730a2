"""How often one broker goes through what tenants store: seldom, and often where a tenant's quota hangs on it."""

from __future__ import annotations

import asyncio
from typing import Any

from heliograph.kv.in_process_store import EmbeddedStore
from heliograph.model.configuration.configuration_records import TenantQuota
from local_meta import keys
from region_node.usage.settings import UsageSettings
from region_node.usage.stored_bytes import StoredBytes
from region_node.usage.tenant_usage import Usage
from tests.region_node.topics.fake_storage import FakeClock


class Counted(EmbeddedStore):
    walks = 0

    async def range(self, *args: Any, **more: Any) -> Any:
        self.walks += args[0] == keys.MANAGED_LEDGERS
        return await super().range(*args, **more)


async def walked(quotas: dict[str, TenantQuota], *, minutes: int) -> int:
    """How many walks there were, with a sweep in each minute."""
    store, clock = Counted(), FakeClock()

    async def nothing() -> dict[str, int]:
        return {}

    stored = StoredBytes(
        store,
        Usage(),
        nothing,
        walks=lambda: True,
        quotas=lambda: quotas,
        tell_full=lambda full: None,
        clock=clock,
        settings=UsageSettings(stored_s=600.0, quota_s=120.0),
    )
    for _ in range(minutes):
        await stored.sweep()
        clock.now += 60.0
    return store.walks


def test_topics_are_gone_through_as_often_as_is_set() -> None:
    async def run() -> None:
        assert await walked({}, minutes=30) == 3
        assert await walked({"a": TenantQuota(max_storage_bytes=1)}, minutes=30) == 15

    asyncio.run(run())
