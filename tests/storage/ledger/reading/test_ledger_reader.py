"""Reads that one bookie answers late, wrongly, or not at all."""

from __future__ import annotations

import asyncio
from functools import reduce

import pytest

from heliograph.model.errors import BookieUnavailable, CorruptData, HeliographError, KeyMissing, NoSuchEntry
from storage.ledger.bookies.bookie_latency import ReadLatency
from storage.ledger.bookies.quarantine import Quarantine
from storage.ledger.reading.ledger_reader import _worse, read_entries
from tests.storage.ledger.writers import Writer, scenario
from tests.storage.managed_ledger.world import Region, names_of, run_of


async def written(region: Region, writer: Writer) -> list[str]:
    """A closed ledger of four entries; its bookies, the one that is asked first in front."""
    handle = await writer.open()
    handle.append_run(run_of(*"abcd"))
    await writer.reach(3)
    await handle.close()
    bookies = handle.metadata.fragments[0][1]
    turn = handle.ledger % len(bookies)
    return [*bookies[turn:], *bookies[:turn]]


async def read(writer: Writer) -> list[str]:
    return [
        n for _, run in await read_entries(writer.context, writer.handle.metadata, 0, 3, 1 << 20) for n in names_of(run)
    ]


def test_a_second_copy_is_read_when_the_first_bookie_is_late() -> None:
    async def work(region: Region, writer: Writer) -> None:
        first, _ = await written(region, writer)
        region.bookies[first].silent = True
        began = asyncio.get_running_loop().time()
        assert await read(writer) == list("abcd")
        assert asyncio.get_running_loop().time() - began < 0.2 and writer.context.latency.second_reads == 1
        assert first in writer.context.pool.writable() and writer.context.pool.best_first([first]) == [first]

    scenario(work)


def test_no_second_copy_is_read_when_the_first_bookie_is_quick() -> None:
    async def work(region: Region, writer: Writer) -> None:
        await written(region, writer)
        for _ in range(100):
            assert await read(writer) == list("abcd")
        assert writer.context.latency.second_reads <= 10

    scenario(work)


def test_a_late_bookie_is_still_waited_for_when_the_other_has_nothing() -> None:
    async def work(region: Region, writer: Writer) -> None:
        first, second = await written(region, writer)
        region.bookies[first].delay_s = 0.5
        region.bookies[second].ledgers[writer.handle.ledger].blocks.clear()
        for _ in range(5):
            assert await read(writer) == list("abcd")

    scenario(work)


def test_of_several_failures_the_most_telling_is_raised() -> None:
    async def work(region: Region, writer: Writer) -> None:
        first, second = await written(region, writer)
        held = region.bookies[second].ledgers[writer.handle.ledger].blocks
        kept = dict(held)
        held.clear()
        region.bookies[first].crash()
        with pytest.raises(BookieUnavailable):
            await read(writer)
        held.update(kept)
        region.bookies[second].corrupt = True
        writer.context.pool._quarantine = Quarantine()
        with pytest.raises(CorruptData):
            await read(writer)
        held.clear()
        region.bookies[first].start()
        region.bookies[first].ledgers[writer.handle.ledger].blocks.clear()
        with pytest.raises(NoSuchEntry):
            await read(writer)

    scenario(work)


def test_a_bookie_that_says_that_it_has_forgotten_a_ledger_is_in_no_quarantine() -> None:
    async def work(region: Region, writer: Writer) -> None:
        first, second = await written(region, writer)
        for bookie in (first, second):
            region.bookies[bookie].begin_anew(floor=writer.handle.ledger + 1)
        with pytest.raises(BookieUnavailable):
            await read(writer)
        assert not any(writer.context.pool.suspected(bookie) for bookie in (first, second))

    scenario(work)


def test_the_percentile_follows_the_last_samples() -> None:
    latency = ReadLatency()
    assert latency.percentile(0.9) == 0.0
    for index in range(1000):
        latency.add(index % 100 / 1000)
    assert 0.085 < latency.percentile(0.9) < 0.095
    for _ in range(256):
        latency.add(1.0)
    assert latency.percentile(0.1) == 1.0


def test_who_is_silent_may_have_a_copy_that_opens() -> None:
    damage, silence, no = CorruptData(""), BookieUnavailable(""), NoSuchEntry("")
    order: list[HeliographError] = [no, KeyMissing(""), silence, damage]
    none: HeliographError | None = None
    for told in (order, order[::-1]):
        assert reduce(_worse, told, none) is damage
        assert reduce(_worse, [error for error in told if error is not damage], none) is silence
