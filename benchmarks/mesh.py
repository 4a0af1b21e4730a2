"""`make bench-mesh`: full meshes of regions in simulation: how links, connections, bytes, and work grow with regions
and topics.

Is: whole regions in one process on virtual time (`geo_tests.sim.world`), every role production's; every region
publishes to every topic, and everything is in every region, in order, once (the world's own checkers say so, or it
raises). Isn't: a timing: what costs is counted in callbacks and processor time of all regions together. Memory is that
of a process of its own for each row, with clients, bookies, and what was published: it shows how it grows.
Real regions: `heliograph up --regions a,b,c,d,e`, `heliograph status`; their memory: `make bench-idle-links`.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import os
import sys
from collections.abc import Sequence
from itertools import combinations
from typing import NamedTuple

import psutil

from geo_tests.sim.pulsar_client import Delivered
from geo_tests.sim.world import World, WorldSettings
from region_node.process.broker_role import BrokerRole

CITIES = ("us", "eu", "ap", "sa", "af", "me", "in", "au", "ca", "jp", "uk", "kr")


class Counted(NamedTuple):
    links: int
    connections: int
    carried_kb: float
    rss: int


class Row(NamedTuple):
    """Holds the figures of one mesh. work: callbacks a message and region. memory: bytes that it took, of all regions
    together.
    """

    regions: int
    topics: int
    seen: Counted
    messages: int
    work: float
    cpu_s: float
    memory: int


class Mesh(World):
    """counted: once everything has arrived everywhere, before the clients go."""

    counted: Counted

    async def _read_everything(self) -> dict[str, dict[str, Sequence[Delivered]]]:
        brokers = [role for node in self.nodes() for role in node.roles if isinstance(role, BrokerRole)]
        links = sum(len(broker.links.stats()) for broker in brokers)
        connections = sum(broker.links.connections for broker in brokers)
        gc.collect()
        self.counted = Counted(
            links, connections, self.sim.network.bytes_carried / 1e3, psutil.Process().memory_info().rss
        )
        return await super()._read_everything()


def run(regions: int, topics: int, messages: int, seed: int) -> Mesh:
    """30 to 150 ms between any two regions."""
    names = CITIES[:regions]
    world = Mesh(
        seed,
        WorldSettings(regions=names, bookies=2, brokers=1, topics=topics, messages=messages, chaos_s=5.0, faults=0),
    )
    for at, (one, other) in enumerate(combinations(names, 2)):
        one_way = 0.015 + 0.060 * (at * 7 % 10) / 10
        world.sim.network.latency(one, other, one_way * 0.95, one_way * 1.15)
    world.run()
    return world


def measured(regions: int, topics: int, messages: int, seed: int) -> Row:
    """In a process that has done nothing before: what an earlier mesh has left would hide what this one takes."""
    before = psutil.Process().memory_info().rss
    world = run(regions, topics, messages, seed)
    verdict = world.verdict
    work = verdict.callbacks / max(1, verdict.messages * regions)
    return Row(regions, topics, world.counted, verdict.messages, work, verdict.cpu_s, world.counted.rss - before)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--regions", default="3,5,10", help=f"how many, with commas; at most {len(CITIES)}")
    parser.add_argument("--topics", default="1,4", help="how many, with commas")
    parser.add_argument("--messages", type=int, default=20, help="of each region to each topic")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if os.environ.get("PYTHONHASHSEED") != "0":
        os.execve(
            sys.executable,
            [sys.executable, "-m", "benchmarks.mesh", *sys.argv[1:]],
            {**os.environ, "PYTHONHASHSEED": "0"},
        )
    print(
        f"each region sends {options.messages} messages to each topic; all are in every region, once and in order, or "
        "this ends with a violation\n"
    )
    titles = (
        "regions",
        "topics",
        "links",
        "connections of links",
        "messages",
        "MB carried",
        "callbacks a message and region",
        "CPU s",
        "memory MB",
    )
    print("| " + " | ".join((*titles, "MB a region", "KiB more a further topic and link")) + " |")
    print("|" + "---|" * (len(titles) + 2))
    topics = sorted(int(part) for part in options.topics.split(","))
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        for regions in (int(part) for part in options.regions.split(",")):
            fewest: Row | None = None
            for row in pool.imap(
                _measured, [(regions, count, options.messages, options.seed) for count in topics], chunksize=1
            ):
                seen, more = row.seen, "-"
                if fewest is not None and seen.links > fewest.seen.links:
                    more = f"{(row.memory - fewest.memory) / 1024 / (seen.links - fewest.seen.links):.0f}"
                fewest = fewest or row
                counted = (
                    regions,
                    row.topics,
                    seen.links,
                    seen.connections,
                    row.messages,
                    f"{seen.carried_kb / 1e3:.1f}",
                    f"{row.work:.0f}",
                )
                columns = (
                    *counted,
                    f"{row.cpu_s:.1f}",
                    f"{row.memory / 1e6:.0f}",
                    f"{row.memory / 1e6 / regions:.1f}",
                    more,
                )
                print(f"| {' | '.join(map(str, columns))} |", flush=True)


def _measured(task: tuple[int, int, int, int]) -> Row:
    return measured(*task)


if __name__ == "__main__":
    main()
