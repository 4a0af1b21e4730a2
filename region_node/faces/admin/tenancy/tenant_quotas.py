"""Quotas of tenants: what an operator lets each have, whatever its own admin sets: namespaces, topics, stored bytes,
and a group of rates.

Is: GET (the tenant's admin, too), PUT, and DELETE of `/heliograph/v1/tenants/{tenant}/quota`, and the check of a new
namespace. Isn't: the check of a new topic (`region_node.topics.policies.auto_creation`), or of what is stored
(`region_node.usage.stored_bytes`).
Source: docs/operating/tenants.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

import msgspec
from aiohttp import web

from heliograph.model.configuration.configuration_records import TenantQuota
from heliograph.model.configuration.drill_shadows import is_marked
from heliograph.model.configuration.policy_values import LONG_MAX, whole
from heliograph.model.errors import NotAllowed
from region_node.faces.admin.calls.admin_context import Admin
from region_node.faces.admin.calls.call_bodies import OnlyGiven
from region_node.faces.admin.calls.call_parameters import ExistingTenant
from region_node.faces.admin.calls.call_rights import CallAccess, Route

_GROUP = "resource_group"


async def get(admin: Admin, tenant: ExistingTenant) -> dict[str, Any]:
    """The bounds, and what is used of them in this region."""
    used = {
        "namespaces": len(admin.view.namespaces(tenant)),
        "topics": 0,
        "storage_bytes": await admin.stored.of(tenant) if admin.stored else 0,
    }
    for namespace in admin.view.namespaces(tenant):
        used["topics"] += await admin.topics.count(namespace)
    return {
        **asdict(admin.view.tenant_quota(tenant) or TenantQuota()),
        "used": used,
        "full": tenant in admin.topics.policies.full,
    }


class Bounds(OnlyGiven):
    max_namespaces: int | None = None
    max_topics: int | None = None
    max_storage_bytes: int | None = None
    resource_group: str | None = None


async def put(admin: Admin, request: web.Request, tenant: ExistingTenant, given: Bounds) -> TenantQuota:
    """Body: the bounds that change; 0 is none. {"max_topics": 100, "max_storage_bytes": 107374182400, "resource_group":
    "small"}.
    """
    changes = {
        name: _checked(admin, name, value) for name, value in msgspec.structs.asdict(given).items() if value is not None
    }

    def change(old: TenantQuota | None) -> TenantQuota:
        return replace(old or TenantQuota(), **changes)

    before, after = await admin.config.change_tenant_quota(tenant, change)
    await admin.seen(lambda: (quota := admin.view.tenant_quota(tenant)) is not None and change(quota) == quota)
    admin.changed(request, _shown(before), _shown(after))
    return after or TenantQuota()


async def delete(admin: Admin, request: web.Request, tenant: ExistingTenant) -> None:
    before, _ = await admin.config.change_tenant_quota(tenant, lambda _: None)
    await admin.seen(lambda: admin.view.tenant_quota(tenant) is None)
    admin.changed(request, _shown(before), None)


def check_namespaces(admin: Admin, tenant: str) -> None:
    """Raises NotAllowed: it has as many as it may, without shadows of drills."""
    quota = admin.view.tenant_quota(tenant)
    count = sum(not is_marked(name, admin.view.namespace(name)) for name in admin.view.namespaces(tenant))
    if quota is not None and quota.max_namespaces and count >= quota.max_namespaces:
        raise NotAllowed(
            f"tenant {tenant} has {count} namespaces, and may have {quota.max_namespaces}: delete one, or ask an "
            "operator for more"
        )


def _checked(admin: Admin, name: str, value: Any) -> Any:
    if name != _GROUP:
        return whole(0, LONG_MAX)(name, value)
    if value and admin.view.resource_group(value) is None:
        raise NotAllowed(f"Resource group {value} does not exist: make it by PUT /admin/v2/resourcegroups/NAME first")
    return value


def _shown(quota: TenantQuota | None) -> Mapping[str, Any] | None:
    return None if quota is None else asdict(quota)


_QUOTA = "/heliograph/v1/tenants/{tenant}/quota"
ROUTES: tuple[Route, ...] = (
    Route("GET", _QUOTA, CallAccess.TENANT, get),
    Route("PUT", _QUOTA, CallAccess.SUPER, put),
    Route("DELETE", _QUOTA, CallAccess.SUPER, delete),
)
