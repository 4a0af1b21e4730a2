"""Bodies of calls: what is not of the type that the handler's `given` has is refused before the handler runs, by the
field that is wrong; and `/openapi.json` shows the types.
"""

from __future__ import annotations

import asyncio
import inspect
import json
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from heliograph.model.configuration.tombstones import Tombstone
from heliograph.model.errors import MalformedRequest
from region_node.faces.admin.calls.admin_context import Admin, text_body
from region_node.faces.admin.calls.call_bodies import NOTHING, Given, MessageId, OnlyGiven, body_type, decoded
from region_node.faces.admin.calls.call_rights import CallAccess, Route
from region_node.faces.admin.dr import disaster_recovery
from region_node.faces.admin.server.admin_server import ROUTES, AdminServer
from region_node.faces.admin.server.openapi import document
from region_node.faces.admin.topics import bulk_reads
from region_node.security.authorization.security_service import open_security

ADMIN = cast(
    Any,
    SimpleNamespace(security=open_security(), authenticate_metrics=False, view=None, goes_by=None, version="1"),
)


class Wanted(Given):
    name: str
    ranges: dict[str, list[int]] | None = None


class Strict(OnlyGiven):
    rpo_s: float | None = None


def request(body: bytes, kind: str = "application/json") -> web.Request:
    made = make_mocked_request("POST", "/a", headers={"Content-Type": kind})
    made._read_bytes = body
    return made


def read(value: Any, kind: Any) -> Any:
    return asyncio.run(decoded(request(b"" if value is None else json.dumps(value).encode()), kind))


@pytest.mark.parametrize(
    ("kind", "value", "said"),
    [
        (Wanted, None, "the body: expected object, got null (it is an object of name, ranges)"),
        (Wanted, [], "the body: expected object, got array"),
        (Wanted, {}, "the body: the object is missing the field name"),
        (Wanted, {"name": 1}, "name: expected str, got int"),
        (Wanted, {"name": "a", "ranges": {"t": [1, True]}}, "ranges[...][1]: expected int, got bool"),
        (Strict, {"rpo": 1}, "the body: the object has a field that is not known: rpo (it is an object of rpo_s)"),
        (MessageId, {"ledgerId": 1}, "the body: the object is missing the field entryId"),
        (bool, "true", "the body: expected bool, got str"),
        (list[str], ["a", None], "[1]: expected str, got null"),
        (
            disaster_recovery.ActivePassive,
            {"active": "us", "slo": {"rpo_s": 0}},
            "slo.rpo_s: expected float > 0.0",
        ),
        (
            bulk_reads.HeldPositions,
            {"positions": {"t": "9" * 5000 + ":1"}, "subscription": "s"},
            "positions[...]: expected str matching regex",
        ),
    ],
)
def test_a_refusal_begins_with_the_field(kind: Any, value: Any, said: str) -> None:
    with pytest.raises(MalformedRequest) as refused:
        read(value, kind)
    assert str(refused.value).startswith(said)


def test_what_fits_is_the_type_and_what_pulsar_has_beside_it_is_passed_over() -> None:
    assert read({"name": "a", "more": {}}, Wanted) == Wanted("a")
    assert read({"ledgerId": 7, "entryId": -1, "partitionIndex": 2}, MessageId).position == (7, -1)
    assert read(None, Wanted | None) is None and read(3, int | Wanted) == 3


@pytest.mark.parametrize("charset", ["punycode", "idna", "utf-16", "no-such"])
def test_a_body_is_utf_8_whatever_charset_it_names(charset: str) -> None:
    """Some of Python's take hours for a MiB, and whoever sends it needs no grant."""
    given = '{"name": "é-b-a"}'.encode()
    assert asyncio.run(decoded(request(given, f"application/json; charset={charset}"), Wanted)) == Wanted("é-b-a")


@pytest.mark.parametrize("given", [b"\xff", b'{"name": "\\ud800"}', b'{"name": "a", "\\uDFFF": 1}', b"[" * 100_000])
def test_what_no_text_can_be_is_refused(given: bytes) -> None:
    with pytest.raises(MalformedRequest):
        asyncio.run(decoded(request(given), Wanted))
    assert asyncio.run(text_body(request(b'"' + b"[" * 100_000))) == '"' + "[" * 100_000
    assert asyncio.run(text_body(request(b"[" * 100_000))) == "[" * 100_000
    assert read({"name": "\U0001f600"}, Wanted) == Wanted("\U0001f600"), "both halves are one"


@pytest.mark.parametrize("error", [web.RequestPayloadError("no gzip"), ConnectionResetError("Connection lost")])
def test_a_body_that_breaks_off_is_its_clients_fault(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(self: web.Request) -> bytes:
        raise error

    monkeypatch.setattr(web.Request, "read", broken)
    with pytest.raises(MalformedRequest, match=str(error)):
        asyncio.run(decoded(request(b""), Wanted))


@pytest.mark.parametrize("value", ["", 0])
def test_what_clients_send_that_have_nothing_to_say_is_nothing_where_it_can_be_nothing_else(value: Any) -> None:
    assert read(value, Wanted | None) is None
    assert read(0, int | None) == 0 and read(False, bool | None) is False and read("", str | None) == ""
    with pytest.raises(MalformedRequest):
        read(value, Wanted)
    with pytest.raises(MalformedRequest):
        read("a", Wanted | None)


def test_the_handler_does_not_run_where_the_body_is_wrong() -> None:
    ran: list[Any] = []

    async def handler(admin: Any, request: web.Request, given: Wanted) -> None:
        ran.append(given)

    async def main(body: bytes) -> int:
        answer = await AdminServer(ADMIN)._wrapped(handler)(request(body))
        return answer.status

    assert asyncio.run(main(b'{"name": 1}')) == 400 and asyncio.run(main(b"no JSON")) == 400 and ran == []
    assert asyncio.run(main(b'{"name": "a"}')) == 204 and ran == [Wanted("a")]


def test_a_record_is_answered_and_written_down_as_json() -> None:
    async def handler(admin: Any, request: web.Request) -> list[Tombstone]:
        found = Tombstone(topic="t/n", regions=("us", "eu"), since_ms=1, until_ms=2)
        Admin.changed(ADMIN, request, {"a": 1}, found)
        return [found]

    asked = request(b"")
    answer: Any = asyncio.run(AdminServer(ADMIN)._wrapped(handler)(asked))
    (shown,) = json.loads(answer.text)
    assert shown["regions"] == ["us", "eu"] and list(shown)[:2] == ["topic", "regions"]
    before, after = asked["change"]
    assert before == {"a": 1} and json.loads(json.dumps(after)) == shown


def test_no_handler_reads_json_by_itself() -> None:
    """But those of policies, which are checked by their table; the schema of each stands in its row."""
    modules = {inspect.getmodule(row.handler) for row in ROUTES}
    names = {module.__name__ for module in modules if module is not None and hasattr(module, "body")}
    assert {name.removeprefix("region_node.faces.admin.") for name in names} == {"tenancy.policy_routes"}


def test_the_description_shows_every_body() -> None:
    described = document(ROUTES, "1")
    for row in ROUTES:
        found = described["paths"].get(row.path, {}).get(row.method.lower())
        if found is not None and (row.body is not None or body_type(row.handler) is not NOTHING):
            assert found["requestBody"]["content"]["application/json"], row.path
    schemas, paths = described["components"]["schemas"], described["paths"]
    assert schemas["MessageId"]["properties"]["ledgerId"] == {"type": "integer"}
    passive = paths["/heliograph/v1/dr/{tenant}/{namespace}"]["put"]["requestBody"]
    assert passive["required"] and passive["content"]["application/json"]["schema"]["$ref"].endswith("/ActivePassive")
    retention_path = "/admin/v2/namespaces/{tenant}/{namespace}/retention"
    retention = paths[retention_path]["post"]
    shape = retention["requestBody"]["content"]["application/json"]["schema"]
    assert shape["properties"]["retentionTimeInMinutes"]["minimum"] == -1
    assert set(retention["responses"]) == {"204", "default"}, "it says nothing"
    answers = [paths[path]["get"]["responses"]["200"] for path in (retention_path, "/admin/v2/resource-quotas")]
    policy, record = (answer["content"]["application/json"]["schema"] for answer in answers)
    assert policy == shape and record["$ref"].endswith("/ResourceQuota")


def test_a_row_whose_body_has_no_type_ends_the_start() -> None:
    async def handler(admin: Any, request: web.Request, given: Unknown) -> None:  # type: ignore[name-defined]  # noqa: F821
        """A slip."""

    with pytest.raises(NameError, match="Unknown"):
        AdminServer(ADMIN, routes=(*ROUTES, Route("POST", "/a", CallAccess.SUPER, handler)))
