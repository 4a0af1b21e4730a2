"""Producer ids: numbers that are given to idempotent producers, once in the region.

Is: blocks of a counter in the region's metadata. Isn't: sequences (`producer_sequences`).
Invariants: no number is given twice, also after a crash: what is left of a block is lost with its broker; nor by
metadata that is an older copy, or was made anew: each block begins at the wall clock, in milliseconds, or above it.
Source: Kafka KIP-98; docs/protocols/kafka.md, "Producers".
"""

from __future__ import annotations

from collections.abc import Callable

from heliograph.kv.metadata_store import MetadataStore
from heliograph.runtime.clock import Clock

COUNTER = "kafka-producer-ids"
_BLOCK = 1000
_REGION_BITS = 44
_CLOCK_MAX_MS = 1 << 43
"""A clock that is further is wrong, and would lead into the bits of the region: the year 2248."""


class ProducerIds:
    """Gives ids from blocks of the region's counter. `region`: its number, in the bits from 44 up, so that regions
    never give the same.
    """

    def __init__(self, meta: MetadataStore, region: Callable[[], int], clock: Clock) -> None:
        self._meta, self._region, self._clock = meta, region, clock
        self._next = self._end = 0

    def given_here(self, producer: int) -> bool:
        """Whether this region has given that id. Raises MetadataUnavailable: the region has no number yet."""
        return producer >> _REGION_BITS == self._region()

    async def next(self) -> int:
        """Raises what the metadata raises."""
        if self._next >= self._end:
            first = await self._meta.next_ids(COUNTER, _BLOCK, at_least=min(self._clock.wall_ms(), _CLOCK_MAX_MS))
            if first >= self._end:  # another request may have fetched a later block meanwhile
                self._next, self._end = first, first + _BLOCK
        given = self._next
        self._next += 1
        return self._region() << _REGION_BITS | given
