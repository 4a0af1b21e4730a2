"""Fakes of a topic's storage do as the real parts."""

from __future__ import annotations

import asyncio

from heliograph.model.positions import Position
from tests.region_node.topics.fake_storage import FakeFactory, FakeLedger
from tests.storage.managed_ledger import factory_cases
from tests.storage.managed_ledger.ledger_cases import EVERY, SERVED, Case, conforms, turns


class Bench:
    state = None

    def __init__(self) -> None:
        self.ledger = FakeLedger("persistent://t/n/x")

    async def open(self) -> FakeLedger:
        return self.ledger.load()

    async def settled(self, ledger: FakeLedger) -> None:
        await turns()

    async def roll(self, ledger: FakeLedger) -> None:
        await turns()
        ledger.rollover()

    async def trim(self, ledger: FakeLedger, upto: Position) -> None:
        raise NotImplementedError("it frees nothing")


@conforms((*EVERY, *SERVED))
def test_fake_ledger_conforms(case: Case) -> None:
    asyncio.run(case(Bench()))  # type: ignore[arg-type]


@factory_cases.conforms
def test_fake_factory_conforms(case: factory_cases.Case) -> None:
    asyncio.run(case(FakeFactory(), turns))  # type: ignore[arg-type]
