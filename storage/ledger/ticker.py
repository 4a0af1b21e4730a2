"""Ticker: one timer for all open ledgers of a broker.

Is: a call each 50 ms to whatever is active. Isn't: exact; nothing here is ever relied on for safety.
Invariants: nobody active, no timer. One tick costs what is active, not what is open.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

TICK_S = 0.05


class Ticking(Protocol):
    def tick(self, now: float) -> bool:
        """Returns whether it wants the next tick too."""
        ...


class Ticker:
    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._active: dict[Ticking, None] = {}
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, one: Ticking) -> None:
        self._active[one] = None
        if self._timer is None:
            self._timer = self._loop.call_later(TICK_S, self._tick)

    def drop(self, one: Ticking) -> None:
        self._active.pop(one, None)

    def close(self) -> None:
        self._active.clear()
        if self._timer is not None:
            self._timer.cancel()

    def _tick(self) -> None:
        self._timer = None
        now = self._loop.time()
        for one in list(self._active):
            if one in self._active and not one.tick(now):
                self._active.pop(one, None)
        if self._active and self._timer is None:
            self._timer = self._loop.call_later(TICK_S, self._tick)
