"""Bookies of this region, as Pulsar's admin clients ask for them, and where an operator says that they stand. More
about each: /heliograph/v1/bookies.
"""

from __future__ import annotations

from typing import Any

from aiohttp import web

from heliograph.model.errors import NotAllowed, NotFound
from heliograph.model.topic_names import check_name
from region_node.faces.admin.calls.admin_context import Admin
from region_node.faces.admin.calls.call_bodies import Given
from region_node.faces.admin.calls.call_rights import CallAccess, Route
from region_node.faces.admin.calls.existing import existing, recovery_of
from storage.ledger.bookies.bookie_labels import Labels

_NO_GROUP = "default"
_TEXT_MAX = 255


async def list_all(admin: Admin) -> dict[str, Any]:
    return {"bookies": [{"bookieId": row["id"]} for row in recovery_of(admin).bookies() if row["registered"]]}


async def racks(admin: Admin) -> dict[str, dict[str, BookieInfo]]:
    """By group: of those that are registered what holds, and what was set for others."""
    found: dict[str, dict[str, BookieInfo]] = {_NO_GROUP: {}}
    for bookie, labels in _all(admin).items():
        found.setdefault(labels.group or _NO_GROUP, {})[bookie] = _shown(bookie, labels)
    return found


async def rack(admin: Admin, bookie: str) -> BookieInfo:
    return _shown(bookie, existing(_all(admin).get(bookie), NotFound(f"Bookie address not found: {bookie}")))


class BookieInfo(Given):
    """Pulsar's BookieInfo; a rack is named as /zone-a is."""

    rack: str | None = None
    hostname: str | None = None


async def set_rack(
    admin: Admin, request: web.Request, bookie: str, given: BookieInfo, *, group: str = _NO_GROUP
) -> None:
    """Rack and group from now on, whatever the bookie says of itself; placement obeys at once, and what lies too close
    together is moved as time goes by.
    """
    recovery = recovery_of(admin)
    check_name("bookie", bookie)
    if group != _NO_GROUP:
        check_name("group", group)
    labels = Labels(
        rack=_text("rack", given.rack),
        group="" if group == _NO_GROUP else group,
        hostname=_text("hostname", given.hostname),
    )
    if not labels.rack:
        raise NotAllowed(
            "Bookie 'rack' parameter is missing: name it, such as /zone-a, or DELETE what was set, so that the "
            "bookie's own setting holds"
        )
    before = recovery.labels().get(bookie)
    await recovery.set_labels(bookie, labels)
    await admin.seen(lambda: recovery.labels().get(bookie) == labels)
    admin.changed(request, before and _shown(bookie, before), _shown(bookie, labels))


async def forget_rack(admin: Admin, request: web.Request, bookie: str) -> None:
    """What the bookie says of itself holds again."""
    recovery = recovery_of(admin)
    check_name("bookie", bookie)
    error = NotFound(f"Bookie address not found: {bookie}: no rack was set for it here")
    before = existing(recovery.labels().get(bookie), error)
    await recovery.set_labels(bookie, None)
    await admin.seen(lambda: bookie not in recovery.labels())
    admin.changed(request, _shown(bookie, before), None)


def _all(admin: Admin) -> dict[str, Labels]:
    recovery = recovery_of(admin)
    found = {
        str(row["id"]): Labels(rack=str(row["rack"]), group=str(row["group"]), hostname=str(row["id"]))
        for row in recovery.bookies()
        if row["registered"]
    }
    return dict(sorted((found | recovery.labels()).items()))


def _shown(bookie: str, labels: Labels) -> BookieInfo:
    return BookieInfo(labels.rack, labels.hostname or bookie)


def _text(name: str, value: str | None) -> str:
    if value and len(value) > _TEXT_MAX:
        raise NotAllowed(f"{name}: a text of at most {_TEXT_MAX} characters is expected")
    return value or ""


ROUTES: tuple[Route, ...] = (
    Route("GET", "/admin/v2/bookies/all", CallAccess.SUPER, list_all),
    Route("GET", "/admin/v2/bookies/racks-info", CallAccess.SUPER, racks),
    Route("GET", "/admin/v2/bookies/racks-info/{bookie}", CallAccess.SUPER, rack),
    Route("POST", "/admin/v2/bookies/racks-info/{bookie}", CallAccess.SUPER, set_rack),
    Route("DELETE", "/admin/v2/bookies/racks-info/{bookie}", CallAccess.SUPER, forget_rack),
)
