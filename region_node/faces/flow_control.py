"""Flow: what the connections of one face share, whichever protocol it speaks: when they write, and the wait until
nothing of theirs is in flight.

Is: one write per connection per loop pass. Isn't: a socket, a frame, or the budget of what is in flight (`ByteBudget`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar


class Writer(Protocol):
    def flush(self) -> None:
        """Writes what waits, in one go."""


W = TypeVar("W", bound=Writer)
H = TypeVar("H")


class Outbox(Generic[W]):
    """Connections that have something to write: one write each at the end of the loop pass."""

    def __init__(self, call_soon: Callable[..., object]) -> None:
        self._call_soon = call_soon
        self._waiting: list[W] = []

    def add(self, connection: W) -> None:
        """At most once a connection until it is flushed."""
        if not self._waiting:
            self._call_soon(self._flush)
        self._waiting.append(connection)

    def _flush(self) -> None:
        waiting, self._waiting = self._waiting, []
        for connection in waiting:
            connection.flush()


class ByteBudget(Generic[H]):
    """Bytes in flight: taken in, and not durable yet. Connections that bring more stop being read from until it has halved."""

    def __init__(self, bytes_max: int, hold: Callable[[H, bool], None]) -> None:
        """hold: stops reading from a connection, or lets it go on."""
        self.used = 0
        self._max, self._hold = bytes_max, hold
        self._held: dict[H, None] = {}
        self._drained: asyncio.Future[None] | None = None

    @property
    def held(self) -> int:
        """Connections that are not read from."""
        return len(self._held)

    def take(self, connection: H, size_bytes: int) -> None:
        self.used += size_bytes
        if self.used > self._max and connection not in self._held:
            self._held[connection] = None
            self._hold(connection, True)

    def give(self, size_bytes: int) -> None:
        self.used -= size_bytes
        if not self.used and self._drained is not None and not self._drained.done():
            self._drained.set_result(None)
        if self._held and self.used * 2 <= self._max:
            held, self._held = self._held, {}
            for connection in held:
                self._hold(connection, False)

    def forget(self, connection: H) -> None:
        """It is gone."""
        self._held.pop(connection, None)

    async def drained(self, timeout_s: float) -> bool:
        """Waits until nothing is in flight; False: the time was over first."""
        if self.used:
            self._drained = asyncio.get_running_loop().create_future()
            try:
                await asyncio.wait_for(self._drained, timeout_s)
            except TimeoutError:
                return False
        return True
