"""Edits of policies that wait for the configuration, and conflicts that came of them.

Is: paths of our own. Isn't: merging (`global_config.deferred_edits`).
Source: docs/protocols/metadata.md, "Edits while cut off".
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from aiohttp import web

from global_config.policy_edits import Conflict
from region_node.faces.admin.calls.admin_context import Admin
from region_node.faces.admin.calls.call_bodies import Given
from region_node.faces.admin.calls.call_rights import CallAccess, Route
from region_node.faces.admin.calls.existing import deferred_of
from region_node.runtime.prometheus_text import Sample


async def listed(admin: Admin) -> Any:
    """What this region has edited while it was cut off and not merged yet, and the conflicts of all regions."""
    return deferred_of(admin).status()


class Resolution(Given):
    """mine: what the region wanted; theirs: what the configuration has."""

    take: Literal["mine", "theirs"]


async def resolve(admin: Admin, request: web.Request, region: str, conflict: str, given: Resolution) -> Conflict:
    """Ends a conflict, as `take` says."""
    ended = await deferred_of(admin).resolve(f"{region}/{conflict}", given.take)
    admin.changed(request, ended, given.take)
    return ended


def samples(admin: Admin) -> Iterator[Sample]:
    if admin.deferred is not None:
        found, labels = admin.deferred.status(), {"cluster": admin.region}
        yield "heliograph_config_edits_pending", "gauge", labels, len(found["pending"])
        yield "heliograph_config_conflicts", "gauge", labels, len(found["conflicts"])
        yield "heliograph_config_stale_seconds", "gauge", labels, found["stale_s"]


ROUTES: tuple[Route, ...] = (
    Route("GET", "/heliograph/v1/conflicts", CallAccess.SUPER, listed),
    Route("POST", "/heliograph/v1/conflicts/{region}/{conflict}", CallAccess.SUPER, resolve),
)
