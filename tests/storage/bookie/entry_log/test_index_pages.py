"""However many entry logs a bookie has, it holds so many bytes of their indexes and no more; what it does not hold it
reads again.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from dataclasses import replace

import pytest

from geo_tests.sim.simulation import Simulation
from heliograph.model.errors import ConfigError, CorruptData
from heliograph.wire.bookie_frames import BookieCode, Kind
from storage.bookie.entry_log import entry_log
from storage.bookie.entry_log.block_reads import Steps, choose, held
from storage.bookie.entry_log.entry_log import EntryLog
from storage.bookie.entry_log.index_pages import IndexPages
from storage.bookie.entry_log.ledger_table import LedgerTable
from storage.bookie.entry_log.log_index import IndexPage, LogIndex
from tests.storage.bookie.boxes import Box
from tests.storage.bookie.entry_log.indexes import index_of
from tests.storage.bookie.history import SMALL, add, content, read, send

LOGS = 40
FEW = replace(SMALL, index_bytes_max=4 << 10)
NONE = replace(SMALL, index_bytes_max=1)


def scenario(body: Callable[[Box], object], settings: object = FEW) -> None:
    with Simulation(5) as sim:

        async def main() -> None:
            await body(Box(sim, settings))  # type: ignore[misc, arg-type]

        sim.run(main())


async def filled(box: Box, logs: int = LOGS) -> None:
    """Each log has some of the ledgers 1 and 2, and one of its own."""
    for turn in range(logs):
        send(box.bookie, box.peer, add(1, 10 * turn, 10), add(2, 4 * turn, 4), add(10 + turn, 0, 5))
        await box.flushed()
    assert len(box.bookie.dirs[0].table.logs) == logs


async def read_all(box: Box, logs: int = LOGS) -> None:
    for turn in range(logs):
        found = await box.entries(1, 10 * turn, 10 * turn + 3)
        assert found[10 * turn] == content(1, 10 * turn)
        assert sorted(await box.entries(10 + turn, 0, 4)) == list(range(5))
    found = await box.entries(2, 0, 4 * logs - 1)
    assert sorted(found) == list(range(len(found))) and len(found) > 20, "one read that needs many of them"


def in_memory() -> int:
    """Bytes of all indexes that anything holds."""
    gc.collect()
    return sum(one.size_bytes for one in gc.get_objects() if isinstance(one, IndexPage))


@pytest.mark.parametrize("bound", (4 << 10, 1))
def test_no_more_of_the_indexes_is_in_memory_than_the_setting_says(bound: int) -> None:
    """However it comes there: by writing, reading, a start, or compaction."""

    async def body(box: Box) -> None:
        before, pages = in_memory(), box.bookie.dirs[0].pages
        await filled(box)
        whole = sum(
            entry_log.load(box.ledgers.disk(), number)[1].all.size_bytes for number in box.bookie.dirs[0].table.logs
        )
        assert whole > 4 * bound
        for step in ("written", "read", "started"):
            assert pages.held_bytes == in_memory() - before <= bound, step
            await read_all(box)
            assert pages.held_bytes == in_memory() - before <= bound, step
            if step == "read":
                box.bookie.close()
                box.bookie = None  # type: ignore[assignment]
                box.restart()
                pages = box.bookie.dirs[0].pages
        assert pages.loads

    scenario(body, replace(SMALL, index_bytes_max=bound))


def test_what_was_looked_into_last_is_kept() -> None:
    pages = IndexPages(3 * index_of({1: [(0, 1, 50)]}).all.size_bytes)
    logs = [(EntryLog(number, index := index_of({1: [(number, 1, 50)]})), index) for number in range(4)]
    for new in logs[:3]:
        pages.fill(new)
    assert pages.get(logs[0][0], 0) is not None
    pages.fill(logs[3])
    assert [pages.get(log, 0) is not None for log, _ in logs] == [True, False, True, True]
    for log, _ in logs:
        pages.drop(log)
    assert not pages.held_bytes and pages.get(logs[3][0], 0) is None


def test_pages_are_of_whole_ledgers_and_are_read_again_as_they_were() -> None:
    ledgers = {ledger: [(entry, 1, 40 + ledger % 7) for entry in range(ledger % 90)] for ledger in range(3, 400, 2)}
    ledgers[1000] = [(entry, 2, 100) for entry in range(0, 6000, 2)]
    index = index_of(ledgers)
    log = EntryLog(7, index)
    assert 4 < log.pages < 40
    seen: list[int] = []
    for at, page in enumerate(log.pages_of(index)):
        seen += page.ledgers
        for ledger in page.ledgers:
            assert log.page_of(ledger) == at
            assert list(page.runs(page.group_of(ledger))) == list(index.all.runs(index.all.group_of(ledger)))
    assert seen == list(index.all.ledgers)


def test_a_page_that_rots_is_made_again_of_its_blocks_and_the_log_is_written_anew() -> None:
    """With its fences, also of a ledger that has no block in it."""

    async def body(box: Box) -> None:
        send(box.bookie, box.peer, add(1, 0, 10), add(2, 0, 10, lac=5))
        await box.ask(Kind.FENCE, 2)
        await box.ask(Kind.FENCE, 3)
        await box.flushed()
        (number,) = box.bookie.dirs[0].table.logs
        name = entry_log.name_of(number)
        index = entry_log.load(box.ledgers.disk(), number)[1]
        box.ledgers.flip_bit(name, 16 + index.block_bytes + 9)  # the number of a ledger
        assert sorted(await box.entries(1, 0, 9)) == list(range(10))
        assert sorted(await box.entries(2, 0, 9)) == list(range(10))
        box.bookie.dirs[0].compactor.rewrite(number)
        for _ in range(5):
            box.bookie.tick()
            await asyncio.sleep(0.05)
        (anew,) = box.bookie.dirs[0].table.logs
        assert anew != number and not box.bookie.dirs[0].compactor.bad
        box.restart()
        assert sorted(await box.entries(1, 0, 9)) == list(range(10))
        assert (await box.ask(Kind.READ_LAC, 2))[2] == 5
        assert list(box.bookie.dirs[0].table.fenced) == [2, 3]

    scenario(body, NONE)


@pytest.mark.parametrize(
    ("at", "bit"), [(23, 0), (39, 0), (40, 7), (216, 0)], ids=["size", "ledger", "first entry", "body"]
)
def test_where_neither_index_nor_block_can_be_read_nothing_is_said_to_be_absent(at: int, bit: int) -> None:
    async def body(box: Box) -> None:
        send(box.bookie, box.peer, add(1, 0, 10), add(2, 0, 10))
        await box.flushed()
        (number,) = box.bookie.dirs[0].table.logs
        name = entry_log.name_of(number)
        box.ledgers.flip_bit(name, len(box.ledgers.content(name)) - 60)
        box.ledgers.flip_bit(name, at, bit)
        log = next(iter(box.bookie.dirs[0].table.logs.values()))
        if at != 216:
            with pytest.raises(CorruptData, match="nor the block"):
                log.rebuild_page(lambda offset, size: log.read(box.ledgers.disk(), offset, size), 0)
        for ledger in (1, 2):
            code, *_ = await box.ask(Kind.READ, ledger, first=0, last=0)
            assert code == (BookieCode.OK if at == 216 and ledger == 2 else BookieCode.UNKNOWN), ledger

    scenario(body, NONE)


def test_a_page_whose_file_ends_within_the_head_of_a_block_cannot_be_made() -> None:
    content = bytes(16) + (100).to_bytes(8, "big") + bytes(20)
    log = EntryLog(7, index_of({1: [(0, 10, 100)]}))
    with pytest.raises(CorruptData, match="nor the block at 16"):
        log.rebuild_page(lambda offset, size: content[offset : offset + size], 0)


def test_logs_that_are_written_anew_while_they_are_looked_into_are_read_to_the_end() -> None:
    async def body(box: Box) -> None:
        await filled(box, 6)
        home = box.bookie.dirs[0]
        for number in list(home.table.logs):
            home.compactor.rewrite(number)
        first = box.requests + 1
        while home.compactor.compacted_logs < 6:
            box.requests += 1
            send(box.bookie, box.peer, read(2, 0, 23, box.requests))
            box.bookie.tick()
            await asyncio.sleep(0.002)
        await asyncio.sleep(1.0)
        for asked in range(first, box.requests + 1):
            assert box.peer.answers[asked][0] == BookieCode.OK
        assert not box.bookie.counts.failed_reads
        await read_all(box, 6)

    scenario(body, NONE)


def looked_up(steps: Steps[tuple[list[object], int]], indexes: dict[int, LogIndex]) -> tuple[list[object], int]:
    try:
        need = next(steps)
        while True:
            need = steps.send(indexes[need[0].number].all)
    except StopIteration as end:
        found: tuple[list[object], int] = end.value
        return found


def test_a_ledger_is_found_though_compaction_put_together_what_lies_around_another_log() -> None:
    table, indexes = LedgerTable(), {}
    for number, firsts in ((1, (0, 5)), (2, (10, 15)), (3, (20, 25))):
        indexes[number] = index_of({8: [(first, 5, 60) for first in firsts], 9: [(number, 1, 50)]})
        table.install(EntryLog(number, indexes[number]), indexes[number])
    needed = table.log_at(8, 12)
    assert needed is not None and needed.number == 2 and table.first_above(8, 12) == 20 and 8 not in table.mixed
    indexes[4] = index_of({8: [(first, 5, 60) for first in (0, 5, 20, 25)], 9: [(1, 1, 50), (3, 1, 50)]})
    table.install(EntryLog(4, indexes[4]), indexes[4], (1, 3))
    for number in (1, 3):
        table.uninstall(number, indexes[4])
    assert table.live_bytes(4) == 340 and table.live_bytes(2) == 170
    pieces, behind = looked_up(choose((), table, 8, 0, 29, 1 << 20), indexes)  # type: ignore[arg-type]
    assert behind == 30 and len(pieces) == 6
    assert looked_up(held((), table, 8, 0, 40, 100), indexes) == ([(0, 29)], 41)  # type: ignore[arg-type]
    assert table.delete(8) and table.live_bytes(4) == 100 and table.live_bytes(2) == 50
    assert table.delete(9) and table.empty_logs() == [2, 4]


def test_the_setting_is_above_zero() -> None:
    with pytest.raises(ConfigError, match="positive"):
        replace(SMALL, index_bytes_max=0)
