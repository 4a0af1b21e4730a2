"""Which right each call of the admin interface wants: it stands in the row that makes the call, and nowhere else.

Is: the rights, the form of a row, and how rows come to a router. Isn't: the rows (each area's module has its `ROUTES`),
or the check of a caller (`auth_middleware`).
Invariants: a row without a right, or with one that the names in its path cannot answer, ends the start, and so does a
route that came to the router without a row.
Source: docs/security.md, "Rights"; docs/decisions/0219-a-row-says-its-right.md.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from enum import Enum
from typing import Any, NamedTuple

from aiohttp import web

from heliograph.model.admin_paths import PARAMETER

Handler = Callable[..., Awaitable[Any]]
"""Called with the Admin, and with what its parameters say that they are (`call_parameters`)."""
Served = Callable[[web.Request], Awaitable[web.StreamResponse]]
"""A handler as aiohttp calls it."""


class CallAccess(Enum):
    PUBLIC = "anybody"
    METRICS = "anybody, unless the settings say otherwise"
    ANY = "any role"
    PASSED_ON = "any role: whoever is asked in its name checks"
    PRODUCE = "produce to the topic"
    EACH = "consume each of the topics that the body names: the handler checks them"
    CONSUME = "consume the topic, by the subscription where the path names one"
    LOOK_UP = "produce to or consume the topic"
    LIST = "produce to or consume all topics of the namespace"
    TENANT = "an admin of the tenant"
    SUPER = "a super user"


class Route(NamedTuple):
    """One row. method: `*` is every one. path: as aiohttp takes it; the first that fits counts."""

    method: str
    path: str
    access: CallAccess
    handler: Handler
    body: Mapping[str, Any] | None = None
    """The JSON schema of the body, of a handler that reads it itself; None: as its `given` says (`call_bodies`)."""
    answer: Mapping[str, Any] | None = None
    """The same of the answer; None: as the handler says."""
    flags: tuple[str, ...] = ()
    """What the query may set to true, of a handler that reads it itself; others say so by their parameters."""
    console: str = ""
    """What the console's page calls it; "": it does not ask it."""


SERVED: web.AppKey[Sequence[Route]] = web.AppKey("served", Sequence)
"""The rows that a server answers by."""


_TOPIC = frozenset({"tenant", "namespace", "topic"})
_NAMES: dict[CallAccess, frozenset[str]] = {
    CallAccess.TENANT: frozenset({"tenant"}),
    CallAccess.LIST: frozenset({"tenant", "namespace"}),
    CallAccess.PRODUCE: _TOPIC,
    CallAccess.CONSUME: _TOPIC,
    CallAccess.LOOK_UP: _TOPIC,
}
"""What a path has to name, so that the right can be checked."""


class RouteRights:
    """Which right each route of one router wants."""

    def __init__(self) -> None:
        self._access: dict[web.AbstractRoute, CallAccess] = {}

    def add(self, router: web.UrlDispatcher, rows: Iterable[Route], served: Callable[[Handler], Served]) -> None:
        """Adds the rows, in their order; what anybody may GET answers HEAD, too, as load balancers ask. Raises
        TypeError, ValueError for one by which no caller could be checked.
        """
        seen: set[tuple[str, str]] = set()
        for row in rows:
            check_row(row)
            if row[:2] in seen:
                raise ValueError(f"{row.method} {row.path} has two rows: leave one")
            seen.add(row[:2])
            public = row.method == "GET" and row.access is CallAccess.PUBLIC
            for method in (row.method, "HEAD") if public else (row.method,):
                self._access[router.add_route(method, row.path, served(row.handler))] = row.access

    def of(self, route: web.AbstractRoute) -> CallAccess:
        """What no row says is closed: such a route wants a super user, also behind `check`."""
        return self._access.get(route, CallAccess.SUPER)

    def check(self, router: web.UrlDispatcher) -> None:
        """Raises ValueError where a route of the router has no row."""
        if found := [f"{one.method} {one.resource and one.resource.canonical}" for one in self._strange(router)]:
            raise ValueError(f"{', '.join(found)}: no row says whose right it is; add a Route to the area's ROUTES")

    def _strange(self, router: web.UrlDispatcher) -> list[web.AbstractRoute]:
        return [one for one in router.routes() if one not in self._access]


def check_row(row: Route) -> None:
    """Raises TypeError where a row says no right, ValueError where its path does not name what the right is of."""
    if not isinstance(row, Route) or not isinstance(row.access, CallAccess):
        raise TypeError(f"{row!r:.200} says no right: write Route(method, path, CallAccess.…, handler)")
    names = {name for name, _ in PARAMETER.findall(row.path)}
    if missing := sorted(_NAMES.get(row.access, frozenset()) - names):
        raise ValueError(f"{row.method} {row.path} wants {row.access.value!r}, and has no {', '.join(missing)}")
