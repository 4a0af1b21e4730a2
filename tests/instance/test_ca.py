"""The instance's certificates: mutual TLS works with them, strictly verified, and the role can be read from the peer's."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from region_node.instance.ca import ensure_certificates


def contexts(folder: Path, server: str, client: str) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    made = []
    for purpose, leaf in ((ssl.Purpose.CLIENT_AUTH, server), (ssl.Purpose.SERVER_AUTH, client)):
        context = ssl.create_default_context(purpose, cafile=str(folder / "ca.pem"))
        context.load_cert_chain(folder / f"{leaf}.pem", folder / f"{leaf}.key")
        context.verify_mode = ssl.CERT_REQUIRED
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        made.append(context)
    return made[0], made[1]


def handshake(server: ssl.SSLContext, client: ssl.SSLContext) -> dict[str, str]:
    """The peer's subject as the server sees it."""
    a, b, c, d = ssl.MemoryBIO(), ssl.MemoryBIO(), ssl.MemoryBIO(), ssl.MemoryBIO()
    one, two = server.wrap_bio(a, b, server_side=True), client.wrap_bio(c, d, server_hostname="127.0.0.1")
    for _ in range(6):
        for end in (two, one):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                pass
            c.write(b.read())
            a.write(d.read())
    subject = one.getpeercert()
    assert subject is not None
    return {k: v for row in subject["subject"] for k, v in row}  # type: ignore[union-attr,misc]


def test_the_role_is_read_from_a_verified_certificate(tmp_path: Path) -> None:
    ensure_certificates(tmp_path, ["us", "eu"])
    subject = handshake(*contexts(tmp_path, "replicator.us", "replicator.eu"))
    assert subject["organizationalUnitName"] == "replicator" and subject["commonName"] == "replicator.eu"


def test_what_is_there_stays_and_what_lacks_is_made(tmp_path: Path) -> None:
    ensure_certificates(tmp_path, ["us"])
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    ensure_certificates(tmp_path, ["us", "eu"])
    assert {name: (tmp_path / name).read_bytes() for name in before} == before
    handshake(*contexts(tmp_path, "config.us", "config.eu"))
    assert (tmp_path / "ca.key").stat().st_mode & 0o077 == 0


def test_another_instances_certificate_is_refused(tmp_path: Path) -> None:
    for name in ("one", "two"):
        ensure_certificates(tmp_path / name, ["us"])
    server, _ = contexts(tmp_path / "one", "replicator.us", "replicator.us")
    _, client = contexts(tmp_path / "two", "replicator.us", "replicator.us")
    with pytest.raises(ssl.SSLError):
        handshake(server, client)
