"""The conformance suite of managed ledgers over the real one, on simulated bookies: the fakes of it pass the same."""

from __future__ import annotations

from heliograph.model.positions import Position
from storage.managed_ledger.log.managed_ledger import ManagedLedger
from tests.storage.managed_ledger.ledger_cases import EVERY, OWNED, SERVED, Case, conforms
from tests.storage.managed_ledger.world import TOPIC, Broker, Names, Region, scenario, until


class Bench:
    def __init__(self, region: Region) -> None:
        self.region = region
        self.state: Names | None = None

    async def open(self) -> ManagedLedger:
        broker = Broker(self.region)
        ledger = await broker.open(TOPIC)
        self.state = broker.state
        return ledger

    async def settled(self, ledger: ManagedLedger) -> None:
        await until(lambda: ledger.pending_bytes == 0)

    async def roll(self, ledger: ManagedLedger) -> None:
        await self.settled(ledger)
        await ledger.roll_over()

    async def trim(self, ledger: ManagedLedger, upto: Position) -> None:
        ledger.set_retention(0, 0)
        await until(lambda: ledger.first_position() > upto)


@conforms((*EVERY, *SERVED, *OWNED))
def test_managed_ledger_conforms(case: Case) -> None:
    async def work(region: Region) -> None:
        await case(Bench(region))

    scenario(work)
