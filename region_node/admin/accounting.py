"""Usage of each tenant over REST: this broker's sums, or the whole region's.

Is: `GET /heliograph/v1/usage` (all tenants) and `/heliograph/v1/usage/{tenant}`; `all=true` asks every broker of the region. Isn't: the counting
(`region_node.usage`).
"""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from aiohttp import web

from region_node.admin.context import Admin, flag
from region_node.usage import Usage, added


def counted(admin: Admin) -> Usage:
    """The broker's sums, up to now."""
    admin.usage.stored((topic.name.tenant, topic.ledger.size_bytes) for topic in admin.topics.loaded.values() if not topic.closed)
    return admin.usage


async def everybody(admin: Admin, request: web.Request) -> Any:
    return added([counted(admin).rows(), *await _elsewhere(admin, request, "/heliograph/v1/usage")])


async def one(admin: Admin, request: web.Request) -> Any:
    tenant = admin.tenant(request)
    rows = counted(admin).rows()
    tables = [{tenant: rows.get(tenant, {})}]
    tables += [{tenant: row} for row in await _elsewhere(admin, request, f"/heliograph/v1/usage/{quote(tenant, safe='')}")]
    return added(tables)[tenant]


async def _elsewhere(admin: Admin, request: web.Request, path: str) -> list[dict[str, Any]]:
    if not flag(request, "all"):
        return []
    own = admin.ownership.record.broker
    return [await admin.call(record, "GET", path) for record in admin.ownership.brokers() if record.broker != own]


ROUTES = (
    ("GET", "/heliograph/v1/usage", everybody),
    ("GET", "/heliograph/v1/usage/{tenant}", one),
)
