"""`python -m benchmarks.large_entries`: entries of 64 KiB and more, copied to an entry log or left where the journal
wrote them.

Is: a bookie in a process of its own, with its server, frames, checks, write cache, and flushes, written to by the
broker's client over loopback: eight ledgers in turn, 8 MiB in flight; then, after the page cache was told to forget,
one of the eight is read back. *copied* is the bookie as it is, *kept* is `benchmarks.kept_entries` over the same
classes. Rounds interleave the two; what is said is the median of ratios of the same round. --limit N: on a volume that
takes N MB/s of writes and reads together, as cloud volumes do; --apart: on two of them, one for the journal and one for
entry logs. Without it, the disk as it is. The last column is the wait for acks while one ledger is read from the disk
at the same time.
Isn't: several bookies, or the collection of segments, which *kept* would need on top.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import uvloop
from rich.console import Console

from benchmarks.kept_entries import KeepingBookie
from benchmarks.page_cache import forget
from heliograph.runtime.clock import SystemClock
from heliograph.runtime.disk import Buffer, File
from heliograph.runtime.system_disk import SystemDisk, SystemFile
from heliograph.wire.block import encode_block
from heliograph.wire.run import Run
from storage.bookie.serving.bookie import Bookie, BookieSettings, DirectoryPlace
from storage.bookie.serving.bookie_server import BookieServer
from storage.ledger.bookies.bookie_client import BookieClient

LEDGERS, IN_FLIGHT_BYTES = 8, 8 << 20
COPIED, KEPT = "copied", "kept"
WAYS = {COPIED: Bookie, KEPT: KeepingBookie}
WARM_BYTES = 96 << 20
"""Written before the clock starts: the journal's first segments are made, and the first flushes are done."""

Row = tuple[float, float, float, float, float, float]
"""(MB/s written, p99 of an ack in ms, CPU ms a MB, bytes written a byte, MB/s of one ledger read cold, p99 of an ack in
ms beside such a read).
"""


# -- the bookie's process ---------------------------------------------------------------------------------------------


class Volume:
    """What all directories of a bookie may write together."""

    def __init__(self, bytes_per_s: float) -> None:
        self._bytes_per_s, self._free_at, self._lock = max(bytes_per_s, 1.0), 0.0, threading.Lock()

    def take(self, size_bytes: int) -> None:
        with self._lock:
            self._free_at = max(self._free_at, time.monotonic()) + size_bytes / self._bytes_per_s
            wait_s = self._free_at - time.monotonic()
        if wait_s > 0:
            time.sleep(wait_s)


class LimitedFile(SystemFile):
    __slots__ = ("volume",)
    volume: Volume

    def pwritev(self, buffers: Sequence[Buffer], offset: int) -> int:
        self.volume.take(sum(map(len, buffers)))
        return super().pwritev(buffers, offset)

    def pread(self, size_bytes: int, offset: int) -> bytes:
        self.volume.take(size_bytes)
        return super().pread(size_bytes, offset)


class LimitedDisk(SystemDisk):
    def __init__(self, directory: Path, volume: Volume) -> None:
        super().__init__(directory)
        self._volume = volume

    def open(self, name: str, *, create: bool = False) -> File:
        file = LimitedFile(self.directory / name, os.O_RDWR | (os.O_CREAT if create else 0), self._staging)
        file.volume = self._volume
        return file


async def serve(way: str, folder: Path, limit_mb: float, apart: bool) -> None:
    """Prints the port, and goes on until its standard input ends."""
    volumes = [Volume(limit_mb * 1e6)] * 2 if not apart else [Volume(limit_mb * 1e6) for _ in range(2)]
    names = ("journal", "ledgers")

    def disk(at: int) -> SystemDisk:
        return LimitedDisk(folder / names[at], volumes[at]) if limit_mb else SystemDisk(folder / names[at])

    places = [[DirectoryPlace(disk(at), disk(at))] for at in range(2)]
    bookie = WAYS[way](
        *places,
        BookieSettings(free_bytes_min=0),
        bookie_id="b",
        instance="bench",
        rng=random.Random(1),
        clock=SystemClock(),
    )
    bookie.start()
    server = BookieServer(bookie)
    print(await server.start("127.0.0.1", 0), flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await server.stop()
    bookie.close()


# -- the broker's side ------------------------------------------------------------------------------------------------


class Writer:
    """Adds entries to eight ledgers in turn, so many bytes in flight."""

    def __init__(self, client: BookieClient, entry_bytes: int) -> None:
        self.client, self.entry_bytes = client, entry_bytes
        self.body = random.Random(1).randbytes(entry_bytes)
        self.next = [0] * LEDGERS
        self.acked = [-1] * LEDGERS
        self.begun: list[list[float]] = [[] for _ in range(LEDGERS)]
        self.waits: list[float] = []
        self.changed = asyncio.Event()
        for ledger in range(LEDGERS):
            client.open_writer(
                ledger + 1,
                lambda through, ledger=ledger: self._on_ack(ledger, through),  # type: ignore[misc]
                self._on_lost,
            )

    def _on_ack(self, ledger: int, through: int) -> None:
        now = time.perf_counter()
        self.waits += [now - at for at in self.begun[ledger][self.acked[ledger] + 1 : through + 1]]
        self.acked[ledger] = through
        self.changed.set()

    def _on_lost(self, error: Exception) -> None:
        raise SystemExit(f"the bookie gave up: {error}")

    async def write(self, size_bytes: int) -> float:
        """Seconds until all of it is acknowledged."""
        self.waits = []
        begun = time.perf_counter()
        for number in range(size_bytes // self.entry_bytes):
            ledger = number % LEDGERS
            entry = self.next[ledger]
            self.next[ledger] = entry + 1
            self.begun[ledger].append(time.perf_counter())
            self.client.add(
                ledger + 1,
                entry,
                1,
                encode_block(Run([self.body], [self.entry_bytes], time_ms=1), ledger + 1, entry),
                entry - 1,
            )
            while self.client.backlog_bytes > IN_FLIGHT_BYTES:
                await self._change()
        while self.client.backlog_bytes:
            await self._change()
        return time.perf_counter() - begun

    async def _change(self) -> None:
        self.changed.clear()
        await self.changed.wait()


def used(pid: int) -> tuple[float, int]:
    """(seconds of CPU, bytes sent to the disk) of that process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    counts = dict(line.split(": ") for line in Path(f"/proc/{pid}/io").read_text().splitlines())
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"), int(counts["write_bytes"])


async def read_cold(client: BookieClient, folder: Path, last: int) -> float:
    """MB/s of ledger 1 up to that entry."""
    forget(folder)
    begun, at, size = time.perf_counter(), 0, 0
    while at < last:
        blocks = await client.read(1, at, last, 1 << 20)
        size += sum(map(len, blocks))
        at += len(blocks)
    return size / (time.perf_counter() - begun) / 1e6


def p99_ms(waits: Sequence[float]) -> float:
    return sorted(waits)[int(len(waits) * 0.99)] * 1e3


async def measured(pid: int, port: int, folder: Path, entry_bytes: int, total: int) -> Row:
    client = BookieClient("b", "127.0.0.1", port, rng=random.Random(3))
    writer = Writer(client, entry_bytes)
    await writer.write(WARM_BYTES)
    before = used(pid)
    took = await writer.write(total)
    after = used(pid)
    alone = p99_ms(writer.waits)
    last = (WARM_BYTES + total // 2) // entry_bytes // LEDGERS  # what is behind may not be flushed yet
    read = await read_cold(client, folder, last)
    async with asyncio.TaskGroup() as both:
        both.create_task(read_cold(client, folder, last))
        both.create_task(writer.write(total // 2))
    for ledger in range(LEDGERS):
        client.close_writer(ledger + 1)
    client.close()
    return (
        total / took / 1e6,
        alone,
        (after[0] - before[0]) * 1e9 / total,
        (after[1] - before[1]) / total,
        read,
        p99_ms(writer.waits),
    )


def compare(entry_bytes: int, options: argparse.Namespace, console: Console) -> None:
    found: dict[str, list[Row]] = {way: [] for way in WAYS}
    for number in range(options.rounds):
        for way in list(WAYS)[:: 1 if number % 2 else -1]:
            with tempfile.TemporaryDirectory(dir=options.on, prefix="heliograph-bench-") as folder:
                command = [
                    sys.executable,
                    "-m",
                    "benchmarks.large_entries",
                    "--serve",
                    way,
                    "--folder",
                    folder,
                    "--limit",
                    str(options.limit),
                ]
                command += ["--apart"] * options.apart
                with (
                    console.status(f"{entry_bytes >> 10} KiB, round {number + 1}, {way}"),
                    subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process,
                ):
                    assert process.stdin is not None and process.stdout is not None
                    port = int(process.stdout.readline())
                    found[way].append(
                        uvloop.run(measured(process.pid, port, Path(folder), entry_bytes, options.mib << 20))
                    )
                    process.stdin.close()
    where = f", {'two volumes' if options.apart else 'one volume'} of {options.limit:g} MB/s" if options.limit else ""
    console.print(f"entries of {entry_bytes >> 10} KiB{where}")
    for way in WAYS:
        rate, p99, cpu, written, read, beside = (median(row[at] for row in found[way]) for at in range(6))
        console.print(
            f"  {way:7} {rate:4.0f} MB/s, p99 of an ack {p99:4.0f} ms, {cpu:.2f} ms of CPU a MB, {written:.2f} bytes "
            "written a byte, "
            f"{read:4.0f} MB/s read cold, p99 beside such a read {beside:4.0f} ms"
        )
    rate, p99, cpu, read, beside = (
        median(a[at] / b[at] for a, b in zip(found[KEPT], found[COPIED], strict=True)) for at in (0, 1, 2, 4, 5)
    )
    console.print(
        f"  kept to copied: written {rate:.2f} x, p99 {p99:.2f} x, CPU {cpu:.2f} x, read {read:.2f} x, p99 beside a "
        f"read {beside:.2f} x"
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--mib", type=int, default=256)
    parser.add_argument("--kib", type=int, nargs="*", default=[64, 512])
    parser.add_argument("--limit", type=float, default=0.0, metavar="MB/S", help="of each volume")
    parser.add_argument("--apart", action="store_true", help="a volume for the journal, and one for entry logs")
    parser.add_argument("--on", default=None, metavar="FOLDER", help="where the bookie's directories are made")
    parser.add_argument("--serve", choices=list(WAYS), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        uvloop.run(serve(options.serve, options.folder, options.limit, options.apart))
        return
    for kib in options.kib:
        compare(kib << 10, options, Console(width=200))


if __name__ == "__main__":
    main()
