"""`make bench-failovers`: how long it takes to move every namespace of a region by one command, and what that costs.

    python -m benchmarks.failovers [--namespaces 200] [--topics 5] [--parallel 0] [--lost]

Regions us and eu, and ap for the majority, on this machine, a broker and two bookies each; every topic is loaded,
linked, and holds a message. First `heliograph dr switchover --region us --to eu`, then `heliograph dr failover` back,
while every process lives: what is measured is the steps, and no lease that has to end; with `--lost` every process
of eu is killed before. Seconds of each command by a clock on the wall, and of the processor by all processes of the
instance and by the command. Goal: 15 s for 200 namespaces of 5 topics on two cores with nothing else to do.
"""

from __future__ import annotations

import argparse
import json
import resource
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pulsar

from benchmarks.idle_links import cpu_seconds
from geo_tests.wan.instance import PROGRAM, Instance, eventually, heliograph, rest

REGIONS = ("us", "eu", "ap")
GOAL_S = 15.0
MAKERS = 8


def make(instance: Instance, name: str, topics: int, client: Any) -> None:
    """A namespace that is active in us, with that many topics, of a message each."""
    instance.namespace(name, ["us", "eu"])
    rest("PUT", f"{instance.admin('us')}/heliograph/v1/dr/{name}", {"active": "us"})
    for number in range(topics):
        producer = client.create_producer(f"persistent://{name}/t{number}")
        producer.send(b"x")
        producer.close()


def processes(instance: Instance) -> dict[str, int]:
    """Region and name -> process id."""
    return {
        f"{name}/{row['name']}": row["pid"]
        for name, region in instance.status()["regions"].items()
        for row in region["processes"]
    }


def moved(
    instance: Instance, kind: str, source: str, to: str, parallel: int
) -> tuple[dict[str, Any], dict[str, float]]:
    """The command's report, and the processor's seconds by process, of those that took some."""
    pids = {name: pid for name, pid in processes(instance).items() if pid and Path(f"/proc/{pid}/stat").exists()}
    before, own = {name: cpu_seconds(pid) for name, pid in pids.items()}, resource.getrusage(resource.RUSAGE_CHILDREN)
    many = ("--parallel", str(parallel)) if parallel else ()
    done = heliograph(
        "dr",
        kind,
        "--region",
        source,
        "--to",
        to,
        "--yes",
        "--json",
        "--admin",
        instance.admin(to),
        *many,
        check=False,
        program=PROGRAM,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cost = {name: cpu_seconds(pid) - before[name] for name, pid in pids.items()}
    cost["the command"] = after.ru_utime + after.ru_stime - own.ru_utime - own.ru_stime
    return json.loads(done.stdout), {name: seconds for name, seconds in cost.items() if seconds >= 0.05}


def lose(instance: Instance, region: str) -> None:
    for row in instance.status()["regions"][region]["processes"]:
        heliograph("process", "kill", row["name"], "--data", str(instance.data))


def can_move(instance: Instance, count: int, source: str, to: str) -> bool:
    plan = rest("GET", f"{instance.admin(to)}/heliograph/v1/dr/plan?kind=switchover&region={source}&to={to}")
    return sum(row["verdict"] == "moves" for row in plan["namespaces"]) == count


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.failovers", description=__doc__)
    parser.add_argument("--namespaces", type=int, default=200)
    parser.add_argument("--topics", type=int, default=5)
    parser.add_argument("--lost", action="store_true", help="every process of eu is killed before the failover")
    parser.add_argument("--parallel", type=int, default=0, help="0: as the command has it")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        instance = Instance(Path(folder) / "data", regions=REGIONS, wan="none")
        try:
            client = pulsar.Client(
                instance.state["regions"]["us"]["service_url"],
                operation_timeout_seconds=180,
                logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
            )
            instance.clients.append(client)
            names = [f"public/n{number:04}" for number in range(chosen.namespaces)]
            with ThreadPoolExecutor(MAKERS) as pool:
                list(pool.map(lambda name: make(instance, name, chosen.topics, client), names))
            print(f"{len(names)} namespaces of {chosen.topics} topics each", flush=True)
            for kind, source, to in (("switchover", "us", "eu"), ("failover", "eu", "us")):
                eventually(
                    lambda source=source, to=to: can_move(instance, len(names), source, to), f"all can move to {to}"
                )
                if chosen.lost and kind == "failover":
                    lose(instance, source)
                began = time.monotonic()
                report, cost = moved(instance, kind, source, to, chosen.parallel)
                took_s = time.monotonic() - began
                closed = sorted(row.get("closed_s", 0.0) for row in report["namespaces"])
                print(
                    f"{kind}: {took_s:.1f} s ({report['counts']}), closed for {closed[len(closed) // 2]:.1f} s in the "
                    f"middle, {closed[-1]:.1f} s at most; processor {sum(cost.values()):.1f} s: "
                    + ", ".join(
                        f"{name} {seconds:.1f}" for name, seconds in sorted(cost.items(), key=lambda one: -one[1])
                    ),
                    flush=True,
                )
            print(f"goal: {GOAL_S:.0f} s for 200 namespaces of 5 topics")
        finally:
            instance.down()


if __name__ == "__main__":
    main()
