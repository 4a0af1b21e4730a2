"""One writer of one ledger over fake bookies."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from geo_tests.sim.simulation import Simulation
from heliograph.kv.in_process_store import EmbeddedStore
from heliograph.model.errors import HeliographError
from storage.ledger.bookies.bookie_pool import BookiePool
from storage.ledger.ledger_context import LedgerContext, LedgerSettings
from storage.ledger.writing.ledger_creation import create_ledger
from storage.ledger.writing.ledger_handle import LedgerHandle
from tests.storage.ledger.fake_bookies import FakeClient
from tests.storage.managed_ledger.world import Region, until


class Writer:
    """A ledger and what its handle has said."""

    def __init__(self, context: LedgerContext) -> None:
        self.context = context
        self.failed: list[HeliographError] = []

    async def open(self, quorums: tuple[int, int] = (2, 2), width: int = 0) -> LedgerHandle:
        created = await create_ledger(self.context, width or quorums[0], *quorums)
        self.handle = LedgerHandle(self.context, *created, on_lac=lambda: None, on_failed=self.failed.append)
        return self.handle

    async def reach(self, lac: int) -> None:
        await until(lambda: self.handle.lac >= lac)


def scenario(
    work: Callable[[Region, Writer], Awaitable[None]],
    *,
    bookies: int = 3,
    settings: LedgerSettings | None = None,
    seed: int = 1,
    racks_min: int = 1,
) -> None:
    with Simulation(seed=seed) as sim:

        async def main() -> None:
            region = Region(sim, bookies)
            await region.start()
            meta = EmbeddedStore(region.machine)
            pool = BookiePool(
                meta,
                lambda name, host, port: FakeClient(region.bookies[name]),
                sim.rng("pool"),
                racks_min=racks_min,
            )
            await pool.ready()
            await work(
                region,
                Writer(
                    LedgerContext(meta=meta, pool=pool, rng=sim.rng("context"), settings=settings or LedgerSettings())
                ),
            )

        sim.run(main(), limit_s=600)
