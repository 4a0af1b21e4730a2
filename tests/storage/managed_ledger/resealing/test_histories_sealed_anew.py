"""Histories of a topic, as `histories` has them, while its ledgers are written anew again and again under keys that are
rotated, by brokers that die, and while orphans are collected without any grace.
"""

from __future__ import annotations

import asyncio
import random

import pytest

from geo_tests.sim.simulation import Machine, Simulation
from heliograph.model.errors import HeliographError
from heliograph.runtime.clock import CautiousClock
from storage.managed_ledger.resealing.ledger_resealing import LedgerResealing, Stage
from storage.managed_ledger.resealing.reseal_job import ledgers_begun_before
from storage.managed_ledger.retention.orphan_ledgers import OrphanCollector
from storage.sealing.sealing import Sealing
from tests.storage.managed_ledger.flaky_store import FlakyStore
from tests.storage.managed_ledger.histories import Model, tried
from tests.storage.managed_ledger.world import Broker, read_all
from tests.storage.sealing.world import Config

FOR_EVER = 1 << 62


class SealedAnew(Model):
    """`moved`: ledgers that were led to a copy."""

    config = Config()
    moved = writers = 0

    async def sealing(self) -> Sealing:
        return await self.config.sealing(self.region)

    async def anew(self, *, healthy: bool) -> bool:
        """One broker that writes everything anew that is closed, and may die. Returns whether it came to its end."""
        self.writers += 1
        rng, made = random.Random(self.rng.getrandbits(32)), list[Broker]()
        machine = self.sim.machine(f"writer-{self.writers}")

        async def life(_: Machine) -> None:
            meta = FlakyStore(self.region.machine, random.Random(1), trouble=0.0 if healthy else self.trouble)
            made.append(Broker(self.region, meta, sealing=await self.sealing()))

        await machine.start(life)
        work = asyncio.ensure_future(tried(machine, lambda: self.all_anew(made[0], rng, healthy), 60.0))
        if not healthy and rng.random() < 0.5:
            await asyncio.sleep(rng.random() * rng.choice([0.05, 0.5, 3.0]))
            machine.kill()
        done = bool(await work)
        machine.kill()
        return done

    async def all_anew(self, broker: Broker, rng: random.Random, healthy: bool) -> bool:
        context, clock = broker.factory.context, CautiousClock(self.region.sim.clock())
        assert context.sealing is not None
        await broker.pool.ready()
        if not healthy and rng.random() < 0.5:
            await context.sealing.rotate("public")
        newest = [context.sealing.listing()["public"][-1].number]

        async def paced(_: int) -> None:
            await asyncio.sleep(rng.random() / 50)

        one, whole = LedgerResealing(context, clock, paced, newest, 0 if healthy else rng.choice([0, 0, 200])), True
        async for topic, _, info in ledgers_begun_before(broker.meta, "public", FOR_EVER):
            if not info.closed_ms or not info.entries:
                continue
            try:
                await one.write_anew(topic, info, True)
                self.moved += await one.move(info.ledger) is Stage.DONE
            except HeliographError:
                whole = False
        if rng.random() < 0.5:
            await OrphanCollector(context, 0.0).sweep(clock.monotonic())
        return whole

    async def run(self, steps: int) -> None:
        async def again_and_again() -> None:
            while True:
                await asyncio.sleep(self.rng.random())
                await asyncio.gather(*(self.anew(healthy=False) for _ in range(self.rng.randrange(1, 3))))

        await self.region.start()
        writing = asyncio.ensure_future(again_and_again())
        try:
            await super().run(steps)
        finally:
            writing.cancel()
        await asyncio.sleep(2)
        for _ in range(4):
            whole = await self.anew(healthy=True)
        assert whole
        sealing = await self.sealing()
        for key in sealing.listing()["public"][:-1]:
            await sealing.remove("public", key.number)
        assert await self.open(healthy=True)
        owner = self.owners[-1]
        entries = await tried(owner.machine, lambda: read_all(owner.ledger), 60.0)
        assert entries is not None, "something needs an older key"
        first, live = owner.ledger.first_position(), {(at, entry): name for at, entry, name in entries}
        assert all(position < first or live[position] == name for position, name in self.confirmed.items())


@pytest.mark.parametrize("seed", range(8))
def test_what_is_confirmed_stays_where_it_was_said_to_be_whatever_is_written_anew(seed: int) -> None:
    with Simulation(seed=f"anew-{seed}") as sim:
        model = SealedAnew(sim, sim.rng("model"))
        model.config = Config()
        sim.run(model.run(40), limit_s=3600)
        assert model.moved or model.trimming
