"""Paths of Pulsar that there is nothing behind here: each says why, and what to do instead.

Is: the answers 501. Isn't: a place for what is merely not written yet: that has no route, and is 404.
"""

from __future__ import annotations

from typing import Any

from aiohttp import web

from region_node.faces.admin.calls.admin_context import Admin
from region_node.faces.admin.calls.call_rights import CallAccess, Handler, Route

_FUNCTIONS = (
    "Pulsar Functions and IO are not part of this service: run the code as a client of its own, in any process manager"
)
_PACKAGES = "there is no package store here: functions are not part of this service"

ABSENT: tuple[tuple[str, str, str], ...] = (
    ("*", "/admin/v3/{kind:functions|sources|sinks|source|sink}{rest:.*}", _FUNCTIONS),
    ("*", "/admin/v3/packages{rest:.*}", _PACKAGES),
    ("*", "/admin/v2/{kind:worker|worker-stats|functions}{rest:.*}", _FUNCTIONS),
)


def _absent(reason: str) -> Handler:
    async def refuse(admin: Admin, request: web.Request) -> Any:
        raise web.HTTPNotImplemented(reason=reason)

    refuse.__doc__ = reason
    return refuse


ROUTES: tuple[Route, ...] = tuple(
    Route(method, path, CallAccess.SUPER, _absent(reason)) for method, path, reason in ABSENT
)
