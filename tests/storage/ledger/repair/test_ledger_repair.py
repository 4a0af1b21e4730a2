"""Repair of one ledger of which something cannot be read: all else gets its copies, and the lost bookie stays named for
that alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from heliograph.model.errors import BookieUnavailable, HeliographError, NotEnoughBookies
from heliograph.model.ledger_metadata import LedgerMetadata
from local_meta import keys
from storage.ledger.ledger_context import LedgerSettings
from storage.ledger.reading.ledger_reader import ledger_metadata, read_entries
from storage.ledger.repair.ledger_repair import LedgerRepair
from storage.ledger.underreplicated_marks import Mark
from tests.storage.ledger.fake_bookies import FakeBookie
from tests.storage.ledger.writers import Writer, scenario
from tests.storage.managed_ledger.world import Region, run_of

BLOCK = 10
COUNT = 80


async def written(writer: Writer, count: int = COUNT, *, block: int = BLOCK, width: int = 2) -> LedgerMetadata:
    handle = await writer.open((2, 2), width=width)
    for first in range(0, count, block):
        handle.append_run(run_of(*(f"n{entry}" for entry in range(first, first + block))))
    await writer.reach(count - 1)
    return await handle.close()


def damage(bookie: FakeBookie, ledger: int, first: int) -> None:
    """The block of that entry has a wrong checksum there."""
    held = bookie.ledgers[ledger]
    start, block = held.blocks[first]
    bad = start, block[:-1] + bytes([block[-1] ^ 1])
    held.blocks.update({entry: bad for entry, (begin, _) in held.blocks.items() if begin == start})


def say_so(bookie: FakeBookie, reads: list[int]) -> None:
    """As the real one, it reads no bad block out, and says only that it cannot."""
    read = bookie.read

    def checked(ledger: int, first: int, last: int, max_bytes: int) -> list[bytes]:
        reads.append(first)
        if first in bad[ledger]:
            raise BookieUnavailable("checksum mismatch")
        until = min([entry - 1 for entry in bad[ledger] if entry > first] + [last])
        return read(ledger, first, until, max_bytes)

    bad: dict[int, set[int]] = {}
    bookie.bad = bad  # type: ignore[attr-defined]
    bookie.read = checked  # type: ignore[method-assign]


async def gone(region: Region, writer: Writer, name: str) -> None:
    region.bookies[name].crash()
    await region.bookies[name].unregister(writer.context.meta)
    await asyncio.sleep(0.01)


async def back(region: Region, writer: Writer, name: str) -> None:
    region.bookies[name].start()
    await region.bookies[name].register(writer.context.meta)
    await asyncio.sleep(0.01)


async def repaired(writer: Writer, repair: LedgerRepair, ledger: int, *lost: str) -> LedgerMetadata:
    """Once it has tried; the mark is made anew, and stays where it is still needed."""
    mark = Mark(lost)
    version = await writer.context.meta.put(keys.underreplicated(ledger), mark.encode())
    try:
        await repair.run(ledger, version, mark)
    except HeliographError:
        assert await writer.context.meta.get(keys.underreplicated(ledger)) is not None
    else:
        assert await writer.context.meta.get(keys.underreplicated(ledger)) is None
    return await ledger_metadata(writer.context, ledger)


def named(metadata: LedgerMetadata, bookie: str) -> list[int]:
    """The entries that should lie there."""
    return [entry for entry in range(metadata.last_entry + 1) if bookie in metadata.write_set(entry)]


def lacking(region: Region, metadata: LedgerMetadata) -> list[tuple[int, str]]:
    """(entry, bookie) of each copy that the metadata names, and that is not there."""
    return [
        (entry, name)
        for entry in range(metadata.last_entry + 1)
        for name in metadata.write_set(entry)
        if entry not in region.bookies[name].ledgers[metadata.ledger].blocks
    ]


def run(work: Callable[[Region, Writer], Awaitable[None]], bookies: int = 4) -> None:
    scenario(work, bookies=bookies, settings=LedgerSettings(stride=4))


@pytest.mark.parametrize("answered", [False, True])
def test_what_lies_before_between_and_behind_two_bad_blocks_is_copied(answered: bool) -> None:
    """answered: by the bookie itself, as a real one does; else the reader sees it."""

    async def work(region: Region, writer: Writer) -> None:
        metadata = await written(writer)
        ledger, (lost, left) = metadata.ledger, metadata.fragments[0][1]
        bad = [*range(20, 30), *range(50, 60)]
        if answered:
            say_so(region.bookies[left], [])
            region.bookies[left].bad[ledger] = set(bad)  # type: ignore[attr-defined]
        else:
            damage(region.bookies[left], ledger, 20)
            damage(region.bookies[left], ledger, 50)
        await gone(region, writer, lost)
        repair = LedgerRepair(writer.context, 1 << 30)
        after = await repaired(writer, repair, ledger, lost)
        assert named(after, lost) == bad and not lacking(region, after)
        assert [first for first, _ in after.fragments] == [0, 20, 30, 50, 60], "a bad block is one piece"
        copied = repair.copied_bytes
        assert await repaired(writer, repair, ledger, lost) == after and repair.copied_bytes == copied

        (spare,) = {name for _, ensemble in after.fragments for name in ensemble} - {lost, left}
        await gone(region, writer, left)  # the next disk: nothing that could be read is lost
        for first, count in ((0, 20), (30, 20), (60, 20)):
            runs = await read_entries(writer.context, after, first, first + count - 1, 1 << 20)
            assert sum(one.count for _, one in runs) == count
        await back(region, writer, left)

        await back(region, writer, lost)  # with what only it can be read of
        assert await repaired(writer, repair, ledger, lost) == after
        await gone(region, writer, spare)
        whole = await repaired(writer, repair, ledger, spare)
        assert named(whole, spare) == [] and not lacking(region, whole)
        assert whole.write_set(20) == (lost, left)

    run(work)


def test_what_was_lost_comes_back_before_the_rest_is_given_up() -> None:
    """An entry that the other one lacks is brought to it from the lost one, and nobody is named twice."""

    async def work(region: Region, writer: Writer) -> None:
        metadata = await written(writer, block=1)
        ledger, (lost, left) = metadata.ledger, metadata.fragments[0][1]
        for entry in (5, 6, 41):
            del region.bookies[left].ledgers[ledger].blocks[entry]
        await gone(region, writer, lost)
        repair = LedgerRepair(writer.context, 1 << 30)
        after = await repaired(writer, repair, ledger, lost)
        assert named(after, lost) == [5, 6, 41] == sorted({entry for entry, _ in lacking(region, after)})
        await back(region, writer, lost)
        assert await repaired(writer, repair, ledger, lost) == after and not lacking(region, after)
        region.bookies[lost].ledgers[ledger].blocks = {
            entry: block for entry, block in region.bookies[lost].ledgers[ledger].blocks.items() if entry in (5, 6, 41)
        }  # it needs no more
        await gone(region, writer, lost)
        whole = await repaired(writer, repair, ledger, lost)
        assert named(whole, lost) == [] and not lacking(region, whole)

    run(work, bookies=3)  # one spare: what was split has the same places again


def test_a_split_fragment_is_one_again_once_it_has_the_same_places() -> None:
    async def work(region: Region, writer: Writer) -> None:
        metadata = await written(writer)
        ledger, (lost, left) = metadata.ledger, metadata.fragments[0][1]
        good = dict(region.bookies[left].ledgers[ledger].blocks)
        damage(region.bookies[left], ledger, 0)
        await gone(region, writer, lost)
        repair = LedgerRepair(writer.context, 1 << 30)
        assert [first for first, _ in (await repaired(writer, repair, ledger, lost)).fragments] == [0, 10]
        region.bookies[left].ledgers[ledger].blocks = good
        ((first, ensemble),) = (await repaired(writer, repair, ledger, lost)).fragments
        assert first == 0 and lost not in ensemble

    run(work, bookies=3)


def test_stripes_of_which_both_bookies_are_lost_keep_no_other_from_its_copy() -> None:
    async def work(region: Region, writer: Writer) -> None:
        metadata = await written(writer, 36, block=4, width=3)
        ledger, (first, second, _) = metadata.ledger, metadata.fragments[0][1]
        await gone(region, writer, first)
        await gone(region, writer, second)
        after = await repaired(writer, LedgerRepair(writer.context, 1 << 30), ledger, first, second)
        both = [entry for entry in range(36) if entry // 4 % 3 == 0]
        assert named(after, first) == named(after, second) == both and not lacking(region, after)

    run(work, bookies=6)


def test_a_bad_block_of_many_entries_costs_few_reads() -> None:
    async def work(region: Region, writer: Writer) -> None:
        metadata = await written(writer, 1500, block=500)
        ledger, (lost, left) = metadata.ledger, metadata.fragments[0][1]
        reads: list[int] = []
        say_so(region.bookies[left], reads)
        region.bookies[left].bad[ledger] = set(range(500, 1000))  # type: ignore[attr-defined]
        await gone(region, writer, lost)
        after = await repaired(writer, LedgerRepair(writer.context, 1 << 30), ledger, lost)
        assert named(after, lost) == list(range(500, 1000)) and len(after.fragments) == 3
        assert len(reads) < 90

    run(work)


def test_who_is_only_away_is_waited_for() -> None:
    """What the other bookie has may be read when it is back: nothing is split for a restart."""

    async def work(region: Region, writer: Writer) -> None:
        metadata = await written(writer)
        ledger, (lost, left) = metadata.ledger, metadata.fragments[0][1]
        await gone(region, writer, lost)
        await gone(region, writer, left)
        repair = LedgerRepair(writer.context, 1 << 30)
        assert await repaired(writer, repair, ledger, lost) == metadata
        await back(region, writer, left)
        assert named(await repaired(writer, repair, ledger, lost), lost) == []

    run(work)


def test_who_does_not_answer_once_splits_nothing() -> None:
    async def work(region: Region, writer: Writer) -> None:
        metadata = await written(writer)
        ledger, (lost, left) = metadata.ledger, metadata.fragments[0][1]
        bookie, late = region.bookies[left], [3]
        read = bookie.read

        def once(ledger: int, first: int, last: int, max_bytes: int) -> list[bytes]:
            if first >= 30 and late:
                late.clear()
                raise BookieUnavailable("no answer")
            return read(ledger, first, min(last, first // BLOCK * BLOCK + BLOCK - 1), max_bytes)

        bookie.read = once  # type: ignore[method-assign]
        await gone(region, writer, lost)
        repair = LedgerRepair(writer.context, 1 << 30)
        assert await repaired(writer, repair, ledger, lost) == metadata and not late
        after = await repaired(writer, repair, ledger, lost)
        assert len(after.fragments) == 1 and named(after, lost) == []

    run(work)


def test_gaps_of_a_bookie_that_is_there_keep_its_other_gaps_from_nothing() -> None:
    async def work(region: Region, writer: Writer) -> None:
        metadata = await written(writer)
        ledger, (one, other) = metadata.ledger, metadata.fragments[0][1]
        blocks = region.bookies[one].ledgers[ledger].blocks
        for entry in [*range(10, 20), *range(40, 50)]:
            del blocks[entry]
        damage(region.bookies[other], ledger, 10)
        mark = Mark(lacking={one: COUNT - 1})
        version = await writer.context.meta.put(keys.underreplicated(ledger), mark.encode())
        with pytest.raises(NotEnoughBookies, match="no copy can be read of the entries 10 to 19"):
            await LedgerRepair(writer.context, 1 << 30).run(ledger, version, mark)
        assert sorted(set(range(COUNT)) - set(blocks)) == list(range(10, 20))

    run(work)
