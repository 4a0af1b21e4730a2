"""Flow: what the connections of one face share, whichever protocol it speaks: when they write, when they are looked at,
and the wait until nothing of theirs is in flight.

Is: one write per connection per loop pass, so many that are closed in one, so many requests that are begun in one.
Isn't: a socket, a frame, or the budget of what is in flight (`ByteBudget`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Container, Coroutine, Iterator
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


BEGUN_AT_ONCE = 64
"""So many requests of one connection are begun in one pass of the loop: one read may bring thousands, each of which
takes some tenth of a millisecond.
"""
Work = Coroutine[Any, Any, None]


class PacedStarts:
    """One connection's requests: they are begun in the order in which they came. hold: told whether more is not to be
    read, as some of what was read waits.
    """

    __slots__ = ("_begun", "_call_soon", "_hold", "_spawn", "_waiting")

    def __init__(
        self, spawn: Callable[[Work], object], call_soon: Callable[..., object], hold: Callable[[bool], None]
    ) -> None:
        self._spawn, self._call_soon, self._hold = spawn, call_soon, hold
        self._begun = 0
        """In this pass."""
        self._waiting: deque[Work] | None = None

    def begin(self, work: Work) -> None:
        if self._begun < BEGUN_AT_ONCE:
            self._begin(work)
        elif self._waiting is None:
            self._waiting = deque((work,))
            self._hold(True)
        else:
            self._waiting.append(work)

    def _begin(self, work: Work) -> None:
        if not self._begun:
            self._call_soon(self._next_pass)
        self._begun += 1
        self._spawn(work)

    def _next_pass(self) -> None:
        self._begun, waiting = 0, self._waiting
        while waiting and self._begun < BEGUN_AT_ONCE:
            self._begin(waiting.popleft())
        if waiting is not None and not waiting:
            self._waiting = None
            self._hold(False)


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
