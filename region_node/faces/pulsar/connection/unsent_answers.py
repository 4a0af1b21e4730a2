"""What a client was sent and has not taken: when it is too much, its connection waits for it.

Is: one connection's bound. Isn't: dispatch, which stops much earlier (`PulsarConnection.writable`).
Invariants: above the bound nothing is read, and no request is begun; a client that takes nothing is closed when it
would be for saying nothing; above four times the bound it is closed at once.
Source: docs/protocols/pulsar.md, "Frames".
"""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

log = logging.getLogger("region_node.pulsar")

_CLOSED_ABOVE = 4
_REASON = "unsent"


class Answering(Protocol):
    """A connection, as far as it is held."""

    closed: bool
    address: str
    unflushed_bytes: int

    def hold_reading(self, hold: bool, reason: object = None) -> None: ...


class UnsentAnswers:
    """`held`: the client's answers are above `most` bytes, and nothing is read from it."""

    __slots__ = ("_connection", "_left", "_most", "_waiting", "held")

    def __init__(self, connection: Answering, most: int) -> None:
        self._connection, self._most = connection, most
        self._left = 0
        self._waiting: list[asyncio.Future[None]] = []
        self.held = False

    def look(self, transport: asyncio.WriteTransport) -> None:
        """Behind each write that the transport could not pass on whole."""
        left = transport.get_write_buffer_size()
        if left > self._most and not self.held:
            self._left, self.held = left, True
            self._connection.hold_reading(True, _REASON)
        if left > _CLOSED_ABOVE * self._most:
            log.warning("connection.unread", extra={"address": self._connection.address, "bytes": left})
            transport.abort()

    def drained(self) -> None:
        """The client has taken what it was sent, or is gone."""
        if self.held:
            self.held = False
            self._connection.hold_reading(False, _REASON)
        waiting, self._waiting = self._waiting, []
        for one in waiting:
            if not one.done():
                one.set_result(None)

    def taken(self, transport: asyncio.WriteTransport) -> bool:
        """Whether a client that is held has taken anything since the last time."""
        before, self._left = self._left, transport.get_write_buffer_size()
        return self._left < before

    async def room(self) -> None:
        """Waits until another answer may be made."""
        while not self._connection.closed:
            if self.held:
                self._waiting.append(asyncio.get_running_loop().create_future())
                await self._waiting[-1]
            elif self._connection.unflushed_bytes > self._most:
                await asyncio.sleep(0)
            else:
                return
