"""Very many topics in one region: made in bulk, listed, looked up, loaded; what they cost; how long the metadata takes
to come back.

Is: `python -m benchmarks.topics --topics 100000 --brokers 2`: real processes (one metadata node, two bookies, brokers)
on this machine. `--curve 1000,10000,100000,1000000`: an instance for each size, and a table of how each number grows.
Isn't: a benchmark of messages. Each number stands beside its target; the exit code is 1 where one is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from benchmarks.servers import Heliograph, rest
from benchmarks.steady_client import Steady
from heliograph.kv.metadata_client import ClientSettings, MetaClient
from heliograph.kv.metadata_store import prefix_end
from heliograph.model.configuration.configuration_records import RegionInfo
from heliograph.runtime.clock import SystemClock
from local_meta import keys
from region_node.topics.serving.bulk_creation import create_topics

NAMESPACE = "public/default"
PAGE = 1000
LEASE_S = 3.0


def name_of(number: int) -> str:
    return f"persistent://{NAMESPACE}/orders-of-customer-{number:07d}"


class Report:
    """Lines as they come; remembers what missed its target."""

    def __init__(self) -> None:
        self.missed: list[str] = []
        self.numbers: dict[str, float] = {}

    def say(self, what: str, value: float, unit: str, *, most: float | None = None, least: float | None = None) -> None:
        self.numbers[what] = value
        target = f"(target ≤ {most:g})" if most is not None else f"(target ≥ {least:g})" if least is not None else ""
        missed = (most is not None and value > most) or (least is not None and value < least)
        if missed:
            self.missed.append(what)
        print(f"{what:52} {value:12.2f} {unit:8} {target}{'  MISSED' if missed else ''}", flush=True)


class Pulse:
    """A process of its own that asks the metadata for a key again and again, and tells the longest answers when it is
    stopped.
    """

    def __init__(self, address: str) -> None:
        command = [sys.executable, "-m", "benchmarks.topics", "--pulse", address]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self._process.stdout.readline()

    def stop(self) -> list[float]:
        """Every answer's ms, sorted."""
        out, _ = self._process.communicate("")
        return sorted(json.loads(out))


async def pulse(address: str) -> None:
    """Measures what a read of the metadata takes until stdin ends, and prints a list of ms."""
    client = MetaClient([address], clock=SystemClock(), rng=random.Random(4), settings=ClientSettings(timeout_s=60))
    ended = asyncio.Event()
    asyncio.get_running_loop().add_reader(sys.stdin.fileno(), ended.set)
    await client.get(keys.INSTANCE)
    print(flush=True)
    took: list[float] = []
    while not ended.is_set():
        began = time.perf_counter()
        await client.get(keys.INSTANCE)
        took.append(1000 * (time.perf_counter() - began))
        await asyncio.sleep(0.005)
    client.close()
    print(json.dumps(took), flush=True)


def get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=60) as answer:
        return json.loads(answer.read())


def pss_mb(pid: int) -> float:
    return float(psutil.Process(pid).memory_full_info().pss) / 1e6


def anonymous_mb(pid: int) -> float:
    """Memory without a file behind it: what a process really costs; pages of a mapped file are a cache that the kernel
    takes back.
    """
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Anonymous:")) * 1024 / 1e6


def pids(server: Heliograph) -> dict[str, int]:
    return {row["name"]: row["pid"] for region in server.status()["regions"].values() for row in region["processes"]}


def names(count: int) -> Iterator[str]:
    return (name_of(number) for number in range(count))


async def metadata(address: str, count: int, report: Report) -> None:
    rng, clock = random.Random(1), SystemClock()
    client = MetaClient([address], clock=clock, rng=rng, settings=ClientSettings(timeout_s=60))
    await client.get(keys.INSTANCE)
    beat, began = Pulse(address), time.perf_counter()
    made = await create_topics(client, names(count), RegionInfo(name="standalone", number=1), rng)
    assert made == count
    report.say("topics made in bulk", count / (time.perf_counter() - began), "1/s")
    answers = beat.stop()
    report.say("read of a key meanwhile, p99", answers[99 * len(answers) // 100], "ms", most=50)
    report.say("read of a key meanwhile, longest", answers[-1], "ms", most=100)
    prefix, pages, seen = keys.managed_ledgers(NAMESPACE), list[float](), 0
    start = prefix
    while True:
        began = time.perf_counter()
        page = await client.range(start, prefix_end(prefix), limit=PAGE)
        pages.append(1000 * (time.perf_counter() - began))
        seen += len(page)
        if len(page) < PAGE:
            break
        start = page[-1][0] + "\0"
    assert seen == count
    report.say(f"page of {PAGE} topics, median", statistics.median(pages), "ms")
    beat, began, told = Pulse(address), time.perf_counter(), 0

    def count_it(key: str, value: bytes | None, version: int) -> None:
        nonlocal told
        told += 1

    client.watch(prefix, count_it)
    await client.synced(prefix)
    assert told == count
    report.say("a watch knows all topics after", time.perf_counter() - began, "s")
    report.say("read of a key during that listing, longest", beat.stop()[-1], "ms", most=100)
    client.close()


def serve(server: Heliograph, count: int, loads: int, report: Report, before_mb: float, admin: str) -> None:
    brokers = [pid for name, pid in pids(server).items() if "broker" in name]

    def memory_mb() -> float:
        return sum(pss_mb(pid) for pid in brokers)

    report.say(
        "memory of all brokers before any topic is loaded, more",
        memory_mb() - before_mb,
        "MB",
        most=max(2.0, 20 * count / 1e6),
    )
    rng = random.Random(2)
    chosen = [name_of(rng.randrange(count)) for _ in range(loads)]
    chosen = list(dict.fromkeys(chosen))
    looked: list[float] = []
    for name in chosen[:500]:
        began = time.perf_counter()
        get(f"{admin}/lookup/v2/topic/{name.replace('://', '/')}")
        looked.append(1000 * (time.perf_counter() - began))
    report.say("lookup over HTTP, median", statistics.median(looked), "ms")
    empty_mb, took, again = memory_mb(), list[float](), list[float]()
    for name in chosen:
        began = time.perf_counter()
        get(f"{admin}/admin/v2/{name.replace('://', '/')}/stats")
        took.append(1000 * (time.perf_counter() - began))
    for name in chosen[:500]:
        began = time.perf_counter()
        get(f"{admin}/admin/v2/{name.replace('://', '/')}/stats")
        again.append(1000 * (time.perf_counter() - began))
    report.say(
        "a topic loads in, median, without the HTTP around it",
        statistics.median(took) - statistics.median(again),
        "ms",
        most=5,
    )
    report.say("broker memory of a loaded idle topic", 1e6 * (memory_mb() - empty_mb) / len(chosen), "bytes", most=4096)
    busy = sum(sum(psutil.Process(pid).cpu_times()[:2]) for pid in brokers)
    time.sleep(5)
    busy = sum(sum(psutil.Process(pid).cpu_times()[:2]) for pid in brokers) - busy
    report.say("topics that are loaded", len(chosen), "")
    report.say("CPU of all brokers while they are idle", 100 * busy / 5, "% core")
    scrape(server, report)
    began = time.perf_counter()
    rest("PUT", f"{admin}/admin/v2/persistent/{NAMESPACE}/parted/partitions", 4096)
    report.say("a topic of 4,096 partitions made over REST", 1000 * (time.perf_counter() - began), "ms", most=1000)


def scrape(server: Heliograph, report: Report) -> None:
    """Each broker's /metrics, one after the other."""
    took, size = [], 0
    for row in next(iter(server.status()["regions"].values()))["processes"]:
        if row["role"] == "broker":
            began = time.perf_counter()
            with urllib.request.urlopen(f"http://127.0.0.1:{row['ports']['admin']}/metrics", timeout=60) as answer:
                size = max(size, len(answer.read()))
            took.append(time.perf_counter() - began)
    report.say("scrape of a broker's /metrics, the longest", max(took), "s", most=1)
    report.say("its size", size / 1e6, "MB")


async def at_random(server: Heliograph, count: int, samples: int, report: Report) -> None:
    """One message to each of some topics that nobody has used yet, by clients that have to find their broker first."""
    rng, took = random.Random(5), []
    for number in rng.sample(range(count), min(samples, count)):
        client = Steady(name_of(number), server.port, f"random-{number}", every_s=0.001)
        began = time.perf_counter()
        client.start()
        while not client.receipts:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        took.append(1000 * (time.perf_counter() - began))
        client.stop()
    if not took:
        return
    took.sort()
    report.say("connect, look up, and publish to a random topic, median", statistics.median(took), "ms", most=40)
    report.say("the same, p99", took[99 * len(took) // 100], "ms")


async def taken_over(server: Heliograph, count: int, report: Report) -> None:
    """The owner of a topic dies, with all those topics behind its bundles: until another broker has stored a
    message.
    """
    name = name_of(count // 2)
    admin = f"http://127.0.0.1:{server.regions['standalone'][1]}"
    port = int(get(f"{admin}/lookup/v2/topic/{name.replace('://', '/')}")["brokerUrl"].rpartition(":")[2])
    rows = next(iter(server.status()["regions"].values()))["processes"]
    owner = next(row["name"] for row in rows if row["role"] == "broker" and row["ports"]["service"] == port)
    client = Steady(name, server.port, "taken-over", every_s=0.01)
    client.start()
    while not client.receipts:  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    await asyncio.to_thread(server.process, "kill", owner)
    began, before = time.perf_counter(), client.receipts
    while client.receipts == before:  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    report.say(
        "a topic of a broker that was killed is published to again after",
        time.perf_counter() - began,
        "s",
        most=LEASE_S + 1,
    )
    client.stop()
    await asyncio.to_thread(server.process, "start", owner)


def come_back(server: Heliograph, report: Report) -> None:
    """A broker dies, and is started again: with all those topics behind it."""
    name = "standalone-broker-0"
    server.process("kill", name)
    began = time.perf_counter()
    server.process("start", name)
    report.say("a broker is ready again after its start", time.perf_counter() - began, "s", most=10)


def restart(server: Heliograph, address: str, count: int, report: Report) -> None:
    report.say("metadata memory", anonymous_mb(pids(server)["standalone-meta-0"]), "MB")
    report.say("metadata memory with the cache of its files", pss_mb(pids(server)["standalone-meta-0"]), "MB")
    for how in ("after a kill",):
        server.process("kill", "standalone-meta-0")
        began = time.perf_counter()
        server.process("start", "standalone-meta-0")
        asyncio.run(first_answer(address))
        report.say(f"metadata answers again, {how}", time.perf_counter() - began, "s", most=30)
    report.say("metadata memory after the restart", anonymous_mb(pids(server)["standalone-meta-0"]), "MB")
    report.say("metadata memory of a topic", 1e6 * anonymous_mb(pids(server)["standalone-meta-0"]) / count, "bytes")


async def first_answer(address: str) -> None:
    client = MetaClient([address], clock=SystemClock(), rng=random.Random(3), settings=ClientSettings(timeout_s=120))
    await client.get(keys.INSTANCE)
    client.close()


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="benchmarks.topics", description=__doc__.partition("\n\n")[0] if __doc__ else ""
    )
    parser.add_argument("--topics", type=int, default=100_000)
    parser.add_argument("--loads", type=int, default=3000, help="how many of them are loaded")
    parser.add_argument("--brokers", type=int, default=1)
    parser.add_argument(
        "--random", type=int, default=300, help="topics that get one message each, by clients of their own"
    )
    parser.add_argument("--curve", default="", help="numbers of topics, with commas: a table at the end")
    parser.add_argument("--pulse", default="", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.pulse:
        asyncio.run(pulse(chosen.pulse))
        return
    sizes = [int(part) for part in chosen.curve.split(",") if part] or [chosen.topics]
    reports: dict[int, Report] = {}
    try:
        for size in sizes:
            measured(size, chosen, reports.setdefault(size, Report()))
    finally:  # what was found is told, also where it was interrupted
        if len(sizes) > 1:
            table(reports)
    print(f"memory of this program: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3:.0f} MB")
    missed = [f"{what} at {size:,}" for size, report in reports.items() for what in report.missed]
    print("missed: " + ", ".join(missed) if missed else "every target was met")
    sys.exit(1 if missed else 0)


def table(reports: dict[int, Report]) -> None:
    """How each number grows with the number of topics."""
    print(f"\n{'topics':54}" + "".join(f"{size:>14,}" for size in reports))
    for what in dict.fromkeys(what for report in reports.values() for what in report.numbers):
        print(f"{what:54}" + "".join(f"{report.numbers.get(what, float('nan')):14.2f}" for report in reports.values()))


def measured(count: int, chosen: argparse.Namespace, report: Report) -> None:
    print(f"-- {count:,} topics, {chosen.brokers} broker(s)", flush=True)
    with tempfile.TemporaryDirectory(prefix="heliograph-topics-") as folder:
        server = Heliograph(Path(folder) / "data", brokers=chosen.brokers)
        try:
            plan = json.loads((server.data / "instance.json").read_text())
            address = f"127.0.0.1:{plan['regions'][0]['metadata']['ports']['meta']}"
            admin = f"http://127.0.0.1:{server.regions['standalone'][1]}"
            get(f"{admin}/admin/v2/namespaces/public")
            before_mb = sum(pss_mb(pid) for name, pid in pids(server).items() if "broker" in name)
            asyncio.run(metadata(address, count, report))
            serve(server, count, min(chosen.loads, count), report, before_mb, admin)
            if chosen.random:
                asyncio.run(at_random(server, count, chosen.random, report))
            if chosen.brokers > 1:
                asyncio.run(taken_over(server, count, report))
            come_back(server, report)
            restart(server, address, count, report)
        finally:
            server.stop()


if __name__ == "__main__":
    main()
