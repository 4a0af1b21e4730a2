"""What a handler takes is read by the types of its parameters, the body first; what nothing reads ends the start."""

from __future__ import annotations

import asyncio
from inspect import signature
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from heliograph.model.admin_paths import PARAMETER
from heliograph.model.errors import MalformedRequest, NotFound
from heliograph.model.topic_names import TopicName
from region_node.faces.admin.calls.admin_context import Admin
from region_node.faces.admin.calls.call_bodies import Given
from region_node.faces.admin.calls.call_parameters import ExistingNamespace, Loaded, Namespace, called, taken_by
from region_node.faces.admin.server.admin_server import ROUTES
from region_node.faces.admin.server.openapi import document

TOPIC = TopicName.parse("persistent://t/n/x")


class Wanted(Given):
    name: str


def admin(**more: Any) -> Any:
    return SimpleNamespace(topic=lambda _: TOPIC, namespace=lambda _: "t/n", policies=lambda _: None, **more)


def asked(handler: Any, query: str = "", body: bytes = b"", admin: Any = admin(), **names: str) -> Any:  # noqa: B008
    request = make_mocked_request("POST", f"/?{query}", match_info=names)
    request._read_bytes = body
    return asyncio.run(called(handler, admin, request))


def test_each_parameter_is_read_by_its_type() -> None:
    async def handler(
        admin: Admin,
        request: web.Request,
        name: TopicName,
        namespace: Namespace,
        policy: str,
        number: int,
        given: Wanted | None,
        *,
        force: bool = False,
        onlyHere: bool = False,
        mode: str = "ALL",
        count: int | None = None,
    ) -> Any:
        return request.method, name, namespace, policy, number, given, force, onlyHere, mode, count

    same = ("POST", TOPIC, "t/n", "a", 7)
    assert asked(handler, policy="a", number="7") == (*same, None, False, False, "ALL", None)
    found = asked(handler, "force=TRUE&onlyHere=no&mode=&count=3", b'{"name": "b"}', policy="a", number="7")
    assert found == (*same, Wanted("b"), True, False, "", 3)
    for query, number, said in (("count=x", "7", "count must be a whole number"), ("", "x", "number must be a whole")):
        with pytest.raises(MalformedRequest, match=said):
            asked(handler, query, policy="a", number=number)


def test_what_is_waited_for_is_there_when_the_handler_begins() -> None:
    async def loaded(name: TopicName) -> str:
        return f"{name} is loaded"

    async def handler(admin: Admin, topic: Loaded) -> Any:
        return topic

    assert asked(handler, admin=admin(loaded=loaded)) == f"{TOPIC} is loaded"


def test_a_wrong_body_is_refused_before_a_name_that_is_not_there() -> None:
    async def handler(admin: Admin, namespace: ExistingNamespace, given: Wanted) -> None:
        raise AssertionError("it does not run")

    def missing(_: str) -> None:
        raise NotFound("Namespace does not exist")

    there = admin()
    there.policies = missing
    with pytest.raises(MalformedRequest):
        asked(handler, body=b"[]", admin=there)
    with pytest.raises(NotFound):
        asked(handler, body=b'{"name": "a"}', admin=there)


def test_a_parameter_that_nothing_reads_is_a_slip() -> None:
    async def handler(admin: Admin, limits: float) -> None: ...

    with pytest.raises(TypeError, match="nothing reads limits"):
        taken_by(handler)


def test_whatever_stands_around_a_handler_hands_on_what_it_takes() -> None:
    for row in ROUTES:
        taken = {one.name: None for one in taken_by(row.handler)}
        signature(row.handler, follow_wrapped=False).bind(None, **taken)


def test_every_name_that_a_handler_takes_is_in_its_paths() -> None:
    for row in ROUTES:
        names = {name: "x" for name, _ in PARAMETER.findall(row.path)}
        request = make_mocked_request("GET", "/", match_info={**names, "domain": "persistent"})
        for one in taken_by(row.handler):
            try:
                if one.of_query is None and one.name != "given":
                    one.read(admin(tenant=lambda _: "t", loaded=str, log=str, ledger=str), request)
            except KeyError as error:
                pytest.fail(f"{row.method} {row.path}: the handler takes {error}")
            except Exception:  # what is not there, or is malformed, is another matter
                continue


def test_the_description_names_what_a_query_says() -> None:
    paths = document(ROUTES, "1")["paths"]

    def queries(path: str, method: str) -> dict[str, str]:
        found = paths[path][method]["parameters"]
        return {one["name"]: one["schema"]["type"] for one in found if one["in"] == "query"}

    assert queries("/admin/v2/tenants/{tenant}", "delete") == {"force": "boolean"}
    assert queries("/admin/v2/namespaces/{tenant}/{namespace}/retention", "get") == {"applied": "boolean"}
    of_topic = "/admin/v2/{domain}/{tenant}/{namespace}/{topic}/retention"
    assert queries(of_topic, "get") == {"applied": "boolean", "isGlobal": "boolean"}
    assert queries(of_topic, "delete") == {"isGlobal": "boolean"}
