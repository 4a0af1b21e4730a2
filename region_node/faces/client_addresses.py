"""Where clients come from, before anybody knows who they are: the PROXY protocol's header.

Is: a core. Isn't: a socket, or identity.
Invariants: a header is read to its end or the connection is refused, so that no byte of it is ever taken for a
client's; nothing of it is trusted but addresses, and those only where the settings say that a load balancer is in
front.
Source: HAProxy, "The PROXY protocol", version 2.

    12 bytes signature | version and command | family and protocol | u16 length | addresses | type-length-values

    Type-length-values are skipped.
"""

from __future__ import annotations

import ipaddress
import struct

from heliograph.model.errors import PeerError

SIGNATURE = b"\r\n\r\n\x00\r\nQUIT\n"
HEADER_BYTES_MAX = 2048
_FIXED = 16
_LOCAL, _PROXY = 0x20, 0x21
_TCP4, _TCP6 = 0x11, 0x21


class ProxyHeader:
    """Reads one header from the beginning of a connection."""

    def __init__(self) -> None:
        self._have = b""
        self.source: tuple[str, int] | None = None
        """The client's address; None where the header names none (the load balancer's own health check)."""

    def feed(self, data: bytes) -> bytes | None:
        """What follows the header, or None while it is not whole. Raises PeerError."""
        self._have += data
        have = self._have
        if have[: len(SIGNATURE)] != SIGNATURE[: len(have)]:
            raise PeerError("expected a PROXY protocol header, version 2: this port is for the load balancer alone")
        if len(have) < _FIXED:
            return None
        command, family, length = struct.unpack_from(">BBH", have, len(SIGNATURE))
        if command not in (_LOCAL, _PROXY) or length > HEADER_BYTES_MAX:
            raise PeerError(f"a PROXY protocol header of command {command:#x} and {length} bytes")
        if len(have) < _FIXED + length:
            return None
        if command == _PROXY:
            self.source = _source(family, have[_FIXED : _FIXED + length])
        self._have = b""
        return have[_FIXED + length :]


def _source(family: int, addresses: bytes) -> tuple[str, int]:
    size = {_TCP4: 4, _TCP6: 16}.get(family)
    if size is None or len(addresses) < 2 * size + 4:
        raise PeerError(f"a PROXY protocol header of family {family:#x}; TCP over IPv4 or IPv6 is wanted")
    (port,) = struct.unpack_from(">H", addresses, 2 * size)
    return str(ipaddress.ip_address(addresses[:size])), port
