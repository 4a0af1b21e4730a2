"""Chaos: five real regions, everything between and in them broken in turn while all of them publish, and a checker of
the whole history.

    python -m geo_tests.wan.chaos [--minutes 5] [--seed 1] [--regions us,eu,ap,sa,za] [--kinds cut,kill-broker]

Each of `KINDS` is one way to break something: begun somewhere by chance, held for a few seconds under load, ended (a
network heals, a process comes back), and then every link must have caught up without anybody's help within PATIENCE_S.
While a link is cut, what its source says is at risk is compared with what was published and has not arrived
(`geo_tests.wan.risk`). In the end: in each region, each message that was acknowledged anywhere is there once, in the
order of its producer; and what every link says is at risk is nothing. Exits with 1, and says what, where that is not
so.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from geo_tests.wan.instance import Instance, eventually, heliograph, rest
from geo_tests.wan.risk import Link, Risk
from geo_tests.wan.streams import Stream, missing

PATIENCE_S = 120.0
HOLD_S = 4.0
NAMESPACE = "public/chaos"
TOPIC = f"persistent://{NAMESPACE}/t"
RISK_EVERY_S = 1.0
Heal = Callable[[], object]
Where = Callable[[], tuple[str, list[Link]]]


class Chaos:
    """One instance under faults. `events`: (kind, where, seconds until every link had caught up). `compared`: numbers
    of risk that were looked at.
    """

    def __init__(self, instance: Instance, regions: Sequence[str], seed: int) -> None:
        self.instance, self.regions, self.rng = instance, list(regions), random.Random(seed)
        self.events: list[tuple[str, str, float]] = []
        instance.namespace(NAMESPACE, self.regions)
        self.streams = [Stream(instance, region, TOPIC) for region in self.regions]
        self.cut_links: list[Link] = []
        self.wrong: list[str] = []
        self.compared = 0

    # -- where ---------------------------------------------------------------------------------------------------------

    def edge(self) -> tuple[str, list[Link]]:
        source, target = self.rng.sample(self.regions, 2)
        return f"{source}-{target}", [(source, target)]

    def pair(self) -> tuple[str, list[Link]]:
        a, b = self.rng.sample(self.regions, 2)
        return f"{a}-{b}", [(a, b), (b, a)]

    def around(self) -> tuple[str, list[Link]]:
        region = self.rng.choice(self.regions)
        return region, [
            link for other in self.regions if other != region for link in ((region, other), (other, region))
        ]

    def proxies(self, links: list[Link]) -> list[Any]:
        return [proxy for link in links for proxy in self.instance.proxies("link", *link)]

    def process(self, role: str) -> tuple[str, int]:
        rows = self.instance.status()["regions"][self.rng.choice(self.regions)]["processes"]
        found = self.rng.choice([row for row in rows if role in row["name"] and row["pid"]])
        return found["name"], found["pid"]

    # -- how -----------------------------------------------------------------------------------------------------------

    def toxic(self, where: Where, kind: str, stream: str, **attributes: int) -> tuple[str, Heal]:
        name, links = where()
        proxies = self.proxies(links)
        for proxy in proxies:
            proxy.add_toxic(name=f"chaos_{kind}", type=kind, stream=stream, attributes=attributes)
        return name, lambda: [
            proxy.get_toxic(f"chaos_{kind}") and proxy.destroy_toxic(f"chaos_{kind}") for proxy in proxies
        ]

    def cut(self, where: Where) -> tuple[str, Heal]:
        name, self.cut_links = where()
        proxies = self.proxies(self.cut_links)
        for proxy in proxies:
            self.instance.toxiproxy.cut(proxy.name)
        return name, lambda: [self.instance.toxiproxy.heal(proxy.name) for proxy in proxies]

    def flap(self) -> tuple[str, Heal]:
        name, links = self.pair()
        proxies = self.proxies(links)
        for _ in range(5):
            for proxy in proxies:
                self.instance.toxiproxy.cut(proxy.name)
            for proxy in proxies:
                self.instance.toxiproxy.heal(proxy.name)
        return name, lambda: None

    def kill(self, role: str) -> tuple[str, Heal]:
        name, _ = self.process(role)
        heliograph("process", "kill", name, "--data", str(self.instance.data))
        return name, lambda: heliograph("process", "start", name, "--data", str(self.instance.data))

    def stop(self, role: str) -> tuple[str, Heal]:
        name, pid = self.process(role)
        os.kill(pid, signal.SIGSTOP)
        return name, lambda: os.kill(pid, signal.SIGCONT)

    def unload(self) -> tuple[str, Heal]:
        region = self.rng.choice(self.regions)
        rest("PUT", f"{self.instance.admin(region)}/admin/v2/persistent/{NAMESPACE}/t/unload")
        return region, lambda: None

    def topology(self, kind: str) -> tuple[str, Heal]:
        order = self.rng.sample(self.regions, len(self.regions))
        value = {"kind": kind, "regions": order, "center": order[0]}
        rest("POST", f"{self.instance.admin(order[0])}/admin/v2/namespaces/{NAMESPACE}/replicationTopology", value)
        return f"{kind} {'-'.join(order)}", lambda: None

    def topology_and_cut(self) -> tuple[str, Heal]:
        first, _ = self.topology(self.rng.choice(("chain", "star", "ring")))
        name, heal = self.cut(self.edge)
        return f"{first}, {name} cut", heal

    # -- a run ---------------------------------------------------------------------------------------------------------

    def load(self, seconds: float, risk: Risk | None = None) -> None:
        """Publishes everywhere. risk: is looked at meanwhile."""
        until, look = time.monotonic() + seconds, time.monotonic()
        while time.monotonic() < until:
            if risk is not None and time.monotonic() >= look:
                risk.sample()
                look = time.monotonic() + RISK_EVERY_S
            for stream in self.streams:
                if stream.sent - stream.acked < 400:
                    stream.publish(5)
            time.sleep(0.02)  # the rate of the load, not a wait for anything

    def caught_up(self) -> bool:
        rows = self.instance.links(TOPIC)
        return len(rows) == len(self.regions) * (len(self.regions) - 1) and all(
            row["connected"] and not row["backlog_messages"] for row in rows.values()
        )

    def settle(self) -> None:
        """Something is published everywhere, and has arrived everywhere."""
        self.load(0.1)
        for stream in self.streams:
            stream.finish()
        eventually(self.caught_up, "every link is up and has nothing left", PATIENCE_S)

    def one(self, kind: str) -> None:
        self.cut_links, risk = [], Risk(self.instance, TOPIC, {stream.region: stream for stream in self.streams})
        where, heal = KINDS[kind](self)
        try:
            if self.cut_links:
                risk.begin(self.cut_links)
                self.load(HOLD_S, risk)
                wrong, compared = risk.verdict()
                self.wrong += [f"{kind} at {where}: {what}" for what in wrong]
                self.compared += compared
            else:
                self.load(HOLD_S)
        finally:
            heal()
        began = time.monotonic()
        for stream in self.streams:
            stream.finish()
        eventually(self.caught_up, f"every link has caught up after {kind} at {where}", PATIENCE_S)
        self.events.append((kind, where, time.monotonic() - began))
        sent = ", ".join(f"{stream.region} {stream.sent}" for stream in self.streams)
        print(f"{kind:22} {where:34} caught up in {self.events[-1][2]:5.1f} s; sent so far: {sent}", flush=True)

    def check(self) -> list[str]:
        """What is wrong with what the regions hold, and what was with what they said meanwhile."""
        wrong = list(self.wrong)
        for region in self.regions:
            copy = self.instance.read_all(region, TOPIC)
            for stream in self.streams:
                if what := missing(stream, copy):
                    wrong.append(f"{stream.region}'s messages in {region}: {what}")
        return wrong


KINDS: dict[str, Callable[[Chaos], tuple[str, Heal]]] = {
    "latency": lambda c: c.toxic(c.pair, "latency", "downstream", latency=300, jitter=100),
    "latency-up": lambda c: c.toxic(c.edge, "latency", "upstream", latency=500, jitter=400),
    "bandwidth": lambda c: c.toxic(c.pair, "bandwidth", "upstream", rate=20),
    "bandwidth-back": lambda c: c.toxic(c.edge, "bandwidth", "downstream", rate=1),
    "slicer": lambda c: c.toxic(c.pair, "slicer", "upstream", average_size=40, size_variation=20, delay=100),
    "slicer-back": lambda c: c.toxic(c.edge, "slicer", "downstream", average_size=3, size_variation=2, delay=50),
    "black-hole": lambda c: c.toxic(c.edge, "timeout", "upstream", timeout=0),
    "lost-receipts": lambda c: c.toxic(c.edge, "timeout", "downstream", timeout=0),
    "closed-late": lambda c: c.toxic(c.edge, "timeout", "upstream", timeout=1500),
    "reset": lambda c: c.toxic(c.pair, "reset_peer", "upstream", timeout=0),
    "reset-later": lambda c: c.toxic(c.edge, "reset_peer", "downstream", timeout=700),
    "slow-close": lambda c: c.toxic(c.pair, "slow_close", "upstream", delay=2000),
    "limit-data": lambda c: c.toxic(c.edge, "limit_data", "upstream", bytes=30_000),
    "limit-data-back": lambda c: c.toxic(c.edge, "limit_data", "downstream", bytes=2000),
    "cut": lambda c: c.cut(c.pair),
    "cut-one-way": lambda c: c.cut(c.edge),
    "island": lambda c: c.cut(c.around),
    "flap": lambda c: c.flap(),
    "kill-broker": lambda c: c.kill("broker"),
    "kill-bookie": lambda c: c.kill("bookie"),
    "stop-broker": lambda c: c.stop("broker"),
    "stop-bookie": lambda c: c.stop("bookie"),
    "unload": lambda c: c.unload(),
    "chain": lambda c: c.topology("chain"),
    "star": lambda c: c.topology("star"),
    "ring": lambda c: c.topology("ring"),
    "change-and-cut": lambda c: c.topology_and_cut(),
    "mesh": lambda c: c.topology("mesh"),
}


def run(data: Path, regions: Sequence[str], kinds: Sequence[str], seed: int, minutes: float) -> list[str]:
    """Every kind once, in an order by chance; more rounds while there is time. Returns what was wrong."""
    near = {"rtt_ms": 20, "jitter_ms": 4}
    wan = data / "wan.json"
    wan.write_text(json.dumps({f"{a}-{b}": near for i, a in enumerate(regions) for b in regions[i + 1 :]}))
    instance = Instance(data / "data", regions=regions, wan=str(wan))
    try:
        chaos = Chaos(instance, regions, seed)
        chaos.settle()
        until = time.monotonic() + minutes * 60
        while len(chaos.events) < len(kinds) or time.monotonic() < until:
            for kind in chaos.rng.sample(list(kinds), len(kinds)):
                if len(chaos.events) >= len(kinds) and time.monotonic() > until:
                    break
                chaos.one(kind)
        wrong = chaos.check()
        slowest = max(chaos.events, key=lambda event: event[2])
        sent, tried = sum(stream.sent for stream in chaos.streams), len({kind for kind, _, _ in chaos.events})
        print(
            f"{len(chaos.events)} faults of {tried} kinds, {sent} messages, slowest recovery {slowest[2]:.1f} s after "
            f"{slowest[0]} at {slowest[1]}"
        )
        print(f"{chaos.compared} numbers of what is at risk compared with what was")
        return wrong
    finally:
        instance.down()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="geo_tests.wan.chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--regions", default="us,eu,ap,sa,za")
    parser.add_argument("--kinds", default=",".join(KINDS))
    chosen = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="heliograph-chaos-") as folder:
        wrong = run(Path(folder), chosen.regions.split(","), chosen.kinds.split(","), chosen.seed, chosen.minutes)
    for line in wrong:
        print(f"WRONG: {line}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
