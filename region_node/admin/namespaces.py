"""Namespaces and the policies that this version has: replication, deduplication, retention, persistence, time to live; bundles and unload.

Is: provisioning through the global configuration, and unloading through the owners. Isn't: policies that nothing obeys yet; their paths answer 404.
Source: Pulsar's Policies; `heliograph.model.policies`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from urllib.parse import quote

from aiohttp import web

from heliograph.model.errors import NotAllowed
from heliograph.model.names import bundle_range
from heliograph.model.policies import NamespacePolicies
from region_node.admin.context import Admin, Malformed, body, flag, typed_body

_INT_MAX = 1 << 31


async def list_of_tenant(admin: Admin, request: web.Request) -> Any:
    tenant = admin.tenant(request)
    if admin.view.tenant(tenant) is None:
        raise web.HTTPNotFound(reason=f"Tenant {tenant} does not exist")
    return sorted(admin.view.namespaces(tenant))


async def get(admin: Admin, request: web.Request) -> Any:
    policies = admin.policies(admin.namespace(request))
    return {
        "replication_clusters": list(policies.regions),
        "bundles": _bundles(policies.bundles),
        "deduplicationEnabled": policies.deduplication,
        "retention_policies": _retention(policies),
        "persistence": _persistence(policies),
        "message_ttl_in_seconds": policies.message_ttl_s,
        "deleted": False,
    }


async def create(admin: Admin, request: web.Request) -> Any:
    namespace = admin.namespace(request)
    if admin.view.tenant(admin.tenant(request)) is None:
        raise web.HTTPNotFound(reason=f"Tenant {admin.tenant(request)} does not exist")
    policies = _policies(admin, await body(request))
    await admin.config.create_namespace(namespace, policies)
    await admin.seen(lambda: admin.view.namespace(namespace) is not None)


async def delete(admin: Admin, request: web.Request) -> Any:
    namespace = admin.namespace(request)
    admin.policies(namespace)
    topics = await admin.topics.topics(namespace)
    if topics and not flag(request, "force"):
        raise web.HTTPConflict(reason=f"Cannot delete non empty namespace: {namespace} has {len(topics)} topics")
    for topic in topics:
        record = await admin.ownership.owner(topic)
        if record is admin.ownership.record:
            await admin.topics.delete_topic(topic, force=True)
        else:
            domain, _, rest = topic.partition("://")
            tenant, local_namespace, local = rest.split("/", 2)
            await admin.call(record, "DELETE", f"/admin/v2/{domain}/{tenant}/{local_namespace}/{quote(local, safe='')}?force=true")
    await admin.config.delete_namespace(namespace)
    await admin.seen(lambda: admin.view.namespace(namespace) is None)


async def topics(admin: Admin, request: web.Request) -> Any:
    namespace = admin.namespace(request)
    admin.policies(namespace)
    return [] if request.query.get("mode") == "NON_PERSISTENT" else sorted(await admin.topics.topics(namespace))


async def bundles(admin: Admin, request: web.Request) -> Any:
    return _bundles(admin.policies(admin.namespace(request)).bundles)


async def unload(admin: Admin, request: web.Request) -> Any:
    namespace = admin.namespace(request)
    for index in range(admin.policies(namespace).bundles):
        await _unload(admin, namespace, index)


async def unload_bundle(admin: Admin, request: web.Request) -> Any:
    namespace = admin.namespace(request)
    count = admin.policies(namespace).bundles
    wanted = request.match_info["bundle"].lower()
    index = next((i for i in range(count) if bundle_range(i, count) == wanted), -1)
    if index < 0:
        raise NotAllowed(f"{wanted} is no bundle of {namespace}: there are {', '.join(bundle_range(i, count) for i in range(count))}")
    await _unload(admin, namespace, index)


async def _unload(admin: Admin, namespace: str, index: int) -> None:
    record = admin.ownership.present_owner(namespace, index)
    if record is admin.ownership.record:
        await admin.ownership.unload_bundle(namespace, index)
    elif record is not None:
        await admin.call(record, "PUT", f"/admin/v2/namespaces/{namespace}/{bundle_range(index, admin.policies(namespace).bundles)}/unload")


# -- single policies --------------------------------------------------------------------------------------------------


async def _change(admin: Admin, request: web.Request, change: Callable[[NamespacePolicies], NamespacePolicies]) -> None:
    namespace = admin.namespace(request)
    admin.policies(namespace)
    await admin.config.update_namespace(namespace, change)
    await admin.seen(lambda: (p := admin.view.namespace(namespace)) is not None and change(p) == p)


async def get_replication(admin: Admin, request: web.Request) -> Any:
    return list(admin.policies(admin.namespace(request)).regions)


async def set_replication(admin: Admin, request: web.Request) -> Any:
    regions = _regions(admin, await typed_body(request, list, 'a list of clusters, such as ["us", "eu"],'))
    if not regions:
        raise NotAllowed("a namespace needs at least one cluster")
    await _change(admin, request, lambda p: replace(p, regions=regions))


async def get_deduplication(admin: Admin, request: web.Request) -> Any:
    return web.json_response(admin.policies(admin.namespace(request)).deduplication)


async def set_deduplication(admin: Admin, request: web.Request) -> Any:
    on: bool = await typed_body(request, bool, "true or false")
    await _change(admin, request, lambda p: replace(p, deduplication=on))


async def unset_deduplication(admin: Admin, request: web.Request) -> Any:
    await _change(admin, request, lambda p: replace(p, deduplication=False))


async def get_retention(admin: Admin, request: web.Request) -> Any:
    return _retention(admin.policies(admin.namespace(request)))


async def set_retention(admin: Admin, request: web.Request) -> Any:
    minutes, size_mb = _given_retention(await typed_body(request, dict, "RetentionPolicies"))
    await _change(admin, request, lambda p: replace(p, retention_minutes=minutes, retention_mb=size_mb))


async def unset_retention(admin: Admin, request: web.Request) -> Any:
    await _change(admin, request, lambda p: replace(p, retention_minutes=0, retention_mb=0))


async def get_persistence(admin: Admin, request: web.Request) -> Any:
    return _persistence(admin.policies(admin.namespace(request)))


async def set_persistence(admin: Admin, request: web.Request) -> Any:
    quorums: dict[str, Any] = _given_persistence(await typed_body(request, dict, "PersistencePolicies"))
    await _change(admin, request, lambda p: replace(p, **quorums))


async def unset_persistence(admin: Admin, request: web.Request) -> Any:
    plain = NamespacePolicies()
    quorums: dict[str, Any] = {"ensemble": plain.ensemble, "write_quorum": plain.write_quorum, "ack_quorum": plain.ack_quorum}
    await _change(admin, request, lambda p: replace(p, **quorums))


async def get_ttl(admin: Admin, request: web.Request) -> Any:
    return web.json_response(admin.policies(admin.namespace(request)).message_ttl_s)


async def set_ttl(admin: Admin, request: web.Request) -> Any:
    seconds = await typed_body(request, int, "a number of seconds")
    if not 0 <= seconds < _INT_MAX:
        raise NotAllowed(f"the time to live must be 0 or more seconds, not {seconds}")
    await _change(admin, request, lambda p: replace(p, message_ttl_s=seconds))


async def unset_ttl(admin: Admin, request: web.Request) -> Any:
    await _change(admin, request, lambda p: replace(p, message_ttl_s=0))


# -- JSON ---------------------------------------------------------------------------------------------------------------


def _bundles(count: int) -> dict[str, Any]:
    boundaries = [bundle_range(index, count).split("_")[0] for index in range(count)]
    return {"boundaries": [*boundaries, "0xffffffff"], "numBundles": count}


def _retention(policies: NamespacePolicies) -> dict[str, int]:
    return {"retentionTimeInMinutes": policies.retention_minutes, "retentionSizeInMB": policies.retention_mb}


def _persistence(policies: NamespacePolicies) -> dict[str, Any]:
    return {
        "bookkeeperEnsemble": policies.ensemble,
        "bookkeeperWriteQuorum": policies.write_quorum,
        "bookkeeperAckQuorum": policies.ack_quorum,
        "managedLedgerMaxMarkDeleteRate": 0.0,
    }


def _given_retention(fields: dict[str, Any]) -> tuple[int, int]:
    values = fields.get("retentionTimeInMinutes", 0), fields.get("retentionSizeInMB", 0)
    if not all(type(value) is int and -1 <= value < _INT_MAX for value in values):
        raise Malformed("retentionTimeInMinutes and retentionSizeInMB must be whole numbers: -1 for ever, 0 none")
    return values


def _given_persistence(fields: dict[str, Any]) -> dict[str, int]:
    names = (("bookkeeperEnsemble", "ensemble"), ("bookkeeperWriteQuorum", "write_quorum"), ("bookkeeperAckQuorum", "ack_quorum"))
    quorums = {ours: fields[theirs] for theirs, ours in names if fields.get(theirs)}
    if not all(type(value) is int for value in quorums.values()):
        raise Malformed("bookkeeperEnsemble, bookkeeperWriteQuorum, and bookkeeperAckQuorum must be whole numbers")
    return quorums


def _regions(admin: Admin, names: list[Any]) -> tuple[str, ...]:
    unknown = [str(name) for name in names if not isinstance(name, str) or admin.view.region(name) is None]
    if unknown:
        raise web.HTTPForbidden(reason=f"Invalid cluster id: {', '.join(unknown)}")
    return tuple(dict.fromkeys(names))


def _policies(admin: Admin, given: Any) -> NamespacePolicies:
    """Policies of a new namespace; none given: this region alone, the defaults else. A list is taken as its clusters."""
    if isinstance(given, list):
        given = {"replication_clusters": given}
    if given is not None and not isinstance(given, dict):
        raise Malformed("expected Policies in the body, or nothing")
    fields: dict[str, Any] = given or {}
    values: dict[str, Any] = {"regions": _regions(admin, fields.get("replication_clusters") or []) or (admin.region,)}
    bundles = fields.get("bundles") or fields
    if isinstance(bundles, dict) and (count := bundles.get("numBundles")):
        if type(count) is not int:
            raise Malformed("numBundles must be a whole number")
        values["bundles"] = count
    if isinstance(fields.get("deduplicationEnabled"), bool):
        values["deduplication"] = fields["deduplicationEnabled"]
    if isinstance(retention := fields.get("retention_policies"), dict):
        values["retention_minutes"], values["retention_mb"] = _given_retention(retention)
    if isinstance(persistence := fields.get("persistence"), dict):
        values |= _given_persistence(persistence)
    if type(seconds := fields.get("message_ttl_in_seconds")) is int:
        values["message_ttl_s"] = seconds
    return NamespacePolicies(**values)


_ONE = "/admin/v2/namespaces/{tenant}/{namespace}"
ROUTES = (
    ("GET", "/admin/v2/namespaces/{tenant}", list_of_tenant),
    ("GET", _ONE, get),
    ("PUT", _ONE, create),
    ("DELETE", _ONE, delete),
    ("GET", f"{_ONE}/topics", topics),
    ("GET", f"{_ONE}/bundles", bundles),
    ("PUT", f"{_ONE}/unload", unload),
    ("PUT", f"{_ONE}/{{bundle}}/unload", unload_bundle),
    ("GET", f"{_ONE}/replication", get_replication),
    ("POST", f"{_ONE}/replication", set_replication),
    ("GET", f"{_ONE}/deduplication", get_deduplication),
    ("POST", f"{_ONE}/deduplication", set_deduplication),
    ("DELETE", f"{_ONE}/deduplication", unset_deduplication),
    ("GET", f"{_ONE}/retention", get_retention),
    ("POST", f"{_ONE}/retention", set_retention),
    ("DELETE", f"{_ONE}/retention", unset_retention),
    ("GET", f"{_ONE}/persistence", get_persistence),
    ("POST", f"{_ONE}/persistence", set_persistence),
    ("DELETE", f"{_ONE}/persistence", unset_persistence),
    ("GET", f"{_ONE}/messageTTL", get_ttl),
    ("POST", f"{_ONE}/messageTTL", set_ttl),
    ("DELETE", f"{_ONE}/messageTTL", unset_ttl),
)
