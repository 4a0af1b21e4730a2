"""A topic whose data key was rotated, and who writes its ledgers anew."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from geo_tests.sim.simulation import Simulation
from heliograph.kv.in_process_store import EmbeddedStore
from heliograph.kv.metadata_store import prefix_end
from heliograph.model.ledger_metadata import LedgerInfo
from heliograph.runtime.clock import CautiousClock
from heliograph.wire.block import decode_block
from local_meta import keys
from local_meta.located_ledger import LocatedLedger
from storage.managed_ledger.log.managed_ledger import ManagedLedger
from storage.managed_ledger.managed_ledger_settings import ManagedLedgerSettings
from storage.managed_ledger.resealing.ledger_resealing import LedgerResealing
from storage.sealing.sealing import Sealing
from tests.storage.managed_ledger.world import TOPIC, Broker, Region, read_all
from tests.storage.sealing.world import Config
from tests.storage.tiered.world import simulated, until

ROLLING = ManagedLedgerSettings(ledger_entries_max=10, checkpoint_entries=16, ledger_idle_s=60)


def run(work: Callable[[Region, Config], Awaitable[None]], *, seed: int = 1) -> None:
    async def main(sim: Simulation, region: Region) -> None:
        await work(region, Config())

    simulated(main, seed=seed)


class World:
    """A topic of three closed ledgers, sealed with a key that was rotated since, and who writes them anew."""

    def __init__(self, region: Region, broker: Broker, ledger: ManagedLedger, sealing: Sealing) -> None:
        self.region, self.broker, self.ledger, self.sealing = region, broker, ledger, sealing
        self.meta = broker.meta
        self.before: list[tuple[int, int, str]] = []
        self.aside = set[int]()
        """What is open, or will be."""

    @classmethod
    async def make(cls, region: Region, config: Config, broker: Broker | None = None, *, rotated: bool = True) -> World:
        """rotated: after the last of its ledgers was closed."""
        given = None if broker is None else broker.factory.context.sealing
        sealing = given or await config.sealing(region)
        broker = broker or Broker(region, settings=ROLLING, sealing=sealing)
        made = cls(region, broker, await broker.open(), sealing)
        for at in range(25):
            made.broker.append(made.ledger, f"secret{at}", f"word{at}")
            await until(lambda at=at: len(made.broker.done) == 2 * at + 2)
        await made.ledger.roll_over()
        if rotated:
            await sealing.rotate("public")
        made.before = await read_all(made.ledger)
        made.aside = await made.records() - {info.ledger for info in made.infos}
        return made

    @property
    def infos(self) -> list[LedgerInfo]:
        return [info for info in self.ledger.ledgers() if info.closed_ms]

    @property
    def newest(self) -> int:
        return self.sealing.listing()["public"][-1].number

    def resealing(self, broker: Broker | None = None, keep_ms: int = 0) -> LedgerResealing:
        context = (broker or self.broker).factory.context

        async def paced(_: int) -> None:
            await asyncio.sleep(0)

        return LedgerResealing(context, CautiousClock(self.region.sim.clock()), paced, (self.newest,), keep_ms)

    async def all_anew(self, broker: Broker | None = None) -> None:
        work = self.resealing(broker)
        for info in self.infos:
            await work.write_anew(TOPIC, info, True)
            await work.move(info.ledger)

    def keys_held(self) -> set[int]:
        """Of all that bookies hold and were not told to delete."""
        return {
            run.seal.key if run.seal else 0
            for bookie in self.region.bookies.values()
            for number, held in bookie.ledgers.items()
            if number not in bookie.deleted
            for _, _, run in (decode_block(block) for _, block in held.blocks.values())
        }

    async def records(self) -> set[int]:
        found = await EmbeddedStore(self.region.machine).range(keys.LEDGERS, prefix_end(keys.LEDGERS))
        return {keys.ledger_of(key) for key, _, _ in found} - self.aside

    async def places(self) -> dict[int, LocatedLedger]:
        found = await EmbeddedStore(self.region.machine).range(keys.LOCATED, prefix_end(keys.LOCATED))
        return {place.ledger: place for _, blob, _ in found if (place := LocatedLedger.decode(blob))}
