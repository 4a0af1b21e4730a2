"""What many idle replicated topics cost: processor time and memory of each broker, and how many connections the regions
have between them.

    python -m benchmarks.idle_links [--topics 10000] [--seconds 20] [--regions us,eu,ap]

Regions on this machine, one broker each; every topic exists, is loaded, and is linked to all other regions; nothing is
published meanwhile.
The floor is the same instance before there was a topic: what the processes cost anyway. Goal: 5 % of a core for all
links of one broker.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path

import psutil
import pulsar

from geo_tests.wan.instance import Instance, rest

NAMESPACE = "public/idle"
PER_TOPIC = 250


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def brokers(instance: Instance) -> dict[str, int]:
    """Region -> process id of its broker."""
    regions = instance.status()["regions"]
    return {
        name: next(row["pid"] for row in region["processes"] if "broker" in row["name"])
        for name, region in regions.items()
    }


def share(pids: dict[str, int], seconds: float) -> dict[str, float]:
    """Region -> share of a core."""
    before, began = {name: cpu_seconds(pid) for name, pid in pids.items()}, time.monotonic()
    time.sleep(seconds)
    took = time.monotonic() - began
    return {name: (cpu_seconds(pid) - before[name]) / took for name, pid in pids.items()}


def settled(pids: dict[str, int]) -> float:
    """Seconds until the brokers' load has been at its lowest for half a minute: links are made, snapshots written, what
    was allocated is looked through.
    """
    began, lowest, calm, near = time.monotonic(), float("inf"), 0, 0.01 * len(pids)
    while calm < 3 and time.monotonic() < began + 300:
        now = sum(share(pids, 10.0).values())
        calm = calm + 1 if lowest - near < now < lowest + near else 0
        lowest = min(lowest, now)
    return time.monotonic() - began


def memory_mb(pid: int) -> float:
    """Its own, and its part of what it shares."""
    return float(psutil.Process(pid).memory_full_info().pss) / 1e6


def link_connections(pid: int, ports: set[int]) -> int:
    """Established connections of a process to other regions' link ports."""
    inodes = {
        os.readlink(f)[8:-1]
        for f in Path(f"/proc/{pid}/fd").iterdir()
        if f.exists() and os.readlink(f).startswith("socket:")
    }
    count = 0
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        count += fields[3] == "01" and int(fields[2].rsplit(":")[1], 16) in ports and fields[9] in inodes
    return count


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.idle_links", description=__doc__)
    parser.add_argument("--topics", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--regions", default="us,eu,ap", help="their names, with commas")
    chosen = parser.parse_args()
    regions = chosen.regions.split(",")
    with tempfile.TemporaryDirectory() as folder:
        near = {"rtt_ms": 1}
        wan = Path(folder) / "wan.json"
        wan.write_text(json.dumps({f"{a}-{b}": near for i, a in enumerate(regions) for b in regions[i + 1 :]}))
        instance = Instance(Path(folder) / "data", regions=regions, wan=str(wan))
        try:
            first = regions[0]
            instance.namespace(NAMESPACE, regions, deduplication=False)
            pids = brokers(instance)
            floor = share(pids, chosen.seconds)
            empty = {name: memory_mb(pid) for name, pid in pids.items()}
            client = pulsar.Client(
                instance.state["regions"][first]["service_url"],
                operation_timeout_seconds=180,
                logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
            )
            instance.clients.append(client)
            for start in range(0, chosen.topics, PER_TOPIC):
                count = min(PER_TOPIC, chosen.topics - start)
                topic = f"persistent://{NAMESPACE}/t{start}"
                rest("PUT", f"{instance.admin(first)}/admin/v2/persistent/{NAMESPACE}/t{start}/partitions", count)
                producer = client.create_producer(topic, send_timeout_millis=0)
                for _ in range(count):  # round robin: each partition gets one
                    producer.send_async(b"x", lambda *_: None)
                producer.flush()
                producer.close()
                print(f"{start + count} topics", flush=True)
            ports = {
                int(p.listen.rsplit(":", 1)[1])
                for name, p in instance.server.proxies().items()
                if name.startswith("link.")
            }
            print(
                f"settled after {settled(pids):.0f} s: what a topic costs after its last message is no cost of an "
                "idle one",
                flush=True,
            )
            found = share(pids, chosen.seconds)
            columns = (
                f"{'idle, no topic':>15} {'with topics':>12} {'of a core for links':>20} {'connections out':>16} "
                f"{'MB':>7} {'KiB a topic and link':>21}"
            )
            print(f"{'region':8} {columns}")
            for name in regions:
                cost, grown_mb = found[name] - floor[name], memory_mb(pids[name]) - empty[name]
                kib = grown_mb * 1e6 / 1024 / chosen.topics / (len(regions) - 1)
                print(
                    f"{name:8} {floor[name]:15.1%} {found[name]:12.1%} {cost:20.1%} "
                    f"{link_connections(pids[name], ports):16} {grown_mb:7.0f} {kib:21.1f}"
                )
            print(
                f"goal: 5 % of a core for {chosen.topics} topics; here {max(found[n] - floor[n] for n in regions):.1%}"
            )
        finally:
            instance.down()


if __name__ == "__main__":
    main()
