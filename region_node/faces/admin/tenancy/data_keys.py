"""The data keys of a region: what tenants' entries are encrypted with at rest.

Is: paths of our own, below /heliograph/v1/keys. Isn't: keys; no answer holds one, wrapped or not.
Invariants: a key is removed only where no ledger can hold anything that it sealed, unless the caller says that this may
be lost.
Source: docs/operating/keys.md.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from aiohttp import web

from heliograph.model.errors import KeyMissing, MalformedRequest, NotAllowed, NotFound
from heliograph.model.feature_levels import SEALED_TENANTS
from region_node.faces.admin.calls.admin_context import Admin
from region_node.faces.admin.calls.auth_middleware import PRINCIPAL
from region_node.faces.admin.calls.call_rights import CallAccess, Route
from region_node.faces.admin.calls.existing import existing
from region_node.tiering.sealed_topics import uses
from storage.sealing.keyring import DataKey
from storage.sealing.sealing import Sealing

KEYS_MAX = 400
"""A tenant that rotates daily has so many after a year; only a super user makes more."""


async def listing(admin: Admin, request: web.Request) -> dict[str, Any]:
    sealing = await _sealing(admin)
    return {
        "region": admin.region,
        "master": sealing.master,
        "tenants": {tenant: _shown(found) for tenant, found in sealing.listing().items()},
    }


async def of_tenant(admin: Admin, request: web.Request) -> dict[str, Any]:
    """With the topics that may still hold something sealed with each older key."""
    sealing, tenant = await _sealing(admin), request.match_info["tenant"]
    found = sealing.listing().get(tenant, ())
    rows = _shown(found)
    for row, (count, names) in zip(rows, await _uses(admin, tenant, found), strict=True):
        row["topics"] = count
        row["for_example"] = names
    info = admin.view.tenant(tenant)
    return {
        "region": admin.region,
        "tenant": tenant,
        "required": info is not None and info.encryption_at_rest,
        "keys": rows,
    }


async def require(admin: Admin, request: web.Request) -> Any:
    """Everything of the tenant is encrypted at rest from now on, in each of its regions. Where one has no master key,
    its topics cannot be written there.
    """
    return await _require(admin, request, on=True)


async def lift(admin: Admin, request: web.Request) -> Any:
    """What is set for namespaces and topics holds again."""
    return await _require(admin, request, on=False)


async def _require(admin: Admin, request: web.Request, *, on: bool) -> dict[str, Any]:
    tenant = admin.tenant(request)
    if on and admin.reach_level is not None:
        await admin.reach_level(SEALED_TENANTS, f"that tenant {tenant} has to be encrypted at rest")
    after = await admin.config.require_encryption(tenant, on=on)
    await admin.seen(lambda: (found := admin.view.tenant(tenant)) is None or found.encryption_at_rest == on)
    admin.changed(request, {"required": not on}, {"required": on})
    return {
        "tenant": tenant,
        "required": on,
        "regions": list(after.allowed_regions),
        "master": admin.sealing.master if admin.sealing is not None else "",
    }


async def rotate(admin: Admin, request: web.Request) -> dict[str, Any]:
    tenant = request.match_info["tenant"]
    existing(admin.view.tenant(tenant), NotFound(f"tenant {tenant} does not exist"))
    sealing = await _sealing(admin)
    count = len(sealing.listing().get(tenant, ()))
    if count >= KEYS_MAX and not admin.security.rights.is_super(request[PRINCIPAL]):
        raise NotAllowed(
            f"tenant {tenant} has {count} data keys, and {KEYS_MAX} are enough: ask an operator to remove those that "
            "no topic needs any more"
        )
    key = await sealing.rotate(tenant)
    return {"region": admin.region, "tenant": tenant, "number": f"{key.number:016x}", "master": key.master}


async def rewrap(admin: Admin, request: web.Request) -> dict[str, Any]:
    sealing = await _sealing(admin)
    return {"region": admin.region, "master": sealing.master, "tenants": await sealing.rewrap()}


async def remove(admin: Admin, request: web.Request) -> Any:
    """?force=true: also where ledgers may hold what it sealed; that cannot be read by anybody any more."""
    sealing, tenant, text = await _sealing(admin), request.match_info["tenant"], request.match_info["number"]
    try:
        number = int(text, 16)
    except ValueError as error:
        raise MalformedRequest(f"key {text!r}: expected a number as `heliograph keys list` shows it") from error
    found = sealing.listing().get(tenant, ())
    numbers = [key.number for key in found]
    if request.query.get("force") != "true" and number in numbers[:-1]:
        count, names = (await _uses(admin, tenant, found))[numbers.index(number)]
        if count:
            raise NotAllowed(
                f"{count} topics may hold entries that are sealed with data key {text}, {', '.join(names[:3])} "
                f"among them: `heliograph keys reseal {tenant}` writes them anew, or let them be trimmed; with force "
                "they cannot be read any more"
            )
    await sealing.remove(tenant, number)
    return None


async def _uses(admin: Admin, tenant: str, found: tuple[DataKey, ...]) -> list[tuple[int, list[str]]]:
    """As `sealed_topics.uses`; of nothing, where this broker does not see what is stored."""
    meta = admin.usage_store
    if meta is None or len(found) < 2:
        return [(0, [])] * len(found)
    return await uses(meta, tenant, found, _stored(admin, tenant), admin.links.expiry.wall_ms)


async def _stored(admin: Admin, tenant: str) -> AsyncIterator[str]:
    for namespace in admin.view.namespaces(tenant):
        for name in await admin.topics.stored(namespace):
            yield name


async def _sealing(admin: Admin) -> Sealing:
    sealing = existing(admin.sealing, KeyMissing("this broker knows of no encryption at rest"))
    await sealing.look()
    return sealing


def _shown(found: tuple[DataKey, ...]) -> list[dict[str, Any]]:
    return [
        {
            "number": f"{key.number:016x}",
            "master": key.master,
            "created_ms": key.created_ms,
            "seals": at == len(found) - 1,
        }
        for at, key in enumerate(found)
    ]


_TENANT = "/heliograph/v1/keys/{tenant}"
ROUTES: tuple[Route, ...] = (
    Route("GET", "/heliograph/v1/keys", CallAccess.SUPER, listing),
    Route("POST", "/heliograph/v1/keys", CallAccess.SUPER, rewrap),
    Route("GET", _TENANT, CallAccess.TENANT, of_tenant),
    Route("POST", f"{_TENANT}/rotate", CallAccess.TENANT, rotate),
    Route("POST", f"{_TENANT}/required", CallAccess.SUPER, require),
    Route("DELETE", f"{_TENANT}/required", CallAccess.SUPER, lift),
    Route("DELETE", f"{_TENANT}/{{number}}", CallAccess.SUPER, remove),
)
