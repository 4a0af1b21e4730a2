"""Automatic failover of a namespace: wanted or not, and held or not.

Is: paths of our own, below /heliograph/v1/dr. Isn't: the decision (`region_node.dr.operations.automatic_failover`).
Source: docs/operating/disaster-recovery.md, "Automatic failover".
"""

from __future__ import annotations

from typing import Any

import msgspec
from aiohttp import web

from heliograph.model.admin_paths import DR
from heliograph.model.errors import NotFound
from region_node.dr.leadership.leadership_changes import Switching
from region_node.dr.operations.automatic_policy import (
    HOLD_S,
    Automatic,
    Hold,
    automatic,
    forget_automatic,
    hold,
    release,
)
from region_node.faces.admin.calls.admin_context import Admin
from region_node.faces.admin.calls.call_bodies import OnlyGiven
from region_node.faces.admin.calls.call_parameters import ExistingNamespace
from region_node.faces.admin.calls.call_rights import CallAccess, Route
from region_node.faces.admin.calls.existing import leases_of, role_of


class WantedAutomatic(OnlyGiven):
    """after_s: so long no broker of the active region must have a lease, and most of the others must have heard nothing
    of it. to: who may take over, the first that is there; none: whoever lacks least. hold_s: behind a move. risk_*: who
    lacks more does not take over.
    """

    after_s: float
    to: list[str] = msgspec.field(default_factory=list)
    hold_s: float = HOLD_S
    risk_messages: int | None = None
    risk_s: float | None = None


class WantedHold(OnlyGiven):
    """for_s: how many seconds it lasts, at most a day."""

    for_s: float


async def put(admin: Admin, request: web.Request, namespace: ExistingNamespace, given: WantedAutomatic) -> Automatic:
    """The namespace, which is active-passive, fails over by itself."""
    leases = leases_of(admin)
    made = Automatic(**{**msgspec.structs.asdict(given), "to": tuple(given.to)}, by=role_of(request))
    made.check(admin.policies(namespace).regions, leases.settings.ttl_ms / 1000)
    await Switching(leases.store, admin.clock.wall_ms).get(namespace)  # NotFound: it is active-active
    await leases.store.put(automatic(namespace), made.encode())
    admin.changed(request, None, made)
    return made


async def delete(admin: Admin, request: web.Request, namespace: ExistingNamespace) -> None:
    """An operator fails it over."""
    if not await forget_automatic(leases_of(admin).store, namespace):
        raise NotFound(f"{namespace} does not fail over by itself")
    admin.changed(request, "automatic", None)


async def put_hold(admin: Admin, request: web.Request, namespace: ExistingNamespace, given: WantedHold) -> Hold:
    """The namespace does not fail over by itself for so long."""
    return await _hold(admin, request, namespace, given)


async def delete_hold(admin: Admin, request: web.Request, namespace: ExistingNamespace) -> None:
    """Nothing holds it any more, also not a move before."""
    await _release(admin, request, namespace)


async def put_hold_all(admin: Admin, request: web.Request, given: WantedHold) -> Hold:
    """No namespace fails over by itself for so long."""
    return await _hold(admin, request, "", given)


async def delete_hold_all(admin: Admin, request: web.Request) -> None:
    """What holds all of them at once does so no longer."""
    await _release(admin, request, "")


async def _hold(admin: Admin, request: web.Request, namespace: str, given: WantedHold) -> Hold:
    made = await hold(leases_of(admin).store, namespace, given.for_s, role_of(request), admin.clock.wall_ms())
    admin.changed(request, None, made)
    return made


async def _release(admin: Admin, request: web.Request, namespace: str) -> None:
    if not await release(leases_of(admin).store, namespace):
        raise NotFound(f"nothing holds {namespace or 'all namespaces'}")
    admin.changed(request, "held", None)


def status(admin: Admin, namespace: str) -> dict[str, Any] | None:
    """As this broker knows it; None: it does not fail over by itself, or this broker takes no part."""
    return None if admin.automatic is None else admin.automatic.status(namespace)


ROUTES: tuple[Route, ...] = (
    Route("PUT", f"{DR}/automatic", CallAccess.SUPER, put),
    Route("DELETE", f"{DR}/automatic", CallAccess.SUPER, delete),
    Route("PUT", f"{DR}/hold", CallAccess.SUPER, put_hold),
    Route("DELETE", f"{DR}/hold", CallAccess.SUPER, delete_hold),
    Route("PUT", "/heliograph/v1/dr/hold", CallAccess.SUPER, put_hold_all),
    Route("DELETE", "/heliograph/v1/dr/hold", CallAccess.SUPER, delete_hold_all),
)
