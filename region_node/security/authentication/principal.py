"""Who somebody is, as the plug-ins found out, and what a plug-in is.

Is: the values that travel from a face to a plug-in and back, and the plug-in's interface. Isn't: a plug-in, or a right
(`region_node.security.authorization`).
Source: docs/security.md.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from ipaddress import ip_address
from typing import Any, Protocol

from heliograph.model.configuration.revocations import ProvenBy
from heliograph.model.errors import Unauthenticated

ROLE_CHARS_MAX = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """What a client presented. `method`: Pulsar's auth_method_name; `certificate`: as `ssl.getpeercert` shows a
    verified one, None without; `host`: the address that they came from.
    """

    method: str = ""
    data: bytes = b""
    certificate: dict[str, Any] | None = None
    host: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """A role. `proxy`: the role that speaks for it, which must be allowed the same; `expires_ms`: wall clock, 0
    never.
    """

    role: str
    proxy: str = ""
    expires_ms: int = 0
    internal: bool = False
    """A process of this instance: it may do what its own protocol asks."""
    proof: ProvenBy = field(default=ProvenBy(), compare=False)
    """By what it was known: what a revocation names."""
    host: str = field(default="", compare=False)
    """The address that it asks from, which an ACL may name; of a proxy, the proxy's."""

    def __post_init__(self) -> None:
        check_role(self.role)

    def at(self, host: str) -> Principal:
        """The same, from that address."""
        return replace(self, host=plain_address(host))

    @property
    def roles(self) -> tuple[str, ...]:
        """All that must be allowed."""
        return (self.role, self.proxy) if self.proxy else (self.role,)


NOBODY = ""
"""The role of everybody where nothing is authenticated."""


class Provider(Protocol):
    """One way to authenticate. Made once a broker; a plug-in of another package is found by its entry point
    (`authentication_service`).
    """

    async def identify(self, credentials: Credentials) -> Principal:
        """Raises Unauthenticated with a sentence that gives nothing away about what would be right."""
        ...


def plain_address(host: str) -> str:
    """An address as ACLs have it: an IPv4 one that is written as one of IPv6 is IPv4's; what is none stays as it is."""
    try:
        found = ip_address(host.partition("%")[0])
    except ValueError:
        return host
    return str(getattr(found, "ipv4_mapped", None) or found)


def check_role(role: str) -> str:
    """Returns it. Raises Unauthenticated for what no grant could name."""
    if len(role) > ROLE_CHARS_MAX or any(ord(c) < 32 for c in role):
        raise Unauthenticated(f"a role has at most {ROLE_CHARS_MAX} characters, and no control characters")
    return role
