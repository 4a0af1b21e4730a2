"""Drills that repeat themselves, and the reports of all drills.

Is: paths of our own, below /heliograph/v1/dr. Isn't: running one (`region_node.dr.operations.drill_schedule`).
Invariants: reports are shown as they were signed; `heliograph dr verify` says whether they still are.
Source: docs/operating/disaster-recovery.md, "Drills".
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from aiohttp import web

from heliograph.model.admin_paths import DR
from heliograph.model.errors import ConfigError, NotFound
from region_node.dr.leadership.leadership_changes import Switching
from region_node.dr.operations.drill_schedule import Schedule, schedule
from region_node.dr.operations.operation_steps import reports_of
from region_node.faces.admin.calls.admin_context import Admin
from region_node.faces.admin.calls.call_bodies import Given
from region_node.faces.admin.calls.call_parameters import ExistingNamespace
from region_node.faces.admin.calls.call_rights import CallAccess, Route
from region_node.faces.admin.calls.existing import check_in_region, existing, leases_of, role_of


class OwnCredentials:
    """Gives the token for calls to other regions; its file is read each time, since tokens are renewed."""

    def __init__(self, token_file: str) -> None:
        self._file = Path(token_file) if token_file else None

    @property
    def headers(self) -> Mapping[str, str]:
        """Returns an Authorization header; none without a file. Raises ConfigError where it cannot be read."""
        if self._file is None:
            return {}
        try:
            return {"Authorization": f"Bearer {self._file.read_text(encoding='utf-8').strip()}"}
        except OSError as error:
            raise ConfigError(f"broker.drill_token_file {self._file} cannot be read: {error}") from error


async def get(admin: Admin, namespace: ExistingNamespace) -> Schedule:
    """How often the namespace is drilled, when next, and why the last one could not begin."""
    why = f"{namespace} has no schedule of drills: `heliograph dr drill {namespace} --every 7d` makes one"
    value, _ = existing(await leases_of(admin).store.get(schedule(namespace)), NotFound(why))
    return Schedule.decode(value)


class Repetition(Given):
    """to: a region; with two it need not be named. first_ms: when; 0: now."""

    every_s: float
    to: str = ""
    first_ms: float = 0


async def put(admin: Admin, request: web.Request, namespace: ExistingNamespace, given: Repetition) -> Schedule:
    to = given.to
    if to:
        check_in_region(admin, namespace, to)
    next_ms = int(given.first_ms) or admin.clock.wall_ms()
    made = Schedule(every_s=given.every_s, to=to, by=role_of(request), next_ms=next_ms)
    store = leases_of(admin).store
    await Switching(store, admin.clock.wall_ms).get(namespace)  # NotFound: it is active-active, nothing to rehearse
    await store.put(schedule(namespace), made.encode())
    admin.changed(request, None, made)
    return made


async def delete(admin: Admin, request: web.Request, namespace: ExistingNamespace) -> None:
    if not await leases_of(admin).store.delete(schedule(namespace)):
        raise NotFound(f"{namespace} has no schedule of drills")
    admin.changed(request, "scheduled", None)


async def reports(admin: Admin, namespace: ExistingNamespace) -> list[dict[str, Any]]:
    """Every drill's signed report, the newest last."""
    return await reports_of(leases_of(admin).store, namespace)


ROUTES: tuple[Route, ...] = (
    Route("GET", f"{DR}/schedule", CallAccess.TENANT, get),
    Route("PUT", f"{DR}/schedule", CallAccess.SUPER, put),
    Route("DELETE", f"{DR}/schedule", CallAccess.SUPER, delete),
    Route("GET", f"{DR}/reports", CallAccess.TENANT, reports, console="reports"),
)
