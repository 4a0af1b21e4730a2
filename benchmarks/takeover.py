"""`make bench-takeover`: how long topics are away when their broker is killed, and when it hands them over.

Is: a standalone with two brokers and two bookies; the owner of a namespace with one bundle is killed (SIGKILL) or asked
to unload.
Cases (`--case`): `kill`: one topic after a kill, beyond the lease. `move`: one topic that is moved on purpose, as a
publisher sees it. `many`: many topics on one broker, some of them published to: until the bundle has its next owner,
until each of those topics has stored a message again, and what the first message to one of the others takes; with what
a topic costs in memory and processor time, and how long /metrics takes. `--curve 1000,10000,40000`: for each.
Isn't: a test; the promises stand beside the figures.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
import time
import urllib.request
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import psutil
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
        port = int(
            rest("GET", f"{self.url}/lookup/v2/topic/persistent/{NAMESPACE}/{topic}")["brokerUrl"].rpartition(":")[2]
        )
        return self._brokers()[port], port

    def pid(self, process: str) -> int:
        return int(next(row["pid"] for row in self._rows() if row["name"] == process))

    def scrape(self, process: str) -> float:
        """Measures how many seconds /metrics takes."""
        port = next(row["ports"]["admin"] for row in self._rows() if row["name"] == process)
        begun = time.perf_counter()
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
            answer.read()
        return time.perf_counter() - begun

    def other(self, port: int) -> int:
        return next(each for each in self._brokers() if each != port)

    def unload(self) -> None:
        rest("PUT", f"{self.url}/admin/v2/namespaces/{NAMESPACE}/unload")

    def both_ready(self) -> None:
        while len(self._brokers()) < 2:
            time.sleep(0.1)

    def _rows(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = next(iter(self.server.status()["regions"].values()))["processes"]
        return rows

    def _brokers(self) -> dict[int, str]:
        return {
            row["ports"]["service"]: row["name"] for row in self._rows() if row["role"] == "broker" and row["ready"]
        }


async def connected(topics: list[str], port: int, *, window: int = 1) -> ManyProducers:
    """Producers on all `topics` at the broker on `port`; tries again until it owns them."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + 120
    while True:
        try:
            _, made = await loop.create_connection(
                lambda: ManyProducers(topics, f"t-{time.time_ns()}", window, 100), "127.0.0.1", port
            )
            await made.ready
            return made
        except OSError:
            if loop.time() > deadline:
                raise
            await asyncio.sleep(0.005)


def names(prefix: str, count: int) -> list[str]:
    return [f"persistent://{NAMESPACE}/{prefix}-{number}" for number in range(count)]


class Cost(NamedTuple):
    """Holds what a broker's loaded topics cost; the last three are measured after its death."""

    load_s: float
    kib_each: float
    idle_cpu: float
    scrape_s: float
    bundle_s: float
    active_s: float
    first_use_ms: list[float]


def memory(pid: int) -> int:
    pss: int = psutil.Process(pid).memory_full_info().pss
    return pss


def cpu_s(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


async def at_work(topics: list[str], port: int, connections: int) -> None:
    """A message to each, by clients that come all at once; each connection opens its producers one after the other."""

    async def one(mine: list[str]) -> None:
        producers = await connected(mine, port)
        producers.start(len(mine))
        await producers.done
        producers.transport.abort()

    await asyncio.gather(*(one(mine) for at in range(connections) if (mine := topics[at::connections])))


async def load(topics: list[str], port: int, console: Console) -> None:
    """Publishes a message to each topic."""
    with console.status(f"loading {len(topics):,} topics"):
        for start in range(0, len(topics), 1000):
            producers = await connected(topics[start : start + 1000], port)
            producers.start(len(producers.topics))
            await producers.done
            producers.transport.abort()


async def many(region: Region, loaded: int, active: int, connections: int, samples: int, console: Console) -> Cost:
    """`loaded` topics on one broker, `active` of them at work over so many connections; then it is killed."""
    topics = names(f"k{time.time_ns()}", loaded)
    process, port = region.owner(topics[0].rpartition("/")[2])
    pid = region.pid(process)
    before, begun = memory(pid), time.perf_counter()
    await load(topics, port, console)
    load_s = time.perf_counter() - begun
    kib_each = (memory(pid) - before) / loaded / 1024
    idle = cpu_s(pid)
    await asyncio.sleep(10)
    idle = (cpu_s(pid) - idle) / 10
    scrape_s = await asyncio.to_thread(region.scrape, process)
    other = region.other(port)
    clients = [await connected(mine, port) for at in range(connections) if (mine := topics[:active][at::connections])]
    await asyncio.to_thread(region.server.process, "kill", process)
    begun = time.perf_counter()
    for client in clients:  # who was at work there
        client.transport.abort()
    first = await connected(topics[:1], other)
    bundle_s = time.perf_counter() - begun
    first.transport.abort()
    await at_work(topics[:active], other, connections)
    active_s = time.perf_counter() - begun
    uses = []
    for topic in topics[active :: max(1, (loaded - active) // samples)][:samples]:
        at = time.perf_counter()
        one = await connected([topic], other)
        one.start(1)
        await one.done
        uses.append(1000 * (time.perf_counter() - at))
        one.transport.abort()
    await asyncio.to_thread(region.server.process, "start", process)
    await asyncio.to_thread(region.both_ready)
    return Cost(load_s, kib_each, idle, scrape_s, bundle_s, active_s, sorted(uses))


async def after_kill(region: Region, console: Console) -> float:
    """Seconds from SIGKILL of its owner until a topic has stored another message."""
    topics = names(f"k{time.time_ns()}", 1)
    process, port = region.owner(topics[0].rpartition("/")[2])
    await load(topics, port, console)
    other = region.other(port)
    await asyncio.to_thread(region.server.process, "kill", process)
    begun = time.perf_counter()
    await at_work(topics, other, 1)
    seconds = time.perf_counter() - begun
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

    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--case", choices=("all", "move", "kill", "many"), default="all")
    parser.add_argument("--curve", default="", help="numbers of topics of the last case, with commas")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--topics", type=int, default=10_000, help="loaded on one broker in the last case")
    parser.add_argument("--active", type=int, default=1000, help="of them, published to again after the kill")
    parser.add_argument("--connections", type=int, default=20, help="of the clients that do so")
    options = parser.parse_args()
    console = Console(width=140)
    os.environ["HELIOGRAPH_BROKER__BALANCE"] = (
        '{"shedding": {"moves_per_minute": 0}}'  # the other broker gets nothing before its time
    )
    with tempfile.TemporaryDirectory(prefix="heliograph-bench-") as scratch:
        server = Heliograph(Path(scratch) / "h", brokers=2)
        try:
            region = Region(server)
            if options.case in ("all", "move"):
                client = pulsar.Client(
                    f"pulsar://127.0.0.1:{server.port}", logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
                )
                moves = [moved(region, client) for _ in range(options.rounds)]
                client.close()
                times = f"median {median(moves) * 1e3:.0f} ms, worst {max(moves) * 1e3:.0f} ms"
                console.print(f"planned move, longest time between two receipts: {times} (at most 1,000)")
            if options.case in ("all", "kill"):
                kills = [asyncio.run(after_kill(region, console)) for _ in range(options.rounds)]
                console.print(
                    f"one topic after SIGKILL of its broker: median {median(kills):.2f} s, worst {max(kills):.2f} s; "
                    f"the lease is {LEASE_S:.0f} s"
                    f" (at most {LEASE_S + 1:.0f} s)"
                )
            for count in (
                [int(part) for part in options.curve.split(",") if part] or [options.topics]
                if options.case in ("all", "many")
                else []
            ):
                cost = asyncio.run(
                    many(region, count, min(options.active, count // 2), options.connections, 200, console)
                )
                uses = cost.first_use_ms
                console.print(
                    f"{count:,} topics on a broker: {cost.kib_each:.1f} KiB each, loaded at "
                    f"{count / cost.load_s:,.0f}/s, {cost.idle_cpu:.1%} of a core while"
                    f" idle, /metrics in {cost.scrape_s:.2f} s (at most 1); it is killed: the bundle is away for "
                    f"{cost.bundle_s:.1f} s"
                    f" (at most {LEASE_S + 1:.0f}), {min(options.active, count // 2):,} topics serve again after "
                    f"{cost.active_s:.1f} s (at most 10), the first"
                    f" message to another takes {uses[len(uses) // 2]:.0f} ms, p99 "
                    f"{uses[-max(1, len(uses) // 100)]:.0f} ms (at most 20)"
                )
        finally:
            server.stop()


if __name__ == "__main__":
    main()
