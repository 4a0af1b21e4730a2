"""The instance's own certificate authority: one root, one leaf for each role of each region.

Is: issuing, on this machine, into the data folder. Isn't: a secret store; keys lie in files of mode 0600.
A file of a key holds its certificate, too: both become others by one rename, and `{role}.{region}.pem` is a copy, for
those who want it apart.
The role stands in the subject's organizational unit; a link listener accepts `replicator` alone, a configuration voter
`config` alone, and with mutual TLS inside a region (`tls.internal`) a bookie `broker` alone, a metadata node `broker`,
`bookie`, and `meta`.
Source: RFC 5280; leaves carry subject and authority key ids and key usage, so that strict X.509 verification accepts
them.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from heliograph.model.errors import ConfigError

NEXT_KEY = "ca.key.next"
ROLES = ("replicator", "config", "broker", "bookie", "meta")
"""A region's; a witness has `config` alone."""
_YEARS = 10
_CERTIFICATE = b"-----BEGIN CERTIFICATE-----"


def replace(path: Path, data: bytes, mode: int) -> None:
    """The file, whole or as it was before, also after a power cut: processes read it while it is written. Raises
    OSError.
    """
    scratch = path.with_name(path.name + ".new")
    descriptor = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with os.fdopen(descriptor, "wb") as file:
        os.fchmod(descriptor, mode)  # one that was left there by somebody else
        file.write(data)
        file.flush()
        os.fsync(descriptor)
    scratch.replace(path)


def key_bytes(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _usage(*, authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not authority,
        key_cert_sign=authority,
        crl_sign=authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=365 * _YEARS))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def ensure_certificates(
    folder: Path,
    regions: Sequence[str],
    names: Mapping[str, Sequence[str]] | None = None,
    *,
    witnesses: Sequence[str] = (),
) -> None:
    """Makes what is missing: `ca.pem`, and `{role}.{region}.pem` with `{role}.{region}.key`. Existing files stay as
    they are, but for what `mend` does.

    names: region -> addresses and host names that its certificates hold beside this machine's; one that lacks some is
    made anew.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    mend(folder)
    if (folder / "ca.pem").exists() and (folder / "ca.key").exists():
        root, root_key = authority(folder)
    else:
        root, root_key = new_authority()
        replace(folder / "ca.key", key_bytes(root_key), 0o600)
        replace(folder / "ca.pem", root.public_bytes(serialization.Encoding.PEM), 0o644)
    for region in (*regions, *witnesses):
        also = [_general_name(name) for name in (names or {}).get(region, ())]
        for role in ROLES if region in regions else ("config",):
            leaf_path = folder / f"{role}.{region}.pem"
            if not leaf_path.exists() or not _holds(leaf_path, also):
                issue(root, root_key, role, region, leaf_path, folder / f"{role}.{region}.key", also)


def authority(folder: Path) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    """The CA that signs now: the first certificate of `ca.pem`, and `ca.key`. Raises ConfigError."""
    try:
        root = x509.load_pem_x509_certificates((folder / "ca.pem").read_bytes())[0]
        next_path = folder / NEXT_KEY
        if next_path.exists() and _key(next_path).public_key() == root.public_key():
            next_path.replace(folder / "ca.key")  # a change of the CA that was cut off in its midst
        key = _key(folder / "ca.key")
    except (OSError, ValueError, IndexError) as error:
        raise ConfigError(f"{folder}: ca.pem and ca.key are no certificate authority: {error}") from error
    if key.public_key() != root.public_key():
        raise ConfigError(f"{folder}: ca.key is not the key of the first certificate in ca.pem")
    return root, key


def _key(path: Path) -> ec.EllipticCurvePrivateKey:
    loaded = serialization.load_pem_private_key(path.read_bytes(), None)
    if not isinstance(loaded, ec.EllipticCurvePrivateKey):
        raise ValueError(f"{path.name} is no key of an elliptic curve")
    return loaded


def new_authority() -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, "heliograph"),
            x509.NameAttribute(NameOID.COMMON_NAME, "instance CA"),
        ]
    )
    root = (
        _builder(name, name, key)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(authority=True), critical=True)
        .sign(key, hashes.SHA256())
    )
    return root, key


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _holds(leaf_path: Path, names: list[x509.GeneralName]) -> bool:
    leaf = x509.load_pem_x509_certificate(leaf_path.read_bytes())
    return set(names) <= set(leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value)


def issue(
    root: x509.Certificate,
    root_key: ec.EllipticCurvePrivateKey,
    role: str,
    region: str,
    leaf_path: Path,
    key_path: Path,
    also: list[x509.GeneralName],
) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, "heliograph"),
            x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, role),
            x509.NameAttribute(NameOID.COMMON_NAME, f"{role}.{region}"),
        ]
    )
    always: list[x509.GeneralName] = [
        x509.DNSName("localhost"),
        x509.DNSName(f"{role}.{region}"),
        x509.IPAddress(ipaddress.ip_address("127.0.0.1")),
    ]
    names = list(dict.fromkeys([*always, *also]))
    issuer_id = root.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    leaf = (
        _builder(subject, root.subject, key)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(issuer_id), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(authority=False), critical=True)
        .add_extension(
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False
        )
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .sign(root_key, hashes.SHA256())
    )
    shown = leaf.public_bytes(serialization.Encoding.PEM)
    replace(
        key_path, key_bytes(key) + shown, 0o600
    )  # from here on both are the new ones, whatever happens: who reads finds them together
    replace(leaf_path, shown, 0o644)


def mend(folder: Path) -> None:
    """Where the issuing of a certificate was cut off, its copy beside the key is made. Raises ConfigError."""
    try:
        for path in folder.glob("*.*.key"):
            _, found, behind = path.read_bytes().partition(_CERTIFICATE)
            leaf_path = path.with_suffix(".pem")
            if found and (not leaf_path.exists() or leaf_path.read_bytes() != found + behind):
                replace(leaf_path, found + behind, 0o644)
    except OSError as error:
        raise ConfigError(f"{folder}: {error.filename} cannot be read or written: {error.strerror}") from error
