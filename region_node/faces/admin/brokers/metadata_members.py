"""Members of the two metadata groups, the region's own and the global configuration: who belongs to them, and how that
is changed.

Is: the paths below /heliograph/v1/metadata/members and /heliograph/v1/config/members, and the metrics of both. Isn't: a
rule of membership; the group's leader decides, and its sentence is the answer (412).
Invariants: a change is answered once it is committed; repeating one does no harm; `dry_run=true` asks the leader and
changes nothing.
Source: docs/protocols/admin.md, "Members"; heliograph.kv.server.members_api.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Annotated, Any

from aiohttp import web
from msgspec import Meta

from global_config.voters.witness import marked
from heliograph.model.errors import HeliographError, MetadataUnavailable
from region_node.faces.admin.calls.admin_context import Admin, Members, flag
from region_node.faces.admin.calls.call_bodies import Given
from region_node.faces.admin.calls.call_rights import CallAccess, Route
from region_node.metrics.metadata_store_metrics import member_samples
from region_node.runtime import prometheus_text

_SCRAPE_S = 0.5


async def show(admin: Admin, request: web.Request, *, here: bool = False) -> Any:
    """As the leader knows it; where nobody leads, or with `here=true`, as the region's own node does. `witness`: of the
    global configuration, whether the voter is no region.
    """
    group, regions = _group(admin, request), [region.name for region in admin.view.regions()]
    report = (await group("here"))[0] if here else await _led(group)
    return marked(report, regions) if request.match_info["group"] == "config" else report


async def _led(group: Members) -> dict[str, Any]:
    try:
        async with asyncio.timeout(3.0):
            report, _ = await group()
    except (MetadataUnavailable, TimeoutError):
        report, _ = await group("here")
    return report


class Joining(Given):
    """address: host:port, or source=host:port,... where each reaches it by another way."""

    address: Annotated[str, Meta(min_length=1)]


async def add(admin: Admin, request: web.Request, given: Joining) -> Any:
    """Adds a learner: it receives everything, and counts for nothing."""
    return await _change(admin, request, "add", given.address)


async def promote(admin: Admin, request: web.Request) -> Any:
    """Makes a learner that has caught up a voter."""
    return await _change(admin, request, "promote")


async def remove(admin: Admin, request: web.Request) -> Any:
    """Removes a member, as long as the quorum stays."""
    return await _change(admin, request, "remove")


async def transfer(admin: Admin, request: web.Request) -> Any:
    """Hands the leadership to a voter."""
    return await _change(admin, request, "transfer")


async def _change(admin: Admin, request: web.Request, verb: str, address: str = "") -> dict[str, Any]:
    dry = flag(request, "dry_run")
    report, changed = await _group(admin, request)(
        f"dry-{verb}" if dry else verb, request.match_info["member"], address
    )
    if changed and not dry:
        admin.changed(request, None, {"members": report["members"], "leader": report["leader"]})
    return {"changed": changed and not dry, "would_change": changed, **report}


def _group(admin: Admin, request: web.Request) -> Members:
    return admin.members[request.match_info["group"]]


async def samples(admin: Admin) -> list[prometheus_text.Sample]:
    """Leader placement, lag, and write latency, as the region's own node of each group knows them, or a witness that
    leads; nothing of a group that does not answer at once.
    """
    found: list[prometheus_text.Sample] = []
    for name, group in admin.members.items():
        try:
            async with asyncio.timeout(_SCRAPE_S):
                report, _ = await group("here")
        except (HeliographError, TimeoutError):
            continue
        if name == "config" and report["leader"] and admin.view.region(report["leader"]) is None:
            with contextlib.suppress(HeliographError, TimeoutError):  # nobody asks a witness for metrics
                async with asyncio.timeout(_SCRAPE_S):
                    report, _ = await group()
        found += member_samples({"cluster": admin.region, "group": name}, report)
    return found


_MEMBERS = "/heliograph/v1/{group:metadata|config}/members"
ROUTES: tuple[Route, ...] = (
    Route("GET", _MEMBERS, CallAccess.SUPER, show, console="members"),
    Route("POST", _MEMBERS + "/{member}", CallAccess.SUPER, add, flags=("dry_run",)),
    Route("POST", _MEMBERS + "/{member}/promote", CallAccess.SUPER, promote, flags=("dry_run",)),
    Route("POST", _MEMBERS + "/{member}/lead", CallAccess.SUPER, transfer, flags=("dry_run",)),
    Route("DELETE", _MEMBERS + "/{member}", CallAccess.SUPER, remove, flags=("dry_run",)),
)
