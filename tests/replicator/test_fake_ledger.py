"""The replicator's fake of the managed ledger does as the real one."""

from __future__ import annotations

import asyncio

from heliograph.model.positions import Position
from tests.replicator.fake_ledger import FakeLedger, Store
from tests.storage.managed_ledger.ledger_cases import EVERY, OWNED, Case, conforms
from tests.storage.managed_ledger.world import Names


class Bench:
    def __init__(self) -> None:
        self.store = Store()
        self.state = Names()

    async def open(self) -> FakeLedger:
        self.state = Names()
        return FakeLedger(self.store, self.state)

    async def settled(self, ledger: FakeLedger) -> None:
        ledger.confirm(len(ledger.pending))

    async def roll(self, ledger: FakeLedger) -> None:
        await self.settled(ledger)
        ledger.rollover()

    async def trim(self, ledger: FakeLedger, upto: Position) -> None:
        ledger.trim(upto)


@conforms((*EVERY, *OWNED))
def test_fake_ledger_conforms(case: Case) -> None:
    asyncio.run(case(Bench()))  # type: ignore[arg-type]
