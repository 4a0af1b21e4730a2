"""Which URLs a secret may be sent to.

Is: the rule, by scheme and host. Isn't: whom a certificate there has to prove, or which hosts the settings name.
"""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit


def secret_may_go_to(url: str) -> bool:
    """By TLS only, but on this machine. Raises ValueError where it is no URL."""
    parts = urlsplit(url)
    return bool(parts.hostname) and (
        parts.scheme == "https" or (parts.scheme == "http" and _on_this_machine(parts.hostname or ""))
    )


def _on_this_machine(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
