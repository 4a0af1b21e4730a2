"""Handlers of a broker whose copy of the configuration is old."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, TypeVar

from global_config.admin import ConfigAdmin
from global_config.view import ConfigView
from heliograph.kv.in_process_store import EmbeddedStore
from heliograph.model.configuration.configuration_records import RegionInfo, ResourceGroup, TenantQuota
from region_node.security.allowed_urls import UrlList

V = TypeVar("V", RegionInfo, ResourceGroup, TenantQuota)


class OldView:
    """A configuration with the region `us`, and a broker's view of it, which stands still until `look`."""

    async def start(self) -> OldView:
        self.store = EmbeddedStore()
        self.config = ConfigAdmin(self.store)
        self.audited: list[tuple[Any, Any]] = []
        await self.config.create_region("us", feature_level=2)
        self.admin: Any = SimpleNamespace(
            region="us",
            config=self.config,
            urls=UrlList(()),
            tenant=lambda request: request.match_info["tenant"],
            changed=lambda request, before, after: self.audited.append((before, after)),
            seen=_nothing,
        )
        await self.look()
        return self

    async def look(self) -> None:
        """The view is as the configuration is now."""
        copied = EmbeddedStore()
        for key, value, _ in self.store.machine.under("/"):
            await copied.put(key, value)
        self.admin.view = ConfigView(copied)
        await self.admin.view.ready()

    async def stored(self, key: str, kind: type[V]) -> V:
        found = await self.store.get(key)
        assert found is not None
        return kind.decode(found[0])


async def _nothing(*_: Any) -> None: ...
