"""Who calls, and may they: the middleware in front of every handler of the admin interface.

Is: credentials from a request's headers, the console's session, or a certificate, and the check of the right that the
call's row says. Isn't: a handler, or a rule.
Invariants: no handler runs before the check; `request["principal"]` is there for every handler; a refusal says 401
where other credentials may help, 403 where a grant would.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Middleware

from heliograph.model.errors import HeliographError, NotAllowed, Unauthenticated, Unauthorized
from heliograph.model.topic_names import TopicName
from region_node.faces.admin.calls.call_rights import CallAccess, RouteRights, Served
from region_node.faces.admin.calls.console_session import authorization_of
from region_node.security import foreign_pages
from region_node.security.authentication.authentication_counts import EXPIRED
from region_node.security.authentication.principal import NOBODY, Principal
from region_node.security.authorization.authorization_service import Action
from region_node.security.authorization.security_service import Security

PRINCIPAL = "principal"
ANSWERED_FIRST = "answered_first"
"""In a request that may revoke what it came by: it is answered, and the next one is refused."""
ORIGINAL = "X-Original-Principal"
"""For whom a proxy speaks."""


def guard(
    security: Security,
    route_rights: RouteRights,
    *,
    metrics_open: bool,
    refuse: Callable[[int, str], web.Response],
    is_tenant: Callable[[str], bool] = lambda _: True,
    is_own_name: Callable[[str], bool] = lambda _: True,
) -> Middleware:
    """The middleware. is_own_name: whether the region goes by that name of a host. is_tenant: whether there is such a
    tenant: who may do nothing in one that is not there hears that, as from Pulsar.
    """

    @web.middleware
    async def check(request: web.Request, handler: Served) -> web.StreamResponse:
        route = request.match_info.route
        if any(_leads_elsewhere(value) for value in request.match_info.values()):
            return refuse(412, "no part of a path may be . or ..")
        if (found := foreign_pages.refusal(request.method, request.headers)) is not None:
            return refuse(*found)
        # no resource: there is no such path, and the router says so
        access = CallAccess.PUBLIC if route.resource is None else route_rights.of(route)
        public = access is CallAccess.PUBLIC or (access is CallAccess.METRICS and metrics_open)
        given = authorization_of(request), _certificate(request)
        unproven = not public and security.authentication.lets_in_unproven(*given)
        if unproven and foreign_pages.is_foreign_name(request.host, is_own_name):
            return refuse(
                403,
                f"nobody is asked here who they are, and {request.host[:200]} is no name of this region: ask it by its "
                "address, or list the name in security.allowed_hosts",
            )
        if public or security.authentication.open:
            request[PRINCIPAL] = Principal(role=NOBODY)
            return await handler(request)
        try:
            request[PRINCIPAL] = principal = await _identify(security, request)
            _check(security, principal, access, request)
        except Unauthenticated as error:
            answer = refuse(401, str(error))
            answer.headers["WWW-Authenticate"] = 'Bearer, Basic realm="heliograph"'
            return answer
        except Unauthorized as error:
            if access is CallAccess.TENANT and not is_tenant(request.match_info.get("tenant", "")):
                return refuse(404, "Tenant does not exist")
            return refuse(403, str(error))
        except NotAllowed as error:
            return refuse(412, str(error))
        except HeliographError as error:
            return refuse(503, str(error))
        return await handler(request)

    return check


def goes_on(
    security: Security, request: web.Request, topic: TopicName, wall_ms: Callable[[], int]
) -> Callable[[], None]:
    """Asked between two pieces of a long answer of what the topic holds, as consumers are. Raises Unauthenticated (what
    proved who asks has run out meanwhile), Unauthorized (the grant was taken back).
    """
    rights, principal = security.rights, request[PRINCIPAL]
    seen = -1

    def check() -> None:
        nonlocal seen
        if 0 < principal.expires_ms <= wall_ms():
            raise Unauthenticated(f"the credentials of {principal.role!r} have run out: ask again with others", EXPIRED)
        if seen != rights.changes and not security.authentication.open:
            seen = rights.changes
            if not rights.may(principal, Action.CONSUME, topic):
                raise Unauthorized(f"the role {principal.role!r} may not consume {topic} any more")

    return check


def _leads_elsewhere(value: str) -> bool:
    """Whether a part of a path, decoded, would lead out of it where it stands in another path."""
    return any(part in (".", "..") for part in value.split("/"))


def _certificate(request: web.Request) -> dict[str, Any] | None:
    certificate: dict[str, Any] | None
    certificate = request.transport.get_extra_info("peercert") if request.transport is not None else None
    return certificate


async def _identify(security: Security, request: web.Request) -> Principal:
    host = request.remote or ""
    credentials = security.authentication.of_header(authorization_of(request), _certificate(request), host)
    found = await security.authentication.identify(credentials, request.headers.get(ORIGINAL, ""))
    return found.at(host)


def _check(security: Security, principal: Principal, access: CallAccess, request: web.Request) -> None:
    rights, names = security.rights, request.match_info
    if access in (CallAccess.ANY, CallAccess.METRICS, CallAccess.EACH, CallAccess.PASSED_ON):
        return
    tenant, namespace = names.get("tenant", ""), f"{names.get('tenant', '')}/{names.get('namespace', '')}"
    match access:
        case CallAccess.SUPER:
            allowed = rights.is_super(principal)
        case CallAccess.TENANT:
            allowed = rights.administers(principal, tenant)
        case CallAccess.LIST:
            allowed = rights.may_list(principal, namespace)
        case _:
            topic = TopicName.parse(f"{names.get('domain', 'persistent')}://{namespace}/{names['topic']}")
            subscription = names.get("subscription") or names.get("sub") or ""
            if access is CallAccess.CONSUME:
                allowed = (
                    rights.may_subscribe(principal, topic, subscription)
                    if subscription
                    else rights.may(principal, Action.CONSUME, topic)
                )
            else:
                allowed = (
                    rights.may(principal, Action.PRODUCE, topic)
                    if access is CallAccess.PRODUCE
                    else rights.may_look_up(principal, topic)
                )
    if not allowed:
        raise Unauthorized(
            f"the role {principal.role!r} may not {request.method} {request.path}: it wants {access.value}"
        )
