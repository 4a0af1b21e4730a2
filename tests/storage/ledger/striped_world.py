"""A world of storage on a striped topic."""

from __future__ import annotations

import dataclasses

from geo_tests.sim.ledgers import LedgerWorld
from geo_tests.sim.simulation import Machine
from storage.managed_ledger.log.managed_ledger_factory import ManagedLedgerFactory


class StripedWorld(LedgerWorld):
    """Real bookies, brokers, and metadata, on a striped topic."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        fitting = [q for q in ((3, 2, 2), (4, 3, 2), (4, 2, 2), (3, 2, 1)) if q[0] <= len(self.bookies)]
        self.quorums = self.rng.choice(fitting or [(2, 2, 2)])

    async def _factory(self, machine: Machine) -> ManagedLedgerFactory:
        factory = await super()._factory(machine)
        object.__setattr__(factory.context, "settings", dataclasses.replace(factory.context.settings, stride=4))
        return factory
