"""Metadata made anew, without a backup, over bookies that hold the ledgers of the one before."""

from __future__ import annotations

import asyncio

import pytest

from geo_tests.sim.premises import Premises, on_premises

OLD, NEW = "persistent://closed/ns/old", "persistent://public/default/new"


@pytest.mark.slow
def test_a_new_topic_never_shows_entries_of_an_old_one() -> None:
    """A ledger's id is given out once in the life of a region, and what was written under it stays with its topic.

    Were an id given out again, bookies would take what comes for a ledger that they hold already, and after the next
    recovery the new topic, of another tenant, would hold what the old one held.
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
        second = await premises.owner("second")
        new = await second.open(NEW)
        await second.append(new, *"abc")
        second.machine.kill()
        third = await premises.owner("third")
        assert await third.read(await third.open(NEW)) == list("abc")

    on_premises(work)
