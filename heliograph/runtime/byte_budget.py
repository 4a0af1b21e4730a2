"""ByteBudget: how many bytes the connections that share it hold which are not durable yet, and who reads no further.

Is: a sum, and whom it holds back. Isn't: a socket, or the window of one connection.
Invariants: what is in flight stays within the budget and one read of each connection; a connection that was held is let
go once half of the budget is free.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

H = TypeVar("H")


class ByteBudget(Generic[H]):
    """Bytes in flight: taken in, and not durable yet. Connections that bring more stop being read from until it has
    halved.
    """

    __slots__ = ("_held", "_hold", "_max", "on_empty", "used")

    def __init__(self, bytes_max: int, hold: Callable[[H, bool], None]) -> None:
        """hold: stops reading from a connection, or lets it go on."""
        assert bytes_max > 0
        self.used = 0
        self.on_empty: Callable[[], None] | None = None
        """Called whenever nothing is in flight any more."""
        self._max, self._hold = bytes_max, hold
        self._held: dict[H, None] = {}

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
        if not self.used and self.on_empty is not None:
            self.on_empty()
        if self._held and self.used * 2 <= self._max:
            held, self._held = self._held, {}
            for connection in held:
                self._hold(connection, False)

    def forget(self, connection: H) -> None:
        """It is gone; what it brought still counts until it is stored, or has failed."""
        self._held.pop(connection, None)
