"""In-place repair: what no copy here has comes back from elsewhere, under the same ids, and nothing else changes."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

import pytest

from heliograph.model.errors import (
    CorruptData,
    HeliographError,
    NoSuchLedger,
    NotAllowed,
    NotEnoughBookies,
    VersionConflict,
)
from heliograph.model.ledger_metadata import LedgerMetadata
from heliograph.runtime.throttle import Throttle
from heliograph.wire.run import Run
from local_meta import keys
from storage.ledger.ledger_context import LedgerSettings
from storage.ledger.reading.ledger_reader import ledger_metadata, read_entries
from storage.ledger.repair.in_place_repair import Refilled, refill, unreadable
from storage.ledger.repair.ledger_repair import LedgerRepair
from storage.ledger.underreplicated_marks import Mark, mark_lacking
from tests.storage.ledger.fake_bookies import FakeBookie
from tests.storage.ledger.writers import Writer, scenario
from tests.storage.managed_ledger.world import Region, names_of, run_of

COUNT = 40


class Elsewhere:
    """A source that has all entries but those in `lacks`, and answers a few at a time."""

    def __init__(self) -> None:
        self.lacks: set[int] = set()
        self.asked: list[int] = []
        self.wrong = self.shifted = 0

    async def read(self, topic: str, ledger: int, first: int, last: int, max_bytes: int) -> Sequence[tuple[int, Run]]:
        self.asked.append(first)
        entries = []
        for entry in range(first, min(last, first + 4) + 1):
            if entry in self.lacks:
                break
            entries.append(entry)
        return (
            [(first + self.wrong, stored(first + self.shifted, *(f"n{entry}" for entry in entries)))] if entries else []
        )


def stored(index: int, *names: str) -> Run:
    """As a topic stores it: message number `index` is its first, and none before it is missing."""
    run = run_of(*names)
    run.first_index, run.time_ms = index, 7
    return run


async def written(region: Region, writer: Writer, width: int) -> LedgerMetadata:
    handle = await writer.open((2, 2), width=width)
    for entry in range(COUNT):
        handle.append_run(stored(entry, f"n{entry}"))  # blocks of one entry, so that each can be lost alone
    await writer.reach(COUNT - 1)
    return await handle.close()


async def read_back(writer: Writer, ledger: int) -> list[str]:
    metadata, at, found = await ledger_metadata(writer.context, ledger), 0, []
    while at <= metadata.last_entry:
        for first, run in await read_entries(writer.context, metadata, at, metadata.last_entry, 1 << 20):
            found += names_of(run)
            at = first + run.count
    return found


def test_what_is_lost_is_found_without_a_read_for_each_entry() -> None:
    """However many entries a ledger is said to have that nobody has."""

    async def work(region: Region, writer: Writer) -> None:
        metadata = await written(region, writer, 2)
        reads: list[int] = []

        def counted(bookie: FakeBookie) -> None:
            read = bookie.read

            def counting(ledger: int, first: int, last: int, max_bytes: int) -> list[bytes]:
                reads.append(first)
                return read(ledger, first, last, max_bytes)

            bookie.read = counting  # type: ignore[method-assign]

        for name in metadata.fragments[0][1]:
            region.bookies[name].begin_anew(metadata.ledger + 1)
            counted(region.bookies[name])
        assert await unreadable(writer.context, metadata, Throttle(1 << 30)) == [(0, COUNT - 1)]
        assert set(reads) == {0}

    scenario(work)


async def gone(region: Region, writer: Writer, *names: str) -> None:
    for name in names:
        region.bookies[name].crash()
        await region.bookies[name].unregister(writer.context.meta)
    await asyncio.sleep(0.01)


def whole(region: Region, metadata: LedgerMetadata) -> bool:
    return all(
        entry in region.bookies[bookie].ledgers[metadata.ledger].blocks and region.bookies[bookie].alive
        for entry in range(metadata.last_entry + 1)
        for bookie in metadata.write_set(entry)
    )


WANTED = [f"n{i}" for i in range(COUNT)]


@pytest.mark.parametrize("width", [2, 3])
def test_a_ledger_all_of_whose_bookies_are_gone_comes_back(width: int) -> None:
    async def work(region: Region, writer: Writer) -> None:
        closed = await written(region, writer, width)
        await gone(region, writer, *closed.fragments[0][1])
        result = await refill(writer.context, closed.ledger, Elsewhere(), Throttle(1 << 30))
        assert result == Refilled(0, COUNT, ())
        assert await read_back(writer, closed.ledger) == WANTED
        after = await ledger_metadata(writer.context, closed.ledger)
        assert whole(region, after) and (after.last_entry, after.size_bytes, after.stride) == (
            closed.last_entry,
            closed.size_bytes,
            closed.stride,
        )
        source = Elsewhere()
        assert (
            await refill(writer.context, closed.ledger, source, Throttle(1 << 30)) == Refilled() and not source.asked
        ), "nothing is left to do"

    scenario(work, bookies=7, settings=LedgerSettings(stride=4))


@pytest.mark.parametrize("seed", range(12))
def test_only_what_no_copy_has_is_asked_for(seed: int) -> None:
    rng = random.Random(seed)

    async def work(region: Region, writer: Writer) -> None:
        closed = await written(region, writer, rng.choice([2, 3]))
        lost = {entry for entry in range(COUNT) if rng.random() < 0.2}
        for entry in range(COUNT):
            holders = list(closed.write_set(entry))
            for bookie in holders if entry in lost else rng.sample(holders, rng.randrange(2)):
                del region.bookies[bookie].ledgers[closed.ledger].blocks[entry]
        source = Elsewhere()
        nowhere = source.lacks = {entry for entry in lost if rng.random() < 0.3} if seed % 2 else set()
        if rng.random() < 0.5:
            await gone(region, writer, closed.fragments[0][1][0])
            left = {
                b: held for b in closed.fragments[0][1][1:] if (held := region.bookies[b].ledgers.get(closed.ledger))
            }
            lost |= {
                entry
                for entry in range(COUNT)
                if not any(b in left and entry in left[b].blocks for b in closed.write_set(entry))
            }
            nowhere &= lost
        result = await refill(writer.context, closed.ledger, source, Throttle(1 << 30))
        assert {entry for first, last in result.missing for entry in range(first, last + 1)} == nowhere
        after = await ledger_metadata(writer.context, closed.ledger)
        if nowhere:
            assert after == closed, "a place is recorded only where everything of it is there"
            return
        assert result.fetched_entries >= len(lost), (
            "what is not here comes from there; with it, at most the rest of a stripe"
        )
        assert await read_back(writer, closed.ledger) == WANTED
        for entry in lost:
            assert all(
                entry in region.bookies[bookie].ledgers[closed.ledger].blocks for bookie in after.write_set(entry)
            )

    scenario(work, bookies=5, seed=seed, settings=LedgerSettings(stride=4))


def test_what_is_refused() -> None:
    async def work(region: Region, writer: Writer) -> None:
        source, throttle = Elsewhere(), Throttle(1 << 30)
        handle = await writer.open()
        with pytest.raises(NotAllowed, match="still open"):
            await refill(writer.context, handle.ledger, source, throttle)
        with pytest.raises(NoSuchLedger):
            await refill(writer.context, 999, source, throttle)
        closed = await written(region, writer, 2)
        await gone(region, writer, *closed.fragments[0][1])
        source.wrong = 1
        with pytest.raises(CorruptData, match="the source answered"):
            await refill(writer.context, closed.ledger, source, throttle)
        assert await ledger_metadata(writer.context, closed.ledger) == closed
        source.wrong = 0
        await gone(region, writer, *region.bookies)
        with pytest.raises(NotEnoughBookies):
            await refill(writer.context, closed.ledger, source, throttle)

    scenario(work, bookies=4)


def test_it_stands_on_what_auto_recovery_has_recorded_meanwhile() -> None:
    async def work(region: Region, writer: Writer) -> None:
        closed = await written(region, writer, 2)
        await gone(region, writer, *closed.fragments[0][1])
        meta = writer.context.meta

        class Busy(Elsewhere):
            async def read(
                self, topic: str, ledger: int, first: int, last: int, max_bytes: int
            ) -> Sequence[tuple[int, Run]]:
                if not self.asked:  # somebody else writes the metadata, once
                    found = await meta.get(keys.ledger(ledger))
                    assert found is not None
                    await meta.put(keys.ledger(ledger), found[0], expected=found[1])
                return await super().read(topic, ledger, first, last, max_bytes)

        source = Busy()
        await refill(writer.context, closed.ledger, source, Throttle(1 << 30))
        assert source.asked.count(0) == 2, "the whole attempt again"
        assert await read_back(writer, closed.ledger) == WANTED and whole(
            region, await ledger_metadata(writer.context, closed.ledger)
        )
        with pytest.raises(VersionConflict):
            await meta.put(keys.ledger(closed.ledger), b"", expected=0)

    scenario(work, bookies=5)


class Meddling(Elsewhere):
    """While it is asked for the first time, somebody does this."""

    def __init__(self, meddle: Callable[[], Awaitable[object]]) -> None:
        super().__init__()
        self._meddle = meddle

    async def read(self, topic: str, ledger: int, first: int, last: int, max_bytes: int) -> Sequence[tuple[int, Run]]:
        if not self.asked:
            await self._meddle()
        return await super().read(topic, ledger, first, last, max_bytes)


async def mark_of(writer: Writer, ledger: int) -> Mark | None:
    found = await writer.context.meta.get(keys.underreplicated(ledger))
    return None if found is None else Mark.decode(found[0])


def test_the_mark_stands_from_before_the_first_entry_until_after_the_record() -> None:
    """It is what garbage collection goes by. What it said before, it says still."""

    async def work(region: Region, writer: Writer) -> None:
        closed = await written(region, writer, 2)
        lost = closed.fragments[0][1]
        await gone(region, writer, *lost)
        await mark_lacking(writer.context.meta, closed.ledger, {"b9": 3})
        seen: list[Mark | None] = []

        async def look() -> None:
            spares = [b for b, bookie in region.bookies.items() if b not in lost and closed.ledger in bookie.ledgers]
            assert not spares, "an entry is on its way before the mark"
            seen.append(await mark_of(writer, closed.ledger))

        await refill(writer.context, closed.ledger, Meddling(look), Throttle(1 << 30))
        assert seen == [Mark(lost, {"b9": 3})] == [await mark_of(writer, closed.ledger)]
        assert whole(region, await ledger_metadata(writer.context, closed.ledger))

    scenario(work, bookies=5)


@pytest.mark.parametrize("put_again", [False, True])
def test_nothing_is_recorded_where_the_mark_was_away_meanwhile(put_again: bool) -> None:
    """Auto-recovery takes it away, and perhaps another one comes: in between, what was written may have been given
    up.
    """

    async def work(region: Region, writer: Writer) -> None:
        closed = await written(region, writer, 2)
        await gone(region, writer, *closed.fragments[0][1])
        meta, key = writer.context.meta, keys.underreplicated(closed.ledger)

        async def take_away() -> None:
            found = await meta.get(key)
            assert found is not None
            await meta.delete(key)
            if put_again:
                await meta.put(key, found[0])

        source = Meddling(take_away)
        result = await refill(writer.context, closed.ledger, source, Throttle(1 << 30))
        assert source.asked.count(0) == 2 and result == Refilled(0, COUNT, ()), "the whole attempt again"
        assert whole(region, await ledger_metadata(writer.context, closed.ledger))

    scenario(work, bookies=5)


def test_a_refill_that_changes_no_place_marks_nothing() -> None:
    async def work(region: Region, writer: Writer) -> None:
        closed = await written(region, writer, 2)
        for bookie in closed.fragments[0][1]:
            del region.bookies[bookie].ledgers[closed.ledger].blocks[7]
        result = await refill(writer.context, closed.ledger, Elsewhere(), Throttle(1 << 30))
        assert result.fetched_entries and await mark_of(writer, closed.ledger) is None

    scenario(work, bookies=3)


@pytest.mark.parametrize("back", [False, True])
def test_the_mark_of_a_refill_that_did_not_end_goes_once_the_ledger_is_whole(back: bool) -> None:
    """The process that did it is gone: the bookies come back, or another refill finds the rest. Auto-recovery takes the
    mark away then, and not before.
    """

    async def work(region: Region, writer: Writer) -> None:
        closed = await written(region, writer, 2)
        lost = closed.fragments[0][1]
        await gone(region, writer, *lost)
        context, key = writer.context, keys.underreplicated(closed.ledger)
        hung = asyncio.ensure_future(refill(context, closed.ledger, Meddling(asyncio.Event().wait), Throttle(1 << 30)))
        await asyncio.sleep(1.0)
        hung.cancel()
        repair = LedgerRepair(context, 1 << 30)
        found = await context.meta.get(key)
        assert found is not None
        mark = Mark.decode(found[0])
        assert set(mark.lost) == set(lost)
        with pytest.raises(HeliographError):
            await repair.run(closed.ledger, found[1], mark)
        assert await mark_of(writer, closed.ledger) == replace(mark, nowhere=True)
        if back:
            for name in lost:
                region.bookies[name].start()
                await region.bookies[name].register(context.meta)
            await asyncio.sleep(1.0)
            assert await ledger_metadata(context, closed.ledger) == closed
        else:
            await refill(context, closed.ledger, Elsewhere(), Throttle(1 << 30))
        found = await context.meta.get(key)
        assert found is not None
        await repair.run(closed.ledger, found[1], mark)
        assert await mark_of(writer, closed.ledger) is None
        assert whole(region, await ledger_metadata(context, closed.ledger))

    scenario(work, bookies=5)
