"""EventLoop: uvloop's, whose look-ups of names end with those who wait for them.

Is: connections by name: the look-up first, then its addresses in order. Isn't: a cache of names, or a deadline.
Invariants: nobody is told of the look-up of a connection that was given up meanwhile. uvloop starts one in a future of
its own that it leaves alone then: as long as a name is not there yet, as in a cluster that is coming up, each try would
end as `Future exception was never retrieved`.
"""

from __future__ import annotations

import ipaddress
import socket
import ssl
from typing import Any

import uvloop


class EventLoop(uvloop.Loop):
    """Runs one process of a region."""

    async def create_connection(self, protocol_factory: Any, host: Any = None, port: Any = None, **options: Any) -> Any:
        """Connects as asyncio's own does, one address after the other. Raises OSError."""
        if host is None or _is_address(host):
            return await super().create_connection(protocol_factory, host, port, **options)
        family, proto, flags = (options.pop(name, 0) for name in ("family", "proto", "flags"))
        found = await self.getaddrinfo(host, port, family=family, type=socket.SOCK_STREAM, proto=proto, flags=flags)
        if options.get("ssl") and options.get("server_hostname") is None:
            options["server_hostname"] = host
        trouble: OSError = OSError(f"{host} has no address")
        for *_, address in found:
            try:
                return await super().create_connection(protocol_factory, address[0], address[1], **options)
            except ssl.SSLError:
                raise
            except OSError as error:
                trouble = error
        raise trouble


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
