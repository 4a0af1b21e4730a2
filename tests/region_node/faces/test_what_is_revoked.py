"""A token that leaks: connections that are open by it, at every face of a region of real processes, and the command
that ends them.
"""

from __future__ import annotations

import http.client
import json
import socket
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from heliograph.cli.main import app
from heliograph.wire.pulsar import pulsar_pb2 as pb
from tests.region_node.faces.guarded_region import Guarded
from tests.region_node.faces.kafka.harness import request
from tests.region_node.faces.pulsar.codec import Reader, frame
from tests.region_node.security.authentication.issuer import secret_token

pytestmark = [pytest.mark.wan, pytest.mark.slow]

K = pb.BaseCommand
PATIENCE_S = 60
STATS = "/admin/v2/persistent/shop/live/orders/stats"


class Token:
    """Of the role `writer`. Each way in returns an open connection, and what was answered at the door."""

    def __init__(self, region: Guarded, **claims: object) -> None:
        self.region = region
        self.text = secret_token(sub="writer", exp=int(time.time()) + 3600, **claims).decode()

    def pulsar(self) -> tuple[socket.socket, str]:
        made = socket.create_connection(("127.0.0.1", self.region.port("pulsar")), PATIENCE_S)
        signing = {"auth_method_name": "token", "auth_data": self.text.encode()}
        made.sendall(frame(K.CONNECT, client_version="t", protocol_version=19, **signing))
        return made, commands(made, Reader())[0].error.message

    def kafka(self) -> tuple[socket.socket, str]:
        made = socket.create_connection(("127.0.0.1", self.region.port("kafka")), PATIENCE_S)
        made.sendall(request("sasl_handshake", 1, {"mechanism": "PLAIN"}))
        answer(made)
        made.sendall(request("sasl_authenticate", 1, {"auth_bytes": b"\0u\0token:" + self.text.encode()}))
        found = answer(made)
        return made, "" if found[4:6] == b"\0\0" else found.decode(errors="replace")

    def admin(self) -> tuple[socket.socket, str]:
        made = http.client.HTTPConnection(self.region.admin_url().removeprefix("http://"), timeout=PATIENCE_S)
        made.request(
            "GET", "/admin/v2/persistent/shop/live/orders/stats", None, {"Authorization": f"Bearer {self.text}"}
        )
        found = made.getresponse()
        text = found.read().decode()
        return made.sock, "" if found.status == 200 else text


def commands(made: socket.socket, reader: Reader) -> list[pb.BaseCommand]:
    """Those of one read at least; none: the connection was closed."""
    while data := made.recv(1 << 16):
        if found := [command for command, _ in reader.feed(data)]:
            return found
    return []


def answer(made: socket.socket) -> bytes:
    found = b""
    while len(found) < 4 or len(found) < 4 + int.from_bytes(found[:4], "big"):
        found += made.recv(1 << 16)
    return found[4:]


def closed(made: socket.socket) -> bytes:
    """What came before the end."""
    found = b""
    try:
        while data := made.recv(1 << 16):
            found += data
    except ConnectionResetError:
        pass
    return found


def open_still(made: socket.socket) -> bool:
    made.setblocking(False)
    try:
        return bool(made.recv(1, socket.MSG_PEEK))
    except BlockingIOError:
        return True


def test_a_leaked_token_is_closed_and_refused_at_every_face(guarded: Guarded, tmp_path: Path) -> None:
    def heliograph(*words: str) -> Result:
        found = CliRunner(
            env={"HELIOGRAPH_ADMIN": guarded.admin_url(), "HELIOGRAPH_TOKEN": guarded.tokens["s"], "COLUMNS": "200"}
        ).invoke(app, ["revocations", *words])
        assert found.exit_code == 0, (found.output, found.exception)
        return found

    leaked, other = Token(guarded, jti="leaked"), Token(guarded, jti="other")
    (tmp_path / "leaked.jwt").write_text(leaked.text)
    standing, others = (
        {face: getattr(token, face)() for face in ("pulsar", "kafka", "admin")} for token in (leaked, other)
    )
    assert {text for _, text in (*standing.values(), *others.values())} == {""}
    said = json.loads(heliograph("add", "token", "--token-file", str(tmp_path / "leaked.jwt"), "--json").stdout)
    assert (said["kind"], said["name"], said["by"], said["closed_here"]) == ("token", "leaked", "root", 3)
    assert said["until_ms"] > said["since_ms"]  # the token's own end
    last = {face: closed(made) for face, (made, _) in standing.items()}
    assert b"revoked" in last["pulsar"]
    assert all(open_still(made) for made, _ in others.values())
    for face in standing:
        assert "revoked" in getattr(leaked, face)()[1], face
        assert getattr(other, face)()[1] == "", face
    assert "leaked" in heliograph("list").stdout
    status, metrics = guarded.ask("n", "GET", "/metrics")
    assert status == 200 and b'heliograph_revoked_connections_closed_total{cluster="us",face="kafka"} 1' in metrics
    changes = guarded.ask("s", "GET", "/heliograph/v1/audit")[1]["changes"]
    (change,) = [one for one in changes if "/revocations/token/leaked" in one["path"]]
    assert (change["role"], change["status"], change["after"]["name"]) == ("root", 200, "leaked")
    assert "counts again" in heliograph("remove", "token", "leaked").stdout
    for face in standing:
        assert getattr(leaked, face)()[1] == "", face


def test_a_super_user_that_revokes_its_own_tokens_is_answered(guarded: Guarded) -> None:
    path = "/heliograph/v1/revocations/subject/root"
    own = {"Authorization": f"Bearer {secret_token(sub='root', iat=1).decode()}"}
    made = http.client.HTTPConnection(guarded.admin_url().removeprefix("http://"), timeout=PATIENCE_S)
    made.request("PUT", path, json.dumps({"before_ms": 2000}).encode(), {**own, "Content-Type": "application/json"})
    found = made.getresponse()
    assert found.status == 200, found.read()
    assert json.loads(found.read())["before_ms"] == 2000
    made.request("GET", "/heliograph/v1/revocations", None, own)
    refused = made.getresponse()
    assert refused.status == 401 and b"revoked" in refused.read()
    newer = secret_token(sub="root", iat=3, exp=int(time.time()) + 600).decode()
    made.request("DELETE", path, None, {"Authorization": f"Bearer {newer}"})
    assert made.getresponse().status == 200
    if guarded.connection is not None:
        guarded.connection.close()  # it was cut off: its token says no time of issue


@pytest.mark.parametrize(
    ("path", "body", "says"),
    [
        ("badge/x", {}, "there are token, subject"),
        ("token/a", {"before_ms": 5}, "subject or an issuer"),
        ("user/ann", {"until_ms": 1 << 50}, "a password does not"),
        ("token/a", {"until_ms": 5}, "in the past"),
        ("certificate/xyz", {}, "hexadecimal"),
        (f"token/{'a' * 257}", {}, "256 characters"),
    ],
)
def test_what_cannot_be_revoked_so_is_refused_with_why(guarded: Guarded, path: str, body: object, says: str) -> None:
    status, text = guarded.ask("s", "PUT", f"/heliograph/v1/revocations/{path}", body)
    assert status == 412 and says in text["reason"], text
    assert guarded.ask("s", "GET", "/heliograph/v1/revocations")[1]["revocations"] == []
