"""Bundles that are split by command, and what is set aside for them.

Is: the paths of Pulsar's `namespaces split-bundle` and `resource-quotas`. Isn't: the cut (`balance.bundle_splitting`),
or what a quota means (`balance.bundle_quotas`).
Source: docs/protocols/balancing.md, "Splitting", "Quotas".
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from aiohttp import web

from heliograph.model.admin_paths import NAMESPACE
from heliograph.model.errors import NotFound
from heliograph.runtime.throttle import RowPace
from region_node.faces.admin.calls.admin_context import Admin, OwnedElsewhere
from region_node.faces.admin.calls.call_bodies import Given
from region_node.faces.admin.calls.call_rights import CallAccess, Route
from region_node.faces.admin.calls.existing import divider_of, quotas_of
from region_node.placement.balance.broker_capacity import ResourceQuota
from region_node.placement.balance.bundle_splitting import RANGE

_WHOLE = (0, 0)


class Boundaries(Given, rename="camel"):
    """Pulsar's way to say hashes, from 0 to 4294967295."""

    split_boundaries: list[int] | None = None


async def split(
    admin: Admin, request: web.Request, given: list[int] | Boundaries | None, *, unload: bool = False
) -> None:
    """In place, at its owner. `splitAlgorithmName`, `unload`; the body: positions, for the way that wants them.
    `LARGEST` and `HOT` name a bundle, too.
    """
    namespace, bundle = await _chosen(admin, request)
    record = await admin.ownership.bundle_owner(namespace, bundle)
    if record is not admin.ownership.record:
        raise OwnedElsewhere(record)
    parts = await divider_of(admin).split(
        (namespace, bundle),
        request.query.get("splitAlgorithmName") or RANGE,
        (given.split_boundaries if isinstance(given, Boundaries) else given) or [],
    )
    admin.changed(request, None, {"bundles": [admin.table(namespace).name(index) for _, index in parts]})
    if unload:
        for _, index in parts:
            await admin.ownership.unload_bundle(namespace, index)


async def _chosen(admin: Admin, request: web.Request) -> tuple[str, int]:
    """Returns the namespace and the index of the bundle in the path; LARGEST: the one with the most topics; HOT: the
    one that works most. Raises NotFound, NotAllowed.
    """
    wanted = request.match_info["bundle"].upper()
    if wanted not in ("LARGEST", "HOT"):
        return admin.bundle(request)
    namespace = admin.namespace(request)
    table = admin.table(namespace)
    if wanted == "LARGEST":
        sizes, pace = Counter[int](), RowPace()
        for topic in await admin.topics.topics(namespace):
            await pace.row()
            sizes[table.of(topic)] += 1
        return namespace, max(range(table.count), key=lambda index: (sizes[index], -index))
    reports = admin.balancer.reports.values() if admin.balancer is not None else ()
    loads = {
        bundle: load
        for report in reports
        for bundle, load in report.carried.bundles
        if bundle[0] == namespace and bundle[1] < table.count
    }
    if not loads:
        raise NotFound(f"no broker has reported any load in {namespace} yet: name a bundle")
    return max(loads, key=lambda bundle: (loads[bundle], -bundle[1]))


async def get_quota(admin: Admin, request: web.Request) -> ResourceQuota:
    return quotas_of(admin).of(*_where(admin, request))


async def get_default(admin: Admin) -> ResourceQuota:
    return quotas_of(admin).default


async def set_quota(admin: Admin, request: web.Request, given: Any) -> None:
    where, quotas = _where(admin, request), quotas_of(admin)
    before, quota = quotas.of(*where), ResourceQuota.of(given)
    await quotas.put(*where, quota)
    admin.changed(request, before, quota)


async def set_default(admin: Admin, request: web.Request, given: Any) -> None:
    """Sets the quota of every bundle that has none of its own."""
    quotas = quotas_of(admin)
    before, quota = quotas.default, ResourceQuota.of(given)
    await quotas.put("", _WHOLE, quota)
    admin.changed(request, before, quota)


async def reset_quota(admin: Admin, request: web.Request) -> None:
    """Deletes the bundle's own quota, so that the default holds for it again."""
    where, quotas = _where(admin, request), quotas_of(admin)
    before = quotas.of(*where)
    if await quotas.delete(*where):
        admin.changed(request, before, None)


def _where(admin: Admin, request: web.Request) -> tuple[str, tuple[int, int]]:
    namespace, bundle = admin.bundle(request)
    return namespace, admin.table(namespace).range(bundle)


_DEFAULT = "/admin/v2/resource-quotas"
_ONE = "/admin/v2/resource-quotas/{tenant}/{namespace}/{bundle}"
ROUTES: tuple[Route, ...] = (
    Route("PUT", f"{NAMESPACE}/{{bundle}}/split", CallAccess.SUPER, split),
    Route("GET", _DEFAULT, CallAccess.SUPER, get_default),
    Route("POST", _DEFAULT, CallAccess.SUPER, set_default),
    Route("GET", _ONE, CallAccess.SUPER, get_quota),
    Route("POST", _ONE, CallAccess.SUPER, set_quota),
    Route("DELETE", _ONE, CallAccess.SUPER, reset_quota),
)
