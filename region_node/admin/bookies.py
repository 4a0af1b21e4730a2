"""Bookies of this region, as Pulsar's admin clients ask for them. More about each is below /heliograph/v1/bookies."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from heliograph.model.errors import NotFound
from region_node.admin.context import Admin
from region_node.admin.extensions import recovery_of


async def list_all(admin: Admin, request: web.Request) -> Any:
    return {"bookies": [{"bookieId": row["id"]} for row in recovery_of(admin).bookies() if row["registered"]]}


async def racks(admin: Admin, request: web.Request) -> Any:
    return {"default": _racks(admin)}


async def rack(admin: Admin, request: web.Request) -> Any:
    found = _racks(admin).get(request.match_info["bookie"])
    if found is None:
        raise NotFound(f"Bookie address not found: {request.match_info['bookie']}")
    return found


def _racks(admin: Admin) -> dict[str, Any]:
    return {str(row["id"]): {"rack": row["rack"], "hostname": row["id"]} for row in recovery_of(admin).bookies() if row["registered"]}


ROUTES = (
    ("GET", "/admin/v2/bookies/all", list_all),
    ("GET", "/admin/v2/bookies/racks-info", racks),
    ("GET", "/admin/v2/bookies/racks-info/{bookie}", rack),
)
