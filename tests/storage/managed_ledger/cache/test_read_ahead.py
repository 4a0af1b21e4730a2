"""Readers who lag: what they fetch is fetched once, and never shows what was not confirmed."""

from __future__ import annotations

import asyncio
import random
from functools import partial
from typing import Any

import pytest

from geo_tests.sim.simulation import Simulation
from heliograph.model.errors import BookieUnavailable
from heliograph.runtime.task_set import TaskSet
from heliograph.wire.run import Run
from storage.ledger.reading.ledger_reader import OnEnd
from storage.managed_ledger.cache.read_ahead import ReadAhead
from storage.managed_ledger.log.managed_ledger import ManagedLedger
from storage.managed_ledger.managed_ledger_settings import ManagedLedgerSettings
from tests.storage.ledger.fake_bookies import FakeBookie
from tests.storage.managed_ledger.world import Broker, Region, names_of, run_of, until


@pytest.mark.parametrize("seed", range(20))
def test_what_is_kept_is_bounded_and_what_was_fetched(seed: int) -> None:
    rng = random.Random(seed)
    ahead = ReadAhead(5_000)
    for _ in range(300):
        ledger, first = rng.randrange(3), rng.randrange(50)
        found = ahead.get(ledger, first)
        if found:
            assert found[0][0] == first
            names = [name for _, run in found for name in names_of(run)]
            assert names == [f"{ledger}-{first + i}" for i in range(len(names))]
        else:
            runs, at = [], first
            for _ in range(rng.randrange(1, 4)):
                count = rng.randrange(1, 4)
                runs.append((at, run_of(*(f"{ledger}-{at + i}" for i in range(count)), pad=rng.choice((10, 300)))))
                at += count
            ahead.put(ledger, runs)
        assert 0 <= ahead.size_bytes <= ahead.byte_bound
        assert ahead.size_bytes == sum(fetch.cost for fetch in ahead._recent)
    assert ahead.hits and ahead.misses


def test_what_is_kept_counts_with_the_slabs_that_it_keeps_alive() -> None:
    """A piece that comes alone lies in a slab up to three times its size."""
    ahead, slab = ReadAhead(10_000), 3_000
    for first in range(0, 80, 10):
        shared = bytes(slab)
        ahead.put(
            1,
            [(first, Run([memoryview(shared)[:500]], [500])), (first + 1, Run([memoryview(shared)[500:1000]], [500]))],
        )
        assert slab * len(ahead._recent) <= ahead.size_bytes <= ahead.byte_bound
    assert len(ahead._recent) == 2, "with what both share counted once"


def nothing() -> None: ...


def counted(region: Region, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """What bookies are asked for. No answer is so late that another one is asked too."""
    reads: list[int] = []
    monkeypatch.setattr(FakeBookie, "delay", lambda self: self.rng.uniform(0.0, self.delay_s))
    read = FakeBookie.read

    def count(self: FakeBookie, ledger: int, first: int, last: int, max_bytes: int) -> list[bytes]:
        reads.append(first)
        return read(self, ledger, first, last, max_bytes)

    monkeypatch.setattr(FakeBookie, "read", count)
    return reads


@pytest.mark.parametrize("ahead_bytes", [0, 4096])
def test_cursors_that_lag_read_blocks_once(ahead_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with Simulation(seed=3) as sim:

        async def main() -> None:
            region = Region(sim, 3)
            await region.start()
            settings = ManagedLedgerSettings(read_ahead_bytes=ahead_bytes, ledger_entries_max=70)
            first, broker = Broker(region, settings=settings), Broker(region, settings=settings)
            log = await first.open()
            log.set_retention(-1, -1)
            for number in range(200):
                first.append(log, f"n{number}", pad=40)
            await until(lambda: len(first.done) == 200)
            log = await broker.open()
            reads = counted(region, monkeypatch)
            wanted = [f"n{number}" for number in range(200)]
            assert await pages(log, 3) == wanted and await pages(log, 5) == wanted
            assert (len(reads) <= 25) if ahead_bytes else (len(reads) > 80), reads

        sim.run(main(), limit_s=60)


async def pages(log: ManagedLedger, count: int) -> list[str]:
    found: list[str] = []
    position = log.first_position()
    while runs := await log.read(position, count, 1 << 20):
        assert sum(run.count for *_, run in runs) <= count
        found += [name for *_, run in runs for name in names_of(run)]
        position = (runs[-1][0], runs[-1][1] + runs[-1][2].count)
    return found


def test_a_lagging_reader_of_the_open_ledger_sees_no_more_than_what_is_confirmed() -> None:
    with Simulation(seed=3) as sim:

        async def main() -> None:
            region = Region(sim, 3)
            await region.start()
            broker = Broker(region, settings=ManagedLedgerSettings(read_ahead_bytes=1 << 14))
            broker.cache.byte_bound = 500  # only the newest run is held
            log = await broker.open()
            log.set_retention(-1, -1)
            position, found = log.first_position(), []
            for number in range(300):
                broker.append(log, f"n{number}", pad=40)
                await asyncio.sleep(sim.rng("pause").uniform(0.0, 0.002))
                if number < 60:
                    continue  # the reader lags by so many
                runs = await log.read(position, 1, 1 << 20)
                fetched = max((fetch.end for fetch in broker.factory.ahead._recent), default=0)
                assert fetched - 1 <= log.last_confirmed[1], "what is kept was confirmed when it was fetched"
                for *_, run in runs:
                    found += names_of(run)
                if runs:
                    position = (runs[-1][0], runs[-1][1] + runs[-1][2].count)
            await until(lambda: len(broker.done) == 300)
            while runs := await log.read(position, 7, 1 << 20):
                found += [name for *_, run in runs for name in names_of(run)]
                position = (runs[-1][0], runs[-1][1] + runs[-1][2].count)
            assert found == [f"n{number}" for number in range(300)]

        sim.run(main(), limit_s=60)


def test_the_next_window_is_on_its_way_while_the_reader_has_this_one(monkeypatch: pytest.MonkeyPatch) -> None:
    with Simulation(seed=4) as sim:

        async def main() -> None:
            region = Region(sim, 3)
            await region.start()
            first = Broker(region)
            broker = Broker(region, settings=ManagedLedgerSettings(read_ahead_bytes=800))
            log = await first.open()
            log.set_retention(-1, -1)
            for number in range(120):
                first.append(log, f"n{number}", pad=40)
            await until(lambda: len(first.done) == 120)
            log = await broker.open()
            reads = counted(region, monkeypatch)
            ahead = broker.factory.ahead
            position, found = log.first_position(), []
            while runs := await log.read(position, 2, 1 << 20):
                found += [name for *_, run in runs for name in names_of(run)]
                position = (runs[-1][0], runs[-1][1] + runs[-1][2].count)
                if len(found) in range(10, 90):
                    await asyncio.sleep(0.05)  # the reader is busy with what it has
                    held = max(fetch.end for fetch in ahead._recent)
                    assert held >= position[1] + 3, "what it will ask for is here before it asks"
            assert found == [f"n{number}" for number in range(120)]
            assert len(reads) == len(set(reads)), "nothing is fetched twice"
            assert ahead.early_bytes == 0

        sim.run(main(), limit_s=60)


def test_the_second_window_is_asked_for_before_the_first_has_come_and_none_behind_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with Simulation(seed=6) as sim:

        async def main() -> None:
            region = Region(sim, 3)
            await region.start()
            first = Broker(region)
            broker = Broker(region, settings=ManagedLedgerSettings(read_ahead_bytes=800))
            log = await first.open()
            log.set_retention(-1, -1)
            for number in range(120):
                first.append(log, f"n{number}", pad=40)
            await until(lambda: len(first.done) == 120)
            log = await broker.open()
            reads = counted(region, monkeypatch)
            ahead = broker.factory.ahead
            at, found, most = log.first_position(), list[str](), 0
            early = ahead.early

            def counted_early(*args: Any, **more: Any) -> None:
                nonlocal most
                early(*args, **more)
                most = max(most, len(ahead._flying))

            monkeypatch.setattr(ahead, "early", counted_early)
            for _ in range(4):
                runs = await log.read(at, 2, 1 << 20)
                found += [name for *_, run in runs for name in names_of(run)]
                at = (runs[-1][0], runs[-1][1] + runs[-1][2].count)
            await asyncio.sleep(0.2)
            assert most == 2, "two are on their way at once"
            ready = sorted((fetch.start, fetch.end) for fetch in ahead._recent if fetch.early)
            assert len(ready) == 2 and ready[0][1] == ready[1][0] and not ahead._flying, (
                "and no third one, however long the reader takes"
            )
            while runs := await log.read(at, 2, 1 << 20):
                found += [name for *_, run in runs for name in names_of(run)]
                at = (runs[-1][0], runs[-1][1] + runs[-1][2].count)
            assert found == [f"n{number}" for number in range(120)] and len(reads) == len(set(reads))

        sim.run(main(), limit_s=60)


@pytest.mark.parametrize("seed", range(20))
def test_what_is_fetched_early_is_bounded_and_a_failure_is_none(seed: int) -> None:
    with Simulation(seed=seed) as sim:

        async def main() -> None:
            rng, tasks, asked = sim.rng("readers"), TaskSet(), set[int]()
            ahead = ReadAhead(8_000)

            async def fetch(ledger: int, _on_end: OnEnd) -> list[tuple[int, Run]]:
                asked.add(ledger)
                await asyncio.sleep(rng.uniform(0.001, 0.02))
                if ledger % 3 == 0:
                    raise BookieUnavailable("away")
                return [(0, run_of(f"{ledger}", pad=rng.choice((10, 400))))]

            for number in range(2000):
                ledger = number // 50 + rng.randrange(3)  # readers come and go
                match rng.randrange(3):
                    case 0:
                        ahead.early(tasks, ledger, 0, 500, partial(fetch, ledger), nothing, second=rng.random() < 0.5)
                    case 1:
                        found = await ahead.arrived(ledger, 0)
                        assert not found or names_of(found[0][1]) == [f"{ledger}"]
                    case _:
                        await asyncio.sleep(rng.uniform(0, 0.01))
                        ahead.get(ledger + rng.randrange(2), 0)
                flying = sum(flight.size_bytes for flight in ahead._flying.values())
                assert ahead.early_bytes == flying + sum(f.size_bytes for f in ahead._recent if f.early)
                assert flying <= 3 * ahead.byte_bound / 8 and ahead.size_bytes <= ahead.byte_bound
            await asyncio.sleep(1)
            assert not ahead._flying and len(asked) > 20, (
                "who went without reading what was fetched for it holds nobody up"
            )
            await tasks.close()

        sim.run(main(), limit_s=60)


def test_many_readers_get_smaller_windows() -> None:
    ahead = ReadAhead(8 << 20)
    assert ahead.window(2 << 20) == 2 << 20
    for ledger in range(9):
        ahead.put(ledger, [(0, run_of("one"))])
    assert ahead.window(2 << 20) == (8 << 20) // 20
    for ledger in range(100):
        ahead.put(ledger, [(0, run_of("one"))])
    assert ahead.window(2 << 20) == 256 << 10
    assert ahead.window(1000) == 1000


def test_early_fetches_have_a_bound_and_those_whose_reader_left_make_room() -> None:
    with Simulation(seed=1) as sim:

        async def main() -> None:
            ahead, tasks, asked = ReadAhead(8_000), TaskSet(), list[int]()

            async def fetch(ledger: int, _on_end: OnEnd) -> list[tuple[int, Run]]:
                asked.append(ledger)
                return [(0, run_of(f"{ledger}", pad=100))]

            def early(*ledgers: int, second: bool = False) -> None:
                for ledger in ledgers:
                    ahead.early(tasks, ledger, 0, 800, partial(fetch, ledger), nothing, second=second)

            early(0, 1, 2, 3, second=True)
            assert len(ahead._flying) == 2, "second fetches leave room for first ones"
            early(2, 3)
            await asyncio.sleep(0.1)
            assert asked == [0, 1, 2]
            while 8 * (ahead.early_bytes + 800) <= 3 * ahead.byte_bound:
                early(len(asked) + 10)
                await asyncio.sleep(0.1)
            full = list(asked)
            early(50)
            await asyncio.sleep(0.1)
            assert asked == full
            for _ in range(1000):
                ahead.get(99, 0)
            early(51)
            await asyncio.sleep(0.1)
            assert not ahead.get(0, 0), "its reader has not come"
            while 51 not in asked:
                early(51)
                await asyncio.sleep(0.1)
            await tasks.close()

        sim.run(main(), limit_s=60)


def test_what_a_repair_put_right_is_fetched_again() -> None:
    with Simulation(seed=1) as sim:

        async def main() -> None:
            ahead, tasks, name = ReadAhead(8_000), TaskSet(), "wrong"

            async def fetch(ledger: int, _on_end: OnEnd) -> list[tuple[int, Run]]:
                answer = [(0, run_of(name))]
                await asyncio.sleep(0.1)
                return answer

            ahead.put(7, [(0, run_of("wrong"))])
            ahead.early(tasks, 7, 1, 500, partial(fetch, 7), nothing)
            await asyncio.sleep(0.01)
            ahead.forget(7)
            assert not ahead.get(7, 0) and not await ahead.arrived(7, 1), "what was asked for before may be wrong too"
            assert ahead.size_bytes == ahead.early_bytes == 0
            await tasks.close()

        sim.run(main(), limit_s=60)
