"""A bookie that compacts its entry logs in each of many lives."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from geo_tests.sim.simulation import Machine, Simulation
from tests.storage.bookie.history import SMALL, make_bookie, send
from tests.storage.bookie.lives import Lives

EAGER = replace(
    SMALL,
    minor_interval_s=2.0,
    minor_live_max=1.0,
    major_live_max=1.0,
    compaction_bytes_per_s=6 << 10,
    compacted_log_bytes=20 << 10,
)


class CompactingLives(Lives):
    """A long life with many deletions and much compaction."""

    compacted = 0
    settings = EAGER

    async def live(self, machine: Machine) -> None:
        bookie = make_bookie(machine.disk("journal"), machine.disk("ledgers"), machine.rng, self.settings)
        await self.model.check(bookie)
        peer = self.model.connect()
        for step in range(self.steps):
            send(bookie, peer, *[self.model.frame() for _ in range(self.rng.randrange(1, 6))])
            await asyncio.sleep(self.rng.uniform(0.0, 0.004))
            if bookie.full:
                await asyncio.sleep(0.05)
            if self.rng.random() < 0.05:
                bookie.flush()
            bookie.tick(0.5)
            self.compacted = max(self.compacted, bookie.dirs[0].compactor.compacted_logs)
            if step % 40 == 39:
                await self.model.check(bookie)
        await asyncio.sleep(0.2)
        self.finished = True


def many_compacting_lives(seed: int) -> None:
    with Simulation(seed) as sim:
        lives = CompactingLives(sim)
        if seed % 2:  # nothing of an index stays in memory
            lives.settings = replace(EAGER, index_bytes_max=1)

        async def main() -> None:
            rng = sim.rng("cuts")
            for _ in range(5):
                await lives.run(rng.randrange(20, 150), "ledgers", rng.randrange(1, 200))
            await lives.run(0)

        sim.run(main())
