"""Offload: one thread for the few computations that would stall the event loop, such as a password hash.

Is: a bounded queue in front of one thread. Isn't: a place for I/O (`system_disk`), or for anything on the data path.
Invariants: at most `waiting_max` calls wait; beyond that a call is refused at once, so that nobody can fill the memory
with them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


class Overloaded(Exception):
    """Too many calls wait already."""


class Offload:
    """The thread is there from the first call on."""

    def __init__(self, waiting_max: int = 64) -> None:
        self._thread: ThreadPoolExecutor | None = None
        self._waiting, self._waiting_max = 0, waiting_max

    async def run(self, work: Callable[[], T]) -> T:
        """What `work` returns or raises. Raises Overloaded."""
        if self._waiting >= self._waiting_max:
            raise Overloaded
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="offload")
        self._waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work)
        finally:
            self._waiting -= 1

    def close(self) -> None:
        """What waits is dropped; what runs ends by itself."""
        if self._thread is not None:
            self._thread.shutdown(wait=False, cancel_futures=True)
