"""Roles from client certificates.

Is: the plug-in `tls`; the common name is the role, as in Pulsar. Isn't: verification, which the TLS handshake has done.
Invariants: a certificate with no common name, or with several, has no role.
"""

from __future__ import annotations

from typing import Any

from heliograph.model.configuration.revocations import ProvenBy, serial
from heliograph.model.errors import Unauthenticated
from region_node.security.authentication.principal import Credentials, Principal


class CertificateProvider:
    async def identify(self, credentials: Credentials) -> Principal:
        if not credentials.certificate:
            raise Unauthenticated("the client presented no certificate that is trusted here; connect by TLS with one")
        return Principal(role=common_name(credentials.certificate), proof=proof_of(credentials.certificate))


def common_name(certificate: dict[str, Any]) -> str:
    """Returns the role that a verified certificate names. certificate: as `getpeercert()` gives it. Raises
    Unauthenticated.
    """
    names = [str(value) for part in certificate.get("subject", ()) for name, value in part if name == "commonName"]
    if len(names) != 1 or not names[0]:
        raise Unauthenticated(f"the certificate has {len(names)} common names; one is wanted, it is the role")
    return names[0]


def proof_of(certificate: dict[str, Any] | None) -> ProvenBy:
    """What a revocation could name of a verified certificate; certificate: as `getpeercert()` gives it."""
    number = (certificate or {}).get("serialNumber")
    return ProvenBy(certificate=serial(number)) if isinstance(number, str) else ProvenBy()
