"""One ledger over fake bookies: its writer, its recovery, its readers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from heliograph.model.errors import CorruptData, LedgerFenced, NoSuchEntry, NotEnoughBookies
from heliograph.model.ledger_metadata import LedgerMetadata, LedgerState
from heliograph.wire.block import encode_block
from local_meta import keys
from storage.ledger.reading.ledger_reader import ledger_metadata, read_entries
from storage.ledger.recovery.ledger_recovery import recover_ledger
from tests.storage.ledger.fake_bookies import FakeClient
from tests.storage.ledger.writers import Writer, scenario
from tests.storage.managed_ledger.world import Region, names_of, run_of, until


def test_a_run_is_stored_by_the_write_quorum_and_the_lac_is_told_when_appends_pause() -> None:
    async def work(region: Region, writer: Writer) -> None:
        handle = await writer.open()
        assert [handle.append_run(run_of(*"ab")), handle.append_run(run_of(*"cde"))] == [0, 2]
        await writer.reach(4)
        holders = handle.metadata.fragments[0][1]
        assert len(holders) == 2 and all(region.bookies[b].ledgers[handle.ledger].last == 4 for b in holders)
        await asyncio.sleep(0.12)
        assert all(region.bookies[b].ledgers[handle.ledger].lac == 4 for b in holders)
        assert not writer.context.ticker._active
        closed = await handle.close()
        assert (closed.state, closed.last_entry, closed.size_bytes) == (LedgerState.CLOSED, 4, 5)
        assert await ledger_metadata(writer.context, handle.ledger) == closed

    scenario(work)


def test_a_lost_bookie_is_replaced_and_the_ensemble_recorded_before_lac_moves() -> None:
    async def work(region: Region, writer: Writer) -> None:
        handle = await writer.open()
        handle.append_run(run_of(*"ab"))
        await writer.reach(1)
        lost, kept = handle.metadata.fragments[0][1]
        region.bookies[lost].crash()
        for name in "cdef":
            handle.append_run(run_of(name))
        await writer.reach(5)
        stored = await ledger_metadata(writer.context, handle.ledger)
        (_, first), (at, second) = stored.fragments
        spare = next(b for b in region.bookies if b not in first)
        assert at == 2 and set(second) == {kept, spare}
        assert sorted(region.bookies[spare].ledgers[handle.ledger].blocks) == [2, 3, 4, 5]
        found = await read_entries(writer.context, stored, 0, 5, 1 << 20)
        assert [n for _, run in found for n in names_of(run)] == ["a", "b"]  # to the end of the fragment
        found = await read_entries(writer.context, stored, 2, 5, 1 << 20)
        assert [n for _, run in found for n in names_of(run)] == ["c", "d", "e", "f"]

    scenario(work)


def test_without_a_spare_runs_wait_for_the_bookie_to_come_back() -> None:
    async def work(region: Region, writer: Writer) -> None:
        handle = await writer.open()
        handle.append_run(run_of("a"))
        await writer.reach(0)
        region.bookies["b0"].crash()
        handle.append_run(run_of("b"))
        await asyncio.sleep(1)
        assert handle.lac == 0 and not writer.failed
        region.bookies["b0"].start()
        await writer.reach(1)
        assert (await ledger_metadata(writer.context, handle.ledger)).fragments == handle.metadata.fragments
        region.bookies["b1"].crash()
        handle.append_run(run_of("c"))
        await asyncio.sleep(12)
        assert isinstance(writer.failed[0], NotEnoughBookies) and handle.lac == 1
        assert (await handle.close()).last_entry == 1

    scenario(work, bookies=2)


def test_idle_ledgers_try_a_bookie_that_is_away_only_once_it_is_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each had a timer of its own: ten thousand of them tried it every two seconds, for as long as it was away."""
    opened: list[int] = []
    open_writer = FakeClient.open_writer

    def counted(client: FakeClient, ledger: int, *told: Any) -> None:
        opened.append(ledger)
        open_writer(client, ledger, *told)

    monkeypatch.setattr(FakeClient, "open_writer", counted)

    async def work(region: Region, writer: Writer) -> None:
        handles = [await writer.open((3, 2)) for _ in range(40)]
        meta, away = writer.context.meta, region.bookies["b1"]
        away.crash()
        await away.unregister(meta)
        await asyncio.sleep(5.0)
        opened.clear()
        await asyncio.sleep(60.0)
        await region.bookies["b2"].register(meta, rack="changed")
        await asyncio.sleep(1.0)
        assert opened == []
        away.start()
        await away.register(meta)
        await asyncio.sleep(1.0)
        assert sorted(opened) == [handle.ledger for handle in handles]
        assert all(slot.writing for handle in handles for slot in handle._slots) and not writer.failed

    scenario(work)


def test_what_waits_is_tried_on_a_bookie_of_which_the_registration_alone_is_gone() -> None:
    async def work(region: Region, writer: Writer) -> None:
        handle, away = await writer.open((3, 3)), region.bookies["b1"]
        away.crash()
        await away.unregister(writer.context.meta)
        await asyncio.sleep(5.0)
        handle.append_run(run_of("a"))
        await asyncio.sleep(1.0)
        assert handle.lac == -1
        away.start()
        await writer.reach(0)
        assert not writer.failed

    scenario(work)


def test_a_bookie_that_hangs_is_replaced() -> None:
    async def work(region: Region, writer: Writer) -> None:
        handle = await writer.open()
        region.bookies[handle.metadata.fragments[0][1][0]].silent = True
        handle.append_run(run_of("a"))
        await asyncio.sleep(0.9)
        assert handle.lac == -1
        await asyncio.sleep(0.3)
        assert handle.lac == 0, "it alone held the ledger up"

    scenario(work)


def test_recovery_fences_the_writer_and_keeps_what_was_confirmed() -> None:
    async def work(region: Region, writer: Writer) -> None:
        handle = await writer.open()
        for name in "abcdef":
            handle.append_run(run_of(name))
        await writer.reach(5)
        closed = await recover_ledger(writer.context, handle.ledger)
        assert (closed.state, closed.last_entry) == (LedgerState.CLOSED, 5)
        handle.append_run(run_of("late"))
        await until(lambda: bool(writer.failed))
        assert isinstance(writer.failed[0], LedgerFenced) and handle.lac == 5
        with pytest.raises(LedgerFenced):
            await handle.close()
        assert await recover_ledger(writer.context, handle.ledger) == closed

    scenario(work)


def test_recovery_writes_the_tail_to_the_write_quorum_and_publishes_the_spare_when_it_closes() -> None:
    async def work(region: Region, writer: Writer) -> None:
        handle = await writer.open((2, 2))
        handle.append_run(run_of("a"))
        await writer.reach(0)
        kept, lost = handle.metadata.fragments[0][1]
        region.bookies[lost].crash()
        region.bookies[lost].limbo = True
        await region.bookies[lost].unregister(writer.context.meta)
        handle.stop()
        client = writer.context.pool.client(kept)
        client.open_writer(handle.ledger, lambda _: None, lambda _: None)
        run = run_of("b")
        client.add(handle.ledger, 1, 1, encode_block(run, handle.ledger, 1), 0)
        await asyncio.sleep(0.1)
        closed = await recover_ledger(writer.context, handle.ledger)
        spare = next(b for b in region.bookies if b not in (kept, lost))
        assert closed.last_entry == 1 and set(closed.fragments[-1][1]) == {kept, spare} and closed.fragments[-1][0] == 1
        assert 1 in region.bookies[spare].ledgers[handle.ledger].blocks

    scenario(work)


def test_recovery_waits_where_silence_could_hide_an_entry() -> None:
    """Qw 3, Qa 2: two explicit answers are needed. One bookie is in limbo, one down: nothing can be said until it is
    back.
    """

    async def work(region: Region, writer: Writer) -> None:
        handle = await writer.open((3, 2))
        handle.append_run(run_of("a"))
        await writer.reach(0)
        await asyncio.sleep(0.2)
        handle.stop()
        region.bookies["b0"].limbo = True
        region.bookies["b1"].crash()
        task = asyncio.get_running_loop().create_task(recover_ledger(writer.context, handle.ledger))
        await asyncio.sleep(10)
        assert not task.done()
        region.bookies["b1"].start()
        assert (await task).last_entry == 0

    scenario(work)


def test_two_recoveries_at_once_find_the_same_end() -> None:
    async def work(region: Region, writer: Writer) -> None:
        handle = await writer.open((3, 2))
        for name in "abcdef":
            handle.append_run(run_of(name))
        region.bookies["b2"].crash()
        await region.bookies["b2"].unregister(writer.context.meta)
        await asyncio.sleep(0.002)
        both = await asyncio.gather(*(recover_ledger(writer.context, handle.ledger) for _ in range(2)))
        assert both[0] == both[1] and both[0].last_entry >= handle.lac

    scenario(work)


@pytest.mark.parametrize("away", ["registered", "seen", "for good"])
def test_a_ledger_is_not_closed_on_the_word_of_one_that_has_no_trace_of_it(away: str) -> None:
    """Nobody knows that the bookie lost what it had, and it denies it; the other copy is three seconds late."""

    async def work(region: Region, writer: Writer) -> None:
        handle = await writer.open((2, 2))
        for name in "abcdef":
            handle.append_run(run_of(name))
        await writer.reach(5)
        whole, emptied = handle.metadata.fragments[0][1]
        for bookie in (whole, emptied):
            region.bookies[bookie].crash()
        if away != "registered":
            await region.bookies[whole].unregister(writer.context.meta)
        region.bookies[emptied].ledgers.clear()
        region.bookies[emptied].start()
        if away != "for good":
            asyncio.get_running_loop().call_later(3.0, region.bookies[whole].start)
        closed = await recover_ledger(writer.context, handle.ledger)
        assert closed.last_entry == (-1 if away == "for good" else 5)

    scenario(work)


def test_a_reader_takes_the_second_copy_where_the_first_is_bad() -> None:
    async def work(region: Region, writer: Writer) -> None:
        handle = await writer.open()
        handle.append_run(run_of(*"abcd"))
        handle.append_run(run_of(*"efgh"))
        await writer.reach(7)
        closed = await handle.close()
        first, second = closed.fragments[0][1]

        async def read() -> list[str]:
            return [n for _, run in await read_entries(writer.context, closed, 2, 5, 1 << 20) for n in names_of(run)]

        assert await read() == ["c", "d", "e", "f"]
        for bad in (first, second):
            region.bookies[bad].corrupt = True
            assert await read() == ["c", "d", "e", "f"]
            region.bookies[bad].corrupt = False
            region.bookies[bad].crash()
            assert await read() == ["c", "d", "e", "f"]
            region.bookies[bad].start()
            blocks, region.bookies[bad].ledgers[closed.ledger].blocks = (
                region.bookies[bad].ledgers[closed.ledger].blocks,
                {},
            )
            assert await read() == ["c", "d", "e", "f"]
            region.bookies[bad].ledgers[closed.ledger].blocks = blocks
        region.bookies[first].corrupt = region.bookies[second].corrupt = True
        with pytest.raises(CorruptData):
            await read()
        with pytest.raises((NoSuchEntry, CorruptData)):
            await read_entries(writer.context, closed, 8, 9, 100)

    scenario(work)


def test_too_few_bookies_are_refused_at_creation() -> None:
    async def work(region: Region, writer: Writer) -> None:
        with pytest.raises(NotEnoughBookies):
            await writer.open((3, 2))

    scenario(work, bookies=2)


def test_a_writer_that_nobody_told_learns_by_its_closing_that_it_was_replaced() -> None:
    async def work(region: Region, writer: Writer) -> None:
        handle = await writer.open()
        handle.append_run(run_of("a"))
        await writer.reach(0)
        deaf = region.bookies[handle.metadata.fragments[0][1][0]]
        deaf.silent = True
        handle.append_run(run_of("b"))
        await asyncio.sleep(0.5)
        deaf.silent = False
        assert handle.lac == 0
        closed = await recover_ledger(writer.context, handle.ledger)
        assert closed.last_entry == 1 and not writer.failed
        with pytest.raises(LedgerFenced):
            await handle.close()
        assert await ledger_metadata(writer.context, handle.ledger) == closed

    scenario(work)


def test_a_recovery_marks_first_and_publishes_its_ensemble_only_with_the_end() -> None:
    async def work(region: Region, writer: Writer) -> None:
        handle = await writer.open()
        for name in "abc":
            handle.append_run(run_of(name))
        await writer.reach(2)
        lost, kept = handle.metadata.fragments[0][1]
        seen: list[tuple[LedgerState, bool]] = []

        def on_change(key: str, value: bytes | None, _version: int) -> None:
            assert value is not None
            stored = LedgerMetadata.decode(value)
            seen.append((stored.state, stored.fragments == handle.metadata.fragments))
            assert stored.state != LedgerState.IN_RECOVERY or not region.bookies[kept].ledgers[handle.ledger].fenced, (
                "marked before the first fence"
            )

        writer.context.meta.watch(keys.ledger(handle.ledger), on_change)
        await asyncio.sleep(0.01)
        handle.stop()
        region.bookies[lost].crash()
        for held in region.bookies[kept].ledgers.values():
            held.lac = -1  # so that there is a tail to write
        closed = await recover_ledger(writer.context, handle.ledger)
        await asyncio.sleep(0.01)
        assert lost not in closed.fragments[-1][1] and closed.last_entry == 2
        assert (
            seen[-2:] == [(LedgerState.IN_RECOVERY, True), (LedgerState.CLOSED, False)]
            and (LedgerState.IN_RECOVERY, False) not in seen
        )

    scenario(work)


@pytest.mark.parametrize("seed", range(10))
def test_bookies_know_the_end_within_a_tenth_of_a_second_of_idleness(seed: int) -> None:
    """Whoever reads from them, and is not the writer, sees the last entry although nothing follows it."""

    async def work(region: Region, writer: Writer) -> None:
        loop = asyncio.get_running_loop()
        handle = await writer.open((3, 2))
        ensemble = handle.metadata.fragments[0][1]
        number = 0
        for pause in (0.0, 0.01, 0.05, 0.07, 0.3, 1.0):
            for _ in range(3):
                handle.append_run(run_of(f"n{number}"))
                number += 1
            await writer.reach(number - 1)
            confirmed = loop.time()
            known = -1
            while known < number - 1:
                known = min(region.bookies[bookie].ledgers[handle.ledger].lac for bookie in ensemble)
                assert loop.time() - confirmed < 0.1 + 0.05, "and what one frame takes"
                await asyncio.sleep(0.001)
            await asyncio.sleep(pause)
        assert not writer.context.ticker._active, "and then nothing ticks"

    scenario(work, seed=seed)
