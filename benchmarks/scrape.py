"""What a scrape of a broker's metrics costs where very many topics are loaded: its wall time, its size, and how long it
holds others up.

Is: `python -m benchmarks.scrape --topics 100000`: real processes (one metadata node, two bookies, one broker) on this
machine; topics made in bulk, loaded over REST by several clients, some with a subscription. Isn't: a benchmark of
messages. Each number stands beside its target; the exit code is 1 where one is missed.

The held-up time is that of a small request (`/admin/v2/brokers/version`) that is asked again and again while the scrape
is made, less what it takes without one: that is the longest time for which the broker's loop did nothing else.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import sys
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path

import aiohttp
import psutil

from benchmarks.servers import Heliograph
from benchmarks.topics import Report, get, name_of, names, pids, pss_mb
from heliograph.kv.metadata_client import ClientSettings, MetaClient
from heliograph.model.configuration.configuration_records import RegionInfo
from heliograph.runtime.clock import SystemClock
from region_node.topics.serving.bulk_creation import create_topics

CLIENTS = 16
SCRAPES = 4
IDLE_S = 20.0
"""For so long nothing is asked of the broker: what it does then it does for topics on which nothing happens."""
KEPT_S = 12.0
"""Between two scrapes, so that each has another text."""


async def make(address: str, count: int) -> None:
    rng = random.Random(1)
    client = MetaClient([address], clock=SystemClock(), rng=rng, settings=ClientSettings(timeout_s=60))
    made = await create_topics(client, names(count), RegionInfo(name="standalone", number=1), rng)
    assert made == count
    client.close()


async def load(admin: str, count: int, subscribed: int) -> None:
    """Every topic once; every `subscribed`-th gets a subscription."""
    left = iter(range(count))
    began = time.perf_counter()

    async def one(session: aiohttp.ClientSession) -> None:
        for number in left:
            path = f"{admin}/admin/v2/{name_of(number).replace('://', '/')}"
            if number % subscribed:
                async with session.get(f"{path}/stats") as answer:
                    assert answer.status == 200, await answer.text()
            else:
                async with session.put(f"{path}/subscription/s") as answer:
                    assert answer.status == 204, await answer.text()
            if number % 10_000 == 9_999:
                print(f"  {number + 1} loaded after {time.perf_counter() - began:.0f} s", flush=True)

    async with aiohttp.ClientSession() as session:
        await asyncio.gather(*(one(session) for _ in range(CLIENTS)))


async def small_requests(admin: str, scraped: asyncio.Event | None, seconds: float) -> list[float]:
    """Milliseconds of each, until the scrape is made, or for so long."""
    took: list[float] = []
    async with aiohttp.ClientSession() as session:
        until = time.perf_counter() + seconds
        while not scraped.is_set() if scraped is not None else time.perf_counter() < until:
            began = time.perf_counter()
            async with session.get(f"{admin}/admin/v2/brokers/version") as answer:
                await answer.read()
            took.append(1000 * (time.perf_counter() - began))
            await asyncio.sleep(0.001)
    return took


async def scrape(admin: str) -> tuple[list[float], int, list[float]]:
    """(seconds of each scrape, bytes of the last, milliseconds of the small requests meanwhile)."""
    walls: list[float] = []
    meanwhile: list[float] = []
    size = 0
    async with aiohttp.ClientSession() as session:
        for _ in range(SCRAPES):
            await asyncio.sleep(KEPT_S)
            ended = asyncio.Event()
            asking = asyncio.create_task(small_requests(admin, ended, 0))
            began = time.perf_counter()
            async with session.get(f"{admin}/metrics") as answer:
                size = len(await answer.read())
            walls.append(time.perf_counter() - began)
            ended.set()
            meanwhile += await asking
    return walls, size, meanwhile


def idle_cpu(pid: int, *, settled_s: float = 15.0) -> float:
    """Share of a core that the broker takes while nobody asks anything of it."""
    time.sleep(settled_s)  # what loading has left behind
    process = psutil.Process(pid)
    before = process.cpu_times()
    time.sleep(IDLE_S)
    after = process.cpu_times()
    return (after.user + after.system - before.user - before.system) / IDLE_S


def series(admin: str, name: str) -> Sequence[str]:
    with urllib.request.urlopen(f"{admin}/metrics", timeout=60) as answer:
        return [line for line in answer.read().decode().splitlines() if line.startswith(f"{name}{{")]


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="benchmarks.scrape", description=__doc__.partition("\n\n")[0] if __doc__ else ""
    )
    parser.add_argument("--topics", type=int, default=100_000)
    parser.add_argument("--subscribed", type=int, default=10, help="one topic of so many has a subscription")
    chosen = parser.parse_args()
    report = Report()
    with tempfile.TemporaryDirectory(prefix="heliograph-scrape-") as folder:
        server = Heliograph(Path(folder) / "data")
        try:
            plan = json.loads((server.data / "instance.json").read_text())
            admin = f"http://127.0.0.1:{server.regions['standalone'][1]}"
            get(f"{admin}/admin/v2/namespaces/public")
            broker = pids(server)["standalone-broker-0"]
            before_mb, idle_before = pss_mb(broker), idle_cpu(broker, settled_s=2.0)
            asyncio.run(make(f"127.0.0.1:{plan['regions'][0]['metadata']['ports']['meta']}", chosen.topics))
            asyncio.run(load(admin, chosen.topics, chosen.subscribed))
            report.say("topics loaded", chosen.topics, "")
            report.say("broker memory of a loaded topic", 1e6 * (pss_mb(broker) - before_mb) / chosen.topics, "bytes")
            idle = idle_cpu(broker)
            report.say("the broker's CPU with no topic, nothing asked", 100 * idle_before, "% of a core")
            report.say(
                "the broker's CPU with all of them, nothing asked",
                100 * idle,
                "% of a core",
                most=100 * idle_before + 3,
            )
            quiet = asyncio.run(small_requests(admin, None, 2.0))
            walls, size, meanwhile = asyncio.run(scrape(admin))
            by_namespace = any(
                'namespace="public/default"' in line and "topic=" not in line
                for line in series(admin, "pulsar_topics_count")
            )
            report.say("a scrape, the first", walls[0], "s")
            report.say("a scrape, longest of the others", max(walls[1:]), "s", most=1.0)
            report.say("a scrape, median", statistics.median(walls), "s", most=1.0)
            report.say("its text", size / 1e6, "MB")
            report.say("it speaks of namespaces, not of topics", by_namespace, "")
            report.say("a small request without a scrape, median", statistics.median(quiet), "ms")
            report.say("a small request without a scrape, longest", max(quiet), "ms")
            report.say("a small request during one, longest", max(meanwhile), "ms", most=100 + max(quiet))
        except BaseException:
            print(
                "".join((server.data / "logs" / "standalone-broker-0.log").read_text().splitlines(keepends=True)[-30:])
            )
            raise
        finally:
            server.stop()
    print("missed: " + ", ".join(report.missed) if report.missed else "every target was met")
    sys.exit(1 if report.missed else 0)


if __name__ == "__main__":
    main()
