"""TLS contexts of a region's listeners and links.

Is: mutual TLS from the instance's own CA, 1.2 or newer. Isn't: issuing of certificates, or TLS for ordinary clients.
Invariants: both sides always present a certificate; who it belongs to is read by `heliograph.model.identity`.
"""

from __future__ import annotations

import ssl
from typing import Any

from heliograph.model.errors import ConfigError


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
