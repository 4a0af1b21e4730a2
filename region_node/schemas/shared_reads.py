"""SharedReads: what is asked of a topic's schemas while they are read is answered by one more read, whoever asks.

Is: who waits for which read, and how many run at once. Isn't: a cache: an answer was read after each who gets it had
asked.
Invariants: of one topic one read runs, and one waits; tenants take turns.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from heliograph.model.errors import MetadataUnavailable
from heliograph.model.topic_names import TopicName
from heliograph.runtime.throttle import FairQueue

T = TypeVar("T")

READS_AT_ONCE = 32
"""Of one broker: each may hold 8 MiB, and what is made of them."""
READS_WAITING_MAX = 10_000
"""So many topics wait for their turns: as many as may have clients that come back at once."""


class SharedReads(Generic[T]):
    """`read`: begins to read when it is called."""

    def __init__(self, read: Callable[[TopicName], Awaitable[T]], *, waiting_max: int = READS_WAITING_MAX) -> None:
        self._read = read
        self._queue = FairQueue(READS_AT_ONCE, waiting_max)
        self._waiting: dict[TopicName, asyncio.Task[T]] = {}
        self._running: dict[TopicName, asyncio.Task[T]] = {}

    async def of(self, topic: TopicName) -> T:
        """What a read found that began after this call did. Raises what `read` raises, and MetadataUnavailable (too
        many wait).
        """
        base = topic.partitioned
        reading = self._waiting.get(base)
        if reading is None:
            reading = self._waiting[base] = asyncio.get_running_loop().create_task(self._after(base))
            reading.add_done_callback(_looked_at)
        return await asyncio.shield(reading)

    async def _after(self, topic: TopicName) -> T:
        """Reads behind the read that runs, when its turn has come."""
        try:
            if topic in self._running:
                await asyncio.wait([self._running[topic]])
            taken = await self._queue.take(topic.tenant)
        finally:
            mine = self._waiting.pop(topic)  # who comes from here on gets the next one
        if not taken:
            raise MetadataUnavailable(f"too many schemas of {topic.tenant} wait to be read at this broker: try again")
        self._running[topic] = mine
        try:
            return await self._read(topic)
        finally:
            del self._running[topic]
            self._queue.give()


def _looked_at(reading: asyncio.Task[T]) -> None:
    """Nobody may wait for it any more: its error is no accident then."""
    if not reading.cancelled():
        reading.exception()
