"""Two regions of real processes, and certificates that are revoked in one of them: connections of the other one that
stand by them end, and they stay revoked where the configuration is put back to a backup of before.
"""

from __future__ import annotations

import json
import socket
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from heliograph.wire.metadata_frames import FEATURES, MAGIC, Frame, body, frame
from heliograph.wire.pulsar import pulsar_pb2 as pb
from region_node.security.certificate_authority import authority, ensure_certificates, issue
from region_node.security.tls import client_context
from tests.region_node.faces.pulsar import codec
from tests.region_node.live import until
from tests.region_node.region_processes import Process, Region
from tests.region_node.security.authentication.issuer import SECRET, secret_token

pytestmark = [pytest.mark.wan, pytest.mark.slow]

HELIOGRAPH = Path(sys.executable).with_name("heliograph")
REGIONS = ("us", "eu")
STOLEN = {"meta": "bookie.eu", "link": "replicator.us"}
"""Listener of `eu` -> whose certificate was stolen."""
ASKED = {
    "meta": frame(Frame.HELLO, 0, body(MAGIC, FEATURES, "t")),
    "link": codec.frame(pb.BaseCommand.CONNECT, client_version="t", protocol_version=19),
}


class Half(Region):
    """One of the two: a configuration node, a metadata node, a broker."""

    def __init__(self, folder: Path, name: str, peers: dict[str, str]) -> None:
        super().__init__(folder, name)
        self.peers = peers

    def settings(self, node: str, roles: list[str], **sections: Any) -> dict[str, Any]:
        made, tls = super().settings(node, roles, **sections), self.folder / "tls"
        files = {
            f"{role}_{part}": str(tls / f"{role}.{self.name}.{end}")
            for role in ("broker", "bookie", "meta", "config", "replicator")
            for part, end in (("cert", "pem"), ("key", "key"))
        }
        server = {"server_cert": files["broker_cert"], "server_key": files["broker_key"]}
        security = {
            "authentication": ["token"],
            "authorization": True,
            "super_users": ["root"],
            "tokens": [{"algorithms": ["HS256"], "secret_file": str(self.folder / "secret")}],
        }
        made["tls"] = {"ca": str(tls / "ca.pem"), **files, **server, "internal": True}
        return {**made, "security": security}

    def begin_config(self) -> Process:
        own = {"port": 0, "raft_port": int(self.peers[self.name].rpartition(":")[2]), "peers": self.peers}
        return self.spawn(self.settings("config", ["config"], config_node=own))

    def begin_broker(self) -> Process:
        where = {
            name: [f"127.0.0.1:{self.processes[f'{self.name}-{name}'].ports[name]}"] for name in ("meta", "config")
        }
        return self.spawn(
            self.settings("broker-0", ["broker"], **where, broker={"port": 0, "admin_port": 0, "link_port": 0})
        )

    def ask(self, method: str, path: str, given: Any = None) -> tuple[int, Any]:
        asked = urllib.request.Request(
            self.admin_url() + path, None if given is None else json.dumps(given).encode(), method=method
        )
        asked.add_header("Content-Type", "application/json")
        asked.add_header("Authorization", f"Bearer {secret_token(sub='root').decode()}")
        try:
            with urllib.request.urlopen(asked, timeout=60) as answer:
                text = answer.read()
                return answer.status, json.loads(text) if text else None
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def revoked(self) -> set[str]:
        return {row["name"] for row in self.ask("GET", "/heliograph/v1/revocations")[1]["revocations"]}


@pytest.fixture
def regions(tmp_path: Path) -> Iterator[dict[str, Half]]:
    ensure_certificates(tmp_path / "tls", list(REGIONS))
    (tmp_path / "secret").write_bytes(SECRET)
    with ExitStack() as held:
        ports = [held.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname()[1] for _ in REGIONS]
    peers = {name: f"127.0.0.1:{port}" for name, port in zip(REGIONS, ports, strict=True)}
    with ExitStack() as running:
        made = {name: running.enter_context(Half(tmp_path, name, peers)) for name in REGIONS}
        begun = [one.begin_config() for one in made.values()]
        begun += [one.spawn(one.settings("meta", ["meta"], meta_node={"port": 0})) for one in made.values()]
        for process in begun:
            process.wait_ready()
        for broker in [one.begin_broker() for one in made.values()]:
            broker.wait_ready()
        yield made


def opened(port: int, folder: Path, name: str, asked: bytes) -> ssl.SSLSocket | None:
    """A connection that was let in; None: it was not."""
    files = [str(folder / "tls" / file) for file in ("ca.pem", f"{name}.pem", f"{name}.key")]
    made = client_context(*files).wrap_socket(socket.create_connection(("127.0.0.1", port), 60))
    try:
        made.sendall(asked)
        answer = made.recv(1 << 16)
        return made if answer and b"revoked" not in answer else None
    except OSError as error:
        assert not isinstance(error, TimeoutError), error
        return None


def ended(made: ssl.SSLSocket) -> bool:
    try:
        while made.recv(1 << 16):
            pass
    except OSError as error:
        return not isinstance(error, TimeoutError)
    return True


def heliograph(*words: str) -> None:
    done = subprocess.run([HELIOGRAPH, *words], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_is_revoked_ends_in_the_other_region_and_stays_so_over_a_restore(
    regions: dict[str, Half], tmp_path: Path
) -> None:
    us, eu = regions["us"], regions["eu"]
    for name, one in regions.items():
        urls = {"serviceUrl": one.admin_url(), "brokerServiceUrl": one.service_url()}
        assert us.ask("PUT", f"/admin/v2/clusters/{name}", urls)[0] == 204
    serials = {}
    for listener, name in STOLEN.items():
        path = tmp_path / "tls" / f"stolen.{name}.pem"
        issue(*authority(tmp_path / "tls"), *name.split("."), path, path.with_suffix(".key"), [])
        serials[listener] = f"{x509.load_pem_x509_certificate(path.read_bytes()).serial_number:x}"
    files = [str(tmp_path / "tls" / file) for file in ("ca.pem", "broker.us.pem", "broker.us.key")]
    tls = [word for pair in zip(("--tls-ca", "--tls-cert", "--tls-key"), files, strict=True) for word in pair]
    config = f"127.0.0.1:{us.processes['us-config'].ports['config']}"
    heliograph("backup", "--config", "--unsealed", "--address", config, "--out", str(tmp_path / "before"), *tls)

    def port(listener: str) -> int:
        return next(one.ports[listener] for one in eu.processes.values() if listener in one.ports)

    standing = {
        listener: opened(port(listener), tmp_path, f"stolen.{name}", ASKED[listener])
        for listener, name in STOLEN.items()
    }
    for serial in serials.values():
        status, said = us.ask("PUT", f"/heliograph/v1/revocations/certificate/{serial}", {"reason": "stolen"})
        assert (status, said["regions"]) == (200, ["us"])
    for listener, made in standing.items():
        assert made is not None and ended(made), listener
    until(lambda: eu.revoked() == set(serials.values()))
    status, text = eu.ask("DELETE", f"/heliograph/v1/revocations/certificate/{serials['meta']}")
    assert status == 412 and "lift it there" in text

    for one in regions.values():
        for node in ("broker-0", "config"):
            assert one.processes[f"{one.name}-{node}"].terminate() == 0
        folder = tmp_path / f"{one.name}-config"
        (folder / "config").rename(folder / "older")
        heliograph(
            *("restore", str(tmp_path / "before"), "--to", str(folder)),
            *(word for name in REGIONS for word in ("--voter", name)),
        )
    for process in [one.begin_config() for one in regions.values()]:
        process.wait_ready()
    for process in [one.begin_broker() for one in regions.values()]:
        process.wait_ready()
    for one in regions.values():
        until(lambda one=one: one.revoked() == set(serials.values()))
    for listener, name in STOLEN.items():
        assert opened(port(listener), tmp_path, f"stolen.{name}", ASKED[listener]) is None, listener
    lifted = f"/heliograph/v1/revocations/certificate/{serials['meta']}"
    until(lambda: us.ask("DELETE", lifted)[0] == 200)  # once it is in the configuration again
    until(lambda: eu.revoked() == {serials["link"]})
