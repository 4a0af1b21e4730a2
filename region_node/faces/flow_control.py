"""Flow: what the connections of one face share, whichever protocol it speaks: when they write, and the wait until
nothing of theirs is in flight.

Is: one write per connection per loop pass. Isn't: a socket, a frame, or the budget of what is in flight (`ByteBudget`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

from heliograph.runtime.byte_budget import ByteBudget


class BufferedWriter(Protocol):
    def flush(self) -> None:
        """Writes what waits, in one go."""


W = TypeVar("W", bound=BufferedWriter)


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


async def drained(budget: ByteBudget[Any], timeout_s: float) -> bool:
    """Waits until nothing is in flight; False: the time was over first."""
    if budget.used:
        empty: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        budget.on_empty = lambda: None if empty.done() else empty.set_result(None)
        try:
            await asyncio.wait_for(empty, timeout_s)
        except TimeoutError:
            return False
    return True
