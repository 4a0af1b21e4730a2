"""A managed ledger's history from one seed: owners that die, or go on as zombies, beside a model of what they
confirmed.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from geo_tests.sim.simulation import Machine, Simulation
from heliograph.model.errors import HeliographError
from heliograph.model.positions import Position
from storage.ledger.ledger_context import LedgerSettings
from storage.managed_ledger.log.managed_ledger import ManagedLedger
from storage.managed_ledger.managed_ledger_settings import ManagedLedgerSettings
from storage.managed_ledger.metadata.ledger_catalog import PAGE_LEDGERS
from storage.sealing.sealing import Sealing
from tests.storage.managed_ledger.flaky_store import FlakyStore
from tests.storage.managed_ledger.world import Broker, Names, Region, read_all, run_of, until

T = TypeVar("T")
QUORUMS = [(2, 2, 2), (2, 2, 2), (3, 3, 2), (2, 2, 1), (1, 1, 1), (3, 2, 2), (5, 2, 2), (4, 3, 2)]


class Owner:
    """One broker that has had the topic."""

    def __init__(self, number: int, machine: Machine, broker: Broker, ledger: ManagedLedger) -> None:
        self.number, self.machine, self.broker, self.ledger = number, machine, broker, ledger
        self.appended: list[str] = []
        self.gone_for_good: set[str] = set()
        self.flushing: list[tuple[asyncio.Task[bool | None], list[Position]]] = []


async def tried(machine: Machine, call: Callable[[], Coroutine[Any, Any, T]], limit_s: float) -> T | None:
    """What the call on that machine returns; None where it fails, or takes too long, or the machine dies."""

    async def attempt() -> T | None:
        try:
            return await call()
        except HeliographError:
            return None

    if not machine.running:
        return None
    try:
        return await machine.ask(attempt, limit_s=limit_s)
    except TimeoutError:
        return None


async def returned(call: Callable[[], Coroutine[Any, Any, None]]) -> bool:
    await call()
    return True


class Model:
    """The run, and all that it knows."""

    def __init__(self, sim: Simulation, rng: random.Random, *, page_ledgers: int = PAGE_LEDGERS) -> None:
        self.sim, self.rng = sim, rng
        self.region = Region(sim, rng.choice([3, 3, 4, 5]), delay_s=0.004, page_ledgers=page_ledgers, range_limit=3)
        self.quorums = rng.choice(QUORUMS)
        self.trimming = rng.random() < 0.5
        self.idle_s, self.sweep_s = rng.choice([0.02, 0.2, 300.0]), rng.choice([0.1, 0.1, 5.0])
        self.trouble = rng.choice([0.0, 0.02, 0.1])
        self.owners: list[Owner] = []
        self.log: dict[Position, str] = {}
        self.confirmed: dict[Position, str] = {}
        self.acked: set[Position] = set()
        self.acked_upto: Position = (-1, -1)
        self.acked_for_good: set[Position] = set()
        self.brokers = 0
        self.names = 0

    async def sealing(self) -> Sealing | None:
        """Of a broker that starts now; None: nothing is encrypted."""
        return None

    # -- actions ------------------------------------------------------------------------------------------------------

    async def open(self, *, healthy: bool = False, limit_s: float = 90.0) -> bool:
        """A new broker takes the topic. Returns whether it got it."""
        self.brokers += 1
        machine = self.sim.machine(f"broker-{self.brokers}")
        seed = self.rng.getrandbits(32)
        made: list[Broker] = []

        async def life(_: Machine) -> None:
            meta = FlakyStore(self.region.machine, random.Random(seed), trouble=0.0 if healthy else self.trouble)
            settings = ManagedLedgerSettings(
                ledger_entries_max=25,
                checkpoint_entries=12,
                checkpoint_interval_s=0.2,
                pending_timeout_s=6.0,
                close_timeout_s=2.0,
                sweep_s=self.sweep_s,
                ledger_idle_s=self.idle_s,
                ledger_age_max_s=20.0,
            )
            made.append(
                Broker(
                    self.region,
                    meta,
                    settings,
                    LedgerSettings(add_timeout_s=1.5, lost_after_s=3.0, recovery_timeout_s=10.0, stride=4),
                    sealing=await self.sealing(),
                )
            )

        await machine.start(life)
        broker = made[0]
        ledger = await tried(machine, lambda: broker.open(quorums=self.quorums), limit_s)
        if ledger is None:
            return False
        await self.check_opened(machine, broker, ledger)
        if self.trimming:
            machine.run(ledger.set_retention, 0, 0)
        if await tried(machine, lambda: ledger.open_cursor("c", (-1, -1)), limit_s) is None:
            return False
        self.owners.append(Owner(len(self.owners), machine, broker, ledger))
        return True

    def append(self, owner: Owner) -> None:
        names = [f"{owner.number}-{self.names + i}" for i in range(self.rng.randrange(1, 6))]
        self.names += len(names)
        owner.appended += names
        broker, ledger, state = owner.broker, owner.ledger, owner.broker.state

        def done(at: int, first: int, run: object) -> None:
            state.confirm(run)  # type: ignore[arg-type]
            for index, name in enumerate(names):
                position = (at, first + index)
                assert self.confirmed.setdefault(position, name) == name, f"{position} was confirmed twice"

        def failed(_: HeliographError) -> None:
            if ledger.failed is None:
                owner.gone_for_good.update(names)

        owner.machine.run(ledger.append_run, run_of(*names), done, failed)
        assert broker is owner.broker

    async def ack(self, owner: Owner) -> None:
        cursor = owner.ledger.cursors.get("c")
        if cursor is None or owner.ledger.failed is not None:
            return
        known = [p for p in sorted(self.confirmed) if p > cursor.mark_delete and p <= owner.ledger.last_confirmed]
        if not known:
            return
        if self.rng.random() < 0.3:
            upto = known[self.rng.randrange(min(len(known), 20))]
            self.acked_upto = max(self.acked_upto, upto)
            owner.machine.run(cursor.ack_cumulative, upto)
            chosen = [p for p in known if p <= upto]
        else:
            chosen = [p for p in known[:15] if self.rng.random() < 0.5]
            self.acked |= set(chosen)
            owner.machine.run(cursor.ack, chosen)
        if self.rng.random() < 0.5:
            task = asyncio.get_running_loop().create_task(tried(owner.machine, lambda: returned(cursor.flushed), 30.0))
            owner.flushing.append((task, chosen))

    def harvest(self) -> None:
        for owner in self.owners:
            for task, chosen in owner.flushing:
                if task.done() and task.result():
                    self.acked_for_good |= set(chosen)
            owner.flushing = [(task, chosen) for task, chosen in owner.flushing if not task.done()]

    # -- checks -------------------------------------------------------------------------------------------------------

    async def check_opened(self, machine: Machine, broker: Broker, ledger: ManagedLedger) -> None:
        state: Names = broker.state
        seen = list(state.seen)
        entries = await tried(machine, lambda: read_all(ledger), 60.0)
        if entries is None or ledger.failed is not None:
            return  # bookies are in trouble: what can't be read now is checked later
        for at, entry, name in entries:
            assert self.log.setdefault((at, entry), name) == name, f"{at}:{entry} has changed"
        first = ledger.first_position()
        live = {(at, entry): name for at, entry, name in entries}
        for position, name in self.confirmed.items():
            assert position < first or live.get(position) == name, (
                f"{position} ({name}) was confirmed, and is lost; the log begins at {first}"
            )
        assert seen[len(seen) - len(live) :] == list(live.values()), "the state is not that of the log"
        assert len(set(seen)) == len(seen), "an entry stands twice"
        place = {name: index for index, name in enumerate(seen)}
        assert all(name in place for name in self.confirmed.values()), "the state has forgotten what was trimmed"
        order = [place[name] for _, name in sorted(self.confirmed.items())]
        assert order == sorted(order), "what was confirmed stands in another order"
        for owner in self.owners:
            mine = [name for name in seen if name.startswith(f"{owner.number}-")]
            assert not owner.gone_for_good & set(mine), "what failed for good is there"
            kept = [name for name in owner.appended if name not in owner.gone_for_good]
            assert mine == kept[: len(mine)], (
                "out of order, or an entry is there, and one that was appended before it is not"
            )
        cursor = ledger.cursors.get("c")
        if cursor is not None:
            passed = [p for p in self.log if self.acked_upto < p <= cursor.mark_delete]
            assert all(p in self.acked for p in passed), "the mark-delete position passed what was not acknowledged"
            assert all(cursor.is_acked(p) for p in self.acked_for_good), (
                "an acknowledgement that was durable is forgotten"
            )
            assert all(p in self.acked for p in self.log if self.acked_upto < p < first), (
                "trimmed, but not acknowledged"
            )

    # -- the run ------------------------------------------------------------------------------------------------------

    async def run(self, steps: int) -> None:
        rng = self.rng
        await self.region.start()
        bookies = list(self.region.bookies.values())
        assert await self.open(healthy=True)
        for _ in range(steps):
            self.harvest()
            alive = [o for o in self.owners[-3:] if o.machine.running]
            match rng.randrange(20):
                case 0 if sum(b.alive for b in bookies) > 1:
                    rng.choice(bookies).crash()
                case 1 | 2:
                    for bookie in bookies:
                        if not bookie.alive and rng.random() < 0.6:
                            bookie.start()
                case 3:
                    bookie = rng.choice(bookies)
                    bookie.silent = not bookie.silent and rng.random() < 0.4
                case 4 if alive and rng.random() < 0.5:
                    rng.choice(alive).machine.kill()
                case 5 if rng.random() < 0.7:
                    await self.open(limit_s=rng.choice([2.0, 20.0]))
                case 6 if alive and rng.random() < 0.3:
                    owner = alive[-1]
                    await tried(owner.machine, owner.ledger.close, 20.0)
                case 7 | 8 | 9 if alive:
                    owner = alive[0] if rng.random() < 0.2 else alive[-1]
                    for _ in range(rng.randrange(1, 4)):
                        await self.ack(owner)
                        await asyncio.sleep(rng.choice([0.0, 0.03, 0.07]))
                case _ if alive:
                    owner = rng.choice([alive[-1], alive[-1], alive[0]])
                    for _ in range(rng.randrange(1, 8)):
                        self.append(owner)
                case _:
                    await self.open(limit_s=20.0)
            if rng.random() < 0.8:
                await asyncio.sleep(rng.choice([0.0, 0.002, 0.01, 0.1, 0.5, 4.0 if rng.random() < 0.3 else 0.05]))
        await self.heal()

    async def heal(self) -> None:
        for bookie in self.region.bookies.values():
            bookie.start()
            bookie.silent = False
        await asyncio.sleep(3)
        self.harvest()
        for _ in range(3):
            assert await self.open(healthy=True), "the topic can't be opened although all is healed"
            owner = self.owners[-1]
            before = len(self.confirmed)
            for _ in range(20):
                self.append(owner)
            wanted = before + len(owner.appended)
            await until(lambda: len(self.confirmed) >= wanted, limit_s=20.0)  # noqa: B023
            await tried(owner.machine, owner.ledger.close, 20.0)


def one_history(seed: int) -> None:
    with Simulation(seed=f"ml-{seed}") as sim:
        model = Model(sim, sim.rng("model"))
        sim.run(model.run(60), limit_s=3600)
