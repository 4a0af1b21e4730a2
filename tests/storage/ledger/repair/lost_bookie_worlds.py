"""A region of storage whose bookies are lost one after another, and its auto-recovery."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator

from geo_tests.sim.simulation import Simulation
from heliograph.kv.in_process_store import EmbeddedStore
from heliograph.kv.metadata_store import prefix_end
from heliograph.model.ledger_metadata import LedgerMetadata, LedgerState
from local_meta import keys
from storage.ledger.ledger_context import LedgerSettings
from storage.ledger.repair.autorecovery import AutoRecovery
from storage.ledger.repair.lost_bookies import AutoRecoverySettings, is_surplus
from storage.managed_ledger.log.managed_ledger import ManagedLedger
from storage.managed_ledger.managed_ledger_settings import ManagedLedgerSettings
from tests.storage.ledger.fake_bookies import FakeBookie
from tests.storage.managed_ledger.world import Broker, Region, until

SETTINGS = AutoRecoverySettings(lost_after_s=3.0, rescan_s=1.0, tick_s=0.2, bytes_per_s=1 << 20)
SMALL = ManagedLedgerSettings(ledger_entries_max=12)


class Worlds:
    """A region whose brokers repair it."""

    def __init__(
        self,
        sim: Simulation,
        bookies: int,
        settings: AutoRecoverySettings = SETTINGS,
        quorums: tuple[int, int, int] = (2, 2, 2),
    ) -> None:
        self.sim, self.region, self.settings, self.quorums = sim, Region(sim, bookies), settings, quorums
        self.parts: list[AutoRecovery] = []

    async def start(self, brokers: int = 2) -> None:
        await self.region.start()
        self.meta = EmbeddedStore(self.region.machine)
        self.broken: list[str] = []
        self.meta.watch(keys.LEDGERS, self._on_ledger)
        self.brokers = [
            Broker(self.region, settings=SMALL, ledger_settings=LedgerSettings(stride=3)) for _ in range(brokers)
        ]
        for index, broker in enumerate(self.brokers):
            await broker.pool.ready()
            self.parts.append(AutoRecovery(broker.factory.context, f"broker-{index}", self.settings))
            await self.parts[-1].start()

    def _on_ledger(self, key: str, value: bytes | None, _version: int) -> None:
        """Whoever is named for an entry that was confirmed has it, at the moment when the metadata says so (here Qw =
        Qa).
        """
        if value is not None:
            metadata = LedgerMetadata.decode(value)
            for entry, name in self.sealed(metadata):
                if entry not in self.region.bookies[name].ledger(metadata.ledger).blocks:
                    self.broken.append(
                        f"ledger {metadata.ledger}: {name} is named for entry {entry}, and has not got it"
                    )

    def broker(self) -> Broker:
        return self.brokers[0]

    async def lose(self, name: str) -> None:
        self.region.bookies[name].crash()
        await self.region.bookies[name].unregister(self.meta)

    async def back(self, name: str) -> None:
        self.region.bookies[name].start()
        await self.region.bookies[name].register(self.meta)

    async def ledgers(self) -> list[LedgerMetadata]:
        return [
            LedgerMetadata.decode(blob) for _, blob, _ in await self.meta.range(keys.LEDGERS, prefix_end(keys.LEDGERS))
        ]

    async def whole(self) -> bool:
        """Whether each entry of a fragment that can't grow any more lies on every bookie that the metadata names, and
        each of those lives.
        """
        for metadata in await self.ledgers():
            for entry, name in self.sealed(metadata):
                bookie = self.region.bookies[name]
                if (
                    not bookie.alive
                    or not bookie.holds(metadata.ledger)
                    or entry not in bookie.ledgers[metadata.ledger].blocks
                ):
                    return False
        return not await self.meta.range(keys.UNDERREPLICATED, prefix_end(keys.UNDERREPLICATED))

    def sealed(self, metadata: LedgerMetadata) -> Iterator[tuple[int, str]]:
        end = metadata.last_entry + 1 if metadata.state == LedgerState.CLOSED else metadata.fragments[-1][0]
        for entry in range(end):
            assert len(set(metadata.write_set(entry))) == metadata.write_quorum
            for name in metadata.write_set(entry):
                yield entry, name

    async def settled(self, limit_s: float = 60.0) -> None:
        deadline = asyncio.get_running_loop().time() + limit_s
        while not await self.whole():
            assert asyncio.get_running_loop().time() < deadline, "the copies were never complete"
            await asyncio.sleep(0.2)

    async def collect_garbage(self, bookie: FakeBookie) -> list[int]:
        """What a bookie's garbage collection does about surplus: mark first, metadata second, and nothing that was
        added to meanwhile.
        """
        dropped = []
        for ledger in list(bookie.ledgers):
            before = len(bookie.ledgers[ledger].blocks)
            if await self.meta.get(keys.underreplicated(ledger)) is not None:
                continue
            found = await self.meta.get(keys.ledger(ledger))
            if (
                found is not None
                and is_surplus(LedgerMetadata.decode(found[0]), bookie.name)
                and len(bookie.ledgers[ledger].blocks) == before
            ):
                bookie.ledgers[ledger].blocks.clear()  # the fence stays
                dropped.append(ledger)
        return dropped


def scenario(
    work: Callable[[Worlds], Awaitable[None]],
    *,
    bookies: int = 4,
    seed: int = 1,
    quorums: tuple[int, int, int] = (2, 2, 2),
    settings: AutoRecoverySettings = SETTINGS,
) -> None:
    with Simulation(seed=seed) as sim:

        async def main() -> None:
            world = Worlds(sim, bookies, settings, quorums)
            await world.start()
            await work(world)
            for part in world.parts:
                await part.stop()
            assert not world.broken

        sim.run(main(), limit_s=2000)


async def filled(world: Worlds, count: int = 30) -> ManagedLedger:
    broker = world.broker()
    log = await broker.open(quorums=world.quorums)
    log.set_retention(-1, -1)
    for number in range(count):
        broker.append(log, f"n{number}", pad=50)
    await until(lambda: len(broker.done) == count)
    return log
