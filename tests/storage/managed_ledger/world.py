"""A small region for tests of the storage's upper half: fake bookies, one metadata machine, brokers that are killed or
go on as zombies.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

from geo_tests.sim.simulation import Simulation
from heliograph.kv.in_process_store import EmbeddedStore
from heliograph.kv.metadata_store import RANGE_LIMIT, MetadataStore
from heliograph.kv.state_machine import KvMachine, MachineSettings
from heliograph.model.errors import (
    HeliographError,
)
from heliograph.wire.run import Run
from storage.ledger.bookies.bookie_pool import BookiePool
from storage.ledger.ledger_context import LedgerSettings
from storage.managed_ledger.cache.entry_cache import EntryCache
from storage.managed_ledger.cursors.cursor import CURSOR_SETTINGS, CursorSettings
from storage.managed_ledger.log.managed_ledger import ManagedLedger
from storage.managed_ledger.log.managed_ledger_factory import ManagedLedgerFactory
from storage.managed_ledger.managed_ledger_settings import ManagedLedgerSettings
from storage.managed_ledger.metadata.ledger_catalog import PAGE_LEDGERS
from storage.sealing.sealing import Sealing
from tests.storage.ledger.fake_bookies import FakeBookie, FakeClient

TOPIC = "persistent://public/default/t"


class Names:
    """A LogState: the payloads of all entries that it was told of."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.replayed = 0

    def restore(self, blob: bytes) -> None:
        self.seen = [name for name in blob.decode().split(",") if name]

    def replay(self, ledger: int, first: int, run: Run) -> None:
        self.replayed += run.count
        self.confirm(run)

    def snapshot(self) -> bytes:
        return ",".join(self.seen).encode()

    def confirm(self, run: Run) -> None:
        self.seen += names_of(run)


def names_of(run: Run) -> list[str]:
    return [bytes(part).decode().rstrip(".") for part in run.parts]


def run_of(*names: str, pad: int = 0) -> Run:
    parts = [name.ljust(pad, ".").encode() for name in names]
    return Run(parts, [len(part) for part in parts])


class Broker:
    """One broker's storage. Make it inside the life that it belongs to."""

    def __init__(
        self,
        region: Region,
        meta: MetadataStore | None = None,
        settings: ManagedLedgerSettings | None = None,
        ledger_settings: LedgerSettings | None = None,
        cache: EntryCache | None = None,
        sealing: Sealing | None = None,
        cursor_settings: CursorSettings = CURSOR_SETTINGS,
    ) -> None:
        self.region = region
        self.meta = meta or EmbeddedStore(region.machine)
        rng = random.Random(region.rng.getrandbits(32))
        self.pool = BookiePool(self.meta, lambda name, host, port: FakeClient(region.bookies[name]), rng)
        self.cache = cache or EntryCache(1 << 20)
        self.factory = ManagedLedgerFactory(
            self.meta,
            self.pool,
            self.cache,
            settings,
            region.sim.clock(),
            rng,
            ledger_settings=ledger_settings,
            sealing=sealing,
            page_ledgers=region.page_ledgers,
            cursor_settings=cursor_settings,
        )
        self.state = Names()
        self.done: list[tuple[int, int, str]] = []
        self.failed: list[tuple[str, HeliographError]] = []

    async def open(
        self, topic: str = TOPIC, *, quorums: tuple[int, int, int] = (2, 2, 2), create: bool = True
    ) -> ManagedLedger:
        await self.pool.ready()
        self.state = Names()
        return await self.factory.open(topic, self.state, quorums, create=create)

    def append(self, ledger: ManagedLedger, *names: str, pad: int = 0) -> None:
        state = self.state

        def done(at: int, first: int, run: Run) -> None:
            state.confirm(run)
            self.done += [(at, first + i, name) for i, name in enumerate(names_of(run))]

        ledger.append_run(
            run_of(*names, pad=pad), done, lambda error: self.failed.extend((name, error) for name in names)
        )


class Region:
    def __init__(
        self,
        sim: Simulation,
        bookies: int = 3,
        *,
        delay_s: float = 0.002,
        page_ledgers: int = PAGE_LEDGERS,
        range_limit: int = RANGE_LIMIT,
    ) -> None:
        """page_ledgers: how many ledgers its brokers put into a page. range_limit: rows of an answer of the
        metadata.
        """
        self.sim, self.rng, self.page_ledgers = sim, sim.rng("region"), page_ledgers
        self.machine = KvMachine(settings=MachineSettings(range_limit=range_limit))
        self.bookies = {f"b{i}": FakeBookie(f"b{i}", sim.rng(f"b{i}"), delay_s=delay_s) for i in range(bookies)}

    async def start(self) -> None:
        meta = EmbeddedStore(self.machine)
        for bookie in self.bookies.values():
            await bookie.register(meta)


async def read_all(ledger: ManagedLedger, max_entries: int = 7) -> list[tuple[int, int, str]]:
    out: list[tuple[int, int, str]] = []
    position = ledger.first_position()
    while found := await ledger.read(position, max_entries, 1 << 20):
        for at, first, run in found:
            out += [(at, first + i, name) for i, name in enumerate(names_of(run))]
        position = (out[-1][0], out[-1][1] + 1)
    return out


async def until(true: object, limit_s: float = 30.0) -> None:
    assert callable(true)
    deadline = asyncio.get_running_loop().time() + limit_s
    while not true():
        assert asyncio.get_running_loop().time() < deadline, "it never came true"
        await asyncio.sleep(0.01)


def scenario(
    work: Callable[[Region], Awaitable[None]], *, seed: int = 1, bookies: int = 3, limit_s: float = 600
) -> None:
    with Simulation(seed=seed) as sim:

        async def main() -> None:
            region = Region(sim, bookies)
            await region.start()
            await work(region)

        sim.run(main(), limit_s=limit_s)


def small(**changes: object) -> ManagedLedgerSettings:
    return ManagedLedgerSettings(**{"ledger_entries_max": 10, "checkpoint_entries": 16, **changes})  # type: ignore[arg-type]
