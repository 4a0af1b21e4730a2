"""What stands between a new connection and its first command: its address, a load balancer's header, and what comes
behind a CONNECT that is looked at.

Is: one connection's place among those of its address, and the bytes that wait. Isn't: who the client is
(`client_identity`).
Invariants: a place is given back once; of what waits at most a handshake's bytes are kept, and nothing is handled
before its turn.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from itertools import chain
from typing import Protocol

from heliograph.model.errors import PeerError
from heliograph.runtime.listeners.address_counts import AddressCounts
from heliograph.wire.pulsar import pulsar_pb2 as pb
from heliograph.wire.pulsar.frame_cutter import Event
from region_node.faces.client_addresses import ProxyHeader

log = logging.getLogger("region_node.pulsar")


class AdmittedConnection(Protocol):
    """`region_node.faces.pulsar.connection.pulsar_connection.PulsarConnection`, as it is let in."""

    @property
    def address(self) -> str: ...

    def came_from(self, host: str, port: int) -> None: ...

    def close(self, reason: str = "", code: pb.ServerError.ValueType = pb.UnknownError) -> None: ...


class Admission:
    """`balanced`: a load balancer's header comes first. `header`: it has not come yet."""

    __slots__ = ("_addresses", "_bytes_max", "_connection", "_host", "_rest", "_rest_bytes", "header")

    def __init__(
        self, connection: AdmittedConnection, addresses: AddressCounts, bytes_max: int, *, balanced: bool
    ) -> None:
        """bytes_max: so much may wait behind a CONNECT."""
        self._connection, self._addresses, self._bytes_max = connection, addresses, bytes_max
        self.header = ProxyHeader() if balanced else None
        self._host: str | None = None
        self._rest: Iterator[Event] | None = None
        self._rest_bytes = 0

    # -- addresses ----------------------------------------------------------------------------------------------------

    def enter(self, host: str) -> bool:
        """False: this address has too many connections, and this one is closed."""
        addresses = self._addresses
        if not addresses.take(host):
            self._connection.close(
                f"too many connections: at most {addresses.most} are allowed from one address", pb.TooManyRequests
            )
            return False
        self._host = host
        return True

    def leave(self) -> None:
        if self._host is not None:
            self._addresses.give(self._host)
            self._host = None
        self._rest = None

    def behind_header(self, header: ProxyHeader, data: bytes) -> bytes:
        """What follows the load balancer's header; empty while it is not whole."""
        connection = self._connection
        try:
            rest = header.feed(data)
        except PeerError as error:
            log.info("connection.refused", extra={"address": connection.address, "error": str(error)})
            connection.close(str(error))
            return b""
        if rest is None:
            return b""
        self.header = None
        host, port = header.source or ("", 0)
        if host:
            connection.came_from(host, port)
        return rest if self.enter(host) else b""

    # -- behind CONNECT -----------------------------------------------------------------------------------------------

    @property
    def waits(self) -> bool:
        return self._rest is not None

    def hold(self, events: Iterator[Event], size_bytes: int = 0) -> None:
        """Keeps what came, behind what waits already."""
        self._rest = events if self._rest is None else chain(self._rest, events)
        self._rest_bytes += size_bytes
        if self._rest_bytes > self._bytes_max:
            self._connection.close("too much came before CONNECT was answered")

    def release(self) -> Iterator[Event]:
        """What waited, in its order."""
        rest, self._rest, self._rest_bytes = self._rest, None, 0
        return rest or iter(())
