"""Ticker: one timer for all open ledgers of a broker.

Is: a call each 50 ms to whatever is active. Isn't: exact; nothing here is ever relied on for safety.
Invariants: nobody active, no timer. One tick costs what is active, not what is open.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from heliograph.runtime.standstill import stood_still_s

TICK_S = 0.05


class Ticking(Protocol):
    def tick(self, now: float, stood_s: float) -> bool:
        """Returns whether it wants the next tick too. stood_s: for so long this process has stood still since the last
        one.
        """
        ...


class Ticker:
    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._active: dict[Ticking, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0

    def watch(self, one: Ticking) -> None:
        self._active[one] = None
        if self._timer is None:
            self._arm(self._loop.time())

    def drop(self, one: Ticking) -> None:
        self._active.pop(one, None)

    def close(self) -> None:
        self._active.clear()
        if self._timer is not None:
            self._timer.cancel()

    def _tick(self) -> None:
        self._timer = None
        now = self._loop.time()
        stood_s = stood_still_s(self._due, now)
        for one in list(self._active):
            if one in self._active and not one.tick(now, stood_s):
                self._active.pop(one, None)
        if self._active and self._timer is None:
            self._arm(now)

    def _arm(self, now: float) -> None:
        self._due = now + TICK_S
        self._timer = self._loop.call_at(self._due, self._tick)
