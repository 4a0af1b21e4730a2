"""A topic whose newest entries are lost is loaded without them, and names them to its readers."""

from __future__ import annotations

import asyncio

import pytest

from geo_tests.sim.premises import Owner, Premises, on_premises
from heliograph.model.errors import BookieUnavailable, EntriesLost
from storage.ledger.recovery.ledger_recovery import recover_ledger
from tests.storage.managed_ledger.emptied_bookies import emptied

ENTRIES = list("abcdef")


async def abandoned(premises: Premises) -> tuple[Owner, int]:
    """Another owner than the one that died, whose ledger is closed behind it, and whose state was never stored."""
    first = await premises.owner("first")
    ledger = await first.open()
    await first.append(ledger, *ENTRIES)
    number = ledger.ledgers()[-1].ledger
    first.machine.power_cut()
    owner = await premises.owner("second")
    closed = await owner.do(lambda: recover_ledger(owner.context, number))
    assert closed.last_entry == 5
    return owner, number


def test_a_topic_is_loaded_without_what_is_lost_and_goes_on_behind_it() -> None:
    async def work(premises: Premises) -> None:
        owner, number = await abandoned(premises)
        await emptied(premises, owner)
        ledger = await owner.open()
        with pytest.raises(EntriesLost) as told:
            await owner.do(lambda: ledger.read((number, 0), 10, 1 << 20))
        assert (told.value.ledger, told.value.first, told.value.last) == (number, 0, 5)
        await owner.append(ledger, "new")
        after = ledger.last_confirmed
        assert after[0] > number
        ((_, _, run),) = await owner.do(lambda: ledger.read(after, 1, 1 << 20))
        assert run.first_index >= len(ENTRIES), "what comes back has indexes of its own"

    on_premises(work, bookies=2)


def test_a_topic_is_not_loaded_while_somebody_may_have_its_entries() -> None:
    async def work(premises: Premises) -> None:
        owner, _ = await abandoned(premises)
        for node in premises.region.bookies:
            node.power_cut()
        with pytest.raises(BookieUnavailable):
            await owner.open()
        for node in premises.region.bookies:
            node.start()
        await asyncio.sleep(3.0)
        assert await owner.read(await owner.open()) == ENTRIES

    on_premises(work, bookies=2)
