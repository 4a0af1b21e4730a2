"""`make bench`: what a publish costs above the least that the disk allows.

Is: a standalone with two bookies, one connection, one entry in flight, against fdatasync of the same bytes into a
zero-written file, interleaved.
Also: the throughput of 1 KB entries against writing and syncing the same bytes once, in 1 MiB pieces, as one process
could at best.
Isn't: a comparison with a peer; `make bench-peers` is that.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from pathlib import Path
from statistics import median

from rich.console import Console

from benchmarks.raw_client import blast
from benchmarks.servers import Heliograph

ROUNDS = 5
ENTRIES = 400


def floor(folder: Path, size: int, count: int) -> float:
    """Seconds for `count` writes of `size` bytes, each durable before the next."""
    path = folder / "floor"
    block = bytes(size)
    with path.open("wb") as file:
        file.write(bytes(max(size, 1 << 20) + size))
        file.flush()
        os.fsync(file.fileno())
    descriptor = os.open(path, os.O_RDWR)
    try:
        begun = time.perf_counter()
        for i in range(count):
            os.pwrite(descriptor, block, i * size % (1 << 20))
            os.fdatasync(descriptor)
        return time.perf_counter() - begun
    finally:
        os.close(descriptor)
        path.unlink()


def main() -> None:
    console = Console()
    with tempfile.TemporaryDirectory(prefix="heliograph-bench-") as scratch:
        folder = Path(scratch)
        server = Heliograph(folder / "h")
        try:
            topic = "persistent://public/default/floor"
            asyncio.run(blast(server.port, topic, 1024, 2000, 100))
            alone: list[float] = []
            deep: list[float] = []
            for i in range(ROUNDS):
                with console.status(f"round {i + 1} of {ROUNDS}"):
                    _, ours = asyncio.run(blast(server.port, topic, 1024, ENTRIES, 1, warm=50))
                    alone.append(ours / floor(folder, 4096, ENTRIES))
                    entries, ours = asyncio.run(blast(server.port, topic, 1024, 100_000, 2000, warm=5000))
                    deep.append(ours / floor(folder, 1 << 20, entries * 1024 // (1 << 20)))
        finally:
            server.stop()
    console.print(
        f"one 1 KB entry in flight, two fsynced copies: {median(alone):.1f} x the time of one 4 KB write and fdatasync"
    )
    console.print(
        f"2,000 1 KB entries in flight, two fsynced copies: {median(deep):.1f} x the time to write and sync the same "
        "bytes once in 1 MiB pieces"
    )


if __name__ == "__main__":
    main()
