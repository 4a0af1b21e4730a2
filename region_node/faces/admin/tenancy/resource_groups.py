"""Resource groups: rates that the namespaces in them share, over all brokers of a region. A namespace joins by its
policy `resourcegroup`.
"""

from __future__ import annotations

from dataclasses import asdict, replace

from aiohttp import web

from heliograph.model.configuration.configuration_records import ResourceGroup
from heliograph.model.configuration.policy_values import LONG_MAX, whole
from heliograph.model.errors import NotFound
from heliograph.model.topic_names import check_name
from region_node.faces.admin.calls.admin_context import Admin
from region_node.faces.admin.calls.call_bodies import Given
from region_node.faces.admin.calls.call_rights import CallAccess, Route
from region_node.faces.admin.calls.existing import existing

_FIELDS = (
    ("publishRateInMsgs", "publish_messages"),
    ("publishRateInBytes", "publish_bytes"),
    ("dispatchRateInMsgs", "dispatch_messages"),
    ("dispatchRateInBytes", "dispatch_bytes"),
)


async def list_all(admin: Admin) -> list[str]:
    return admin.view.resource_groups()


async def get(admin: Admin, request: web.Request) -> Rates:
    return _shown(_existing(admin, request)[1])


class Rates(Given, rename={ours: theirs for theirs, ours in _FIELDS}):
    publish_messages: int | None = None
    publish_bytes: int | None = None
    dispatch_messages: int | None = None
    dispatch_bytes: int | None = None


async def put(admin: Admin, request: web.Request, name: str, given: Rates) -> None:
    """Makes it, or changes the rates that are given."""
    check_name("resource group", name)
    rates = {
        ours: whole(-1, LONG_MAX)(theirs, rate)
        for theirs, ours in _FIELDS
        if (rate := getattr(given, ours)) is not None
    }

    def change(old: ResourceGroup | None) -> ResourceGroup:
        return replace(old or ResourceGroup(), **rates)

    before, after = await admin.config.change_resource_group(name, change)
    await admin.seen(lambda: (group := admin.view.resource_group(name)) is not None and change(group) == group)
    admin.changed(request, None if before is None else _shown(before), _shown(after))


async def delete(admin: Admin, request: web.Request) -> None:
    name, before = _existing(admin, request)
    await admin.config.delete_resource_group(name)
    await admin.seen(lambda: admin.view.resource_group(name) is None)
    admin.changed(request, _shown(before), None)


def _existing(admin: Admin, request: web.Request) -> tuple[str, ResourceGroup]:
    name = request.match_info["name"]
    return name, existing(admin.view.resource_group(name), NotFound(f"Resource group {name} does not exist"))


def _shown(group: ResourceGroup) -> Rates:
    return Rates(**asdict(group))


ROUTES: tuple[Route, ...] = (
    Route("GET", "/admin/v2/resourcegroups", CallAccess.SUPER, list_all),
    Route("GET", "/admin/v2/resourcegroups/{name}", CallAccess.SUPER, get),
    Route("PUT", "/admin/v2/resourcegroups/{name}", CallAccess.SUPER, put),
    Route("DELETE", "/admin/v2/resourcegroups/{name}", CallAccess.SUPER, delete),
)
