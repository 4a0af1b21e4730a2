"""Connections of the admin interface, before a request is there and behind its answer: how many, and for how long.

Is: a protocol around aiohttp's. Isn't: HTTP, or who somebody is.
Invariants: no timer per connection; a place is given back once; a request that is being answered is never cut off by
the time that it takes, only by a client that does not take its answer.
Source: docs/security.md, "Before authentication".
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from aiohttp import web

from heliograph.model.configuration.revocations import ProvenBy
from heliograph.runtime.listeners.address_counts import AddressCounts
from region_node.faces.admin.calls.auth_middleware import ANSWERED_FIRST, PRINCIPAL
from region_node.security.authentication.principal import Principal

log = logging.getLogger("region_node.admin.server")


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpLimits:
    """What one admin interface lets its clients hold."""

    connections_max: int = 1000
    connections_per_address: int = 250
    """0: no limit."""
    header_timeout_s: float = 10.0
    """From a connection, or from the first byte behind the last answer, to the end of a request's header."""
    keep_alive_s: float = 75.0
    """A connection without a request for longer is closed. Longer than what load balancers in front keep theirs."""
    untaken_s: float = 60.0
    """A client that takes nothing of its answer for so long is closed."""


class HttpConnections:
    """The connections of one server; called for each that is accepted. `make`: aiohttp's side of one."""

    def __init__(self, limits: HttpLimits, make: Callable[[], asyncio.Protocol]) -> None:
        self.limits, self._make = limits, make
        self.loop = asyncio.get_running_loop()
        self.addresses = AddressCounts(limits.connections_per_address)
        self.open: dict[object, AdminConnection] = {}
        """By aiohttp's side."""
        self._timer: asyncio.TimerHandle | None = None

    def __call__(self) -> AdminConnection:
        if self._timer is None:
            self._next_tick()
        return AdminConnection(self, self._make())

    def begun(self, request: web.BaseRequest) -> None:
        """A request's header is there."""
        if (connection := self.open.get(request.protocol)) is not None:
            connection.request, connection.deadline = request, None

    def ended(self, request: web.BaseRequest) -> None:
        """The answer of that request is made."""
        if (connection := self.open.get(request.protocol)) is not None:
            connection.request, connection.proof = None, _proof(request)
            if connection.more:
                connection.more, connection.deadline = False, self.loop.time() + self.limits.header_timeout_s

    def end_revoked(self, revoked: Callable[[ProvenBy], object]) -> int:
        """Cuts off those whose newest request came by credentials that were revoked, whatever of its answer is out, and
        returns how many these were.
        """
        return sum(connection.end_revoked(revoked) for connection in list(self.open.values()))

    def _next_tick(self) -> None:
        self._timer = self.loop.call_later(self.limits.header_timeout_s / 4, self._tick)

    def _tick(self) -> None:
        now = self.loop.time()
        for connection in list(self.open.values()):
            connection.tick(now)
        self._next_tick()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


class AdminConnection(asyncio.Protocol):
    """One connection. `request`: it is being answered; `more`: something came behind it meanwhile; `proof`: by what
    whoever asked last was known.
    """

    __slots__ = ("_all", "_host", "_inner", "_left", "_stuck_at", "_transport", "deadline", "more", "proof", "request")

    def __init__(self, connections: HttpConnections, inner: asyncio.Protocol) -> None:
        self._all, self._inner = connections, inner
        self._host: str | None = None
        self._transport: asyncio.Transport | None = None
        self._stuck_at: float | None = None
        self._left = 0
        """Bytes that it had not taken when that was looked at last."""
        self.request: web.BaseRequest | None = None
        self.proof = ProvenBy()
        self.more = False
        self.deadline: float | None = None
        """By then a request's header has to be whole."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        every, self._transport = self._all, cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        host = str(peer[0]) if isinstance(peer, tuple) else ""
        if len(every.open) >= every.limits.connections_max:
            self._refuse(f"too many connections: at most {every.limits.connections_max} are allowed here; try again")
        elif not every.addresses.take(host):
            self._refuse(f"too many connections: at most {every.addresses.most} are allowed from one address")
        else:
            self._host, every.open[self._inner] = host, self
            self.deadline = every.loop.time() + every.limits.header_timeout_s
            self._inner.connection_made(transport)

    def _refuse(self, reason: str) -> None:
        assert self._transport is not None
        body = json.dumps({"reason": reason}).encode()
        self._transport.write(
            b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nConnection: close\r\n"
            b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
        )
        self._transport.close()
        log.info("admin.connection_refused", extra={"reason": reason})

    def data_received(self, data: bytes) -> None:
        if self._host is None:
            return
        if self.request is None:
            if self.deadline is None:
                self.deadline = self._all.loop.time() + self._all.limits.header_timeout_s
        elif self.request.content.is_eof():
            self.more = True
        self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        return None if self._host is None else self._inner.eof_received()

    def pause_writing(self) -> None:
        self._stuck_at, self._left = self._all.loop.time(), self._unsent()
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._stuck_at = None
        self._inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._host is not None:
            self._all.addresses.give(self._host)
            del self._all.open[self._inner]
            self._host = None
            self._inner.connection_lost(exc)
        self._transport = None

    def end_revoked(self, revoked: Callable[[ProvenBy], object]) -> bool:
        asked, proof = self.request, self.proof
        if asked is not None:
            if ANSWERED_FIRST in asked:
                return False
            proof = _proof(asked)
        if self._transport is None or not revoked(proof):
            return False
        log.info("admin.connection_closed", extra={"reason": "its credentials were revoked"})
        self._transport.abort()
        return True

    def _unsent(self) -> int:
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def tick(self, now: float) -> None:
        late = self.deadline is not None and now >= self.deadline
        if self._stuck_at is not None and (left := self._unsent()) < self._left:  # it takes a long answer, slowly
            self._stuck_at, self._left = now, left
        stuck = self._stuck_at is not None and now - self._stuck_at >= self._all.limits.untaken_s
        if self._transport is not None and (late or stuck):
            log.info("admin.connection_closed", extra={"reason": "no request in time" if late else "answer not taken"})
            self._transport.abort()


def _proof(request: web.BaseRequest) -> ProvenBy:
    """Nobody's, until it is known who asks."""
    found = request.get(PRINCIPAL)
    return found.proof if isinstance(found, Principal) else ProvenBy()
