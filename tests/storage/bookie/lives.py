"""A bookie that lives again and again, and what it must have after each life."""

from __future__ import annotations

import asyncio
from collections import Counter

from geo_tests.sim.disk import UNLIMITED_BYTES, Platter
from geo_tests.sim.simulation import Machine, Simulation
from tests.storage.bookie.history import Model, make_wide, send


class Lives:
    """One bookie on one machine, and the client whose model survives. journals, ledgers: how many directories it
    has.
    """

    def __init__(self, sim: Simulation, journals: int = 1, ledgers: int = 1) -> None:
        self.journals = [f"journal{at or ''}" for at in range(journals)]
        self.ledgers = [f"ledgers{at or ''}" for at in range(ledgers)]
        self.platters = [*self.journals, *self.ledgers]
        self.machine = sim.machine("b0")
        self.rng = sim.rng("history")
        self.model = Model(self.rng)
        self.steps = 0
        self.finished = self.abrupt = self.late = False
        self.counts: Counter[str] = Counter()
        for name in self.platters:
            self.machine.platter(name).on_operation = lambda kind, _file, disk=name: self.counts.update(
                [f"{disk} {kind}"]
            )

    async def live(self, machine: Machine) -> None:
        """One life: check, then go on with the history."""
        bookie = make_wide(
            [machine.disk(name) for name in self.journals], [machine.disk(name) for name in self.ledgers], machine.rng
        )
        await self.model.check(bookie)
        peer = self.model.connect()
        for _ in range(self.steps):
            frames = [self.model.frame() for _ in range(self.rng.randrange(1, 6))]
            send(bookie, peer, *frames, commit=not self.late or self.rng.random() < 0.5)
            if self.rng.random() < 0.5:
                await asyncio.sleep(self.rng.uniform(0.0, 0.002))
            if bookie.full:
                await asyncio.sleep(0.05)
            if self.rng.random() < 0.01:
                bookie.flush()
            if self.rng.random() < 0.02:
                bookie.tick()
        if not self.abrupt:
            await asyncio.sleep(0.2)
        self.finished = True

    async def run(self, steps: int, platter: str = "", cut: int = 0, *, kill: bool = False) -> bool:
        """Ends with a power cut in the `cut`-th operation of `platter`, or after the last step with another, or with a
        mere kill of the process.

        True where the steps were done before.
        """
        self.steps, self.finished, self.abrupt = steps, False, kill
        if cut:
            self.machine.platter(platter).cut_after(cut)
        self.machine.start(self.live)
        while self.machine.running and not self.finished:  # noqa: ASYNC110
            await asyncio.sleep(0.0005 if kill else 0.01)
        for name in self.platters:
            self.machine.platter(name).cancel_cut()
        if self.machine.running:
            if kill:
                self.machine.kill()
            else:
                self.machine.power_cut()
        return self.finished


def many_lives(seed: int, shape: tuple[int, int]) -> None:
    with Simulation(seed) as sim:
        lives = Lives(sim, *shape)

        async def main() -> None:
            rng = sim.rng("cuts")
            for _ in range(8):
                if rng.random() < 0.3:
                    await lives.run(rng.randrange(5, 60), kill=True)
                else:
                    await lives.run(rng.randrange(5, 120), rng.choice(lives.platters), rng.randrange(1, 60))
            await lives.run(0)

        sim.run(main())
        assert sum(map(len, lives.model.acked.values())) > 0


def a_directory_fails(seed: int) -> None:
    """Its syncs fail from some moment on, until the process is gone; afterwards it works again, and is asked only if
    nobody knows that it failed.
    """
    with Simulation(seed) as sim:
        lives = Lives(sim, 2, 4)

        async def fail(platter: Platter, after_s: float) -> None:
            await asyncio.sleep(after_s)
            platter.fail_syncs = True

        async def main() -> None:
            rng = sim.rng("cuts")
            sick = lives.machine.platter(rng.choice(lives.platters))
            ill = rng.randrange(5)
            for life in range(7):
                task = asyncio.ensure_future(fail(sick, rng.uniform(0.0, 0.12))) if life == ill else None
                if rng.random() < 0.5:
                    await lives.run(rng.randrange(20, 120), kill=True)
                else:
                    await lives.run(rng.randrange(20, 120), rng.choice(lives.platters), rng.randrange(10, 80))
                if task is not None:
                    task.cancel()
                sick.fail_syncs = False
            await lives.run(0)

        sim.run(main())
        assert sum(map(len, lives.model.acked.values())) > 0


def a_disk_fills(seed: int) -> None:
    """Again and again, and is given room each time; between that, the process ends or the power goes."""
    with Simulation(seed) as sim:
        lives = Lives(sim, *((1, 1), (2, 2))[seed % 2])
        lives.late = True

        async def fill() -> None:
            rng = sim.rng("full")
            while True:
                platter = lives.machine.platter(rng.choice(lives.platters))
                await asyncio.sleep(rng.uniform(0.0, 0.01))
                platter.capacity_bytes = platter.used_bytes() + rng.randrange(8 << 10)
                try:
                    await asyncio.sleep(rng.uniform(0.0, rng.choice((0.001, 0.1))))
                finally:
                    platter.capacity_bytes = UNLIMITED_BYTES

        async def main() -> None:
            rng = sim.rng("cuts")
            for _ in range(8):
                task = asyncio.ensure_future(fill())
                await lives.run(rng.randrange(60, 200), kill=rng.random() < 0.5)
                task.cancel()
                await asyncio.sleep(0)
            await lives.run(0)

        sim.run(main())
        assert lives.model.losses and sum(map(len, lives.model.acked.values())) > 0
