"""A tiered topic's history from one seed, beside a model of what was confirmed."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator

from geo_tests.sim.simulation import Machine, Simulation
from heliograph.kv.in_process_store import EmbeddedStore
from heliograph.model.errors import StoreUnavailable
from heliograph.model.ledger_metadata import ManagedLedgerMetadata, OffloadState
from heliograph.model.positions import Position
from local_meta import keys
from storage.managed_ledger.log.managed_ledger import ManagedLedger
from storage.tiered.objects.object_names import ledger_key
from storage.tiered.offload.ledger_upload import check
from storage.tiered.offload.offload_plan import OffloadPolicy, stored
from tests.storage.managed_ledger.flaky_store import FlakyStore
from tests.storage.managed_ledger.histories import tried
from tests.storage.managed_ledger.world import TOPIC, Region, names_of, run_of
from tests.storage.tiered.world import AT_ONCE, FakeStore, TierBroker, settled, simulated, until


class TroubledStore(FakeStore):
    """Calls take time, fail, and an upload that failed may have arrived, in whole."""

    def __init__(self, objects: dict[str, bytes], rng: random.Random, trouble: float) -> None:
        super().__init__(objects)
        self.rng, self.trouble = rng, trouble

    async def _wait(self) -> None:
        await asyncio.sleep(self.rng.uniform(0, 0.05))
        if self.rng.random() < self.trouble:
            raise StoreUnavailable("the network")

    async def put(self, key: str, body: AsyncIterator[bytes]) -> None:
        await super().put(key, body)
        if self.rng.random() < self.trouble:
            raise StoreUnavailable("no answer")


class Model:
    def __init__(self, sim: Simulation, region: Region, rng: random.Random) -> None:
        self.sim, self.region, self.rng = sim, region, rng
        self.objects: dict[str, bytes] = {}
        self.trouble = rng.choice([0.0, 0.05, 0.2])
        self.confirmed: dict[Position, str] = {}
        self.owners: list[tuple[Machine, TierBroker, ManagedLedger]] = []
        self.named = self.brokers = 0
        self.trimming = rng.random() < 0.5

    async def open(self, *, healthy: bool = False) -> bool:
        self.brokers += 1
        machine, seed = self.sim.machine(f"broker-{self.brokers}"), self.rng.getrandbits(32)
        trouble = 0.0 if healthy else self.trouble
        policy = (
            AT_ONCE
            if healthy
            else OffloadPolicy(
                threshold_bytes=self.rng.choice([0, 0, 800]), deletion_lag_ms=self.rng.choice([0, 0, 3000])
            )
        )
        made: list[TierBroker] = []

        async def life(_: Machine) -> None:
            store = TroubledStore(self.objects, random.Random(seed), trouble)
            made.append(
                TierBroker(
                    self.region,
                    store,
                    policy,
                    meta=FlakyStore(self.region.machine, random.Random(seed + 1), trouble=trouble / 4),
                )
            )

        await machine.start(life)
        broker = made[0]

        async def opened() -> ManagedLedger:
            await broker.tiering.start()
            return await broker.open()

        ledger = await tried(machine, opened, 90.0)
        if ledger is None:
            assert not healthy
            return False
        self.owners.append((machine, broker, ledger))
        if self.trimming:
            await tried(machine, lambda: ledger.open_cursor("c", (-1, -1)), 30.0)
            machine.run(ledger.set_retention, 0, 0)
        return True

    async def check_reads(self) -> None:
        """Through the newest owner, as long as it lasts; trouble may end the look, never falsify it."""
        machine, _, ledger = self.owners[-1]

        async def look() -> None:
            position = ledger.first_position()
            start = position
            found: dict[Position, str] = {}
            while pieces := await ledger.read(position, self.rng.randrange(1, 20), 1 << 20):
                for at, first, run in pieces:
                    found |= {(at, first + i): name for i, name in enumerate(names_of(run))}
                position = (pieces[-1][0], pieces[-1][1] + pieces[-1][2].count)
            start = max(start, ledger.first_position())
            for place, name in self.confirmed.items():
                if start <= place:
                    assert found.get(place) == name, f"{place} should be {name}, is {found.get(place)}"

        await tried(machine, look, 60.0)

    def append(self) -> None:
        machine, _, ledger = self.rng.choice(self.owners[-2:])
        if not machine.running:
            return
        names = [f"n{self.named + i}".ljust(40, ".") for i in range(self.rng.randrange(1, 5))]
        self.named += len(names)

        def done(at: int, first: int, run: object) -> None:
            for index, name in enumerate(names):
                assert self.confirmed.setdefault((at, first + index), name.rstrip(".")) == name.rstrip(".")

        machine.run(ledger.append_run, run_of(*names), done, lambda error: None)

    def ack(self) -> None:
        machine, _, ledger = self.owners[-1]
        cursor = ledger.cursors.get("c")
        if machine.running and cursor is not None and ledger.failed is None:
            machine.run(cursor.ack_cumulative, ledger.position_after(cursor.mark_delete, self.rng.randrange(1, 15)))

    async def step(self) -> None:
        machine, broker, _ = self.rng.choice(self.owners[-2:])
        match self.rng.randrange(12):
            case 0 | 1 | 2 | 3 | 4:
                self.append()
            case 5 | 6 if machine.running:
                machine.run(broker.tiering.tick)
            case 7 if machine.running and broker.tiering.collector is not None:
                await tried(machine, broker.tiering.collector.sweep, 30.0)
            case 8 if self.trimming:
                self.ack()
            case 9:
                if self.rng.random() < 0.3:
                    machine.kill()
                    while not await self.open():
                        pass
            case 10:
                if self.rng.random() < 0.2:  # the former owner goes on as a zombie
                    while not await self.open():
                        pass
            case _:
                await self.check_reads()
        await asyncio.sleep(self.rng.uniform(0, 0.5))
        await self.check_objects()

    async def check_objects(self) -> None:
        """What is called stored is there."""
        found = await EmbeddedStore(self.region.machine).get(keys.managed_ledger(TOPIC))
        if found is not None:
            for info in ManagedLedgerMetadata.decode(found[0]).ledgers:
                if stored(info) and info.offload is not None:
                    assert ledger_key(info.offload.holder, TOPIC, info.ledger, info.offload.attempt) in self.objects, (
                        f"the object of {info} is gone"
                    )

    async def heal(self) -> None:
        assert await self.open(healthy=True)
        machine, broker, ledger = self.owners[-1]

        async def finish() -> None:
            broker.append(ledger, "last")
            await until(lambda: len(broker.done) == 1)
            await settled(broker, ledger)
            assert broker.tiering.collector is not None
            for _ in range(2):
                await broker.tiering.collector.sweep()

        for _ in range(3):
            await machine.ask(finish, limit_s=300.0)
            broker.done.clear()
        infos = ledger.ledgers()
        assert all(i.offload is not None and i.offload.state == OffloadState.LOCAL_GONE for i in infos if i.closed_ms)
        held = sorted(key for key in self.objects if "/ledger/" in key)
        assert held == sorted(
            ledger_key(i.offload.holder, TOPIC, i.ledger, i.offload.attempt) for i in infos if i.offload is not None
        )
        for info in infos:
            if info.offload is not None:
                await machine.ask(lambda info=info: check(broker.store, TOPIC, info, info.offload))  # type: ignore[misc]
        await self.check_reads()


def one_history(seed: int) -> None:
    async def work(sim: Simulation, region: Region) -> None:
        model = Model(sim, region, sim.rng("model"))
        assert await model.open(healthy=True)
        for _ in range(150):
            await model.step()
        await model.heal()

    simulated(work, seed=seed)
