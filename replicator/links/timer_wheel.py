"""Timers: one wheel for all links of a broker, so that a waiting link costs a tuple and no handle of the event loop.

Is: callbacks at a time, cancellable, in order. Isn't: a clock.
Invariants: one that fails is told, and keeps no other from its time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from heapq import heappop, heappush

from heliograph.runtime.task_set import report_error


class Timer:
    """Holds one callback that is to come; None once it was called or cancelled."""

    __slots__ = ("callback",)

    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self.callback = None


class Timers:
    """Times are of the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._heap: list[tuple[float, int, Timer]] = []
        self._count = 0
        self._handle: asyncio.TimerHandle | None = None
        self._handle_due = 0.0  # kept here: uvloop's handle of what is due at once does not tell
        self._closed = False

    def after(self, delay_s: float, callback: Callable[[], None]) -> Timer:
        timer = Timer(callback)
        if not self._closed:
            self._count += 1
            heappush(self._heap, (self._loop.time() + delay_s, self._count, timer))
            self._arm()
        return timer

    def close(self) -> None:
        """Nothing is called any more."""
        self._closed = True
        self._heap.clear()
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _arm(self) -> None:
        while self._heap and self._heap[0][2].callback is None:
            heappop(self._heap)
        if not self._heap:
            return
        when = self._heap[0][0]
        if self._handle is not None:
            if self._handle_due <= when:
                return
            self._handle.cancel()
        self._handle, self._handle_due = self._loop.call_at(when, self._run), when

    def _run(self) -> None:
        self._handle = None
        now = self._loop.time()
        while self._heap and self._heap[0][0] <= now:
            timer = heappop(self._heap)[2]
            callback, timer.callback = timer.callback, None
            if callback is not None:
                try:
                    callback()
                except Exception as error:  # the others have their turn
                    report_error(error, "a timer of a link failed")
        self._arm()
