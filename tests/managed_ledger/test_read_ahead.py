"""Readers who lag: what they fetch is fetched once, and never shows what was not confirmed."""

from __future__ import annotations

import asyncio
import random

import pytest

from geo_tests.sim.simulation import Simulation
from storage.managed_ledger.managed_ledger import ManagedLedger
from storage.managed_ledger.read_ahead import ReadAhead
from storage.managed_ledger.settings import ManagedLedgerSettings
from tests.ledger.fakes import FakeBookie
from tests.managed_ledger.world import Broker, Region, names_of, run_of, until


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


def counted(region: Region, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    reads: list[int] = []
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
