"""The link listener: only a peer with the instance's replicator certificate gets an answer."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from heliograph.model.roles.certificate_role import REPLICATOR, peer_identity
from heliograph.wire.pulsar import pulsar_pb2 as pb
from region_node.security.certificate_authority import ensure_certificates
from region_node.security.tls import client_context
from tests.region_node.region_processes import Region

pytestmark = [pytest.mark.wan, pytest.mark.slow]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("tls")
    ensure_certificates(made, ["us", "eu"])
    ensure_certificates(made / "foreign", ["eu"])
    return made


@pytest.fixture(scope="module")
def port(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with Region(tmp_path_factory.mktemp("region")) as region:
        region.start(bookies=0, brokers=0)
        tls = {
            "ca": str(folder / "ca.pem"),
            "replicator_cert": str(folder / "replicator.us.pem"),
            "replicator_key": str(folder / "replicator.us.key"),
        }
        settings = region.settings(
            "broker-0", ["broker"], **region.addresses, broker={"port": 0, "admin_port": -1, "link_port": 0}
        )
        yield region.spawn({**settings, "tls": tls}).wait_ready().ports["link"]


def greeted(port: int, context: ssl.SSLContext) -> bool:
    """Whether the listener answers CONNECT with CONNECTED."""
    command = pb.BaseCommand(
        type=pb.BaseCommand.CONNECT, connect=pb.CommandConnect(client_version="test", protocol_version=20)
    )
    body = command.SerializeToString()
    frame = (len(body) + 4).to_bytes(4, "big") + len(body).to_bytes(4, "big") + body
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=60) as plain, context.wrap_socket(plain) as secure:
            secure.sendall(frame)
            head = secure.recv(4)
            if len(head) < 4:
                return False
            rest = secure.recv(int.from_bytes(head, "big"))
            answer = pb.BaseCommand.FromString(rest[4:])
            return answer.type == pb.BaseCommand.CONNECTED
    except (ssl.SSLError, ConnectionError):
        return False


def context_of(folder: Path, name: str, ca: Path | None = None) -> ssl.SSLContext:
    return client_context(str((ca or folder) / "ca.pem"), str(folder / f"{name}.pem"), str(folder / f"{name}.key"))


def test_a_replicator_of_the_instance_is_heard(folder: Path, port: int) -> None:
    assert greeted(port, context_of(folder, "replicator.eu"))


def test_another_role_of_the_instance_is_not(folder: Path, port: int) -> None:
    assert not greeted(port, context_of(folder, "config.eu"))


def test_a_replicator_of_another_instance_is_not(folder: Path, port: int) -> None:
    foreign = context_of(folder / "foreign", "replicator.eu")
    foreign.load_verify_locations(str(folder / "ca.pem"))
    assert not greeted(port, foreign)


def test_nobody_without_a_certificate_is(folder: Path, port: int) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(str(folder / "ca.pem"))
    assert not greeted(port, context)


def test_the_role_is_the_organizational_unit_and_the_region_stands_behind_it() -> None:
    subject = ((("organizationName", "replicator"),), (("commonName", "replicator.eu"),))
    assert peer_identity({"subject": subject}) == ("", "") and peer_identity(None) == ("", "")
    unit = (("organizationalUnitName", REPLICATOR),)
    assert peer_identity({"subject": (*subject, unit)}) == (REPLICATOR, "eu")
    assert peer_identity({"subject": ((("commonName", "config.eu"),), unit)}) == (REPLICATOR, "")
