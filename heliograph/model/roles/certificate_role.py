"""Who a verified certificate says its owner is: a role of a region of this instance.

Is: reading the subject, as Python's `ssl` shows it. Isn't: verification; the TLS handshake has done that.
The role is the organizational unit, and the common name is `{role}.{region}`. Source: the instance's certificate
authority, region_node/security/certificate_authority.py.
"""

from __future__ import annotations

from typing import Any

REPLICATOR = "replicator"


def peer_identity(certificate: dict[str, Any] | None) -> tuple[str, str]:
    """(role, region) of `getpeercert()`; "" for what it does not say."""
    subject = {name: str(value) for part in (certificate or {}).get("subject", ()) for name, value in part}
    role = subject.get("organizationalUnitName", "")
    named, _, region = subject.get("commonName", "").partition(".")
    return role, region if role and named == role else ""
