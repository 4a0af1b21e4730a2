"""The conformance suite of factories over the real one, on simulated bookies: the fake of it passes the same."""

from __future__ import annotations

from tests.storage.managed_ledger.factory_cases import Case, conforms
from tests.storage.managed_ledger.world import Broker, Region, scenario, until


@conforms
def test_managed_ledger_factory_conforms(case: Case) -> None:
    async def work(region: Region) -> None:
        broker = Broker(region)
        await broker.pool.ready()

        async def settle() -> None:
            await until(lambda: all(ledger.pending_bytes == 0 for ledger in broker.factory.opened))

        await case(broker.factory, settle)

    scenario(work)
