"""Namespaces: create, delete, list; their regions, bundles, and unload.

Is: provisioning through the global configuration, and unloading through the owners. Isn't: the policies of their topics
(`policy_routes`).
Source: Pulsar's Policies; `heliograph.model.configuration.configuration_records`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from aiohttp import web

from heliograph.model.admin_paths import NAMESPACE, topic_path
from heliograph.model.configuration.configuration_records import NamespacePolicies
from heliograph.model.configuration.policy_table import POLICIES
from heliograph.model.errors import (
    AlreadyExists,
    HeliographError,
    MalformedRequest,
    MetadataUnavailable,
    NotAllowed,
    NotFound,
    NotOwner,
    Unauthorized,
)
from region_node.faces.admin.calls.admin_context import Admin
from region_node.faces.admin.calls.auth_middleware import PRINCIPAL
from region_node.faces.admin.calls.call_parameters import ExistingNamespace, ExistingTenant, Namespace
from region_node.faces.admin.calls.call_rights import CallAccess, Route
from region_node.faces.admin.calls.existing import deletion_of, existing_namespace, role_of
from region_node.faces.admin.calls.region_facts import topics_elsewhere
from region_node.faces.admin.tenancy.policy_routes import check_value
from region_node.faces.admin.tenancy.region_removal import (
    buried_in,
    check_active_stays,
    check_nothing_buried,
    forget_leadership,
    is_everywhere,
    leaving,
    namespace_deleted,
)
from region_node.faces.admin.tenancy.tenant_quotas import check_namespaces
from region_node.topics.serving.named_topics import in_bundle, joined


async def list_of_tenant(admin: Admin, tenant: ExistingTenant) -> list[str]:
    return sorted(admin.view.namespaces(tenant))


async def get(admin: Admin, namespace: Namespace) -> Any:
    policies = admin.policies(namespace)
    fields: dict[str, Any] = {
        "replication_clusters": [*policies.regions, *policies.clusters],
        "bundles": await bundles(admin, namespace),
        "deleted": namespace_deleted(admin, namespace) is not None,
        "migrated": admin.region in admin.view.migrated_in(namespace),
    }
    if policies.allowed_regions:
        fields["allowed_clusters"] = list(policies.allowed_regions)
    for policy in POLICIES:
        if policy.field and policy.name in policies.policies:
            value = policies.policies[policy.name]
            fields[policy.field] = {admin.region: value} if policy.by_region else value
    return fields


async def create(
    admin: Admin,
    request: web.Request,
    namespace: Namespace,
    tenant: ExistingTenant,
    given: dict[str, Any] | list[str] | None,
) -> None:
    policies = _policies(admin, request, given)
    if deleted := namespace_deleted(admin, namespace):
        raise AlreadyExists(deleted.taken)
    check_namespaces(admin, tenant)
    await admin.config.create_namespace(namespace, policies)
    await admin.seen(lambda: admin.view.namespace(namespace) is not None)
    admin.changed(request, None, await get(admin, namespace))


async def delete(admin: Admin, request: web.Request, namespace: ExistingNamespace, *, force: bool = False) -> None:
    """With all that is in it, in every region that has it; at once where that is nothing, or no other region has."""
    if deleted := namespace_deleted(admin, namespace):
        raise NotFound(deleted.reason)
    if not force:
        await check_empty(admin, namespace)
        await check_empty_elsewhere(admin, request, namespace)
        await check_empty(admin, namespace)  # the others may have taken seconds
    if is_everywhere(admin, namespace) and (force or buried_in(admin, namespace)):
        admin.changed(request, None, await deletion_of(admin).namespace(namespace, by=role_of(request)))
        return
    check_nothing_buried(admin, namespace)
    before = await get(admin, namespace)
    await delete_whole(admin, namespace, await admin.topics.topics(namespace) if force else [])
    admin.changed(request, before, None)
    await admin.seen(lambda: admin.view.namespace(namespace) is None)


async def check_empty(admin: Admin, namespace: str) -> None:
    """Raises web.HTTPConflict where this region has topics of it."""
    if topics := await admin.topics.topics(namespace):
        raise web.HTTPConflict(reason=f"Cannot delete non empty namespace: {namespace} has {len(topics)} topics")


async def check_empty_elsewhere(admin: Admin, request: web.Request, namespace: str) -> None:
    """The topics of another region would stay there, and nobody could reach them. Raises web.HTTPConflict,
    MetadataUnavailable or NotAllowed (a region that cannot be asked).
    """
    found = await topics_elsewhere(admin, request, namespace)
    there = [f"{count} topics in {region}" for region, count in found.items() if isinstance(count, int) and count]
    if there:
        raise web.HTTPConflict(reason=f"Cannot delete non empty namespace: {namespace} has {', '.join(there)}")
    for region, error in found.items():
        if isinstance(error, HeliographError):
            kind, then = (
                (NotAllowed, "")
                if isinstance(error, NotAllowed)
                else (MetadataUnavailable, ": try again when it answers")
            )
            forced = (
                f"force deletes the namespace with all that is in it, in {region} too, once that is back"
                if is_everywhere(admin, namespace)
                else f"force deletes the namespace without asking {region}, and its topics stay there, out of reach"
            )
            raise kind(f"{error}; whether {namespace} has topics there is not known{then}; {forced}") from error


async def delete_whole(admin: Admin, namespace: str, topics: list[str]) -> None:
    """The namespace itself goes last: until then a deletion that failed can be given again. topics: all that are
    stored here.
    """
    await delete_topics(admin, topics)
    await admin.topics.policies.forget_namespace(namespace)
    await admin.topics.schemas.delete_namespace(namespace)
    await forget_leadership(admin, namespace)
    await admin.config.delete_namespace(namespace)


async def delete_topics(admin: Admin, topics: list[str]) -> None:
    """With all their data, at their owners."""
    for topic in topics:
        record = await admin.ownership.owner(topic)
        if record is admin.ownership.record:
            await admin.topics.delete_topic(topic, force=True)
        else:
            await admin.call(record, "DELETE", f"{topic_path(topic)}?force=true&onlyHere=true")


async def delete_bundle(admin: Admin, request: web.Request, *, force: bool = False) -> None:
    """The topics of one bundle; the bundle itself stays, for new ones."""
    namespace, wanted = admin.bundle(request)
    table = admin.table(namespace)
    topics = await in_bundle(table, wanted, await admin.topics.topics(namespace))
    if topics and is_everywhere(admin, namespace):
        raise NotAllowed(
            f"other regions may have the {len(topics)} topics of {table.name(wanted)}, and divide {namespace} by "
            "bundles of their own: delete the topics, or the namespace"
        )
    if topics and not force:
        raise web.HTTPConflict(
            reason=f"Cannot delete non empty bundle: {table.name(wanted)} of {namespace} has {len(topics)} topics"
        )
    await delete_topics(admin, topics)


async def topics(admin: Admin, namespace: ExistingNamespace, *, mode: str = "") -> list[str]:
    mode = (mode or "PERSISTENT").upper()
    found = [] if mode == "NON_PERSISTENT" else await admin.topics.listed(namespace)
    return joined(found, () if mode == "PERSISTENT" else admin.topics.volatile_topics(namespace))


async def bundles(admin: Admin, namespace: Namespace) -> Any:
    table = admin.table(namespace)
    return {"boundaries": table.boundaries(), "numBundles": table.count}


async def unload(admin: Admin, namespace: Namespace) -> None:
    for index in range(admin.table(namespace).count):
        await _unload(admin, namespace, index)


async def unload_bundle(admin: Admin, request: web.Request, bundle: str, *, destinationBroker: str = "") -> None:
    namespace, index = admin.bundle(request)
    if to := destinationBroker.removeprefix("http://").removeprefix("https://"):
        if not admin.security.rights.is_super(principal := request[PRINCIPAL]):
            raise Unauthorized(
                f"the role {principal.role!r} may not say where a bundle comes to: leave destinationBroker away, or "
                "ask a super user"
            )
        names = {record.admin_address: record.broker for record in admin.ownership.brokers()}
        if not await admin.ownership.transfer(namespace, index, names.get(to, to)):
            raise NotOwner(
                f"{bundle} of {namespace} did not come to {to} in time: it has gone, or is slow; look the bundle up "
                "to see where it is"
            )
        return
    await _unload(admin, namespace, index)


async def _unload(admin: Admin, namespace: str, index: int) -> None:
    record = admin.ownership.present_owner(namespace, index)
    if record is admin.ownership.record:
        await admin.ownership.unload_bundle(namespace, index)
    elif record is not None:
        await admin.call(record, "PUT", f"/admin/v2/namespaces/{namespace}/{admin.table(namespace).name(index)}/unload")


# -- where it is --------------------------------------------------------------------------------------------------


async def _change(admin: Admin, request: web.Request, change: Callable[[NamespacePolicies], NamespacePolicies]) -> None:
    namespace = existing_namespace(admin, request)
    before = admin.policies(namespace)
    after = await admin.config.update_namespace(namespace, change)
    await admin.seen(lambda: (p := admin.view.namespace(namespace)) is not None and change(p) == p)
    admin.changed(request, _where(before), _where(after))


def _where(policies: NamespacePolicies) -> dict[str, list[str]]:
    return {
        "replication_clusters": [*policies.regions, *policies.clusters],
        "allowed_clusters": list(policies.allowed_regions),
    }


async def get_replication(admin: Admin, namespace: Namespace) -> list[str]:
    policies = admin.policies(namespace)
    return [*policies.regions, *policies.clusters]


async def set_replication(
    admin: Admin, request: web.Request, namespace: Namespace, given: list[str], *, dry_run: bool = False
) -> Any:
    regions, clusters = admin.parted(given)
    if not regions:
        raise NotAllowed("a namespace needs at least one region")
    check_active_stays(admin, namespace, regions)
    if dry_run:
        return await leaving(admin, namespace, regions)
    await _change(admin, request, lambda p: replace(p.in_regions(regions), clusters=clusters))


async def get_allowed(admin: Admin, namespace: Namespace) -> list[str]:
    return list(admin.policies(namespace).allowed_regions)


async def set_allowed(admin: Admin, request: web.Request, namespace: Namespace, given: list[str]) -> None:
    regions = admin.regions(given)
    missing = [region for region in admin.policies(namespace).regions if regions and region not in regions]
    if missing:
        raise NotAllowed(f"the namespace is replicated to {missing[0]}: the allowed clusters must include it")
    await _change(admin, request, lambda p: replace(p, allowed_regions=regions))


# -- JSON --------------------------------------------------------------------------------------------------------------


def _policies(admin: Admin, request: web.Request, given: dict[str, Any] | list[str] | None) -> NamespacePolicies:
    """Policies of a new namespace; none given: this region alone, the defaults else. A list is taken as its
    clusters. Each is checked as if it were set by itself.
    """
    if isinstance(given, list):
        given = {"replication_clusters": given}
    fields: dict[str, Any] = given or {}
    regions, clusters = admin.parted(fields.get("replication_clusters") or [])
    values: dict[str, Any] = {"regions": regions or (admin.region,), "clusters": clusters}
    bundles = fields.get("bundles") or fields
    if isinstance(bundles, dict) and (count := bundles.get("numBundles")):
        if type(count) is not int:
            raise MalformedRequest("numBundles must be a whole number")
        values["bundles"] = count
    policies: dict[str, Any] = {}
    for policy in POLICIES:
        value = fields.get(policy.field) if policy.field else None
        if policy.by_region and isinstance(value, dict):
            value = value.get(admin.region) or next(iter(value.values()), None)
        if value is not None and value != {}:
            policies[policy.name] = checked = policy.check(policy.name, value)
            check_value(admin, request, policy, checked, values["regions"])
    return NamespacePolicies(**values, policies=policies)


ROUTES: tuple[Route, ...] = (
    Route("GET", "/admin/v2/namespaces/{tenant}", CallAccess.TENANT, list_of_tenant, console="namespaces"),
    Route("GET", NAMESPACE, CallAccess.TENANT, get),
    Route("PUT", NAMESPACE, CallAccess.TENANT, create),
    Route("DELETE", NAMESPACE, CallAccess.TENANT, delete),
    Route("DELETE", f"{NAMESPACE}/{{bundle:0[xX][0-9a-fA-F]+_0[xX][0-9a-fA-F]+}}", CallAccess.TENANT, delete_bundle),
    Route("GET", f"{NAMESPACE}/topics", CallAccess.LIST, topics),
    Route("GET", f"{NAMESPACE}/bundles", CallAccess.TENANT, bundles),
    Route("PUT", f"{NAMESPACE}/unload", CallAccess.TENANT, unload),
    Route("PUT", f"{NAMESPACE}/{{bundle}}/unload", CallAccess.TENANT, unload_bundle),
    Route("GET", f"{NAMESPACE}/replication", CallAccess.TENANT, get_replication),
    Route("POST", f"{NAMESPACE}/replication", CallAccess.TENANT, set_replication),
    Route("GET", f"{NAMESPACE}/allowedClusters", CallAccess.TENANT, get_allowed),
    Route("POST", f"{NAMESPACE}/allowedClusters", CallAccess.TENANT, set_allowed),
)
