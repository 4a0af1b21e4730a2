"""`python -m benchmarks.cold_drain`: what the drain of a cold backlog costs those who publish at the tail.

Is: a standalone with two bookies; a topic with a backlog that is neither in the broker's cache nor in the page cache;
windows of lone 1 KB publishes to another topic, every 5 ms, in turn: while nobody reads; while a reader in a process of
its own drains the cold backlog; and while it drains it again from the page cache. A window begins once the reader has
read something: a program's start is no drain. Ratios of p99 and p50. Isn't: a test of the bookie
alone: on few cores the work for the reader is in the figures too, which is why the third window is there: cold against
warm is what the disk does.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from rich.console import Console

from benchmarks.raw_client import RawProducer, blast, send_frames
from benchmarks.servers import Heliograph, rest

BACKLOG, TAIL = "persistent://public/default/cold", "persistent://public/default/tail"
ENTRY_BYTES = 64 << 10
PAUSE_S = 0.005
_DRAIN = """
import sys, time, pulsar
client = pulsar.Client(sys.argv[1], logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
reader = client.create_reader(sys.argv[2], pulsar.MessageId.earliest, receiver_queue_size=100)
reader.read_next(60000)
print("reads", flush=True)
end, read = time.monotonic() + float(sys.argv[3]), 0
while time.monotonic() < end:
    if not reader.has_message_available():
        reader.seek(pulsar.MessageId.earliest)
        continue
    read += len(reader.read_next(5000).data())
print(read, flush=True)
client.close()
"""


def make_cold(data: Path) -> int:
    """Drops entry logs and journals from the page cache; returns the bytes of entry logs."""
    size = 0
    for path in data.rglob("*"):
        if path.is_file() and path.name.startswith(("log-", "segment-")):
            size += path.stat().st_size if path.name.startswith("log-") else 0
            descriptor = os.open(path, os.O_RDONLY)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)
    return size


async def publish(port: int, seconds: float) -> list[float]:
    """Seconds that each lone publish took."""
    loop = asyncio.get_running_loop()
    name = f"tail-{time.time_ns()}"
    transport, producer = await loop.create_connection(lambda: RawProducer(TAIL, name, 1), "127.0.0.1", port)
    await producer.ready
    frames = send_frames(name, 0, int(seconds / PAUSE_S), bytes(1024))
    times = []
    end = loop.time() + seconds
    for frame in frames:
        if loop.time() > end:
            break
        begun = time.perf_counter()
        producer.start([frame])
        await producer.done
        times.append(time.perf_counter() - begun)
        await asyncio.sleep(PAUSE_S)
    transport.close()
    return times[20:]


def p99(times: list[float]) -> float:
    return sorted(times)[int(len(times) * 0.99)]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--mib", type=int, default=400, help="Of backlog.")
    parser.add_argument("--seconds", type=float, default=5.0, help="Of each window.")
    options = parser.parse_args()
    console = Console(width=140)
    quiet: list[list[float]] = []
    drained: list[list[float]] = []
    warm: list[list[float]] = []
    rates: list[float] = []
    with tempfile.TemporaryDirectory(prefix="heliograph-bench-") as scratch:
        server = Heliograph(Path(scratch) / "h")
        try:
            keep = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}  # nobody has a subscription to it
            rest(
                "POST",
                f"http://127.0.0.1:{next(iter(server.regions.values()))[1]}"
                "/admin/v2/namespaces/public/default/retention",
                keep,
            )
            with console.status("a backlog"):
                asyncio.run(blast(server.port, BACKLOG, ENTRY_BYTES, (options.mib << 20) // ENTRY_BYTES, 64))
                asyncio.run(publish(server.port, 1.0))
            for number in range(options.rounds):
                with console.status(f"round {number + 1} of {options.rounds}"):
                    size = make_cold(server.data)
                    quiet.append(asyncio.run(publish(server.port, options.seconds)))
                    command = [
                        sys.executable,
                        "-c",
                        _DRAIN,
                        f"pulsar://127.0.0.1:{server.port}",
                        BACKLOG,
                        str(options.seconds + 1),
                    ]
                    for windows in (drained, warm):
                        drain = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
                        assert drain.stdout is not None
                        drain.stdout.readline()  # its interpreter has started, and it reads
                        windows.append(asyncio.run(publish(server.port, options.seconds)))
                        rate = int(drain.communicate()[0]) / (options.seconds + 1) / 1e6
                        if windows is drained:
                            rates.append(rate)
        finally:
            server.stop()
    console.print(f"backlog of {size >> 20} MiB in entry logs, drained at {median(rates):.0f} MB/s")
    for what, some, others in (
        ("cold drain against none", drained, quiet),
        ("warm against none", warm, quiet),
        ("cold against warm", drained, warm),
    ):
        ratio99 = median(p99(a) / p99(b) for a, b in zip(some, others, strict=True))
        ratio50 = median(median(a) / median(b) for a, b in zip(some, others, strict=True))
        console.print(f"tail publish, {what}: p99 {ratio99:.2f} x, p50 {ratio50:.2f} x")
    console.print(
        f"(without a drain: p99 {median(map(p99, quiet)) * 1e3:.1f} ms, p50 {median(map(median, quiet)) * 1e3:.1f} ms)"
    )


if __name__ == "__main__":
    main()
