"""`make bench-takeover`: how long topics are away when their broker is killed, and when it hands them over.

Is: a standalone with two brokers and two bookies; the owner of a namespace with one bundle is killed (SIGKILL) or asked to unload.
Cases: one topic after a kill, beyond the lease; one topic that is moved on purpose, as a publisher sees it; many topics on one broker, of which some
are published to: until each of those has stored a message again.
Isn't: a test; the promises stand beside the figures.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console

from benchmarks.many_client import ManyProducers
from benchmarks.servers import Heliograph, rest

LEASE_S = 3.0
NAMESPACE = "public/one"


class Region:
    """The standalone, and who owns the namespace's bundle."""

    def __init__(self, server: Heliograph) -> None:
        self.server = server
        self.url = f"http://127.0.0.1:{next(iter(server.regions.values()))[1]}"
        rest("PUT", f"{self.url}/admin/v2/namespaces/{NAMESPACE}", {"bundles": {"numBundles": 1}})

    def owner(self, topic: str) -> tuple[str, int]:
        """(process, port) of the broker that serves `topic`."""
        port = int(rest("GET", f"{self.url}/lookup/v2/topic/persistent/{NAMESPACE}/{topic}")["brokerUrl"].rpartition(":")[2])
        return self._brokers()[port], port

    def other(self, port: int) -> int:
        return next(each for each in self._brokers() if each != port)

    def unload(self) -> None:
        rest("PUT", f"{self.url}/admin/v2/namespaces/{NAMESPACE}/unload")

    def both_ready(self) -> None:
        while len(self._brokers()) < 2:
            time.sleep(0.1)

    def _brokers(self) -> dict[int, str]:
        rows = next(iter(self.server.status()["regions"].values()))["processes"]
        return {row["ports"]["service"]: row["name"] for row in rows if row["role"] == "broker" and row["ready"]}


async def connected(topics: list[str], port: int, *, window: int = 1) -> ManyProducers:
    """Producers on all `topics` at the broker on `port`; tries again until it owns them."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + 120
    while True:
        try:
            _, made = await loop.create_connection(lambda: ManyProducers(topics, f"t-{time.time_ns()}", window, 100), "127.0.0.1", port)
            await made.ready
            return made
        except OSError:
            if loop.time() > deadline:
                raise
            await asyncio.sleep(0.005)


def names(prefix: str, count: int) -> list[str]:
    return [f"persistent://{NAMESPACE}/{prefix}-{number}" for number in range(count)]


async def after_kill(region: Region, loaded: int, active: int, console: Console) -> float:
    """Seconds from SIGKILL of the owner until each of `active` of its `loaded` topics has stored another message."""
    topics = names(f"k{time.time_ns()}", loaded)
    process, port = region.owner(topics[0].rpartition("/")[2])
    with console.status(f"loading {loaded:,} topics"):
        for start in range(0, loaded, 1000):
            producers = await connected(topics[start : start + 1000], port)
            producers.start(len(producers.topics))
            await producers.done
            producers.transport.abort()
    other = region.other(port)
    await asyncio.to_thread(region.server.process, "kill", process)
    begun = time.perf_counter()
    producers = await connected(topics[:active], other)
    producers.start(active)
    await producers.done
    seconds = time.perf_counter() - begun
    producers.transport.abort()
    await asyncio.to_thread(region.server.process, "start", process)
    await asyncio.to_thread(region.both_ready)
    return seconds


def moved(region: Region, client: Any) -> float:
    """The longest time between two receipts of a publisher while the bundle is unloaded."""
    topic = names(f"m{time.time_ns()}", 1)[0]
    producer = client.create_producer(topic, batching_enabled=False, block_if_queue_full=True)
    receipts: list[float] = []
    for step in range(400):
        if step == 100:
            region.unload()
        producer.send_async(b"x" * 100, lambda _result, _id: receipts.append(time.perf_counter()))
        time.sleep(0.005)
    producer.flush()
    producer.close()
    return max(b - a for a, b in pairwise(receipts))


def main() -> None:
    import pulsar

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--topics", type=int, default=10_000, help="loaded on one broker in the last case")
    parser.add_argument("--active", type=int, default=1000, help="of them, published to again after the kill")
    options = parser.parse_args()
    console = Console(width=140)
    with tempfile.TemporaryDirectory(prefix="heliograph-bench-") as scratch:
        server = Heliograph(Path(scratch) / "h", brokers=2)
        try:
            region = Region(server)
            client = pulsar.Client(f"pulsar://127.0.0.1:{server.port}", logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
            moves = [moved(region, client) for _ in range(options.rounds)]
            client.close()
            times = f"median {median(moves) * 1e3:.0f} ms, worst {max(moves) * 1e3:.0f} ms"
            console.print(f"planned move, longest time between two receipts: {times} (at most 1,000)")
            kills = [asyncio.run(after_kill(region, 1, 1, console)) for _ in range(options.rounds)]
            console.print(
                f"one topic after SIGKILL of its broker: median {median(kills):.2f} s, worst {max(kills):.2f} s; the lease is {LEASE_S:.0f} s"
                f" (at most {LEASE_S + 1:.0f} s)"
            )
            seconds = asyncio.run(after_kill(region, options.topics, options.active, console))
            console.print(f"{options.topics:,} topics on a killed broker: {options.active:,} of them serve again after {seconds:.1f} s (at most 10)")
        finally:
            server.stop()


if __name__ == "__main__":
    main()
