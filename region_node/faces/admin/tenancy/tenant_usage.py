"""Usage of each tenant over REST: this broker's sums, or the whole region's; and the region's days of a month.

Is: `GET /heliograph/v1/usage` (all tenants) and `/heliograph/v1/usage/{tenant}`; `all=true` asks every broker of the
region. `GET /heliograph/v1/usage-days` and `/heliograph/v1/usage-days/{tenant}` with `month=2026-11`. Isn't: the
counting (`region_node.usage.tenant_usage`), or keeping it (`region_node.usage.usage_days`).
"""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from aiohttp import web

from heliograph.model.errors import NotFound
from region_node.faces.admin.calls.admin_context import Admin, flag
from region_node.faces.admin.calls.call_parameters import Tenant
from region_node.faces.admin.calls.call_rights import CallAccess, Route
from region_node.faces.admin.calls.existing import existing, of_other_brokers
from region_node.usage.tenant_usage import Usage, added
from region_node.usage.usage_days import check_month, day_of, days_of, stored_by_tenant


async def counted(admin: Admin) -> Usage:
    """The broker's sums, up to now."""
    admin.usage.stored(await stored_by_tenant(admin.topics.loaded.values()))
    return admin.usage


async def everybody(admin: Admin, request: web.Request) -> Any:
    return added([(await counted(admin)).rows(), *await _elsewhere(admin, request, "/heliograph/v1/usage")])


async def one(admin: Admin, request: web.Request, tenant: Tenant) -> Any:
    rows = (await counted(admin)).rows()
    tables = [{tenant: rows.get(tenant, {})}]
    tables += [
        {tenant: row} for row in await _elsewhere(admin, request, f"/heliograph/v1/usage/{quote(tenant, safe='')}")
    ]
    return added(tables)[tenant]


async def days(admin: Admin, request: web.Request) -> Any:
    """{"region", "month", "days": [{"day", "tenant", sums}]}, of the tenant in the path, or of all."""
    tenant = admin.tenant(request) if "tenant" in request.match_info else ""
    month = check_month(request.query.get("month", day_of(admin.clock.wall_ms())[:7]))
    rows = await days_of(existing(admin.usage_store, NotFound("this broker keeps no usage by day")), month, tenant)
    return {
        "region": admin.region,
        "month": month,
        "days": [{"day": day, "tenant": whose, **used.sums()} for day, whose, used in rows],
    }


async def _elsewhere(admin: Admin, request: web.Request, path: str) -> list[dict[str, Any]]:
    return await of_other_brokers(admin, "GET", path) if flag(request, "all") else []


ROUTES: tuple[Route, ...] = (
    Route("GET", "/heliograph/v1/usage", CallAccess.SUPER, everybody),
    Route("GET", "/heliograph/v1/usage/{tenant}", CallAccess.TENANT, one, console="usage"),
    Route("GET", "/heliograph/v1/usage-days", CallAccess.SUPER, days),
    Route("GET", "/heliograph/v1/usage-days/{tenant}", CallAccess.TENANT, days),
)
