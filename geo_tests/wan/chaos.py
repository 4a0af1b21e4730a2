"""Chaos: five real regions, everything between and in them broken in turn while all of them publish, and a checker of
the whole history.

    python -m geo_tests.wan.chaos [--minutes 5] [--seed 1] [--regions us,eu,ap,sa,za] [--kinds cut,kill-broker]
        [--report PATH]

Each of `KINDS` is one way to break something: begun somewhere by chance, held for a few seconds under load, ended (a
network heals, a process comes back, an operator gives the command that the guide names), and then every link must have
caught up without anybody's help within the patience. Meanwhile what the product says is compared with what is so: what
is at risk, and what is said of a region that fell silent (`region_node.chaos.checks`), of a bookie without its disks,
and what a new life of it costs (`lost_disks`). In the end: in each region, each message that was acknowledged anywhere
is there once, in the order of its producer; and what every link says is at risk is nothing. Exits with 1, and says
what, where that is not so.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from geo_tests.wan import chaos_report
from geo_tests.wan.chaos_report import Event, Summary
from geo_tests.wan.instance import Instance, eventually, heliograph, rest
from geo_tests.wan.lost_disks import LostDisks
from region_node.chaos.checks.risk_reports import Link, RiskReports
from region_node.chaos.checks.silence_reports import SilenceReports
from region_node.chaos.faults import BegunFault
from region_node.chaos.regions import NotInTime
from region_node.chaos.streams import NumberedStream, RegionCopies, missing
from region_node.process.shifted_clock import VARIABLE as TEST_CLOCKS
from region_node.process.shifted_clock import set_ahead

PATIENCE_S = 120.0
HOLD_S = 4.0
SILENT_S = 12.0
"""So long a whole region stands still, or a route drops everything: more than twice what makes a region *silent*."""
RETENTION_MINUTES = 180
"""More than a run takes: what is deleted by time before is deleted by a wrong clock."""
AHEAD_MS, BEHIND_MS = 86_400_000, -3_600_000
"""Of wrong clocks. One that is behind by more than the retention makes ledgers that it stamps look old (decision 208).
"""
NAMESPACE = "public/chaos"
TOPIC = f"persistent://{NAMESPACE}/t"
RISK_EVERY_S = 1.0
Where = Callable[[], tuple[str, list[Link]]]


class Chaos:
    """One instance under faults. `compared`: by kind of report, how many numbers of it were held against the truth.
    clocks: the folder of the processes' wall clocks. patience_s: for what has to end by itself.
    """

    def __init__(
        self, instance: Instance, regions: Sequence[str], seed: int, *, clocks: Path, patience_s: float = PATIENCE_S
    ) -> None:
        self.instance, self.regions, self.rng = instance, list(regions), random.Random(seed)
        self.clocks, self.patience_s = clocks, patience_s
        self.events: list[Event] = []
        self.wrong: list[str] = []
        self.compared: Counter[str] = Counter()
        self.disks = LostDisks(instance, self.rng, self.compared, patience_s=patience_s)
        instance.namespace(NAMESPACE, self.regions)
        rest(
            "POST",
            f"{instance.admin(self.regions[0])}/admin/v2/namespaces/{NAMESPACE}/retention",
            {"retentionTimeInMinutes": RETENTION_MINUTES, "retentionSizeInMB": -1},
        )
        self.streams = [NumberedStream(instance, region, TOPIC) for region in self.regions]
        self.arrivals = RegionCopies(instance, TOPIC)

    # -- where ---------------------------------------------------------------------------------------------------------

    def edge(self) -> tuple[str, list[Link]]:
        source, target = self.rng.sample(self.regions, 2)
        return f"{source}-{target}", [(source, target)]

    def pair(self) -> tuple[str, list[Link]]:
        a, b = self.rng.sample(self.regions, 2)
        return f"{a}-{b}", [(a, b), (b, a)]

    def around(self, region: str = "") -> tuple[str, list[Link]]:
        region = region or self.rng.choice(self.regions)
        return region, [
            link for other in self.regions if other != region for link in ((region, other), (other, region))
        ]

    def proxies(self, links: list[Link]) -> list[Any]:
        return [proxy for link in links for proxy in self.instance.proxies("link", *link)]

    def process(self, role: str = "") -> tuple[str, int]:
        rows = self.instance.status()["regions"][self.rng.choice(self.regions)]["processes"]
        found = self.rng.choice([row for row in rows if role in row["name"] and row["pid"]])
        return found["name"], found["pid"]

    # -- how -----------------------------------------------------------------------------------------------------------

    def toxic(self, where: Where, kind: str, *streams: str, **attributes: int) -> BegunFault:
        name, links = where()
        proxies = self.proxies(links)
        for proxy in proxies:
            for stream in streams:
                proxy.add_toxic(name=f"chaos_{stream}", type=kind, stream=stream, attributes=attributes)
        return BegunFault(
            where=name,
            heal=lambda: [
                proxy.get_toxic(f"chaos_{stream}") and proxy.destroy_toxic(f"chaos_{stream}")
                for proxy in proxies
                for stream in streams
            ],
        )

    def silent(self, where: Where) -> BegunFault:
        """Packets vanish on these ways, in both directions; every connection stays open."""
        name, links = where()
        fault = self.toxic(lambda: (name, links), "timeout", "upstream", "downstream", timeout=0)
        return BegunFault(where=name, heal=fault.heal, cut=links, silent=links, hold_s=SILENT_S)

    def stop_region(self) -> BegunFault:
        """Every process of a region stands still, as where its power goes: no connection is closed."""
        region, links = self.around()
        rows = self.instance.status()["regions"][region]["processes"]
        stopped = [row["pid"] for row in rows if row["pid"]]
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        return BegunFault(
            where=region,
            heal=lambda: [os.kill(pid, signal.SIGCONT) for pid in stopped],
            cut=[link for link in links if link[1] == region],
            silent=links,
            still=region,
            hold_s=SILENT_S,
        )

    def cut(self, where: Where) -> BegunFault:
        name, links = where()
        proxies = self.proxies(links)
        for proxy in proxies:
            self.instance.toxiproxy.cut(proxy.name)
        return BegunFault(
            where=name, heal=lambda: [self.instance.toxiproxy.heal(proxy.name) for proxy in proxies], cut=links
        )

    def flap(self) -> BegunFault:
        name, links = self.pair()
        proxies = self.proxies(links)
        for _ in range(5):
            for proxy in proxies:
                self.instance.toxiproxy.cut(proxy.name)
            for proxy in proxies:
                self.instance.toxiproxy.heal(proxy.name)
        return BegunFault(where=name)

    def kill(self, role: str) -> BegunFault:
        name, _ = self.process(role)
        heliograph("process", "kill", name, "--data", str(self.instance.data))
        return BegunFault(
            where=name, heal=lambda: heliograph("process", "start", name, "--data", str(self.instance.data))
        )

    def stop(self, role: str) -> BegunFault:
        name, pid = self.process(role)
        os.kill(pid, signal.SIGSTOP)
        return BegunFault(where=name, heal=lambda: os.kill(pid, signal.SIGCONT))

    def wrong_clock(self, role: str, ahead_ms: int) -> BegunFault:
        """A wall clock jumps while its process stands still, and is wrong, too, when that is started again; the topic's
        ledgers are closed before and meanwhile. It is set right again while the process runs.
        """
        name, pid = self.process(role)
        assert (self.clocks / name).exists(), f"{name} does not go by the clock that tests give it"
        self._unload(name.partition("-")[0])
        self.load(HOLD_S / 4)
        os.kill(pid, signal.SIGSTOP)
        set_ahead(self.clocks, name, ahead_ms)
        os.kill(pid, signal.SIGCONT)
        self.load(HOLD_S / 2)
        self._unload(name.partition("-")[0])
        self.load(HOLD_S)
        heliograph("process", "kill", name, "--data", str(self.instance.data))
        heliograph("process", "start", name, "--data", str(self.instance.data))
        return BegunFault(where=f"{name} {ahead_ms / 3_600_000:+.0f} h", heal=lambda: set_ahead(self.clocks, name, 0))

    def _unload(self, region: str) -> None:
        rest("PUT", f"{self.instance.admin(region)}/admin/v2/persistent/{NAMESPACE}/t/unload")

    def unload(self) -> BegunFault:
        region = self.rng.choice(self.regions)
        self._unload(region)
        return BegunFault(where=region)

    def topology(self, kind: str) -> BegunFault:
        order = self.rng.sample(self.regions, len(self.regions))
        value = {"kind": kind, "regions": order, "center": order[0]}
        rest("POST", f"{self.instance.admin(order[0])}/admin/v2/namespaces/{NAMESPACE}/replicationTopology", value)
        return BegunFault(where=f"{kind} {'-'.join(order)}")

    def topology_and_cut(self) -> BegunFault:
        first = self.topology(self.rng.choice(("chain", "star", "ring")))
        fault = self.cut(self.edge)
        return BegunFault(where=f"{first.where}, {fault.where} cut", heal=fault.heal, cut=fault.cut)

    # -- a run ---------------------------------------------------------------------------------------------------------

    def load(self, seconds: float, look: Callable[[], object] = lambda: None) -> None:
        """Publishes everywhere. look: is called meanwhile, each second."""
        until, next_look = time.monotonic() + seconds, time.monotonic()
        while time.monotonic() < until:
            if time.monotonic() >= next_look:
                look()
                next_look = time.monotonic() + RISK_EVERY_S
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
        self._confirmed()
        eventually(self.caught_up, "every link is up and has nothing left", self.patience_s)

    def _confirmed(self) -> None:
        for stream in self.streams:
            stream.finish(self.patience_s)

    def _held(self, kind: str, fault: BegunFault, risk: RiskReports) -> None:
        """Loads while the fault holds, and compares what is said meanwhile with the truth."""
        streams = {stream.region: stream for stream in self.streams}
        silence = SilenceReports(self.instance, TOPIC, streams, fault.silent, self.arrivals)
        risk.begin(fault.cut, fault.still)

        def look() -> None:
            if fault.cut:
                risk.sample()
            if fault.silent:
                silence.sample(fault.still)

        self.load(fault.hold_s or HOLD_S, look)
        for name, compare in (
            ("at risk", risk.verdict if fault.cut else None),
            ("silence", (lambda: silence.verdict(fault.still)) if fault.silent else None),
        ):
            if compare is not None:
                wrong, compared = compare()
                self.wrong += [f"{kind} at {fault.where}: {what}" for what in wrong]
                self.compared[name] += compared

    def one(self, kind: str) -> None:
        risk = RiskReports(self.instance, TOPIC, {stream.region: stream for stream in self.streams}, self.arrivals)
        fault = KINDS[kind](self)
        try:
            self._held(kind, fault, risk)
        finally:
            fault.heal()
        began = time.monotonic()
        self._confirmed()
        eventually(self.caught_up, f"every link has caught up after {kind} at {fault.where}", self.patience_s)
        self.events.append(Event(kind, fault.where, time.monotonic() - began))
        sent = ", ".join(f"{stream.region} {stream.sent}" for stream in self.streams)
        print(
            f"{kind:22} {fault.where:34} caught up in {self.events[-1].took_s:5.1f} s; sent so far: {sent}", flush=True
        )

    def check(self) -> list[str]:
        """What is wrong with what the regions hold, and what was with what they said meanwhile."""
        wrong = list(self.wrong)
        for region in self.regions:
            copy = self.instance.read_all(region, TOPIC)
            for stream in self.streams:
                if what := missing(stream, copy):
                    wrong.append(f"{stream.region}'s messages in {region}: {what}")
        return wrong


KINDS: dict[str, Callable[[Chaos], BegunFault]] = {
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
    "silent-cut": lambda c: c.silent(c.pair),
    "silent-island": lambda c: c.silent(c.around),
    "stop-region": lambda c: c.stop_region(),
    "wipe-bookie": lambda c: c.disks.wipe_bookie(c.load),
    "wipe-two-bookies": lambda c: c.disks.wipe_two_bookies(c.load),
    "unmount-bookie": lambda c: c.disks.unmount_bookie(),
    "roll-back-bookie": lambda c: c.disks.roll_back_bookie(c.load),
    "wipe-voter": lambda c: c.disks.wipe_voter(),
    "wipe-config-voter": lambda c: c.disks.wipe_config_voter(),
    "clock-ahead": lambda c: c.wrong_clock("broker", AHEAD_MS),
    "clock-behind": lambda c: c.wrong_clock("broker", BEHIND_MS),
    "clock-of-storage": lambda c: c.wrong_clock(c.rng.choice(("bookie", "meta-0")), AHEAD_MS),
}


def run(
    data: Path,
    regions: Sequence[str],
    kinds: Sequence[str],
    seed: int,
    minutes: float,
    *,
    bookies: int = 2,
    patience_s: float = PATIENCE_S,
) -> Summary:
    """Every kind once, in an order by chance; more rounds while there is time. What does not end within the patience
    ends the run.
    """
    near, clocks = {"rtt_ms": 20, "jitter_ms": 4}, data / "clocks"
    clocks.mkdir()
    wan = data / "wan.json"
    wan.write_text(json.dumps({f"{a}-{b}": near for i, a in enumerate(regions) for b in regions[i + 1 :]}))
    instance = Instance(
        data / "data", regions=regions, wan=str(wan), bookies=bookies, environment={TEST_CLOCKS: str(clocks)}
    )
    try:
        chaos = Chaos(instance, regions, seed, clocks=clocks, patience_s=patience_s)
        began = time.time()
        if "wipe-voter" in kinds:
            chaos.disks.add_voters(chaos.rng.choice(chaos.regions))
        chaos.settle()
        until = time.monotonic() + minutes * 60
        try:
            while len(chaos.events) < len(kinds) or time.monotonic() < until:
                for kind in chaos.rng.sample(list(kinds), len(kinds)):
                    if len(chaos.events) >= len(kinds) and time.monotonic() > until:
                        break
                    chaos.one(kind)
        except (AssertionError, NotInTime) as error:
            chaos.wrong.append(f"{kind}: {error}")
        wrong = chaos.check()
        return Summary(
            seed=seed,
            regions=list(regions),
            bookies=bookies,
            began=began,
            took_s=time.time() - began,
            events=chaos.events,
            messages=sum(stream.sent for stream in chaos.streams),
            compared=dict(chaos.compared),
            wrong=wrong,
        )
    finally:
        chaos.disks.end()
        instance.down()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="geo_tests.wan.chaos",
        description=__doc__,
        epilog="kinds: " + " ".join(KINDS),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--regions", default="us,eu,ap,sa,za")
    parser.add_argument(
        "--bookies", type=int, default=3, help="of each region; with two, one that is away holds publishers"
    )
    parser.add_argument("--kinds", default=",".join(KINDS), help="of those below, with commas between; else all")
    parser.add_argument(
        "--patience-s", type=float, default=PATIENCE_S, help="for what has to end by itself: more on a busy machine"
    )
    parser.add_argument("--report", type=Path, help="PATH.json and PATH.md say what was done and found")
    chosen = parser.parse_args(arguments)
    kinds = chosen.kinds.split(",")
    if unknown := [kind for kind in kinds if kind not in KINDS]:
        parser.error(f"there is no kind {', '.join(unknown)}; there are {', '.join(KINDS)}")
    folder = Path(tempfile.mkdtemp(prefix="heliograph-chaos-"))
    found: Summary | None = None
    try:
        found = run(
            folder,
            chosen.regions.split(","),
            kinds,
            chosen.seed,
            chosen.minutes,
            bookies=chosen.bookies,
            patience_s=chosen.patience_s,
        )
    finally:
        if found is not None and not found.wrong:
            shutil.rmtree(folder)
        else:
            print(f"what it left lies in {folder}")
    print(chaos_report.lines(found))
    if chosen.report:
        chaos_report.write(found, chosen.report)
    return 1 if found.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
