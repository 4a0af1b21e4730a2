"""How the load lies on the region's brokers, and balancing held back for a while.

Is: what this broker's Balancer has heard, as everybody hears it; the pause. Isn't: a move: that is `unload` with a
destination.
Source: docs/protocols/balancing.md.
"""

from __future__ import annotations

from typing import Any

from aiohttp import web

from heliograph.model.errors import HeliographError, MalformedRequest
from region_node.faces.admin.calls.admin_context import Admin
from region_node.faces.admin.calls.call_rights import CallAccess, Route
from region_node.faces.admin.calls.existing import balancer_of
from region_node.placement.balance.balancer import Balancer

_PAUSE_MAX_S = 86_400.0
RESOURCES = {"cpu": "cpu", "memory": "memory", "network_in": "bandwidthIn", "network_out": "bandwidthOut"}
"""Our names -> those of Pulsar's load reports."""


async def show(admin: Admin, *, here: bool = False) -> dict[str, Any]:
    """Loads are shares of what a broker carries: 1.0 is all of it. `moves`: the newest of the broker that leads;
    `here=true`: of this one.
    """
    balancer, now_ms = balancer_of(admin), admin.clock.wall_ms()
    book = balancer.book
    return {
        "leader": balancer.leader,
        "paused_s": max(0.0, (book.pause.until_ms - now_ms) / 1000) if book.pause is not None else 0.0,
        "paused_by": book.pause.by if book.paused and book.pause is not None else "",
        "moves": list(balancer.recent) if here else await _moves(admin, balancer),
        "brokers": [
            {
                "broker": name,
                "load": report.load,
                "used": report.used,
                "bundles": report.bundles,
                "age_s": max(0.0, (now_ms - report.at_ms) / 1000),
                "heaviest": [
                    {"namespace": namespace, "bundle": index, "load": load}
                    for (namespace, index), load in report.carried.bundles[:10]
                ],
            }
            for name, report in sorted(balancer.reports.items())
        ],
    }


async def _moves(admin: Admin, balancer: Balancer) -> list[dict[str, Any]]:
    """Whoever leads knows its own; where it does not answer, there are none to show."""
    leader = next((record for record in admin.ownership.brokers() if record.broker == balancer.leader), None)
    if leader is None or leader.broker == balancer.broker:
        return list(balancer.recent)
    try:
        found: list[dict[str, Any]] = (await admin.call(leader, "GET", "/heliograph/v1/balance?here=true"))["moves"]
    except (HeliographError, KeyError):  # it is gone, or of an older version
        return []
    return found


async def availability(admin: Admin, request: web.Request) -> Any:
    """What the brokers that may serve the namespace use of what they have, in percent, as they said last; of one that
    has not said it yet, nothing.
    """
    namespace = f"{request.match_info['tenant']}/{request.match_info['namespace']}"
    admin.policies(namespace)
    balancer, permitted = balancer_of(admin), set(admin.ownership.permitted((namespace, 0)))
    answer: dict[str, Any] = {}
    for record in admin.ownership.brokers():
        if record.broker not in permitted:
            continue
        report, address = balancer.reports.get(record.broker), record.admin_address
        measured = report.used if report is not None else {}
        usage = {theirs: shown(measured[ours]) for ours, theirs in RESOURCES.items() if ours in measured}
        answer[address] = {"resourceId": address, "availableResource": {"resourceUsage": usage}}
    return answer


async def pause(admin: Admin, request: web.Request) -> None:
    """Nothing is shed for `seconds`; it ends by itself. Again: from now on."""
    try:
        seconds = float(request.query.get("seconds", "600"))
    except ValueError:
        seconds = -1.0
    if not 0 < seconds <= _PAUSE_MAX_S:
        raise MalformedRequest(f"seconds must be above 0 and at most {_PAUSE_MAX_S:.0f}: a pause ends by itself")
    await balancer_of(admin).set_pause(request.query.get("by", "an operator")[:200], seconds)


async def resume(admin: Admin) -> None:
    await balancer_of(admin).set_pause("", 0)


def shown(share: float) -> dict[str, float]:
    """As Pulsar's load reports say it, in percent."""
    return {"usage": share * 100, "limit": 100.0}


def used(admin: Admin) -> dict[str, float]:
    """The shares that this broker measured last; empty until it has."""
    report = admin.balancer.reports.get(admin.balancer.broker) if admin.balancer is not None else None
    return report.used if report is not None else {}


ROUTES: tuple[Route, ...] = (
    Route(
        "GET",
        "/admin/v2/broker-stats/broker-resource-availability/{tenant}/{namespace}",
        CallAccess.SUPER,
        availability,
    ),
    Route("GET", "/heliograph/v1/balance", CallAccess.SUPER, show, console="balance"),
    Route("POST", "/heliograph/v1/balance/pause", CallAccess.SUPER, pause),
    Route("DELETE", "/heliograph/v1/balance/pause", CallAccess.SUPER, resume),
)
