"""Following an open ledger from its bookies: every confirmed entry, in order, once, soon, and nothing that is not
confirmed.
"""

from __future__ import annotations

import asyncio

import pytest

from heliograph.model.errors import BookieUnavailable
from storage.ledger.ledger_context import LedgerSettings
from storage.ledger.reading.ledger_follow import follow, wait_for_lac
from tests.storage.ledger.writers import Writer, scenario
from tests.storage.managed_ledger.world import Region, names_of, run_of


@pytest.mark.parametrize("seed", range(12))
def test_what_is_confirmed_arrives_within_a_quarter_of_a_second_whatever_the_bookies_do(seed: int) -> None:
    async def work(region: Region, writer: Writer) -> None:
        rng, loop = region.rng, asyncio.get_running_loop()
        handle = await writer.open((2, 2), width=rng.choice([2, 3]))
        found: list[str] = []
        late: list[float] = []

        async def tail() -> None:
            async for first, run in follow(writer.context, handle.ledger):
                assert first == len(found) and first + run.count - 1 <= handle.lac
                found.extend(names_of(run))

        task = asyncio.ensure_future(tail())
        number, hung = 0, False
        for turn in range(12):
            for _ in range(rng.randrange(1, 4)):
                handle.append_run(run_of(*(f"n{number + i}" for i in range(3))))
                number += 3
            await writer.reach(number - 1)
            began = loop.time()
            while len(found) < number:
                assert loop.time() - began < 10, "it never arrives"
                await asyncio.sleep(0.005)
            late.append(loop.time() - began)
            if turn == 5 and rng.random() < 0.5:
                name = rng.choice(handle.metadata.fragments[-1][1])
                region.bookies[name].silent = hung = True
            await asyncio.sleep(rng.choice([0.0, 0.05, 0.5]))
        await handle.close()
        await asyncio.wait_for(task, 10)
        assert found == [f"n{i}" for i in range(number)]
        assert hung or max(late) < 0.25, late

    scenario(work, bookies=5, seed=seed, settings=LedgerSettings(stride=4))


def test_of_a_closed_ledger_everything_is_read_at_once_and_from_any_entry_on() -> None:
    async def work(region: Region, writer: Writer) -> None:
        handle = await writer.open()
        for number in range(20):
            handle.append_run(run_of(f"n{number}"))
        await writer.reach(19)
        await handle.close()
        for first in (0, 7, 19, 20):
            found = [name async for _, run in follow(writer.context, handle.ledger, first) for name in names_of(run)]
            assert found == [f"n{i}" for i in range(first, 20)]

    scenario(work)


def test_a_poll_tells_what_is_known_when_its_time_is_over_and_fails_where_nobody_answers() -> None:
    async def work(region: Region, writer: Writer) -> None:
        handle = await writer.open()
        handle.append_run(run_of("a"))
        await writer.reach(0)
        await asyncio.sleep(0.3)
        assert await wait_for_lac(writer.context, handle.metadata, -1) == 0
        began = asyncio.get_running_loop().time()
        assert await wait_for_lac(writer.context, handle.metadata, 0, 0.7) == 0
        assert 0.7 <= asyncio.get_running_loop().time() - began < 1.0
        for bookie in region.bookies.values():
            bookie.crash()
        with pytest.raises(BookieUnavailable, match="how far it is confirmed"):
            await wait_for_lac(writer.context, handle.metadata, -1)

    scenario(work)
