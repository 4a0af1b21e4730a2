"""`python -m benchmarks.cache_hits`: how often readers find entries in the broker's memory, by eviction strategy, in
one run of the same load.

Is: the load of many consumers of different speed that restart: each reads at its own pace, acknowledges some time
later, goes away now and then, and comes back at its mark-delete position. Real managed ledgers, cursors, and entry
cache on virtual time; bookies in memory. Ratios, so no floor is
needed: what is not found is read from bookies. Read-ahead is off: only the entry cache is measured.
Isn't: a measurement of speed.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass

from rich.console import Console

from geo_tests.sim.simulation import Simulation
from heliograph.model.positions import Position
from heliograph.wire.run import Run
from storage.managed_ledger.cache.cache_settings import CacheSettings, Eviction
from storage.managed_ledger.cache.entry_cache import EntryCache
from storage.managed_ledger.log.managed_ledger import ManagedLedger
from storage.managed_ledger.managed_ledger_settings import ManagedLedgerSettings
from tests.storage.managed_ledger.world import Broker, Region

WANTED = 0.95
TOPICS, SUBSCRIPTIONS = 6, 6
RUN_ENTRIES, ENTRY_BYTES, RUNS_PER_S = 10, 1024, 10
CACHE_BYTES, TIGHT_BYTES = 16 << 20, 5 << 19
"""One that never fills, and one that holds less than the strategies would keep."""
TIME_MS = 10_000


@dataclass(frozen=True)
class Result:
    ratio: float
    peak_bytes: int
    mean_bytes: float
    entries: int


class Consumer:
    """speed: entries a second, above what is published. ack_s: from the read to the acknowledgement. up_s, away_s: how
    long it stays, on average.
    """

    def __init__(self, log: ManagedLedger, name: str, rng: random.Random) -> None:
        self.log, self.name, self.rng = log, name, rng
        rate = RUN_ENTRIES * RUNS_PER_S
        self.speed, self.ack_s = rate * rng.uniform(1.5, 5.0), rng.uniform(0.1, 1.5)
        self.up_s, self.away_s = rng.uniform(2.0, 15.0), rng.uniform(0.2, 2.0)

    async def run(self) -> None:
        loop, cursor = asyncio.get_running_loop(), await self.log.open_cursor(self.name, (-1, -1))
        while True:
            alive = [True]
            position: list[Position] = [cursor.read_position]
            cursor.reading = self._reading(position)
            until = loop.time() + self.rng.expovariate(1 / self.up_s)
            while loop.time() < until:
                runs = self.log.cached(position[0], 50, 1 << 20) or await self.log.read(position[0], 50, 1 << 20)
                count = sum(run.count for *_, run in runs)
                if runs:
                    ledger, first, run = runs[-1]
                    position[0] = (ledger, first + run.count)
                    loop.call_later(self.ack_s, self._ack, alive, (ledger, first + run.count - 1))
                await asyncio.sleep(max(count / self.speed, 0.02))
            alive[0], cursor.reading = False, None  # what was read and not acknowledged is read again
            await asyncio.sleep(self.rng.expovariate(1 / self.away_s))

    @staticmethod
    def _reading(position: list[Position]) -> Callable[[], Position]:
        return lambda: position[0]

    def _ack(self, alive: list[bool], position: Position) -> None:
        if alive[0]:
            self.log.cursors[self.name].ack_cumulative(position)


async def load(sim: Simulation, cache: EntryCache, seconds: float) -> Result:
    region = Region(sim, 3)
    await region.start()
    broker = Broker(region, settings=ManagedLedgerSettings(read_ahead_bytes=0), cache=cache)
    logs = [await broker.open(f"persistent://public/default/t{i}") for i in range(TOPICS)]
    rng = sim.rng("consumers")
    consumers = [
        Consumer(log, f"s{i}", random.Random(rng.getrandbits(32))) for log in logs for i in range(SUBSCRIPTIONS)
    ]
    tasks = [asyncio.ensure_future(consumer.run()) for consumer in consumers]
    part, sizes = bytes(ENTRY_BYTES), [0]
    for _ in range(int(seconds * RUNS_PER_S)):
        for log in logs:
            log.append_run(
                Run([part] * RUN_ENTRIES, [ENTRY_BYTES] * RUN_ENTRIES),
                lambda ledger, first, run: None,
                lambda error: None,
            )
        sizes.append(cache.size_bytes)
        assert cache.size_bytes <= cache.byte_bound, "the bound holds in each strategy"
        await asyncio.sleep(1 / RUNS_PER_S)
    for task in tasks:
        task.cancel()
    return Result(
        cache.hits / (cache.hits + cache.misses), max(sizes), sum(sizes) / len(sizes), cache.hits + cache.misses
    )


def measured(
    eviction: Eviction, seed: int, seconds: float, byte_bound: int = CACHE_BYTES, time_ms: int = TIME_MS
) -> Result:
    with Simulation(seed=f"cache-{seed}") as sim:
        cache = EntryCache(byte_bound, CacheSettings(eviction=eviction, time_ms=time_ms, backlogged_entries=1_000))
        result: Result = sim.run(load(sim, cache, seconds), limit_s=seconds + 60)
        return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="of virtual time")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    console = Console()
    console.print(
        f"{TOPICS} topics, {SUBSCRIPTIONS} subscriptions each, seed {options.seed}; {TIME_MS // 1000} s at most in "
        "the cache"
    )
    ratios = {
        (bound, eviction): show(bound, eviction, options.seed, options.seconds, console)
        for bound in (CACHE_BYTES, TIGHT_BYTES)
        for eviction in Eviction
    }
    if ratios[CACHE_BYTES, Eviction.MARK_DELETE] < WANTED:
        console.print(
            f"by mark-delete position it should be at least {WANTED:.0%} where the cache holds what is not acknowledged"
        )
        sys.exit(1)


def show(bound: int, eviction: Eviction, seed: int, seconds: float, console: Console) -> float:
    """Prints one line, and returns its ratio."""
    with console.status(f"{eviction.value}: {seconds:.0f} s"):
        result = measured(eviction, seed, seconds, bound)
    held = f"held {result.mean_bytes / (1 << 20):.1f} MiB, at most {result.peak_bytes / (1 << 20):.1f}"
    console.print(
        f"{bound / (1 << 20):4.1f} MiB, {eviction.value:11}: {result.ratio:5.1%} of {result.entries} entries; {held}"
    )
    return result.ratio


if __name__ == "__main__":
    main()
