"""Renewal: other certificates, and another CA, in an instance's folder of certificates, while its processes run and
follow the files.

Is: the three steps of another CA (trusted beside the old one, every leaf signed by it, the old one gone), new leaves,
and what there is. Isn't: issuing (`certificate_authority`), or who reads the files (`region_node.security.tls`).
Invariants: a file is whole or not there; after each step every process trusts every certificate that another may still
present; the old CA goes only when no leaf of the folder is its own.
"""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.x509.oid import NameOID

from global_config.transport.certificate_authorities import signer
from heliograph.model.errors import ConfigError
from region_node.security import certificate_authority


@dataclass(frozen=True, slots=True)
class Leaf:
    """authority: fingerprint of the CA that signed it; "": it is none of `ca.pem`. signed: by the CA that signs now."""

    role: str
    region: str
    expires: datetime.datetime
    fingerprint: str
    authority: str
    signed: bool


def leaves(folder: Path) -> list[Leaf]:
    """Every certificate of a role in the folder, by name. Raises ConfigError."""
    certificate_authority.mend(folder)
    newest, _ = certificate_authority.authority(folder)
    known = _trusted(folder)
    found = []
    for path in sorted(folder.glob("*.*.pem")):
        leaf = _read(path)
        authority = signer(leaf, known)
        common = leaf.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value
        role, _, region = str(common).partition(".")
        issuer = "" if authority is None else fingerprint(authority)
        found.append(Leaf(role, region, leaf.not_valid_after_utc, fingerprint(leaf), issuer, authority == newest))
    return found


def renew(folder: Path, region: str = "") -> list[str]:
    """New keys and certificates for every role (of that region), with the names that the old ones hold; returns which.
    Raises ConfigError.
    """
    certificate_authority.mend(folder)
    root, key = certificate_authority.authority(folder)
    done = []
    for path in sorted(folder.glob("*.*.pem")):
        role, at = path.name.removesuffix(".pem").split(".", 1)
        if region in ("", at):
            names = list(_read(path).extensions.get_extension_for_class(x509.SubjectAlternativeName).value)
            certificate_authority.issue(root, key, role, at, path, folder / f"{role}.{at}.key", names)
            done.append(f"{role}.{at}")
    if not done:
        raise ConfigError(f"{folder} holds no certificate{f' of region {region}' if region else ''}")
    return done


def another_authority(folder: Path) -> str:
    """A new CA signs from now on, and both are trusted. Returns its fingerprint. Raises ConfigError while an older one
    is still there.
    """
    certificate_authority.authority(folder)
    known = _trusted(folder)
    if len(known) > 1:
        raise ConfigError(
            f"{folder}: an older CA is still in ca.pem: `heliograph certificates retire` ends that change first"
        )
    root, key = certificate_authority.new_authority()
    certificate_authority.replace(folder / certificate_authority.NEXT_KEY, certificate_authority.key_bytes(key), 0o600)
    certificate_authority.replace(
        folder / "ca.pem", b"".join(one.public_bytes(serialization.Encoding.PEM) for one in (root, *known)), 0o644
    )
    (folder / certificate_authority.NEXT_KEY).replace(folder / "ca.key")
    return fingerprint(root)


def retire(folder: Path) -> int:
    """Only the CA that signs is trusted from now on; returns how many were taken out. Raises ConfigError while a
    certificate is signed by one of them.
    """
    newest, _ = certificate_authority.authority(folder)
    older = [f"{leaf.role}.{leaf.region}" for leaf in leaves(folder) if not leaf.signed]
    if older:
        raise ConfigError(
            f"{', '.join(older)}: signed by the older CA; `heliograph certificates renew {folder}` first, and let "
            "every host have its files"
        )
    count = len(_trusted(folder)) - 1
    certificate_authority.replace(folder / "ca.pem", newest.public_bytes(serialization.Encoding.PEM), 0o644)
    return count


def fingerprint(certificate: x509.Certificate) -> str:
    return certificate.fingerprint(hashes.SHA256()).hex()[:16]


def _trusted(folder: Path) -> list[x509.Certificate]:
    return x509.load_pem_x509_certificates((folder / "ca.pem").read_bytes())


def _read(path: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
