"""Metadata made anew, without a backup, over bookies that hold the ledgers of the one before."""

from __future__ import annotations

import asyncio

import pytest

from heliograph.model.errors import HeliographError
from tests.known_faults.storage_worlds import Broken, Premises, on_premises, promised

OLD, NEW = "persistent://closed/ns/old", "persistent://public/default/new"


@pytest.mark.slow
@pytest.mark.xfail(
    strict=True,
    raises=Broken,
    reason="metadata that is made anew gives out ledger ids again, and a new topic shows the entries of an old one",
)
def test_a_new_topic_never_shows_entries_of_an_old_one() -> None:
    """A ledger's id is given out once in the life of a region, and what was written under it stays with its topic.

    Metadata on empty disks counts from zero again, and bookies take what comes for a ledger that they hold already.
    After the next recovery the new topic, of another tenant, holds what the old one held. Right: the ids begin above
    all that ever were, or bookies refuse what another founding of the metadata sends; the new topic has its own
    entries, or none.
    """

    async def work(premises: Premises) -> None:
        first = await premises.owner("first")
        old = await first.open(OLD)
        await first.append(old, *(f"old{number}" for number in range(20)))
        await first.do(old.close)  # by its writer: nothing is fenced
        first.machine.kill()
        premises.empty(premises.region.metadata)
        premises.region.metadata.start()
        await asyncio.sleep(10.0)  # the bookies are registered again
        shown: list[str] = []
        try:
            second = await premises.owner("second")
            new = await second.open(NEW)
            await second.append(new, *"abc")
            second.machine.kill()
            third = await premises.owner("third")
            shown = await third.read(await third.open(NEW))
        except HeliographError:
            pass  # refused
        promised(not any(name.startswith("old") for name in shown), f"the new topic holds {shown}")

    on_premises(work)
