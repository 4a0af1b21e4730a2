"""Compaction of entry logs: what is wanted survives it and any power cut in it, the rest gives its space back."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from geo_tests.sim.simulation import Simulation
from heliograph.wire.bookie_frames import BookieCode, Kind
from storage.bookie.entry_log import entry_log
from tests.storage.bookie.boxes import Box, scenario
from tests.storage.bookie.entry_log.compacting_lives import EAGER, CompactingLives, many_compacting_lives
from tests.storage.bookie.history import add, content, send


def logs(box: Box) -> list[str]:
    return [name for name in box.ledgers.names() if name.startswith("log-")]


async def fill(box: Box) -> None:
    """Four logs, each with something of ledgers 1 to 6; 1 is fenced, 6 has but a fence."""
    for turn in range(4):
        send(box.bookie, box.peer, *[add(ledger, turn * 10, 10, lac=turn * 10 - 1) for ledger in range(1, 6)])
        if not turn:
            await box.ask(Kind.FENCE, 1)
            await box.ask(Kind.FENCE, 6)
            box.peer.refused.clear()
        await box.flushed()
    assert len(logs(box)) == 4


async def compact(box: Box, ticks: int = 60) -> None:
    for _ in range(ticks):
        box.bookie.tick()
        await asyncio.sleep(0.05)


async def check(box: Box, ledgers: tuple[int, ...]) -> None:
    for ledger in ledgers:
        for first in range(0, 40 if ledger > 1 else 10, 10):
            found = await box.entries(ledger, first, first + 9)
            assert all(found[first + index] == content(ledger, first + index) for index in range(10))
    send(box.bookie, box.peer, add(1, 99, 1), add(6, 0, 1))
    assert box.peer.losses == {1: BookieCode.FENCED, 6: BookieCode.FENCED}
    box.peer.losses.clear()
    box.peer.refused.clear()


def test_mostly_dead_logs_become_one_and_nothing_wanted_is_lost() -> None:
    async def body(box: Box) -> None:
        box.start(EAGER)
        await fill(box)
        before = sum(len(box.ledgers.content(name)) for name in logs(box))
        for ledger in (3, 4, 5):
            await box.ask(Kind.DELETE, ledger)
        await compact(box)
        after = sum(len(box.ledgers.content(name)) for name in logs(box))
        compactor = box.bookie.dirs[0].compactor
        assert len(logs(box)) == 1 and after < before / 2
        assert compactor.compacted_logs == 4 and compactor.reclaimed_bytes > before / 2 and not compactor.running
        await check(box, (1, 2))
        (number,) = box.bookie.dirs[0].table.logs
        index = entry_log.load(box.ledgers.disk(), number)[1]
        assert (list(index.all.ledgers), list(index.lacs), list(index.fenced)) == ([1, 2, 6], [-1, 29, -1], [1, 0, 1])
        box.restart()
        await check(box, (1, 2))
        assert (await box.ask(Kind.READ_LAC, 2))[2] == 29
        assert box.bookie.ledgers() == [1, 2, 6]

    scenario(body)


def test_logs_that_live_are_left_alone() -> None:
    async def body(box: Box) -> None:
        box.start(replace(EAGER, minor_live_max=0.5))
        await fill(box)
        await box.ask(Kind.DELETE, 5)
        await compact(box)
        assert len(logs(box)) == 4 and box.bookie.dirs[0].compactor.compacted_logs == 0
        box.bookie.dirs[0].compactor.run(major=True)
        await compact(box)
        assert box.bookie.dirs[0].compactor.compacted_logs == 4

    scenario(body)


def test_a_major_compaction_begins_by_itself_once_its_interval_is_over() -> None:
    async def body(box: Box) -> None:
        box.start(replace(EAGER, minor_live_max=0.1, major_interval_s=60.0))
        await fill(box)
        await box.ask(Kind.DELETE, 5)
        await compact(box, 40)
        assert box.bookie.dirs[0].compactor.compacted_logs == 0
        await compact(box, 60)
        assert box.bookie.dirs[0].compactor.compacted_logs == 4

    scenario(body)


def test_it_is_slow_on_purpose_and_can_be_suspended() -> None:
    async def body(box: Box) -> None:
        box.start(replace(EAGER, compaction_bytes_per_s=500, compacted_log_bytes=1 << 20))
        await fill(box)
        await box.ask(Kind.DELETE, 5)
        wanted = sum(map(box.bookie.dirs[0].table.live_bytes, box.bookie.dirs[0].table.logs))
        await compact(box, 4)
        assert box.bookie.dirs[0].compactor.running
        box.bookie.dirs[0].compactor.suspend()
        await compact(box, 200)
        assert box.bookie.dirs[0].compactor.running and box.bookie.dirs[0].compactor.compacted_logs == 0
        await check(box, (1, 2, 3, 4))
        box.bookie.dirs[0].compactor.resume()
        ticks = 0
        while not box.bookie.dirs[0].compactor.compacted_logs:
            await compact(box, 1)
            ticks += 1
        assert ticks > wanted / 500 * 0.2, "a block more than the budget a tick, no more"
        await check(box, (1, 2, 3, 4))

    scenario(body)


def test_a_ledger_that_dies_meanwhile_and_flushes_do_no_harm() -> None:
    async def body(box: Box) -> None:
        box.start(replace(EAGER, compaction_bytes_per_s=200))
        await fill(box)
        await box.ask(Kind.DELETE, 5)
        running = False
        for ledger in (4, 3, 2):
            await compact(box, 2)
            running = running or box.bookie.dirs[0].compactor.running
            await box.ask(Kind.DELETE, ledger)
            send(box.bookie, box.peer, add(20 + ledger, 0, 5))
            await box.flushed()
        await compact(box, 300)
        assert running and box.bookie.dirs[0].compactor.compacted_logs
        box.restart()
        await check(box, (1,))
        assert box.bookie.ledgers() == [1, 6, 22, 23, 24]

    scenario(body)


def test_a_log_with_a_bad_block_is_not_compacted() -> None:
    async def body(box: Box) -> None:
        box.start(EAGER)
        await fill(box)
        await box.ask(Kind.DELETE, 5)
        bad = logs(box)[1]
        box.ledgers.flip_bit(bad, 16 + 80)
        await compact(box, 200)
        assert bad in logs(box) and list(box.bookie.dirs[0].compactor.bad) == [1]
        assert box.bookie.dirs[0].compactor.compacted_logs == 3, "the others are"
        await check(box, (3, 4))

    scenario(body)


def test_a_full_disk_stops_it_and_a_failing_one_the_bookie() -> None:
    async def body(box: Box) -> None:
        box.start(EAGER)
        await fill(box)
        await box.ask(Kind.DELETE, 5)
        box.ledgers.capacity_bytes = box.ledgers.used_bytes() + 100
        await compact(box)
        assert not box.bookie.failure and box.bookie.dirs[0].compactor.compacted_logs == 0
        await check(box, (1, 2, 3, 4))
        box.ledgers.capacity_bytes = 1 << 40
        box.ledgers.fail_syncs = True
        await compact(box)
        assert "the ledger directory failed" in box.bookie.failure

    scenario(body)


@pytest.mark.slow
def test_power_is_cut_in_each_operation_of_a_compacting_history() -> None:
    """The same history each time, one operation further."""
    cut, finished, compacted = 0, False, 0
    while not finished:
        cut += 1 if cut < 25 else 9
        with Simulation("compacting") as sim:
            lives = CompactingLives(sim)

            async def main(lives: CompactingLives = lives, cut: int = cut) -> bool:
                finished = await lives.run(160, "ledgers", cut)
                await lives.run(20)
                await lives.run(0)
                return finished

            finished = sim.run(main())
            compacted = max(compacted, lives.compacted)
    assert cut > 100 and compacted > 5, (cut, compacted)


@pytest.mark.parametrize("seed", range(16))
def test_many_compacting_lives(seed: int) -> None:
    many_compacting_lives(seed)
