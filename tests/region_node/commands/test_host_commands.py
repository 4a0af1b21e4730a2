"""Certificates for a Kubernetes secret hold the names by which clients come."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest
from typer import Typer
from typer.testing import CliRunner

from heliograph.model.errors import ConfigError
from region_node.commands import host_commands


def made(*words: str) -> None:
    app = Typer()
    host_commands.register(app)
    result = CliRunner().invoke(app, ["hosts", "certificates", *words])
    if result.exception is not None:
        raise result.exception


def believes(folder: Path, role: str, name: str) -> bool:
    """Whether a client that was told this name takes that role's certificate for it."""
    client_side, server_side = ssl.MemoryBIO(), ssl.MemoryBIO()
    server_context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_context.load_cert_chain(folder / f"{role}.pem", folder / f"{role}.key")
    client = ssl.create_default_context(cafile=str(folder / "ca.pem")).wrap_bio(
        client_side, server_side, server_hostname=name
    )
    server = server_context.wrap_bio(server_side, client_side, server_side=True)
    for _ in range(8):
        for side in (client, server):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLCertVerificationError:
                return False
    return True


def test_clients_inside_and_outside_of_a_cluster_believe_a_broker(tmp_path: Path) -> None:
    made(
        "--ca", str(tmp_path), "--region", "eu", "--region", "us", "--name", "eu=b0.eu.example", "--kubernetes", "eu=m"
    )
    for name in (
        "b0.eu.example",
        "eu-broker-12.m.svc.cluster.local",
        "eu-lookup.m.svc.cluster.local",
        "eu-lookup.m.svc",
    ):
        assert believes(tmp_path, "broker.eu", name), name
        assert not believes(tmp_path, "broker.us", name), name
    for name in ("eu-lookup.other.svc.cluster.local", "m.svc.cluster.local", "b1.eu.example"):
        assert not believes(tmp_path, "broker.eu", name), name


def test_names_that_come_later_are_added(tmp_path: Path) -> None:
    made("--ca", str(tmp_path), "--region", "eu")
    assert not believes(tmp_path, "broker.eu", "eu-lookup.m.svc")
    made("--ca", str(tmp_path), "--region", "eu", "--kubernetes", "eu=m")
    assert believes(tmp_path, "broker.eu", "eu-lookup.m.svc")


@pytest.mark.parametrize("option", ["--name", "--kubernetes"])
@pytest.mark.parametrize("value", ["ap=x", "eu", "eu="])
def test_a_name_is_of_a_region(tmp_path: Path, option: str, value: str) -> None:
    with pytest.raises(ConfigError, match=f"{option} wants REGION=.* with one of the regions eu, us, not '{value}'"):
        made("--ca", str(tmp_path), "--region", "eu", "--region", "us", option, value)
    assert not list(tmp_path.iterdir())
