"""`python -m benchmarks.cursor_writes`: what it costs to make the acknowledgements of many topics durable.

Is: a metadata node in a process of its own (real disk, real sockets), and the stream of cursor writes of one broker:
every topic's cursor changes all the time, each write carries the check of its topic's version, as TopicRecord's do.
Interleaved with it the floor: the same bytes appended and synced to a file, a transaction's worth at a time. Printed:
rounds in which every cursor became durable, how old an acknowledgement gets, the ratio.
Isn't: bookies, brokers, or consumers.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import random
import tempfile
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median

from rich.console import Console

from heliograph.kv.metadata_client import MetaClient
from heliograph.kv.metadata_store import Check, Op, Put
from heliograph.model.errors import HeliographError
from heliograph.model.ledger_metadata import LedgerInfo, ManagedLedgerMetadata
from heliograph.runtime.clock import SystemClock
from heliograph.runtime.system_disk import SystemDisk
from local_meta import keys
from local_meta.node import LocalMetaNode
from storage.ledger.bookies.bookie_pool import BookiePool
from storage.ledger.ledger_context import LedgerContext
from storage.managed_ledger.cursors.cursor import Cursor
from storage.managed_ledger.metadata.ledger_catalog import Catalog
from storage.managed_ledger.metadata.metadata_flusher import MetadataFlusher

ROUNDS = 9


def serve(folder: str, pipe: Connection) -> None:
    async def run() -> None:
        disk = SystemDisk(folder)
        node = LocalMetaNode(node_id="m", disk=disk, clock=SystemClock(), rng=random.Random(1))
        pipe.send(await node.start())
        await asyncio.get_running_loop().create_future()

    asyncio.run(run())


class Topic:
    """A member of the flusher with one cursor: as much of TopicRecord as costs metadata something."""

    def __init__(self, name: str, flusher: MetadataFlusher) -> None:
        self.name, self._flusher, self._version = name, flusher, 0
        self._key, self._cursor_key = keys.managed_ledger(name), keys.cursor(name, "sub")
        self.catalog = Catalog([LedgerInfo(1, 1 << 30, 1, 1)], (1, (1 << 30) - 1))
        self.cursor = Cursor(
            "sub",
            self.catalog,
            (1, -1),
            durable=True,
            properties={},
            request_flush=lambda cursor: flusher.request(self),
            wait_flushed=self._wait,
        )
        self.waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def _wait(self, cursor: Cursor) -> None:
        await asyncio.shield(self.waiter)

    async def create(self, meta: MetaClient) -> None:
        blob = ManagedLedgerMetadata((LedgerInfo(1, 100, 1000),), bytes(100), owner=7).encode()
        self._version = await meta.put(self._key, blob)

    def ack(self) -> None:
        self.cursor.ack_cumulative((1, self.cursor.mark_delete[1] + 10))

    def collect(self) -> Sequence[Op]:
        return [Check(self._key, self._version), Put(self._cursor_key, self.cursor.encode())]

    def on_written(self, version: int) -> None:
        if not self.waiter.done():
            self.waiter.set_result(None)

    def on_not_written(self) -> None: ...

    def on_refused(self, error: HeliographError) -> None:
        raise error

    async def settle(self) -> bool:
        raise AssertionError("one owner, no conflict")


async def measure(port: int, count: int, folder: Path) -> tuple[float, float, int]:
    """(seconds a round, seconds of the floor, bytes a round)."""
    meta = MetaClient([f"127.0.0.1:{port}"], clock=SystemClock(), rng=random.Random(1))
    flusher = MetadataFlusher(
        LedgerContext(meta=meta, pool=BookiePool(meta, lambda b, h, p: None, random.Random(1)), rng=random.Random(1))
    )  # type: ignore[arg-type, return-value]
    topics = [Topic(f"persistent://public/default/t{i}", flusher) for i in range(count)]
    for start in range(0, count, 200):
        await asyncio.gather(*(topic.create(meta) for topic in topics[start : start + 200]))
    size = sum(
        len(op.key) + (len(op.value) if isinstance(op, Put) else 8) for topic in topics for op in topic.collect()
    )
    ours: list[float] = []
    floors: list[float] = []
    for _ in range(ROUNDS):
        for topic in topics:
            topic.waiter = asyncio.get_running_loop().create_future()
        began = time.perf_counter()
        for topic in topics:
            topic.ack()
        await asyncio.gather(*(topic.cursor.flushed() for topic in topics))
        ours.append(time.perf_counter() - began)
        floors.append(floor(folder, size, max(1, count * 2 // 1024)))
    meta.close()
    return median(ours), median(floors), size


def floor(folder: Path, size: int, writes: int) -> float:
    descriptor = os.open(folder / "floor", os.O_RDWR | os.O_CREAT)
    try:
        began = time.perf_counter()
        for _ in range(writes):
            os.write(descriptor, bytes(size // writes))
            os.fdatasync(descriptor)
        return time.perf_counter() - began
    finally:
        os.close(descriptor)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--topics", type=int, default=10_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="heliograph-bench-") as scratch:
        ours, theirs = multiprocessing.Pipe()
        (Path(scratch) / "meta").mkdir()
        process = multiprocessing.get_context("spawn").Process(
            target=serve, args=(f"{scratch}/meta", theirs), daemon=True
        )
        process.start()
        try:
            seconds, least, size = asyncio.run(measure(ours.recv(), options.topics, Path(scratch)))
        finally:
            process.kill()
            process.join()
    console = Console()
    console.print(
        f"{options.topics} topics, every cursor changed: durable after {seconds:.2f} s (median of {ROUNDS}), "
        f"{size / (1 << 20):.1f} MiB"
    )
    console.print(
        f"{options.topics / seconds:,.0f} cursors a second; {seconds / least:.0f} x the least: the same bytes written "
        "and synced"
    )


if __name__ == "__main__":
    main()
