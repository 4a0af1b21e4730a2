"""`python -m benchmarks.directories`: what several directories of one bookie cost, or bring, against one journal and
one ledger directory.

Is: a bookie in this process, without sockets, that journals, acknowledges, and flushes blocks of 64 KiB of 1 KB entries
over 64 ledgers, in every shape in turn; the time until all is acknowledged, and the time of lone adds of one such
entry. Ratios to the shape 1:1 of the same round.
Isn't: several disks, unless `--on` names folders on them: on one disk the promise is that nothing is lost.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from rich.console import Console

from heliograph.runtime.clock import SystemClock
from heliograph.runtime.disk import Buffer
from heliograph.runtime.system_disk import SystemDisk
from heliograph.wire.block import encode_block
from heliograph.wire.bookie_frames import BookieCode, Kind, encode
from heliograph.wire.run import Run
from storage.bookie.serving.bookie import Bookie, BookieSettings, DirectoryPlace

SHAPES = ((1, 1), (1, 2), (2, 2), (4, 4))
LEDGERS, ENTRIES, ENTRY_BYTES = 64, 64, 1024
IN_FLIGHT_BYTES = 8 << 20


class Client:
    """Stands for a connection of the bookie (`Peer`), and counts what it acknowledges."""

    def __init__(self) -> None:
        self.refused: dict[int, int] = {}
        self.through: dict[int, int] = {}
        self.changed = asyncio.Event()

    def acked(self, ledger: int, writer: int, through: int) -> None:
        self.through[ledger] = through
        self.changed.set()

    def flush(self) -> None: ...

    def lost(self, ledger: int, writer: int, code: BookieCode, text: str) -> None:
        raise SystemExit(f"the bookie refused ledger {ledger}: {text}")

    def answer(self, request: int, code: BookieCode, entry: int, value: int, body: Sequence[Buffer]) -> None: ...

    def resume(self) -> None:
        self.changed.set()


def frame(ledger: int, first: int, count: int) -> bytes:
    parts = [bytes(ENTRY_BYTES)] * count
    block = b"".join(encode_block(Run(parts, [ENTRY_BYTES] * count, time_ms=1), ledger, first))
    return encode(Kind.ADD, body_bytes=len(block), number=count, ledger=ledger, entry=first, value=-1) + block


async def store(bookie: Bookie, frames: list[list[tuple[int, bytes]]]) -> float:
    """Seconds until all turns of frames (ledger, frame) are acknowledged; each turn is one read of a socket."""
    client, sent = Client(), 0
    begun = time.perf_counter()
    wanted: dict[int, int] = {}
    for turn in frames:
        view = memoryview(b"".join(one for _, one in turn))
        ends: list[int] = []
        for ledger, one in turn:
            ends.append((ends[-1] if ends else 0) + len(one))
            wanted[ledger] = int.from_bytes(one[16:24], "big") + int.from_bytes(one[6:8], "big") - 1
        bookie.on_frames(view, ends, client)
        bookie.commit()
        sent += len(view)
        while sum(journal.waiting_bytes for journal in bookie.journals) > IN_FLIGHT_BYTES or bookie.full:
            client.changed.clear()
            if bookie.full:
                bookie.wait_for_room(client)
            await client.changed.wait()
        await asyncio.sleep(0)
    while any(client.through.get(ledger, -1) < last for ledger, last in wanted.items()):
        client.changed.clear()
        await client.changed.wait()
    return time.perf_counter() - begun


async def lone(bookie: Bookie, count: int) -> float:
    """Median seconds of an add that comes alone."""
    client, times = Client(), []
    for number in range(count):
        ledger, data = 1000 + number, frame(1000 + number, 0, 1)
        begun = time.perf_counter()
        bookie.on_frames(memoryview(data), [len(data)], client)
        bookie.commit()
        while ledger not in client.through:
            client.changed.clear()
            await client.changed.wait()
        times.append(time.perf_counter() - begun)
    return median(times)


def started(folders: list[Path], shape: tuple[int, int]) -> tuple[Bookie, list[list[DirectoryPlace]]]:
    """A bookie with so many journal and ledger directories on these folders, and its directories. Blocking."""
    places = []
    for kind, count in zip(("journal", "ledgers"), shape, strict=True):
        paths = [folders[at % len(folders)] / f"{kind}{at}" for at in range(count)]
        places.append([DirectoryPlace(SystemDisk(path), SystemDisk(path), str(path)) for path in paths])
    bookie = Bookie(
        *places,
        BookieSettings(free_bytes_min=0),
        bookie_id="b",
        instance="bench",
        rng=random.Random(1),
        clock=SystemClock(),
    )
    bookie.start()
    return bookie, places


async def one_round(folders: list[Path], shape: tuple[int, int], mib: int) -> tuple[float, float]:
    """(MB/s, seconds of a lone add) of a new bookie."""
    bookie, places = started(folders, shape)
    try:
        await store(bookie, [[(1, frame(1, 0, 1))]])
        for _ in range(3):  # spare segments
            bookie.tick()
            await asyncio.sleep(0.2)
        turns = max(1, mib * (1 << 20) // (LEDGERS // 8 * ENTRIES * ENTRY_BYTES))
        frames = [
            [
                (100 + ledger, frame(100 + ledger, turn // 8 * ENTRIES, ENTRIES))
                for ledger in range(turn % 8, LEDGERS, 8)
            ]
            for turn in range(turns)
        ]
        size = sum(len(one) for turn in frames for _, one in turn)
        took = await store(bookie, frames)
        return size / took / 1e6, await lone(bookie, 300)
    finally:
        bookie.close()
        for kind in places:
            for place in kind:
                shutil.rmtree(place.name, ignore_errors=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--mib", type=int, default=160, help="Written in each round and shape.")
    parser.add_argument(
        "--on", nargs="*", default=[], help="Folders, each on a disk of its own; else one temporary folder."
    )
    options = parser.parse_args()
    console = Console()
    rates: dict[tuple[int, int], list[float]] = {shape: [] for shape in SHAPES}
    waits: dict[tuple[int, int], list[float]] = {shape: [] for shape in SHAPES}
    with tempfile.TemporaryDirectory(prefix="heliograph-bench-") as scratch:
        folders = [Path(path) for path in options.on] or [Path(scratch)]
        for number in range(options.rounds):
            with console.status(f"round {number + 1} of {options.rounds}"):
                for shape in SHAPES:
                    rate, wait = asyncio.run(one_round(folders, shape, options.mib))
                    rates[shape].append(rate)
                    waits[shape].append(wait)
    for shape in SHAPES:
        rate = median(a / b for a, b in zip(rates[shape], rates[1, 1], strict=True))
        wait = median(a / b for a, b in zip(waits[shape], waits[1, 1], strict=True))
        shown = f"{median(rates[shape]):.0f} MB/s, lone add {median(waits[shape]) * 1e6:.0f} us"
        console.print(
            f"{shape[0]} journal and {shape[1]} ledger directories: {rate:.2f} x the bytes a second of 1:1, lone add "
            f"{wait:.2f} x ({shown})"
        )


if __name__ == "__main__":
    main()
