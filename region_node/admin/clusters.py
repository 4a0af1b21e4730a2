"""Regions, called clusters in these paths: list, get, create, update, delete.

Is: the provisioning data of a region as clients and the command line give it. Isn't: its brokers (`brokers`), or its links' state (`extensions`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from aiohttp import web

from heliograph.model.errors import NotFound
from heliograph.model.names import check_name
from heliograph.model.policies import RegionInfo
from region_node.admin.context import Admin, Malformed, body


async def list_all(admin: Admin, request: web.Request) -> Any:
    return sorted(region.name for region in admin.view.regions())


async def get(admin: Admin, request: web.Request) -> Any:
    return _shown(_region(admin, request))


async def create(admin: Admin, request: web.Request) -> Any:
    name = check_name("cluster", request.match_info["cluster"])
    fields = await _fields(admin, request)
    await admin.config.create_region(name, **fields)
    await admin.seen(lambda: admin.view.region(name) is not None)
    admin.changed(request, None, fields)


async def update(admin: Admin, request: web.Request) -> Any:
    changed = replace(_region(admin, request), **await _fields(admin, request))
    await admin.config.update_region(changed)
    await admin.seen(lambda: admin.view.region(changed.name) == changed)


async def delete(admin: Admin, request: web.Request) -> Any:
    region = _region(admin, request)
    await admin.config.delete_region(region.name)
    await admin.seen(lambda: admin.view.region(region.name) is None)
    admin.changed(request, _shown(region), None)


def _region(admin: Admin, request: web.Request) -> RegionInfo:
    name = request.match_info["cluster"]
    region = admin.view.region(name)
    if region is None:
        raise NotFound(f"Cluster {name} does not exist")
    return region


def _shown(region: RegionInfo) -> dict[str, Any]:
    return {
        "serviceUrl": region.admin_url,
        "brokerServiceUrl": region.service_url,
        "brokerClientTlsEnabled": False,
        "peerClusterNames": [],
        "number": region.number,
        "epoch": region.epoch,
    }


async def _fields(admin: Admin, request: web.Request) -> dict[str, Any]:
    given = await body(request) or {}
    if not isinstance(given, dict):
        raise Malformed('expected ClusterData in the body, such as {"serviceUrl": …, "brokerServiceUrl": …}')
    names = (("serviceUrl", "admin_url"), ("brokerServiceUrl", "service_url"))
    schemes = {"serviceUrl": ("http", "https"), "brokerServiceUrl": ("pulsar", "pulsar+ssl")}
    return {ours: admin.urls.check(str(given[theirs]), schemes[theirs]) for theirs, ours in names if given.get(theirs)}


async def none_listed(admin: Admin, request: web.Request) -> Any:
    """Peers: a region has none."""
    _region(admin, request)
    return []


async def not_migrated(admin: Admin, request: web.Request) -> Any:
    _region(admin, request)
    return {"migrated": False}


ROUTES = (
    ("GET", "/admin/v2/clusters", list_all),
    ("GET", "/admin/v2/clusters/{cluster}", get),
    ("GET", "/admin/v2/clusters/{cluster}/peers", none_listed),
    ("GET", "/admin/v2/clusters/{cluster}/migrate", not_migrated),
    ("PUT", "/admin/v2/clusters/{cluster}", create),
    ("POST", "/admin/v2/clusters/{cluster}", update),
    ("DELETE", "/admin/v2/clusters/{cluster}", delete),
)
