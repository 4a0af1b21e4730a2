"""TLS contexts of a region's listeners and links, and the role that a peer's certificate proves.

Is: mutual TLS from the instance's own CA, 1.2 or newer. Isn't: issuing of certificates, or TLS for ordinary clients.
Invariants: both sides always present a certificate; the role is the subject's organizational unit, nothing else.
"""

from __future__ import annotations

import ssl
from typing import Any

from heliograph.model.errors import ConfigError

REPLICATOR = "replicator"


def server_context(ca: str, cert: str, key: str) -> ssl.SSLContext:
    """A listener that takes only peers with a certificate of this CA. Raises ConfigError."""
    return _context(ssl.PROTOCOL_TLS_SERVER, ca, cert, key)


def client_context(ca: str, cert: str, key: str) -> ssl.SSLContext:
    """A connection that trusts this CA alone. The host name is not checked: links go through proxies, and the peer's role decides."""
    return _context(ssl.PROTOCOL_TLS_CLIENT, ca, cert, key)


def _context(protocol: Any, ca: str, cert: str, key: str) -> ssl.SSLContext:
    try:
        context = ssl.SSLContext(protocol)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.check_hostname = False
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(ca)
        context.load_cert_chain(cert, key)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"tls: {ca}, {cert}, and {key} cannot be used together: {error}") from error
    return context


def role_of(certificate: dict[str, Any] | None) -> str:
    """The role in a verified peer certificate (as `ssl` shows it: `getpeercert()`); "" where there is none."""
    for part in (certificate or {}).get("subject", ()):
        for name, value in part:
            if name == "organizationalUnitName":
                return str(value)
    return ""
