"""Premises: a region whose bookies and metadata are composed as in production, on virtual time, for stories of lost
disks.

Is: a region without brokers, whose machines lose power and disks, and the storage of a broker that comes and goes.
Isn't: a fake of anything but the machines: bookies, their cookies and registration, and the metadata are the real ones.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from geo_tests.sim.ledgers import QUICK_LEDGER, SMALL_LEDGERS
from geo_tests.sim.region import META_PORT, Node, Region
from geo_tests.sim.simulation import Machine, Simulation
from heliograph.kv.metadata_client import MetaClient
from heliograph.model.errors import HeliographError
from heliograph.wire.run import Run
from region_node.placement.balance.settings import BalanceSettings
from region_node.process.composition import BookieRole
from storage.bookie.maintenance.garbage_collector import GarbageCollector
from storage.ledger.bookies.bookie_client import BookieClient, BookieClientSettings
from storage.ledger.bookies.bookie_pool import BookiePool
from storage.ledger.repair.lost_bookies import AutoRecoverySettings
from storage.managed_ledger.cache.entry_cache import EntryCache
from storage.managed_ledger.log.managed_ledger import ManagedLedger
from storage.managed_ledger.log.managed_ledger_factory import ManagedLedgerFactory
from tests.storage.managed_ledger.world import TOPIC, Names, names_of, read_all, run_of, until

T = TypeVar("T")


class Broken(AssertionError):
    """The promise of a case does not hold. Of its own kind, so that a set-up that fails is not taken for it."""


def promised(holds: bool, found: str) -> None:
    """Raises Broken with what was found instead."""
    if not holds:
        raise Broken(found)


class _Settings:
    auto_recovery = AutoRecoverySettings()
    trims = False


class _Faults:
    weather = False


class _Stories:
    balance = BalanceSettings()


class Premises:
    """The machines of one region: one metadata node, some bookies."""

    settings = _Settings()
    faults = _Faults()
    stories = _Stories()

    def __init__(self, sim: Simulation, bookies: int) -> None:
        self.sim = sim
        self.region = Region(self, "here", 1, ("here",), bookies=bookies, brokers=0)  # type: ignore[arg-type]
        self.region.metadata = Node(self.region, "here-meta", ("meta",))
        self.region.voters = [self.region.metadata]

    def trace(self, text: str) -> None: ...

    def bookie(self, name: str) -> Node:
        return next(node for node in self.region.bookies if node.name == name)

    def collector(self, name: str) -> GarbageCollector:
        """The garbage collection of a bookie that runs."""
        role = self.bookie(name).roles[0]
        assert isinstance(role, BookieRole) and role.collector is not None
        return role.collector

    async def start(self) -> None:
        self.region.start_metadata()
        self.region.start_data()
        await until(lambda: all(node.is_ready() for node in self.region.nodes))

    def empty(self, node: Node) -> None:
        """Its machine loses power, and its disks with everything on them: what is mounted in their place is empty."""
        node.power_cut()
        node.machine.platters().clear()

    async def owner(self, host: str) -> Owner:
        """The storage of a broker on a machine of that name."""
        machine = self.sim.machine(host)
        if not machine.running:
            machine.start(_idle)
        return Owner(machine, await machine.ask(_factory, machine))


class Owner:
    """One life of a broker, as far as storage is concerned."""

    def __init__(self, machine: Machine, factory: ManagedLedgerFactory) -> None:
        self.machine, self.factory = machine, factory
        self.context = factory.context
        self.state = Names()

    async def do(self, work: Callable[[], Awaitable[T]], limit_s: float = 120.0) -> T:
        """Awaits something within this life."""

        async def run() -> T:
            return await work()

        return await self.machine.ask(run, limit_s=limit_s)

    async def open(self, topic: str = TOPIC) -> ManagedLedger:
        return await self.do(lambda: self.factory.open(topic, self.state, (2, 2, 2), create=True))

    async def append(self, ledger: ManagedLedger, *names: str) -> None:
        """Returns once all of them are confirmed."""
        done: list[str] = []
        failed: list[HeliographError] = []

        def confirmed(_ledger: int, _first: int, run: Run) -> None:
            self.state.confirm(run)
            done.extend(names_of(run))

        for name in names:
            self.machine.run(ledger.append_run, run_of(name), confirmed, failed.append)
        await until(lambda: failed or len(done) == len(names))
        assert not failed, failed

    async def read(self, ledger: ManagedLedger) -> list[str]:
        """The whole topic."""
        return [name for *_, name in await self.do(lambda: read_all(ledger))]


def on_premises(work: Callable[[Premises], Awaitable[None]], *, bookies: int = 3, seed: int = 1) -> None:
    """Runs a scenario over a region that is up."""
    with Simulation(seed) as sim:

        async def main() -> None:
            premises = Premises(sim, bookies)
            await premises.start()
            await work(premises)

        sim.run(main(), limit_s=1000)


async def _factory(machine: Machine) -> ManagedLedgerFactory:
    store = MetaClient([f"here-meta:{META_PORT}"], clock=machine.clock, rng=machine.rng)
    patience = BookieClientSettings(connect_timeout_s=0.5, answer_timeout_s=1.0, backoff_max_s=0.3)

    def client(bookie: str, host: str, port: int) -> BookieClient:
        return BookieClient(bookie, host, port, rng=machine.rng, settings=patience)

    pool = BookiePool(store, client, machine.rng)
    await pool.ready()
    return ManagedLedgerFactory(
        store, pool, EntryCache(64 << 10), SMALL_LEDGERS, machine.clock, machine.rng, ledger_settings=QUICK_LEDGER
    )


async def _idle(_: Machine) -> None:
    """A life that only lasts."""
