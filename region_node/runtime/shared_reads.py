"""SharedReads: what is asked while the same is read is answered by one more read, whoever asks.

Is: who waits for which read, and how many run at once. Isn't: a cache: an answer was read after each who gets it had
asked.
Invariants: of one subject one read runs, and one waits; tenants take turns.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

from heliograph.model.errors import MetadataUnavailable
from heliograph.runtime.throttle import FairQueue

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")

READS_AT_ONCE = 32
"""Of one broker, and one kind: each may hold some MiB, and what is made of them."""
READS_WAITING_MAX = 10_000
"""So many subjects wait for their turns: as many as may have clients that come back at once."""


class SharedReads(Generic[K, T]):
    """`read`: begins to read when it is called; what it returns belongs to all who asked. tenant: whose a subject
    is.
    """

    def __init__(
        self, read: Callable[[K], Awaitable[T]], tenant: Callable[[K], str], *, waiting_max: int = READS_WAITING_MAX
    ) -> None:
        self._read, self._tenant = read, tenant
        self._queue = FairQueue(READS_AT_ONCE, waiting_max)
        self._waiting: dict[K, asyncio.Task[T]] = {}
        self._running: dict[K, asyncio.Task[T]] = {}

    async def of(self, subject: K) -> T:
        """What a read found that began after this call did. Raises what `read` raises, and MetadataUnavailable (too
        many wait).
        """
        reading = self._waiting.get(subject)
        if reading is None:
            reading = self._waiting[subject] = asyncio.get_running_loop().create_task(self._after(subject))
            reading.add_done_callback(_looked_at)
        return await asyncio.shield(reading)

    async def _after(self, subject: K) -> T:
        """Reads behind the read that runs, when its turn has come."""
        try:
            if subject in self._running:
                await asyncio.wait([self._running[subject]])
            taken = await self._queue.take(self._tenant(subject))
        finally:
            mine = self._waiting.pop(subject)  # who comes from here on gets the next one
        if not taken:
            raise MetadataUnavailable(
                f"too many reads of the metadata for {self._tenant(subject)} wait at this broker: try again"
            )
        self._running[subject] = mine
        try:
            return await self._read(subject)
        finally:
            del self._running[subject]
            self._queue.give()


def _looked_at(reading: asyncio.Task[T]) -> None:
    """Nobody may wait for it any more: its error is no accident then."""
    if not reading.cancelled():
        reading.exception()
