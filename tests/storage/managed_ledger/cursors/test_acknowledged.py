"""An open ledger of which nobody has a copy ends where its topic's cursors show that it was confirmed to."""

from __future__ import annotations

import pytest

from geo_tests.sim.ledgers import SMALL_LEDGERS
from geo_tests.sim.premises import Premises, on_premises
from heliograph.model.errors import EntriesLost
from heliograph.model.ledger_metadata import LedgerMetadata
from heliograph.wire.run import COUNT_MAX
from storage.managed_ledger.cursors.acknowledged import KnownEnds
from tests.storage.managed_ledger.emptied_bookies import emptied

ENTRIES = list("abcdef")


def test_what_another_region_holds_is_named_as_lost_here() -> None:
    """Nobody has acknowledged anything, and no cursor of a link was stored: the other region alone knows of it."""

    async def work(premises: Premises) -> None:
        first = await premises.owner("first")
        ledger = await first.open()
        await first.append(ledger, *ENTRIES)
        number = ledger.ledgers()[-1].ledger
        first.machine.power_cut()
        owner = await premises.owner("second")
        await emptied(premises, owner)

        async def elsewhere(metadata: LedgerMetadata, last_entry_max: int) -> int:
            assert last_entry_max == SMALL_LEDGERS.ledger_entries_max + COUNT_MAX - 2
            return 4 if metadata.ledger == number else -1

        ends = owner.context.confirmed
        assert isinstance(ends, KnownEnds)
        ends._elsewhere = elsewhere
        opened = await owner.open()
        assert [info.entries for info in opened.ledgers() if info.ledger == number] == [5]
        with pytest.raises(EntriesLost) as told:
            await owner.do(lambda: opened.read((number, 0), 10, 1 << 20))
        assert (told.value.first, told.value.last) == (0, 4)

    on_premises(work, bookies=2)


@pytest.mark.parametrize("holes", [False, True], ids=("one by one", "beyond a hole"))
def test_what_was_acknowledged_alone_shows_that_all_before_it_was_confirmed(holes: bool) -> None:
    """A shared subscription whose first message waits has its mark-delete position at the beginning."""

    async def work(premises: Premises) -> None:
        first = await premises.owner("first")
        ledger = await first.open()
        cursor = await first.do(lambda: ledger.open_cursor("c", (-1, -1)))
        await first.append(ledger, *ENTRIES)
        number = ledger.ledgers()[-1].ledger
        for entry in (1, 4) if holes else (0, 1, 2, 3, 4):
            first.machine.run(cursor.ack, [(number, entry)])
        await first.do(cursor.flushed)
        first.machine.power_cut()
        owner = await premises.owner("second")
        await emptied(premises, owner)
        opened = await owner.open()
        assert [info.entries for info in opened.ledgers() if info.ledger == number] == [5]

    on_premises(work, bookies=2)


@pytest.mark.parametrize("acknowledged", [3, -1])
def test_what_was_acknowledged_is_named_as_lost(acknowledged: int) -> None:
    """Else it had no number by which it could be named, or come back from another region."""

    async def work(premises: Premises) -> None:
        first = await premises.owner("first")
        ledger = await first.open()
        cursor = await first.do(lambda: ledger.open_cursor("c", (-1, -1)))
        await first.append(ledger, *ENTRIES)
        number = ledger.ledgers()[-1].ledger
        if acknowledged >= 0:
            first.machine.run(cursor.ack_cumulative, (number, acknowledged))
            await first.do(cursor.flushed)
        first.machine.power_cut()
        owner = await premises.owner("second")
        await emptied(premises, owner)
        opened = await owner.open()
        assert [info.entries for info in opened.ledgers() if info.ledger == number] == [acknowledged + 1] * (
            acknowledged >= 0
        )
        if acknowledged >= 0:
            with pytest.raises(EntriesLost) as told:
                await owner.do(lambda: opened.read((number, 0), 10, 1 << 20))
            assert (told.value.first, told.value.last) == (0, acknowledged)

    on_premises(work, bookies=2)
