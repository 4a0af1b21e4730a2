"""Rights of the admin interface: each stands in its row, can be checked by the path, and is one that the row may have;
no route comes to the router without one. Which right each call should have: `tests.region_node.faces.admin.test_roles`.
"""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from heliograph.model.admin_paths import PARAMETER
from heliograph.model.configuration.policy_table import POLICIES
from region_node.faces.admin.calls.call_rights import CallAccess, Handler, Route, RouteRights, Served
from region_node.faces.admin.server.admin_server import ROUTES, AdminServer, describe
from region_node.faces.admin.server.openapi import document
from region_node.faces.admin.topics import bulk_reads
from region_node.security.authorization.security_service import open_security

NS = "/admin/v2/namespaces/{tenant}/{namespace}"
ADMIN = cast(
    Any,
    SimpleNamespace(
        security=open_security(),
        authenticate_metrics=False,
        view=SimpleNamespace(tenant=None),
        goes_by=str.islower,
        version="1",
    ),
)


async def handler(admin: Any, request: web.Request) -> Any:
    return web.Response()


def served(given: Handler) -> Served:
    async def serve(request: web.Request) -> web.StreamResponse:
        return cast(web.StreamResponse, await given(ADMIN, request))

    return serve


def resolved(router: web.UrlDispatcher, method: str, path: str) -> web.AbstractRoute:
    return asyncio.run(router.resolve(make_mocked_request(method, path))).route


def names(path: str) -> set[str]:
    return {name for name, _ in PARAMETER.findall(path)}


# -- how rows come to a router -----------------------------------------------------------------------------------------


def test_the_right_is_that_of_the_row_that_answers() -> None:
    """Two paths that fit the same request: the first counts, its right too."""
    router, rights = web.UrlDispatcher(), RouteRights()
    rows = (
        Route("GET", "/a/ours", CallAccess.ANY, handler),
        Route("GET", "/a/{name}", CallAccess.SUPER, handler),
        Route("*", "/a/{name:.+}", CallAccess.PUBLIC, handler),
        Route("GET", "/open", CallAccess.PUBLIC, handler),
        Route("GET", "/closed", CallAccess.ANY, handler),
    )
    rights.add(router, rows, served)
    rights.check(router)
    for method, path, access in (
        ("GET", "/a/ours", CallAccess.ANY),
        ("GET", "/a/theirs", CallAccess.SUPER),
        ("GET", "/a/%6furs", CallAccess.ANY),
        ("GET", "/a/ours%2Ftheirs", CallAccess.SUPER),
        ("GET", "/a/ours/theirs", CallAccess.PUBLIC),
        ("HEAD", "/a/ours/theirs", CallAccess.PUBLIC),
        ("HEAD", "/open", CallAccess.PUBLIC),
        ("HEAD", "/closed", CallAccess.SUPER),
    ):
        assert rights.of(resolved(router, method, path)) is access, path


@pytest.mark.parametrize(
    ("row", "error"),
    [
        (("GET", "/a", handler), TypeError),
        (("GET", "/a", CallAccess.SUPER, handler), TypeError),
        (Route("GET", "/a", None, handler), TypeError),  # type: ignore[arg-type]
        (Route("GET", "/a", handler, CallAccess.SUPER), TypeError),  # type: ignore[arg-type]
        (Route("GET", "/a", "a super user", handler), TypeError),  # type: ignore[arg-type]
        (Route("GET", "/a/{cluster}", CallAccess.TENANT, handler), ValueError),
        (Route("GET", "/a/{tenant}", CallAccess.LIST, handler), ValueError),
        (Route("GET", "/a/{tenant}/{namespace}", CallAccess.CONSUME, handler), ValueError),
        (Route("GET", "/openapi.json", CallAccess.SUPER, handler), ValueError),
    ],
)
def test_a_row_by_which_nobody_could_be_checked_ends_the_start(row: Any, error: type[Exception]) -> None:
    AdminServer(ADMIN)
    with pytest.raises(error, match=r"says no right|wants|two rows"):
        AdminServer(ADMIN, routes=(*ROUTES, row))


def test_a_route_without_a_row_ends_the_start_and_is_closed() -> None:
    router, rights = web.UrlDispatcher(), RouteRights()
    rights.add(router, ROUTES, served)
    rights.check(router)
    router.add_get("/behind/the/table", served(handler), allow_head=False)
    with pytest.raises(ValueError, match="GET /behind/the/table: no row says whose right it is"):
        rights.check(router)
    assert rights.of(resolved(router, "GET", "/behind/the/table")) is CallAccess.SUPER


def test_the_listener_looks_before_it_opens(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: RouteRights, router: web.UrlDispatcher) -> None:
        raise ValueError("without a row")

    monkeypatch.setattr(RouteRights, "check", refuse)
    with pytest.raises(ValueError, match="without a row"):
        asyncio.run(AdminServer(ADMIN).start("127.0.0.1", 0))


def test_the_description_says_whose_right_each_call_is() -> None:
    described = document(ROUTES, "1")["paths"]
    for row in ROUTES:
        found = described[PARAMETER.sub(r"{\1}", row.path)]
        assert found["get" if row.method == "*" else row.method.lower()]["x-right"] == row.access.value
    assert sum(map(len, described.values())) == sum(4 if row.method == "*" else 1 for row in ROUTES)


def test_a_server_describes_the_rows_that_it_was_given() -> None:
    rows = (*(row for row in ROUTES if row.path == "/openapi.json"), Route("GET", "/a", CallAccess.SUPER, handler))
    request = make_mocked_request("GET", "/openapi.json", app=AdminServer(ADMIN, routes=rows)._app)
    assert set(json.loads(asyncio.run(describe(ADMIN, request)).body)["paths"]) == {"/openapi.json", "/a"}


# -- what rows may say -------------------------------------------------------------------------------------------------


def test_what_is_open_to_everybody_is_this_and_no_more() -> None:
    free = [row for row in ROUTES if row.access in (CallAccess.PUBLIC, CallAccess.METRICS, CallAccess.ANY)]
    assert {row.path for row in free} == {
        "/status.html",
        "/metrics",
        "/metrics/",
        "/admin/v2/clusters",
        "/admin/v2/brokers/health",
        "/admin/v2/brokers/ready",
        "/admin/v2/brokers/version",
        "/openapi.json",
        "/heliograph/v1/health",
        "/heliograph/v1/health/active",
        "/console",
        "/console/",
        "/console/sign-in",
        "/console/signed-in",
        "/console/sign-out",
        "/console/{file}",
    }
    assert {row.method for row in free} == {"GET"}


def test_who_may_only_look_changes_nothing() -> None:
    looking = (CallAccess.LOOK_UP, CallAccess.LIST, CallAccess.ANY, CallAccess.PUBLIC, CallAccess.METRICS)
    assert [row[:2] for row in ROUTES if row.method != "GET" and row.access in looking] == []


def test_a_call_of_one_subscription_names_it() -> None:
    for row in ROUTES:
        if row.access is CallAccess.CONSUME and "/subscription/" in row.path:
            assert names(row.path) & {"subscription", "sub"}, row.path


def test_where_a_body_names_topics_the_handler_checks_each() -> None:
    """`region_node.faces.admin.topics.bulk_reads`, all of it: its calls go by `_each`, or check before they answer
    (tests/region_node/security/test_secured_region.py).
    """
    assert {row.path for row in ROUTES if row.access is CallAccess.EACH} == {row.path for row in bulk_reads.ROUTES}


def test_a_policy_that_wants_a_super_user_says_so_wherever_it_is_set() -> None:
    """By a path of its own, or in the body of a new namespace, which goes by the row."""
    access = {row[:2]: row.access for row in ROUTES}
    for policy in POLICIES:
        if policy.namespace:
            wanted = access["PUT" if policy.put else "POST", f"{NS}/{policy.namespace}"]
            assert (wanted is CallAccess.SUPER) == policy.by_super, policy.name
    assert access["POST", f"{NS}/resourcegroup/{{group}}"] is CallAccess.SUPER
    assert {policy.name for policy in POLICIES if policy.by_super} == {
        "antiAffinity",
        "bookieAffinity",
        "resourceGroup",
    }
