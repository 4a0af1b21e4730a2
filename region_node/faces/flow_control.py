"""Flow: what the connections of one face share, whichever protocol it speaks: when they write, when they are looked at,
and the wait until nothing of theirs is in flight.

Is: one write per connection per loop pass, so many that are closed in one. Isn't: a socket, a frame, or the budget of
what is in flight (`ByteBudget`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container, Iterator
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


CLOSED_AT_ONCE = 256
"""So many connections are closed in one pass of the loop, which takes some tens of milliseconds: whoever has not signed
in may have opened thousands at the same time.
"""
C = TypeVar("C")


def look_at_each(
    left: Iterator[C], there: Container[C], look: Callable[[C], bool], call_soon: Callable[..., object]
) -> None:
    """look: returns whether the connection is closed by now. there: those that were not lost meanwhile."""
    closed = 0
    for connection in left:
        closed += connection in there and look(connection)
        if closed == CLOSED_AT_ONCE:
            call_soon(look_at_each, left, there, look, call_soon)
            return


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
