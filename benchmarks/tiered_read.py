"""`python -m benchmarks.tiered_read`: what it costs to read an offloaded ledger, and a cold one on bookies, from the
beginning to the end.

Is: a standalone's metadata and two bookies; a reader whose memory is collected as a broker's is; a topic of 1 KB
entries in runs of 64, offloaded to a folder; interleaved, after the page cache was told to forget the files: the object
through the cold reader, the same ledger from the bookies through the managed ledger, and the same bytes by plain 4 MiB
reads.
With --s3 ENDPOINT (credentials in the environment) the object lies there instead, and the plain read is one GET of the
whole object.
Isn't: a broker, a consumer, or the network of an object store that is far away.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import median

import uvloop
from rich.console import Console

from benchmarks.page_cache import forget
from benchmarks.servers import Heliograph
from heliograph.kv.metadata_client import MetaClient
from heliograph.model.errors import HeliographError
from heliograph.model.positions import AFTER_ALL
from heliograph.runtime.clock import CautiousClock, SystemClock
from heliograph.runtime.system_disk import SystemDisk
from heliograph.wire.run import Run
from region_node.process.role_process import settle_memory
from storage.ledger.bookies.bookie_client import BookieClient
from storage.ledger.bookies.bookie_pool import BookiePool
from storage.managed_ledger.cache.entry_cache import EntryCache
from storage.managed_ledger.log.managed_ledger import ManagedLedger
from storage.managed_ledger.log.managed_ledger_factory import ManagedLedgerFactory
from storage.tiered.objects.builtin_stores import maker
from storage.tiered.offload.offload_plan import OffloadPolicy
from storage.tiered.offload.offloader import Described, Tiering
from storage.tiered.reading.cold_reader import ColdReader
from storage.tiered.store import Stores
from storage.tiered.tiered_settings import TieredSettings

TOPIC = "persistent://public/default/tiered-read"
RUN, ENTRY_BYTES = 64, 1024
READ_ENTRIES, READ_BYTES = 1000, 1 << 20
CACHE_BYTES = 64 << 20
"""A broker's, unless it is set. A quarter of it is for what readers have fetched: less than the ledger."""


class NoState:
    def restore(self, blob: bytes) -> None: ...

    def replay(self, ledger: int, first: int, run: Run) -> None: ...

    def snapshot(self) -> bytes:
        return b""


async def fill(ledger: ManagedLedger, size_bytes: int) -> None:
    """Appends runs, 8 MB in flight."""
    body, left = random.Random(1).randbytes(RUN * ENTRY_BYTES), size_bytes // (RUN * ENTRY_BYTES)
    room = asyncio.Semaphore(128)
    failed: list[HeliographError] = []

    def refused(error: HeliographError) -> None:
        failed.append(error)
        room.release()

    for _ in range(left):
        await room.acquire()
        ledger.append_run(Run(None, [ENTRY_BYTES] * RUN, body=body), lambda *_: room.release(), refused)
    for _ in range(128):
        await room.acquire()
    if failed:
        raise failed[0]


async def timed(work: Callable[[], Awaitable[int]], expected: int) -> float:
    begun = time.perf_counter()
    found = await work()
    assert found >= expected, (found, expected)
    return time.perf_counter() - begun


async def run(data: Path, scratch: Path, size_mb: int, rounds: int, s3: str, console: Console) -> None:
    settings_file = next((data / "settings").glob("*broker*.json"))
    addresses = json.loads(settings_file.read_text())["meta"]
    clock, rng = SystemClock(), random.Random(2)
    meta = MetaClient(addresses, clock=clock, rng=rng)
    pool = BookiePool(meta, lambda bookie, host, port: BookieClient(bookie, host, port, rng=rng), rng)
    await pool.ready()
    factory = ManagedLedgerFactory(meta, pool, EntryCache(CACHE_BYTES), None, clock, rng)
    url = "s3://tiers/bench" if s3 else f"file://{scratch}/objects"
    options = {"endpoint": s3, "region": "us-east-1"} if s3 else {}
    settings = TieredSettings(store=url, options=options, bytes_per_s=1 << 34)
    stores = Stores(url, options, 30.0, maker(lambda path: SystemDisk(Path(path))))
    tiering = Tiering(
        region="standalone",
        context=factory.context,
        stores=stores,
        opened=lambda: (),
        policy=lambda topic: OffloadPolicy(deletion_lag_ms=-1),
        describe=lambda topic: Described({}),
        collects=lambda: False,
        clock=CautiousClock(clock),
        settings=settings,
    )
    await tiering.start()
    ledger = await factory.open(TOPIC, NoState(), (2, 2, 2), create=True)
    with console.status("filling"):
        await fill(ledger, size_mb << 20)
        await ledger.close()
        ledger = await factory.open(TOPIC, NoState(), (2, 2, 2), create=True)
    settle_memory()
    with console.status("offloading"):
        begun = time.perf_counter()
        tiering.offload(ledger, AFTER_ALL)
        await tiering.idle()
        assert tiering.status(TOPIC).state == "SUCCESS", tiering.status(TOPIC).error
        took = time.perf_counter() - begun
    info = ledger.ledgers()[0]
    assert info.offload is not None
    console.print(f"offloaded and verified: {info.offload.size_bytes / took / 1e6:.0f} MB/s")
    expected = info.entries * ENTRY_BYTES
    record = info.offload
    key = f"{record.holder}/public/default/tiered-read/ledger/{info.ledger:020d}-{record.attempt}"

    async def cold() -> int:
        reader = ColdReader(stores, settings, factory.context.tasks)
        at = found = 0
        while at < info.entries:
            runs = await reader.read(
                TOPIC, info.ledger, record, at, min(at + READ_ENTRIES, info.entries) - 1, READ_BYTES
            )
            found += sum(run.size_bytes for _, run in runs)
            at = runs[-1][0] + runs[-1][1].count
        return found

    async def local() -> int:
        again = await factory.open(TOPIC, NoState(), (2, 2, 2), create=True)
        at, found = (info.ledger, 0), 0
        while at[0] == info.ledger and at[1] < info.entries:
            pieces = await again.read(at, READ_ENTRIES, READ_BYTES)
            found += sum(run.size_bytes for _, _, run in pieces)
            at = (pieces[-1][0], pieces[-1][1] + pieces[-1][2].count)
        return found

    async def plain() -> int:
        if s3:
            return len(await stores.get().read(key, 0, record.size_bytes))
        found = 0
        with (scratch / "objects" / key).open("rb", buffering=0) as file:
            while part := file.read(4 << 20):
                found += len(part)
        return found

    rows: list[tuple[float, float, float]] = []
    for i in range(rounds):
        with console.status(f"round {i + 1} of {rounds}"):
            seconds = []
            for work in (cold, local, plain):
                forget(scratch)
                forget(data)
                seconds.append(await timed(work, expected))
            rows.append((seconds[0], seconds[1], seconds[2]))
    rate = median(expected / row[0] for row in rows) / 1e6
    console.print(
        f"an offloaded ledger of {size_mb} MB is read at {rate:.0f} MB/s "
        f"({median(info.entries / row[0] for row in rows) / 1e3:.0f}k entries/s)"
    )
    floor, bookies = median(row[2] / row[0] for row in rows), median(row[1] / row[0] for row in rows)
    console.print(f"that is {floor:.2f} x the speed of a plain read, and {bookies:.2f} x that of the bookies")
    cold_ledger = median(row[2] / row[1] for row in rows)
    console.print(
        f"the ledger on bookies, not cached anywhere, is read at {cold_ledger:.2f} x the speed of a plain read (at "
        "least 0.4 is wanted)"
    )
    await tiering.stop()
    await factory.close()
    pool.close()
    meta.close()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--mb", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--s3",
        default="",
        metavar="ENDPOINT",
        help="an S3 server with a bucket `tiers`; credentials in the environment",
    )
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="heliograph-bench-") as folder:
        server = Heliograph(Path(folder) / "h")
        try:
            uvloop.run(run(server.data, Path(folder) / "tier", chosen.mb, chosen.rounds, chosen.s3, Console()))
        finally:
            server.stop()


if __name__ == "__main__":
    main()
