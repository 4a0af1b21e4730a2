"""`python -m benchmarks.curve`: latency at rising rates of publishing, and the knee.

Is: a standalone with two bookies (both copies fsynced), one topic, one connection, 1 KB messages sent one by one at a
given pace, each step for three seconds; the time of each from when it was due to its receipt, so that a late sender
counts. The knee is the last rate that is kept up at a median of at most three times that of the lowest rate: the same
noise is in both. Isn't: what a region can take at most over many topics and brokers, or with batches.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from pathlib import Path

import uvloop
from rich.console import Console
from rich.table import Table

from benchmarks.raw_client import RawProducer, send_frames
from benchmarks.servers import Heliograph

TOPIC, SIZE = "persistent://public/default/curve", 1024
RATES = (500, 1000, 2000, 4000, 8000, 16_000, 32_000, 64_000, 96_000, 128_000)
_SECONDS, _FRAMES_MAX = 3.0, 150_000
_KEPT_UP, _FLAT = 0.95, 3.0


class Paced(RawProducer):
    """Sends each message when it is due, whatever has come back. `times`: perf_counter seconds of the receipts, in
    order.
    """

    def __init__(self, topic: str, name: str) -> None:
        super().__init__(topic, name, 1 << 30)
        self.times: list[float] = []

    def data_received(self, data: bytes) -> None:
        before = self.received
        super().data_received(data)
        self.times += [time.perf_counter()] * (self.received - before)

    async def pace(self, frames: list[bytes], rate: float) -> list[float]:
        """Seconds of each, from when it was due."""
        self.frames, self.sent, self.received, self.times = frames, len(frames), 0, []  # `_fill` has nothing to send
        self.done = asyncio.get_running_loop().create_future()
        sent, begun = 0, time.perf_counter()
        while sent < len(frames):
            due = min(len(frames), int((time.perf_counter() - begun) * rate) + 1)
            if due > sent:
                self.transport.writelines(frames[sent:due])
                sent = due
            await asyncio.sleep(min(0.001, 1 / rate))
        await asyncio.wait_for(self.done, 60)
        return [at - begun - number / rate for number, at in enumerate(self.times)]


async def run(port: int, console: Console) -> None:
    name = f"curve-{time.time_ns()}"
    _, producer = await asyncio.get_running_loop().create_connection(lambda: Paced(TOPIC, name), "127.0.0.1", port)
    await asyncio.wait_for(producer.ready, 30)
    at, knee, lowest = 0, 0, 0.0
    table = Table(title="1 KB messages one by one, two fsynced copies; ms from when each was due", title_justify="left")
    for column in ("messages/s", "kept up", "MB/s", "mean", "p50", "p99", "p99.9"):
        table.add_column(column, justify="right")
    for rate in (500, *RATES):  # the first one warms
        count = min(int(rate * _SECONDS), _FRAMES_MAX)
        frames = send_frames(name, at, count, bytes(SIZE))
        at += count
        took = await producer.pace(frames, rate)
        kept_up = min(1.0, (count / rate) / (count / rate + took[-1]))
        took.sort()
        p50 = took[count // 2]
        figures = (1e3 * sum(took) / count, 1e3 * p50, 1e3 * took[count * 99 // 100], 1e3 * took[count * 999 // 1000])
        if at > count:
            lowest = lowest or p50
            if kept_up >= _KEPT_UP and p50 <= _FLAT * lowest:
                knee = rate
            table.add_row(
                f"{rate:,}", f"{kept_up:.2f}", f"{rate * SIZE / 1e6:.1f}", *(f"{figure:.2f}" for figure in figures)
            )
        if kept_up < _KEPT_UP / 2:
            break
    producer.transport.abort()
    console.print(table)
    console.print(
        f"flat up to {knee:,} messages a second (wanted, on a disk that is fast: a mean below 5 ms, p99 below 15)"
    )


def main() -> None:
    argparse.ArgumentParser(description=__doc__.partition("\n\n")[0] if __doc__ else "").parse_args()
    with tempfile.TemporaryDirectory(prefix="heliograph-bench-") as scratch:
        server = Heliograph(Path(scratch) / "h")
        try:
            uvloop.run(run(server.port, Console(width=140)))
        finally:
            server.stop()


if __name__ == "__main__":
    main()
