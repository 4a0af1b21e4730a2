"""Foreign pages: requests to the admin interface that a browser makes because another site's page told it to.

Is: what their headers give away: an `Origin` that is not ours, a body that is not said to be JSON (a page may send one
without asking first), a name that is not ours, which an attacker lets point here (DNS rebinding). Isn't: a check of
credentials, which a browser adds by itself: that is why these are looked at.
Source: Fetch standard, "CORS-safelisted request-header" and "Origin"; RFC 6762, RFC 8375 for names that are nobody's in
the public DNS.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Mapping

_READS = ("GET", "HEAD", "OPTIONS")
_JSON = "application/json"
"""Beside it types that are JSON by their name (RFC 6839) are taken, as Pulsar's admin clients send one for partitions:
a page can send none of them to another site without asking first.
"""
_PRIVATE = (".localhost", ".local", ".internal", ".svc", ".lan", ".home.arpa", ".test")
"""Ends of names that nobody can register: only an end says whose a name is, what stands before it says nothing."""


def refusal(method: str, headers: Mapping[str, str]) -> tuple[int, str] | None:
    """(status, why) of a change that another site's page may have asked for; None: it is none of these."""
    if method in _READS:
        return None
    origin = headers.get("Origin")
    if origin is not None and _authority(origin.partition("://")[2]) != _authority(headers.get("Host", "")):
        return 403, f"a page of {origin[:200]} may not change anything here"
    kind = headers.get("Content-Type", "").partition(";")[0].strip().lower()
    has_body = headers.get("Content-Length", "0") != "0" or "Transfer-Encoding" in headers
    if has_body and not (kind == _JSON or (kind.startswith("application/") and kind.endswith("+json"))):
        given = f"of type {kind[:100]}" if kind else "without a type"
        return 415, f"a body {given} is not taken: send JSON, with Content-Type: {_JSON}"
    return None


def _authority(text: str) -> str:
    """Host and port as they are compared: browsers leave the usual ports out, proxies may not."""
    return text.lower().removesuffix(":80").removesuffix(":443")


def is_foreign_name(host: str, is_own: Callable[[str], bool]) -> bool:
    """Whether `host`, a Host header, may be a name of somebody else's that points here. is_own: whether a name, without
    its port, is one that this region goes by. An address and a name that only this network knows are nobody else's.
    """
    name = _without_port(host).rstrip(".").lower()
    if not name or "." not in name or name.endswith(_PRIVATE):
        return False
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return not is_own(name)
    return False


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.rpartition(":")[0] if host.count(":") == 1 else host
