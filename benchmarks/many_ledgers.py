"""`python -m benchmarks.many_ledgers`: one bookie with a hundred thousand ledgers, against the same bytes in a few.

Is: a bookie in this process, without sockets: entries of 1 KB, each a frame of its own, 256 frames a turn, over 64
ledgers, a hundred times as many, and all of them in turn; then how long the bookie takes to start again, what a ledger
costs in memory, and reads of single entries anywhere, cold.
Isn't: topics: brokers and metadata have theirs in `benchmarks.topics` and `benchmarks.spread`.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median, quantiles

from rich.console import Console

from benchmarks.cold_drain import make_cold
from benchmarks.directories import Client, frame, started, store
from benchmarks.metadata_store import pss_mb
from heliograph.runtime.disk import Buffer
from heliograph.wire.bookie_frames import BookieCode, Kind, encode
from storage.bookie.serving.bookie import Bookie

FEW, TURN, SHAPE = 64, 256, (1, 1)
_FEW_FROM, _HUNDREDFOLD_FROM, _MANY_FROM = 1, 100_000, 1_000_000


class Reader(Client):
    """Hears one answer after another."""

    def answer(self, request: int, code: BookieCode, entry: int, value: int, body: Sequence[Buffer]) -> None:
        assert code == BookieCode.OK and sum(map(len, body)) > 1024, (code, bytes(body[0][:200]))
        self.changed.set()


def turns(first_ledger: int, ledgers: int, entries: int, from_entry: int) -> list[list[tuple[int, bytes]]]:
    """`entries` lone entries, round the ledgers, from entry `from_entry` of each on."""
    every = [
        (first_ledger + n % ledgers, frame(first_ledger + n % ledgers, from_entry + n // ledgers, 1))
        for n in range(entries)
    ]
    return [every[at : at + TURN] for at in range(0, entries, TURN)]


async def flushed(bookie: Bookie) -> None:
    bookie.flush()
    while bookie.flushing:  # noqa: ASYNC110 - a benchmark
        await asyncio.sleep(0.05)


async def read(bookie: Bookie, count: int, ledgers: int, entries: int) -> list[float]:
    """Seconds of each of `count` reads of one entry of some ledger."""
    rng, reader, times = random.Random(3), Reader(), []
    for _ in range(count):
        ledger, entry = _MANY_FROM + rng.randrange(ledgers), rng.randrange(entries)
        data = encode(Kind.READ, body_bytes=4, ledger=ledger, entry=entry, value=entry, request=1) + (4096).to_bytes(
            4, "big"
        )
        reader.changed.clear()
        begun = time.perf_counter()
        bookie.on_frames(memoryview(data), [len(data)], reader)
        bookie.commit()
        await reader.changed.wait()
        times.append(time.perf_counter() - begun)
    return times


async def fill(folder: Path, ledgers: int, rounds: int, console: Console) -> None:
    bookie, _ = started([folder], SHAPE)
    await store(bookie, turns(_FEW_FROM, FEW, 4 * TURN, 0))  # warm
    await flushed(bookie)
    took: dict[int, list[float]] = {count: [] for count in (FEW, 100 * FEW, ledgers)}
    for number in range(rounds):
        for first_ledger, count in zip((_FEW_FROM, _HUNDREDFOLD_FROM, _MANY_FROM), took, strict=True):
            began_at = (number + 1) * (1 + ledgers // count) + 4 * TURN // FEW if count != ledgers else number
            took[count].append(await store(bookie, turns(first_ledger, count, ledgers, began_at)))
            await flushed(bookie)
    for count, seconds in took.items():
        ratio = median(few / many for few, many in zip(took[FEW], seconds, strict=True))
        console.print(
            f"{ledgers:,} entries of 1 KB into {count:,} ledgers: {ledgers / median(seconds):,.0f} a second, "
            f"{ratio:.2f} x those into {FEW}"
        )
    console.print("(at least 0.7 is wanted of a hundred times as many)")
    bookie.close()


async def again(folder: Path, ledgers: int, rounds: int, console: Console) -> None:
    gc.collect()
    before_mb = pss_mb()[1]
    begun = time.perf_counter()
    bookie, _ = started([folder], SHAPE)
    console.print(f"started with {len(bookie.dirs[0].table.last):,} ledgers: {time.perf_counter() - begun:.2f} s")
    gc.collect()
    console.print(f"memory of a ledger: {1e6 * (pss_mb()[1] - before_mb) / len(bookie.dirs[0].table.last):.0f} B")
    make_cold(folder)
    cut = quantiles(await read(bookie, 500, ledgers, rounds), n=100)
    console.print(f"a cold read of one entry anywhere: p50 {1e3 * cut[49]:.2f} ms, p99 {1e3 * cut[98]:.2f} ms")
    bookie.close()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--ledgers", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--again", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    console = Console(width=140)
    if options.again is not None:  # in a process of its own, whose memory nobody has used before
        asyncio.run(again(options.again, options.ledgers, options.rounds, console))
        return
    with tempfile.TemporaryDirectory(prefix="heliograph-bench-") as scratch:
        asyncio.run(fill(Path(scratch), options.ledgers, options.rounds, console))
        words = ["--ledgers", str(options.ledgers), "--rounds", str(options.rounds), "--again", scratch]
        subprocess.run([sys.executable, "-m", "benchmarks.many_ledgers", *words], check=True)


if __name__ == "__main__":
    main()
