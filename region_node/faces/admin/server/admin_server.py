"""AdminServer: HTTP listening, the route table, and what an error is called in HTTP.

Is: the shell around the handlers. Isn't: any handler.
Invariants: every refusal carries {"reason": sentence}; a fault of ours is 500 and logged, nothing else ends.
Source: docs/protocols/admin.md.
"""

from __future__ import annotations

import json
import logging
import ssl
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

import msgspec
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from heliograph.model import errors
from heliograph.model.configuration.policy_values import WrongKind
from heliograph.runtime.listeners.tls_listener import Listening, listen
from heliograph.runtime.throttle import ROWS, RowPace
from region_node.faces.admin.brokers import (
    bookie_state,
    bookies,
    broker_settings,
    broker_shutdown,
    brokers,
    config_conflicts,
    extensions,
    forced_quorum,
    isolation_policies,
    load_balancing,
    metadata_members,
    revocation_calls,
)
from region_node.faces.admin.calls.admin_context import EXPECTED, Admin, OwnedElsewhere
from region_node.faces.admin.calls.auth_middleware import PRINCIPAL, guard
from region_node.faces.admin.calls.call_parameters import called, taken_by
from region_node.faces.admin.calls.call_rights import SERVED, CallAccess, Handler, Route, RouteRights, Served
from region_node.faces.admin.calls.large_answers import MESSAGES, SCRAPES, LargeAnswers
from region_node.faces.admin.dr import disaster_recovery, region_plans
from region_node.faces.admin.geo_replication import cluster_migration, clusters, coordinates, region_audits, topic_links
from region_node.faces.admin.server import console_server, openapi, unsupported_paths
from region_node.faces.admin.server.http_connections import HttpConnections, HttpLimits
from region_node.faces.admin.tenancy import (
    bundle_quotas,
    data_keys,
    namespace_backlogs,
    namespaces,
    permissions,
    policy_routes,
    reseals,
    resource_groups,
    tenant_quotas,
    tenant_usage,
    tenants,
)
from region_node.faces.admin.topics import (
    bulk_reads,
    compaction,
    lookup,
    messages,
    offload,
    rest_producer,
    schemas,
    shadow_topics,
    subscriptions,
    topic_repair,
    topic_stats,
    topics,
)
from region_node.faces.admin.transactions import lost_region_transactions, transactions
from region_node.runtime import request_ids

log = logging.getLogger("region_node.admin.server")

DESCRIPTION = web.AppKey("description", openapi.Description)


async def describe(admin: Admin, request: web.Request) -> Any:
    """This interface as an OpenAPI document."""
    return web.Response(body=await request.app[DESCRIPTION].body(), content_type="application/json")


ROUTES: tuple[Route, ...] = (
    Route("GET", "/openapi.json", CallAccess.PUBLIC, describe),
    *console_server.ROUTES,
    *clusters.ROUTES,
    *cluster_migration.ROUTES,
    *isolation_policies.ROUTES,
    *tenants.ROUTES,
    *namespace_backlogs.ROUTES,
    *namespaces.ROUTES,
    *bundle_quotas.ROUTES,
    *broker_settings.ROUTES,
    *load_balancing.ROUTES,
    *broker_shutdown.ROUTES,
    *brokers.ROUTES,
    *bookies.ROUTES,
    *bookie_state.ROUTES,
    *resource_groups.ROUTES,
    *tenant_quotas.ROUTES,
    *lookup.ROUTES,
    *extensions.ROUTES,
    *bulk_reads.ROUTES,
    *disaster_recovery.ROUTES,
    *region_plans.ROUTES,
    *config_conflicts.ROUTES,
    *revocation_calls.ROUTES,
    *tenant_usage.ROUTES,
    *coordinates.ROUTES,
    *topic_links.ROUTES,
    *region_audits.ROUTES,
    *topic_repair.ROUTES,
    *reseals.ROUTES,  # before what takes any word for a key's number
    *data_keys.ROUTES,
    *metadata_members.ROUTES,
    *forced_quorum.ROUTES,
    *permissions.ROUTES,
    *policy_routes.ROUTES,
    *offload.ROUTES,
    *compaction.ROUTES,
    *rest_producer.ROUTES,
    *schemas.ROUTES,
    *messages.ROUTES,
    *subscriptions.ROUTES,
    *topic_stats.ROUTES,
    *transactions.ROUTES,
    *lost_region_transactions.ROUTES,
    *shadow_topics.ROUTES,
    *unsupported_paths.ROUTES,
    *topics.ROUTES,
)
"""First match wins within a method: literal paths stand before those that a name could match."""

STATUS: tuple[tuple[type[BaseException], int], ...] = (
    (errors.MalformedRequest, 400),
    (WrongKind, 400),
    (errors.Unauthenticated, 401),
    (errors.Unauthorized, 403),
    (errors.NotFound, 404),
    (errors.AlreadyExists, 409),
    (errors.VersionConflict, 409),
    (errors.ConsumerBusy, 412),
    (errors.ProducerBusy, 412),
    (errors.NotAllowed, 412),
    (errors.ConfigError, 412),
    (errors.StoreRefused, 412),
    (errors.KeyMissing, 412),
    (errors.HeliographError, 503),
)
"""The first that fits; what is left is retryable or another broker's to answer."""

_BODY_BYTES_MAX = 1 << 20
_READS = ("GET", "HEAD", "OPTIONS")
_MESSAGES = "/topics/"
"""Publishing by REST: a message is no change."""
NAME = "request_id"


class AdminServer:
    """One or more listeners over one application. `routes`: the rows of its calls."""

    def __init__(self, admin: Admin, limits: HttpLimits | None = None, *, routes: Sequence[Route] = ROUTES) -> None:
        self._admin, self._limits = admin, limits or HttpLimits()
        self._rights = RouteRights()
        check = guard(
            admin.security,
            self._rights,
            metrics_open=not admin.authenticate_metrics,
            refuse=_refusal,
            is_tenant=lambda tenant: admin.view.tenant(tenant) is not None,
            is_own_name=admin.goes_by,
        )
        self._app = web.Application(client_max_size=_BODY_BYTES_MAX, middlewares=[self._audited, check])
        self._app[SERVED] = routes
        self._app[DESCRIPTION] = openapi.Description(routes, admin.version)
        self._app[SCRAPES] = LargeAnswers(at_once=16)
        self._app[MESSAGES] = LargeAnswers(at_once=4)
        self._rights.add(self._app.router, routes, self._wrapped)
        self._app.on_response_prepare.append(_named)
        self._runner = web.AppRunner(
            self._app,
            logger=_http_log(),
            auto_decompress=False,  # it would unpack for whoever asks, a thousand times what came, without a pause
            access_log=None,
            handle_signals=False,
            shutdown_timeout=1.0,
            keepalive_timeout=self._limits.keep_alive_s,
        )
        self._connections: HttpConnections | None = None
        self._servers: list[Listening] = []

    async def start(self, host: str, port: int, *, shared: bool = False, tls: ssl.SSLContext | None = None) -> int:
        """Listens; may be called for several ports. `shared`: with other processes of this host. Returns the port.
        Raises OSError.
        """
        if self._connections is None:
            self._rights.check(self._app.router)
            await self._runner.setup()
            assert self._runner.server is not None
            self._connections = HttpConnections(self._limits, self._runner.server)
            revocations = self._admin.security.authentication.revocations
            revocations.on_change(partial(self._connections.end_revoked, revocations.of), "admin")
        server = await listen(
            self._connections, host, port, ssl=tls, timeout_s=self._limits.header_timeout_s, reuse_port=shared
        )
        self._servers.append(server)
        bound: int = server.sockets[0].getsockname()[1]
        return bound

    async def stop(self) -> None:
        for server in self._servers:
            server.close()
        if self._connections is not None:
            self._connections.close()
        await self._runner.cleanup()
        self._admin.close()

    @web.middleware
    async def _audited(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Around everything: what the router refuses (no such path, another method) says why as everything else does,
        and changes are written down.
        """
        connections = self._connections
        assert connections is not None
        connections.begun(request)
        try:
            return await self._answer(request, handler)
        finally:
            connections.ended(request)

    async def _answer(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        name = request[NAME] = request_ids.accepted(request.headers.get(request_ids.HEADER, ""))
        with request_ids.handling(name):
            try:
                answer = await handler(request)
            except web.HTTPException as error:
                answer = _refusal(error.status, error.reason)
            reason = answer.text if isinstance(answer, web.Response) and answer.status >= 400 else None
            if answer.status >= 400 and EXPECTED not in answer:
                log.info(
                    "admin.refused",
                    extra={
                        "method": request.method,
                        "path": request.path,
                        "status": answer.status,
                        "error": reason or "",
                    },
                )
            self._record(request, answer.status, reason or "")
        return answer

    def _record(self, request: web.Request, status: int, reason: str) -> None:
        """Writes a change down. Reads, messages, what another broker or region answers, and what is asked by nobody who
        is known, or for what there is no call, are passed over: whoever reaches the port could push all others out.
        """
        is_nothing = PRINCIPAL not in request or request.match_info.route.resource is None
        is_no_change = request.method in _READS or request.path.startswith(_MESSAGES)
        if is_no_change or status == 307 or request.get("passed_on") or is_nothing:
            return
        more: dict[str, Any] = {"reason": reason} if reason else {}
        if "change" in request:
            more["before"], more["after"] = request["change"]
        if "given" in request:
            more["given"] = request["given"]
        self._admin.audit.change(
            role=getattr(request[PRINCIPAL], "role", ""),
            address=request.remote or "",
            method=request.method,
            path=str(request.rel_url),
            status=status,
            refused=400 <= status < 500 and "change" not in request,  # of a failure nobody knows what was done
            **more,
        )

    def _wrapped(self, handler: Handler) -> Served:
        taken_by(handler)  # what nothing reads ends the start

        async def handle(request: web.Request) -> web.StreamResponse:
            try:
                try:
                    return await _response(await called(handler, self._admin, request))
                except OwnedElsewhere as where:
                    return web.Response(status=307, headers={"Location": where.location(request)})
            except errors.HeliographError as error:
                return _refusal(next(code for kind, code in STATUS if isinstance(error, kind)), str(error))
            except web.HTTPException as error:
                return _refusal(error.status, error.reason)
            except TimeoutError:
                return _refusal(503, "no answer in time; try again")
            except Exception:
                log.exception("admin.bug", extra={"method": request.method, "path": request.path})
                return _refusal(500, "an error of the broker; its log says more")

        return handle


def _http_log() -> logging.Logger:
    """Where aiohttp's side of connections says what went wrong there."""
    found = logging.getLogger("region_node.admin.http")
    found.addFilter(_is_ours)
    return found


def _is_ours(record: logging.LogRecord) -> bool:
    """What is no HTTP, or breaks off, is its client's fault: it is a line, and no failure with a trace."""
    error = record.exc_info[1] if record.exc_info else None
    if isinstance(error, (HttpProcessingError, web.RequestPayloadError, ConnectionError)):
        log.info("admin.bad_request", extra={"error": type(error).__name__})
        return False
    return True


async def _named(request: web.Request, answer: web.StreamResponse) -> None:
    """Every answer says its request's id, also one that was begun before its handler ended."""
    if NAME in request:
        answer.headers[request_ids.HEADER] = request[NAME]


async def _response(value: Any) -> web.StreamResponse:
    """None is 204; a response as it is; anything else goes out as JSON, records too, of long lists piece by piece."""
    if value is None:
        return web.Response(status=204)
    if isinstance(value, web.StreamResponse):
        return value
    if not isinstance(value, list) or len(value) <= ROWS:
        return web.json_response(value, dumps=_json)
    text, pace = bytearray(b"["), RowPace()
    for at in range(0, len(value), ROWS):
        await pace.rows(ROWS)
        text += (", " if at else "").encode() + _json(value[at : at + ROWS])[1:-1].encode()
    return web.Response(body=bytes(text + b"]"), content_type="application/json", charset="utf-8")


_json = partial(json.dumps, default=msgspec.to_builtins)


def _refusal(status: int, reason: str) -> web.Response:
    return web.json_response({"reason": reason}, status=status)
