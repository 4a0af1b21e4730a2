"""The instance's certificates: mutual TLS works with them, strictly verified, and the role can be read from the
peer's.
"""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from heliograph.model.errors import ConfigError
from region_node.security import certificate_renewal
from region_node.security.certificate_authority import ensure_certificates, mend
from region_node.security.tls import client_context, server_context, together


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


def test_another_ca_in_three_steps_and_everybody_trusts_everybody_between_them(tmp_path: Path) -> None:
    ensure_certificates(tmp_path, ["us", "eu"], {"us": ["us.example"]})
    early = contexts(tmp_path, "replicator.us", "replicator.eu")  # who has read the files before
    first = certificate_renewal.leaves(tmp_path)
    assert len(first) == 10 and all(leaf.signed for leaf in first)
    with pytest.raises(ConfigError, match="no certificate of region ap"):
        certificate_renewal.renew(tmp_path, "ap")
    certificate_renewal.another_authority(tmp_path)
    handshake(*contexts(tmp_path, "replicator.us", "replicator.eu"))
    assert not any(leaf.signed for leaf in certificate_renewal.leaves(tmp_path)) and all(
        leaf.authority for leaf in certificate_renewal.leaves(tmp_path)
    )
    with pytest.raises(ConfigError, match="an older CA is still"):
        certificate_renewal.another_authority(tmp_path)
    with pytest.raises(ConfigError, match="signed by the older CA"):
        certificate_renewal.retire(tmp_path)
    assert certificate_renewal.renew(tmp_path, "us")[0] == "bookie.us"
    handshake(*contexts(tmp_path, "replicator.us", "replicator.eu"))  # of the new CA, and of the old one
    with pytest.raises(ConfigError, match=r"broker\.eu.*signed by the older CA"):
        certificate_renewal.retire(tmp_path)
    certificate_renewal.renew(tmp_path)
    assert certificate_renewal.retire(tmp_path) == 1
    late = contexts(tmp_path, "replicator.us", "replicator.eu")
    handshake(*late)
    early[1].load_verify_locations(tmp_path / "ca.pem")  # it trusts the new CA, and shows a certificate of the old one
    with pytest.raises(ssl.SSLError):
        handshake(late[0], early[1])
    assert {(leaf.role, leaf.region) for leaf in first} == {
        (leaf.role, leaf.region) for leaf in certificate_renewal.leaves(tmp_path)
    }
    assert not {leaf.fingerprint for leaf in first} & {
        leaf.fingerprint for leaf in certificate_renewal.leaves(tmp_path)
    }
    assert b"us.example" in x509.load_pem_x509_certificate((tmp_path / "broker.us.pem").read_bytes()).public_bytes(
        serialization.Encoding.DER
    )
    assert (tmp_path / "ca.key").stat().st_mode & 0o077 == 0


def test_a_renewal_that_is_cut_off_leaves_a_certificate_and_its_own_key(tmp_path: Path) -> None:
    """Everything that a crash can leave: the first of the two files is the new one, and the second is the old one."""
    ensure_certificates(tmp_path, ["us", "eu"])
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    certificate_renewal.renew(tmp_path, "us")
    after = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert before["replicator.us.key"] != after["replicator.us.key"]
    (tmp_path / "replicator.us.pem").write_bytes(before["replicator.us.pem"])
    us, eu = (
        [str(tmp_path / name) for name in ("ca.pem", f"replicator.{at}.pem", f"replicator.{at}.key")]
        for at in ("us", "eu")
    )
    assert handshake(server_context(*eu), client_context(*us))["commonName"] == "replicator.us"
    assert together(*us)[1:] == (after["replicator.us.pem"], after["replicator.us.key"])
    certificate_renewal.leaves(tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == after
    (tmp_path / "replicator.us.key").write_bytes(
        before["replicator.eu.key"].partition(b"-----BEGIN CERT")[0]
    )  # no certificate behind it, and another's
    with pytest.raises(ConfigError, match="cannot be used together"):
        client_context(*us)


def test_a_change_of_the_ca_that_is_cut_off_is_finished_or_said(tmp_path: Path) -> None:
    ensure_certificates(tmp_path, ["us"])
    before = (tmp_path / "ca.key").read_bytes()
    certificate_renewal.another_authority(tmp_path)
    (tmp_path / "ca.key").rename(tmp_path / "ca.key.next")
    (tmp_path / "ca.key").write_bytes(before)  # as it is between the last two steps
    certificate_renewal.renew(tmp_path)
    assert certificate_renewal.retire(tmp_path) == 1 and not (tmp_path / "ca.key.next").exists()
    (tmp_path / "ca.key").write_bytes(before)
    with pytest.raises(ConfigError, match=r"ca\.key is not the key of the first certificate"):
        certificate_renewal.renew(tmp_path)


def test_a_copy_that_lacks_or_differs_is_made_again_from_what_lies_beside_the_key(tmp_path: Path) -> None:
    ensure_certificates(tmp_path, ["us"])
    leaves = sorted(path for path in tmp_path.glob("*.*.pem"))
    assert len(leaves) >= 2
    shown = [leaf.read_bytes() for leaf in leaves]
    leaves[0].unlink()
    leaves[1].write_bytes(b"half of a certif")
    mend(tmp_path)
    assert [leaf.read_bytes() for leaf in leaves] == shown
    before = [leaf.stat().st_ino for leaf in leaves]
    mend(tmp_path)
    assert [leaf.stat().st_ino for leaf in leaves] == before, "what is right is left alone"
