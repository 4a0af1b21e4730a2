"""`make bench-mesh`: full meshes of regions in simulation: how links, connections, bytes, and work grow with regions and topics.

Is: whole regions in one process on virtual time (`geo_tests.sim.world`), every role production's; every region publishes to every topic, and everything is in
every region, in order, once (the world's own checkers say so, or it raises). Isn't: a timing: what costs is counted in callbacks and processor time of all
regions together. Real ones: `heliograph up --regions a,b,c,d,e`, `heliograph status`.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
from collections.abc import Sequence
from itertools import combinations
from typing import NamedTuple

import psutil

from geo_tests.sim.pulsar_client import Delivered
from geo_tests.sim.world import World, WorldSettings
from region_node.broker_role import BrokerRole

CITIES = ("us", "eu", "ap", "sa", "af", "me", "in", "au", "ca", "jp", "uk", "kr")


class Counted(NamedTuple):
    links: int
    connections: int
    carried_kb: float


class Mesh(World):
    """counted: once everything has arrived everywhere, before the clients go."""

    counted: Counted

    async def _read_everything(self) -> dict[str, dict[str, Sequence[Delivered]]]:
        brokers = [role for node in self.nodes() for role in node.roles if isinstance(role, BrokerRole)]
        links = sum(len(broker.links.stats()) for broker in brokers)
        connections = sum(broker.links.connections for broker in brokers)
        self.counted = Counted(links, connections, self.sim.network.bytes_carried / 1e3)
        return await super()._read_everything()


def run(regions: int, topics: int, messages: int, seed: int) -> tuple[Mesh, float]:
    """(the world, MB that it took). 30 to 150 ms between any two regions."""
    names = CITIES[:regions]
    gc.collect()
    before = psutil.Process().memory_info().rss
    world = Mesh(seed, WorldSettings(regions=names, bookies=2, brokers=1, topics=topics, messages=messages, chaos_s=5.0, faults=0))
    for at, (one, other) in enumerate(combinations(names, 2)):
        one_way = 0.015 + 0.060 * (at * 7 % 10) / 10
        world.sim.network.latency(one, other, one_way * 0.95, one_way * 1.15)
    world.run()
    return world, (psutil.Process().memory_info().rss - before) / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--regions", default="3,5,10", help=f"how many, with commas; at most {len(CITIES)}")
    parser.add_argument("--topics", default="1,4", help="how many, with commas")
    parser.add_argument("--messages", type=int, default=20, help="of each region to each topic")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if os.environ.get("PYTHONHASHSEED") != "0":
        os.execve(sys.executable, [sys.executable, "-m", "benchmarks.mesh", *sys.argv[1:]], {**os.environ, "PYTHONHASHSEED": "0"})
    print(f"each region sends {options.messages} messages to each topic; all are in every region, once and in order, or this ends with a violation\n")
    print("| regions | topics | links | connections of links | messages | MB carried | callbacks a message and region | CPU s | memory MB |")
    print("|---|---|---|---|---|---|---|---|---|")
    for regions in (int(part) for part in options.regions.split(",")):
        for topics in (int(part) for part in options.topics.split(",")):
            world, grown_mb = run(regions, topics, options.messages, options.seed)
            seen, verdict = world.counted, world.verdict
            work = verdict.callbacks / max(1, verdict.messages * regions)
            columns = (regions, topics, seen.links, seen.connections, verdict.messages, f"{seen.carried_kb / 1e3:.1f}", f"{work:.0f}", f"{verdict.cpu_s:.1f}")
            print(f"| {' | '.join(map(str, columns))} | {grown_mb:.0f} |", flush=True)


if __name__ == "__main__":
    main()
