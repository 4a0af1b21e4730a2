"""A consumer finds in the log what took a key away, until the compaction is as old as the topic says."""

from __future__ import annotations

import asyncio

from geo_tests.sim.simulation import Simulation
from heliograph.runtime.clock import CautiousClock, Clock
from region_node.faces.kafka.log.compacted_reads import CompactedReads
from tests.region_node.compaction.world import Owner
from tests.storage.managed_ledger.world import Region


class _SetClock:
    def __init__(self, clock: Clock) -> None:
        self._clock, self.ahead_ms = clock, 0

    def monotonic(self) -> float:
        return self._clock.monotonic()

    def wall_ms(self) -> int:
        return self._clock.wall_ms() + self.ahead_ms


def test_a_clock_that_is_set_on_takes_no_deletion_from_a_consumer() -> None:
    async def main() -> None:
        await region.start()
        owner = Owner(region, sim)
        topic = await owner.open()
        await owner.publish([("a", "1"), ("b", "2"), ("a", "")])
        assert await owner.compact() == "SUCCESS"
        clock = _SetClock(sim.clock())
        reads = CompactedReads(topic, CautiousClock(clock))
        first = topic.ledger.first_position()
        for ahead_ms in (0, 3_600_000):
            clock.ahead_ms = ahead_ms
            assert await reads.read(first, 60_000, 10, 1 << 20) == first, "it is read in the log"
        await asyncio.sleep(61)
        pieces = await reads.read(first, 60_000, 10, 1 << 20)
        assert isinstance(pieces, list) and sum(run.count for *_, run in pieces) == 1

    with Simulation(seed="deletions") as sim:
        region = Region(sim)
        sim.run(main(), limit_s=600)
