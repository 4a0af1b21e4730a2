"""`python -m benchmarks.large_entries`: entries of 64 KiB and more, copied to an entry log or left where the journal wrote them.

Is: the two write paths as sketches over the same disks and log writer as the bookie, interleaved, and the read of one of eight ledgers afterwards.
*copied*: records in segments that are used again, and a flush of each 32 MiB, sorted by ledger, into an entry log. *indexed, zeroed*: the segment is sealed
with a small index and kept, and a fresh one is zero-written in the background, so that a sync writes no metadata. *indexed, allocated*: the same with
segments that are only allocated (fallocate): half the bytes, and metadata with each sync. Isn't: garbage collection of sealed segments.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from rich.console import Console

from heliograph.runtime.disk import File
from heliograph.runtime.system_disk import SystemDisk
from storage.bookie.entry_log import LedgerMark, LogWriter, name_of

SEGMENT_BYTES, LEDGERS, IN_FLIGHT = 32 << 20, 8, 8 << 20
PAGE = 4096
WAYS = ("copied", "indexed, zeroed", "indexed, allocated")


class Sketch:
    """One run of one way in a folder of its own. `places`: where each entry of ledger 0 lies: (file, offset)."""

    def __init__(self, way: str, folder: Path, entry_bytes: int, total: int) -> None:
        self.way, self.entry_bytes, self.total = way, entry_bytes, total
        self.journal, self.background, self.ledgers = (SystemDisk(folder / name) for name in ("journal", "journal", "ledgers"))
        self.folder = folder
        self.places: list[tuple[Path, int]] = []
        self.waits: list[float] = []
        self.free: list[File] = []
        self.made = self.flushing = self.pending = self.log = 0
        self.changed = asyncio.Event()
        self.payload = random.Random(1).randbytes(entry_bytes)

    def make(self, name: str) -> File:
        """A fresh segment. Blocking."""
        file = self.background.open(name, create=True)
        if self.way == "indexed, allocated":
            descriptor = os.open(self.folder / "journal" / name, os.O_RDWR)
            os.posix_fallocate(descriptor, 0, SEGMENT_BYTES)
            os.close(descriptor)
        else:
            for offset in range(0, SEGMENT_BYTES, 1 << 20):
                file.pwritev([bytes(1 << 20)], offset)
        file.datasync()
        self.background.sync_directory()
        return file

    def more(self) -> None:
        self.made += 1
        self.background.submit(lambda name=f"segment-{self.made:06d}": self.make(name), self._made)  # type: ignore[misc]

    def _made(self, file: File | None, error: BaseException | None) -> None:
        assert file is not None, error
        self.free.append(file)
        self.changed.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self.changed.clear()
            await self.changed.wait()

    async def write(self) -> float:
        """Seconds until everything is durable, and copied where it is."""
        for _ in range(2):
            self.more()
        await self.until(lambda: len(self.free) == 2)
        record = -(-(36 + self.entry_bytes) // PAGE) * PAGE
        padding = bytes(record - self.entry_bytes)
        begun = time.perf_counter()
        segment, end, entries, generation = self.free.pop(0), 0, 0, 0
        for number in range(self.total // self.entry_bytes):
            if end + record > SEGMENT_BYTES:
                await self._next(segment, entries)
                segment, end = self.free.pop(0), 0
                entries = 0
            if self.way != "copied" and not number % LEDGERS:
                self.places.append((self.folder / "journal" / segment.name, end))  # type: ignore[attr-defined]
            self.pending += record
            at = time.perf_counter()
            self.journal.submit_sync(segment, end, [padding[:36], self.payload, padding[36:]], lambda error, at=at: self._synced(error, at, record))  # type: ignore[misc]
            end, entries, generation = end + record, entries + 1, generation + 1
            if self.way == "copied" and generation * self.entry_bytes >= SEGMENT_BYTES:
                await self.until(lambda: not self.flushing)  # two generations
                self._flush(generation)
                generation = 0
            await self.until(lambda: self.pending < IN_FLIGHT)
        await self.until(lambda: not self.pending and not self.flushing)
        return time.perf_counter() - begun

    def _synced(self, error: BaseException | None, at: float, size: int) -> None:
        assert error is None, error
        self.waits.append(time.perf_counter() - at)
        self.pending -= size
        self.changed.set()

    async def _next(self, segment: File, entries: int) -> None:
        if self.way == "copied":
            self.free.append(segment)  # its generation is flushed by the time that it comes round again
            await self.until(lambda: not self.pending)
        else:
            index = self.ledgers.open(f"index-{self.made}", create=True)
            self.ledgers.submit_sync(index, 0, [bytes(16 * entries)], lambda _error: None)
            self.more()
            await self.until(lambda: bool(self.free))

    def _flush(self, entries: int) -> None:
        self.flushing += 1
        number, self.log = self.log, self.log + 1

        def job() -> None:
            writer = LogWriter(self.ledgers, number)
            for ledger in range(LEDGERS):
                writer.begin(LedgerMark(ledger, -1, False))
                for entry in range(entries // LEDGERS):
                    if not ledger:
                        self.places.append((self.folder / "ledgers" / name_of(number), 16 + entry * self.entry_bytes))
                    writer.put(entry, 1, self.payload)
            writer.finish()

        def done(_result: None, error: BaseException | None) -> None:
            assert error is None, error
            self.flushing -= 1
            self.changed.set()

        self.ledgers.submit(job, done)

    def read(self) -> float:
        """MB/s of ledger 0, cold, in reads of up to 1 MiB of neighbours."""
        files = {path: os.open(path, os.O_RDONLY) for path, _ in self.places}
        for descriptor in files.values():
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        begun, at, size = time.perf_counter(), 0, 0
        while at < len(self.places):
            path, offset = self.places[at]
            count = 1
            while (
                at + count < len(self.places)
                and count * self.entry_bytes < 1 << 20
                and self.places[at + count] == (path, offset + count * self.entry_bytes)
            ):
                count += 1
            size += len(os.pread(files[path], count * self.entry_bytes, offset))
            at += count
        took = time.perf_counter() - begun
        for descriptor in files.values():
            os.close(descriptor)
        return size / took / 1e6

    def close(self) -> None:
        for disk in (self.background, self.journal, self.ledgers):
            disk.close()


async def one(way: str, folder: Path, entry_bytes: int, total: int) -> tuple[float, float, float]:
    """(MB/s written, p99 of a sync in seconds, MB/s read)."""
    path = Sketch(way, folder, entry_bytes, total)
    try:
        took = await path.write()
    finally:
        path.close()
    return total / took / 1e6, sorted(path.waits)[int(len(path.waits) * 0.99)], path.read()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--mib", type=int, default=256)
    options = parser.parse_args()
    console = Console(width=140)
    for entry_bytes in (64 << 10, 512 << 10):
        found: dict[str, list[tuple[float, float, float]]] = {way: [] for way in WAYS}
        for number in range(options.rounds):
            for way in WAYS:
                with console.status(f"{entry_bytes >> 10} KiB, round {number + 1}, {way}"), tempfile.TemporaryDirectory(prefix="heliograph-bench-") as scratch:
                    found[way].append(asyncio.run(one(way, Path(scratch), entry_bytes, options.mib << 20)))
        console.print(f"entries of {entry_bytes >> 10} KiB, ratios to `copied` of the same round")
        for way in WAYS:
            write, wait, read = (median(a[at] / b[at] for a, b in zip(found[way], found["copied"], strict=True)) for at in range(3))
            rate = median(a[0] for a in found[way])
            console.print(f"  {way:20} written {write:.2f} x ({rate:.0f} MB/s), p99 of a sync {wait:.2f} x, one ledger read {read:.2f} x")


if __name__ == "__main__":
    main()
