"""Tenants: list, get, create, update, delete."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from heliograph.model.configuration.configuration_records import TenantInfo
from heliograph.model.errors import NotAllowed
from region_node.faces.admin.calls.admin_context import Admin
from region_node.faces.admin.calls.call_bodies import Given
from region_node.faces.admin.calls.call_parameters import ExistingTenant, Tenant
from region_node.faces.admin.calls.call_rights import CallAccess, Route
from region_node.faces.admin.tenancy.namespaces import check_empty, check_empty_elsewhere, delete_whole
from region_node.faces.admin.tenancy.region_removal import check_nothing_buried, is_everywhere, namespace_deleted


async def list_all(admin: Admin) -> list[str]:
    return sorted(admin.view.tenants())


async def get(admin: Admin, tenant: ExistingTenant) -> Any:
    info = admin.view.tenant(tenant)
    assert info is not None
    return _shown(info)


class TenantData(Given, rename="camel"):
    """Pulsar's TenantInfo; what is left out is empty."""

    admin_roles: list[str] | None = None
    allowed_clusters: list[str] | None = None


async def create(admin: Admin, request: web.Request, tenant: Tenant, given: TenantData | None) -> None:
    info = _info(admin, given)
    await admin.config.create_tenant(tenant, info)
    await admin.seen(lambda: admin.view.tenant(tenant) is not None)
    admin.changed(request, None, _shown(info))


async def update(admin: Admin, request: web.Request, tenant: ExistingTenant, given: TenantData | None) -> None:
    before, info = await get(admin, tenant), _info(admin, given)
    after = await admin.config.update_tenant(tenant, info)
    await admin.seen(lambda: admin.view.tenant(tenant) == after)
    admin.changed(request, before, _shown(after))


async def delete(admin: Admin, request: web.Request, tenant: ExistingTenant, *, force: bool = False) -> None:
    """force: with its namespaces, where each is of this region alone, or empty: others are deleted by themselves, in
    every region.
    """
    namespaces = admin.view.namespaces(tenant)
    for namespace in namespaces:
        if deleted := namespace_deleted(admin, namespace):
            raise web.HTTPConflict(reason=f"{deleted.taken}. Until then its tenant stays")
    if namespaces and not force:
        raise web.HTTPConflict(reason=f"The tenant still has {len(namespaces)} active namespaces")
    for namespace in namespaces:
        if is_everywhere(admin, namespace):
            await check_empty(admin, namespace)
            await check_empty_elsewhere(admin, request, namespace)
        check_nothing_buried(admin, namespace)
    for namespace in namespaces:
        await delete_whole(admin, namespace, await admin.topics.topics(namespace))
    before = await get(admin, tenant)
    await admin.config.delete_tenant(tenant)
    admin.changed(request, before, None)
    await admin.seen(lambda: admin.view.tenant(tenant) is None)


def _shown(info: TenantInfo) -> dict[str, Any]:
    duty = {"encryptionAtRest": True} if info.encryption_at_rest else {}  # no field of Pulsar's
    return {"adminRoles": list(info.admin_roles), "allowedClusters": list(info.allowed_regions), **duty}


def _info(admin: Admin, given: TenantData | None) -> TenantInfo:
    given = given or TenantData()
    regions = [
        name for name in given.allowed_clusters or () if admin.view.cluster(name) is None
    ]  # those lie behind a region that has to be allowed
    unknown = [name for name in regions if admin.view.region(name) is None]
    if unknown:
        raise NotAllowed(f"Clusters do not exist: {', '.join(unknown)}")
    return TenantInfo(admin_roles=tuple(given.admin_roles or ()), allowed_regions=tuple(regions))


ROUTES: tuple[Route, ...] = (
    Route("GET", "/admin/v2/tenants", CallAccess.SUPER, list_all, console="tenants"),
    Route("GET", "/admin/v2/tenants/{tenant}", CallAccess.TENANT, get),
    Route("PUT", "/admin/v2/tenants/{tenant}", CallAccess.SUPER, create),
    Route("POST", "/admin/v2/tenants/{tenant}", CallAccess.SUPER, update),
    Route("DELETE", "/admin/v2/tenants/{tenant}", CallAccess.SUPER, delete),
)
