"""Tiering for tests: an object store and a metadata store that count their steps, and can be told at which one their
broker dies.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from typing import TypeVar

from geo_tests.sim.simulation import Simulation
from heliograph.kv.in_process_store import EmbeddedStore
from heliograph.kv.metadata_store import MetadataStore, Op, Put
from heliograph.kv.state_machine import KvMachine
from heliograph.model.errors import CorruptData, NoSuchObject
from heliograph.runtime.clock import CautiousClock
from storage.ledger.sealed_copies import opened
from storage.managed_ledger.log.managed_ledger import ManagedLedger
from storage.managed_ledger.managed_ledger_settings import ManagedLedgerSettings
from storage.managed_ledger.metadata.ledger_catalog import PAGE_LEDGERS
from storage.sealing.sealing import Sealing
from storage.tiered.offload.offload_plan import OffloadPolicy
from storage.tiered.offload.offloader import Described, Tiering
from storage.tiered.reading.cold_reader import ColdReader
from storage.tiered.store import Stores
from storage.tiered.tiered_settings import TieredSettings
from tests.storage.managed_ledger.world import Broker, Region

T = TypeVar("T")
URL = "memory:///"
SETTINGS = TieredSettings(
    store=URL,
    tick_s=1.0,
    collect_s=3600.0,
    manifest_s=0.0,
    index_bytes=256,
    read_bytes=1024,
    cache_bytes=4096,
    bytes_per_s=1 << 30,
    indexes_max=4,
    timeout_s=2.0,
)
AT_ONCE = OffloadPolicy(threshold_bytes=0, deletion_lag_ms=0)
OFF = OffloadPolicy()


class Steps:
    """Counts what has an effect, before it and after it; calls `die` at the chosen one, after which nothing goes on."""

    def __init__(self, die_at: int = -1, die: Callable[[], None] = lambda: None) -> None:
        self.die_at, self.die = die_at, die
        self.done: list[str] = []

    async def around(self, what: str, effect: Callable[[], Awaitable[T]]) -> T:
        await self.step(f"before {what}")
        result = await effect()
        await self.step(f"after {what}")
        return result

    async def step(self, what: str) -> None:
        self.done.append(what)
        if len(self.done) - 1 == self.die_at:
            asyncio.get_running_loop().call_soon(self.die)
            await asyncio.sleep(1e9)


class FakeStore:
    """An `ObjectStore` in virtual time. `objects` outlives brokers.

    Passes the cases of the built-in stores (`store_cases`). On purpose its pages are of three: so a list has several.
    """

    def __init__(self, objects: dict[str, bytes], steps: Steps | None = None, url: str = URL) -> None:
        self.url, self.objects, self.steps = url, objects, steps or Steps()
        self.reads: list[tuple[str, int, int]] = []
        self.fail: Exception | None = None

    async def put(self, key: str, body: AsyncIterator[bytes]) -> None:
        parts = [part async for part in body]

        async def effect() -> None:
            await self._wait()
            self.objects[key] = b"".join(parts)

        kind = "".join(key.split("/")[4:5])
        await self.steps.around(f"put {kind or key}", effect)

    async def read(self, key: str, start: int, stop: int) -> memoryview:
        if start >= stop:
            raise ValueError(f"bytes {start} to {stop}: none are asked for")
        await self._wait()
        self.reads.append((key, start, stop))
        if key not in self.objects:
            raise NoSuchObject(f"object {key} is not in {self.url}")
        found = self.objects[key][start:stop]
        if len(found) != stop - start:
            raise CorruptData(f"object {key} in {self.url} ends before {stop}")
        return memoryview(found)

    async def size_bytes(self, key: str) -> int:
        await self._wait()
        if key not in self.objects:
            raise NoSuchObject(f"object {key} is not in {self.url}")
        return len(self.objects[key])

    async def list(self, prefix: str) -> AsyncIterator[Sequence[tuple[str, int]]]:
        await self._wait()
        folder = prefix.rstrip("/") and f"{prefix.rstrip('/')}/"
        found = [(key, len(blob)) for key, blob in self.objects.items() if key.startswith(folder)]
        for start in range(0, len(found), 3):
            yield found[start : start + 3]

    async def delete(self, keys: Sequence[str]) -> None:
        async def effect() -> None:
            await self._wait()
            for key in keys:
                self.objects.pop(key, None)

        await self.steps.around("delete", effect)

    async def _wait(self) -> None:
        await asyncio.sleep(0.01)
        if self.fail is not None:
            raise self.fail


class CountedMeta(EmbeddedStore):
    """Writes of topics' metadata are steps."""

    def __init__(self, machine: KvMachine, steps: Steps) -> None:
        super().__init__(machine)
        self._steps = steps

    async def txn(self, ops: Sequence[Op]) -> int:
        if any(isinstance(op, Put) and op.key.startswith("/ml/") for op in ops):
            return await self._steps.around("metadata", lambda: EmbeddedStore.txn(self, ops))
        return await super().txn(ops)


class TierBroker(Broker):
    """A broker with tiering over `store`. Make it inside the life that it belongs to."""

    def __init__(
        self,
        region: Region,
        store: FakeStore,
        policy: OffloadPolicy = OFF,
        steps: Steps | None = None,
        *,
        meta: MetadataStore | None = None,
        sealing: Sealing | None = None,
    ) -> None:
        meta = CountedMeta(region.machine, steps) if steps is not None else meta
        super().__init__(
            region,
            meta,
            ManagedLedgerSettings(ledger_entries_max=10, checkpoint_entries=16, sweep_s=5.0),
            sealing=sealing,
        )
        self.store, self.policy = store, policy
        self.stores = Stores(URL, {}, 1.0, lambda url, options, timeout_s: store)
        self.cold = ColdReader(self.stores, SETTINGS, self.factory.context.tasks, partial(opened, self.factory.context))
        self.factory.cold = self.cold
        self.machine_clock = region.sim.clock()
        self.policies = {"namespace": '{"regions": ["us"]}'}
        self.tiering = Tiering(
            region="us",
            context=self.factory.context,
            stores=self.stores,
            opened=lambda: self.factory.opened,
            policy=lambda topic: self.policy,
            describe=lambda topic: Described(self.policies, 0),
            collects=lambda: False,
            clock=CautiousClock(self.machine_clock),
            settings=SETTINGS,
        )


def simulated(
    work: Callable[[Simulation, Region], Awaitable[None]], *, seed: int = 1, page_ledgers: int = PAGE_LEDGERS
) -> None:
    with Simulation(seed=seed) as sim:

        async def main() -> None:
            region = Region(sim, page_ledgers=page_ledgers)
            await region.start()
            await work(sim, region)

        sim.run(main(), limit_s=3600)


async def filled(broker: TierBroker, entries: int = 45) -> ManagedLedger:
    """A topic with four closed ledgers and an open one."""
    ledger = await broker.open()
    await more(broker, ledger, 0, entries)
    return ledger


async def more(broker: TierBroker, ledger: ManagedLedger, start: int, stop: int) -> None:
    """Entries e{start} to e{stop - 1}; a ledger is closed behind each tenth."""
    for i in range(start, stop):
        broker.append(ledger, f"e{i}", pad=50)
        await until(lambda: len(broker.done) == i + 1)  # noqa: B023
        if i % 10 == 9:
            await until(lambda: ledger.ledgers()[-1].entries == 0)


async def until(true: Callable[[], bool], limit_s: float = 60.0) -> None:
    deadline = asyncio.get_running_loop().time() + limit_s
    while not true():
        assert asyncio.get_running_loop().time() < deadline, "it never came true"
        await asyncio.sleep(0.01)


async def settled(broker: TierBroker, ledger: ManagedLedger, limit_s: float = 60.0) -> None:
    """Until the policies want nothing more of the topic."""
    deadline = asyncio.get_running_loop().time() + limit_s
    while True:
        broker.tiering.tick()
        if broker.tiering.status(ledger.topic).state != "RUNNING":
            return
        await until(lambda: broker.tiering.status(ledger.topic).state != "RUNNING")
        assert broker.tiering.status(ledger.topic).state == "SUCCESS", broker.tiering.status(ledger.topic).error
        broker.tiering.tick()
        if broker.tiering.status(ledger.topic).state != "RUNNING":
            return
        assert asyncio.get_running_loop().time() < deadline
