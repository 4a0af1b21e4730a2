"""The shell around the handlers: what it writes down, and what it says of bytes that are no request. Its sockets are
not real.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiohttp import compression_utils, web

from heliograph.model.errors import Unauthenticated
from heliograph.runtime.throttle import ROWS
from region_node.faces.admin.brokers import brokers
from region_node.faces.admin.server import admin_server, openapi
from region_node.faces.admin.server.admin_server import AdminServer
from region_node.faces.admin.server.http_connections import HttpConnections, HttpLimits
from region_node.security.authentication.authentication_service import Authentication
from region_node.security.authentication.principal import Credentials, Principal
from region_node.security.settings import SecuritySettings
from tests.region_node.faces.admin.server.http_peer import Peer, settle


class Known:
    """Takes whoever says a name; nobody may do anything."""

    open = False

    def of_header(self, header: str, certificate: Any, host: str) -> Credentials:
        return Credentials(method="token", data=header.encode())

    def lets_in_unproven(self, header: str, certificate: Any) -> bool:
        return False

    async def identify(self, credentials: Credentials, original: str = "") -> Principal:
        if not credentials.data:
            raise Unauthenticated("who is it?")
        return Principal(role=credentials.data.decode())


def answered(*sent: bytes, authentication: Any = None) -> tuple[list[Any], list[bytes]]:
    """(what the audit log has then, how each was answered): each comes on a connection of its own. authentication:
    another one than `Known`.
    """
    changes: list[Any] = []

    async def run() -> list[bytes]:
        rights = SimpleNamespace(is_super=lambda _: False, administers=lambda *_: False)
        admin = SimpleNamespace(
            security=SimpleNamespace(authentication=authentication or Known(), rights=rights),
            audit=SimpleNamespace(change=lambda **change: changes.append(change)),
            view=SimpleNamespace(tenant=lambda _: True),
            authenticate_metrics=False,
            goes_by=lambda host: host == "ours.example.com",
            version="1",
        )
        server = AdminServer(cast(Any, admin))
        await server._runner.setup()
        assert server._runner.server is not None
        server._connections = HttpConnections(HttpLimits(), server._runner.server)
        written = []
        try:
            for each in sent:
                peer = Peer(server._connections(), "10.0.0.1")
                peer.protocol.data_received(each)
                await settle()
                written.append(peer.written)
                peer.close()
            await settle()
        finally:
            server._connections.close()
            await server._runner.cleanup()
        return written

    return changes, asyncio.run(run())


def put(path: str, *headers: str, body: str = "") -> bytes:
    lines = (f"PUT {path} HTTP/1.1", "Host: a", f"Content-Length: {len(body)}", *headers, "", body)
    return "\r\n".join(lines).encode("latin-1")


def test_what_nobody_who_is_known_asks_for_pushes_no_change_out_of_the_audit_log() -> None:
    changes, written = answered(
        put("/admin/v2/tenants/a"),
        put("/admin/v2/tenants/a", "Origin: http://b"),
        put("/no/such/path"),
        put("/admin/v2/tenants/b", "Authorization: ann"),
    )
    assert [int(each.split()[1]) for each in written] == [401, 403, 404, 403]
    assert [(change["role"], change["path"], change["refused"]) for change in changes] == [
        ("ann", "/admin/v2/tenants/b", True)
    ]


@pytest.mark.parametrize(
    ("host", "token", "by_name"),
    [
        ("evil.net", "", False),
        ("a.svc.evil.net:8080", "", False),
        ("ours.example.com:8080", "", True),
        ("10.1.2.3:8080", "", True),
        ("localhost", "", True),
        ("evil.net", "Authorization: Bearer ann", True),
    ],
)
def test_a_name_of_somebody_elses_reaches_no_anonymous_role(host: str, token: str, by_name: bool) -> None:
    """Its page would have the browser ask as whoever presents nothing: reads, too."""
    authentication = Authentication(SecuritySettings(anonymous_role="guest"), {"token": Known()})
    asked = put("/admin/v2/tenants/a", *([token] if token else [])).replace(b"Host: a", f"Host: {host}".encode(), 1)
    _, written = answered(asked, asked.replace(b"PUT", b"GET", 1), authentication=authentication)
    for each in written:
        assert each.split()[1] == b"403" and (b"may not" in each, b"allowed_hosts" in each) == (by_name, not by_name)


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\nno header\r\n\r\n",
        put("/" + "a" * 10_000),
        put("/a", "Transfer-Encoding: chunked"),
    ],
    ids=["words", "long", "two-lengths"],
)
def test_bytes_that_are_no_request_are_no_failure_of_ours(sent: bytes, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    _, (written,) = answered(sent)
    assert written.split()[1] == b"400"
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == []
    assert "admin.bad_request" in caplog.messages


def test_a_load_balancer_that_asks_a_passive_region_time_and_again_fills_no_log(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def ready(admin: Any) -> None: ...

    monkeypatch.setattr(brokers, "ready", ready)
    monkeypatch.setattr(brokers, "_takes", lambda admin, namespace: False)
    caplog.set_level(logging.INFO)
    asked = (put("/heliograph/v1/health/active?namespace=a/b").replace(b"PUT", way, 1) for way in (b"GET", b"HEAD"))
    _, (got, head) = answered(*asked)
    assert got.split()[1] == head.split()[1] == b"503"
    assert got.endswith(b'does"}') and head.endswith(b"\r\n\r\n")
    assert caplog.messages == []


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
def test_no_body_is_unpacked_whoever_sends_it(coding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A KiB can be a MiB, and a client without credentials could send as much of it as it likes."""
    unpacked: list[Any] = []

    def unpack(self: Any, data: bytes, **_: Any) -> bytes:
        unpacked.append(data)
        raise ValueError("it would not end")

    monkeypatch.setattr(compression_utils.ZLibDecompressor, "decompress_sync", unpack)
    body = gzip.compress(bytes(1 << 20)).decode("latin-1")
    path, coded = "/heliograph/v1/reading/snapshots", f"Content-Encoding: {coding}"
    json_body = "Content-Type: application/json"
    asked = (put(path, coded, json_body, *more, body=body) for more in ((), ("Authorization: ann",)))
    _, written = answered(*(each.replace(b"PUT", b"POST", 1) for each in asked))
    assert [int(each.split()[1]) for each in written] == [401, 415] and not unpacked


@pytest.mark.parametrize("count", [0, 1, ROWS, ROWS + 1, 5 * ROWS])
def test_a_long_list_is_written_in_pieces_between_which_others_go_on(count: int) -> None:
    rows: list[Any] = [{"a": index} if index % 2 else f"name-é-{index}" for index in range(count)]

    async def run() -> None:
        turns, writing = 0, asyncio.ensure_future(admin_server._response(rows))
        while not writing.done():
            await asyncio.sleep(0)
            turns += 1
        plain, answer = web.json_response(rows), writing.result()
        assert isinstance(answer, web.Response) and answer.body == plain.body
        assert answer.headers == plain.headers
        assert turns > (count // ROWS if count > ROWS else 0)

    asyncio.run(run())


def test_the_description_is_made_once_however_often_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Anybody may ask, and making it takes a third of a second."""
    made: list[str] = []

    def document(routes: Any, version: str) -> dict[str, Any]:
        made.append(version)
        return {"paths": len(routes)}

    monkeypatch.setattr(openapi, "document", document)

    async def run() -> list[bytes]:
        described = openapi.Description(admin_server.ROUTES, "1")
        return [*await asyncio.gather(*(described.body() for _ in range(100))), await described.body()]

    assert set(asyncio.run(run())) == {json.dumps({"paths": len(admin_server.ROUTES)}).encode()} and made == ["1"]
