"""`make bench-peers`: the same load on heliograph and on a real Apache Pulsar, interleaved in one run; medians of
ratios.

Is: one connection, frames built beforehand, a window of 2,000 small or 48 large entries; the official client where it
is the subject.
Isn't: a test; nothing here fails on a number, but `--check` exits 1 where a promised ratio is missed.
Both keep two copies, both fsynced, on one disk. CPU is user and system time of all server processes, an entry.
On our side deduplication and schema checks are on, clients are a role that is no super user and has its rights by a
grant, and both systems' metrics are scraped every two seconds; `--plain` leaves all that out. `--list` names the cases,
`--only` runs some of them, so that a machine may be quiet for each.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

from benchmarks.servers import Heliograph, Pulsar, Server, rest

Want = tuple[str, float, str]
"""(figure, bound of the ratio ours/theirs, "min" or "max")."""


@dataclass(frozen=True, slots=True)
class Case:
    """`command`: module and arguments, {port}, {there}, and {topic} filled in."""

    name: str
    command: tuple[str, ...]
    figure: str
    unit: str
    want: tuple[Want, ...] = ()
    size: int = 0


RAW, CLIENT, MANY = "benchmarks.raw_client", "benchmarks.client_cases", "benchmarks.many_client"
CPU: Want = ("cpu", 0.6, "max")
"""Bounds a loaded broker's processor time against Pulsar's; an entry that comes alone costs its wake-ups, there as
here, so where latency is the figure nothing is promised of it.
"""


def at_least(ratio: float, *, cpu: bool = True) -> tuple[Want, ...]:
    return (("rate", ratio, "min"), CPU) if cpu else (("rate", ratio, "min"),)


def at_most(figure: str, ratio: float) -> tuple[Want, ...]:
    return ((figure, ratio, "max"),)


CROWD = (MANY, "{port}", "{topic}", "1", "1000", "100", "1", "100", "150000")
SHARED = (CLIENT, "shared", "{port}", "{topic}", "100", "60000", "100")
SYNC = (CLIENT, "sync", "{port}", "{topic}", "3000")
LATENCY = (CLIENT, "latency", "{port}", "{topic}", "1000", "4", "{there}")
ONE = (
    Case("unbatched 100 B", (RAW, "{port}", "{topic}", "100", "400000", "2000"), "rate", "entries/s", at_least(1.2)),
    Case("unbatched 1 KB", (RAW, "{port}", "{topic}", "1024", "250000", "2000"), "rate", "entries/s", at_least(1.2)),
    Case(
        "unbatched 64 KB", (RAW, "{port}", "{topic}", "65536", "6000", "48"), "rate", "MB/s", at_least(1.0), size=65536
    ),
    Case(
        "unbatched 128 KB",
        (RAW, "{port}", "{topic}", "131072", "3000", "48"),
        "rate",
        "MB/s",
        at_least(1.0),
        size=131072,
    ),
    Case(
        "official client batched 100 B",
        (CLIENT, "batched", "{port}", "{topic}", "100", "600000"),
        "rate",
        "msgs/s",
        at_least(1.0),
    ),
    Case(
        "official client batched 1 KB",
        (CLIENT, "batched", "{port}", "{topic}", "1024", "300000"),
        "rate",
        "msgs/s",
        at_least(1.0),
    ),
    Case("1,000 producers of a topic, one entry in flight each", CROWD, "rate", "entries/s", at_least(1.0, cpu=False)),
    Case("the same, p99", CROWD, "p99_ms", "ms"),
    Case(
        "100 B entries to 100 subscriptions",
        (CLIENT, "fanout", "{port}", "{topic}", "100", "2000", "100"),
        "rate",
        "msgs/s",
        at_least(1.0),
    ),
    Case("100 B entries to 100 consumers of a shared subscription", SHARED, "rate", "msgs/s", at_least(1.0)),
    Case(
        "receive + acknowledge 1 KB",
        (CLIENT, "consume", "{port}", "{topic}", "1024", "200000"),
        "rate",
        "msgs/s",
        at_least(1.0),
    ),
    Case("sync publish 1 KB p50", SYNC, "p50_ms", "ms", at_most("p50_ms", 1.0)),
    Case("sync publish 1 KB p99", SYNC, "p99_ms", "ms", at_most("p99_ms", 1.0)),
    Case("publish to receive at 1,000/s p50", LATENCY, "p50_ms", "ms", at_most("p50_ms", 0.2)),
)
LINK = (
    Case(
        "link, unbatched 1 KB",
        (CLIENT, "link", "{port}", "{topic}", "1024", "40000", "{there}", "0"),
        "rate",
        "entries/s",
        at_least(3.0),
    ),
    Case(
        "link, batched 1 KB",
        (CLIENT, "link", "{port}", "{topic}", "1024", "150000", "{there}", "1"),
        "rate",
        "msgs/s",
        at_least(1.2),
    ),
    Case(
        "link, 128 KB",
        (CLIENT, "link", "{port}", "{topic}", "131072", "2000", "{there}", "0"),
        "rate",
        "MB/s",
        at_least(1.0),
        size=131072,
    ),
    Case("link, publish here to receive there p50", LATENCY, "p50_ms", "ms", at_most("p50_ms", 0.3)),
)
START, IDLE, LOADED = 0.5, 0.6, 0.3
"""At most so much of Pulsar's: seconds until ready; our PSS against its RSS, at rest and after the load."""


def measure(server: Server, case: Case, topic: str) -> dict[str, float]:
    """One run of one case: rate (or MB/s), percentiles, and `cpu` in µs an entry."""
    ports = [service for service, _ in server.regions.values()]
    words = [w.format(port=ports[0], there=ports[-1], topic=topic) for w in case.command]
    before = server.cpu_s()
    environment = {**os.environ, **server.client_environment}
    done = subprocess.run([sys.executable, "-m", *words], capture_output=True, text=True, timeout=300, env=environment)
    if done.returncode:
        raise SystemExit(f"{case.name} on {server.kind}: {done.stderr[-1500:]}")
    figures: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    figures["cpu"] = (server.cpu_s() - before) / figures["entries"] * 1e6
    if "seconds" in figures:
        figures["rate"] = figures["entries"] / figures["seconds"] * (case.size / 1e6 if case.size else 1)
    return figures


def middle(results: list[tuple[dict[str, float], dict[str, float]]], side: int, figure: str) -> float:
    return median(pair[side][figure] for pair in results)


def compare(
    cases: tuple[Case, ...],
    ours: Server,
    theirs: Server,
    rounds: int,
    topics: str,
    console: Console,
    *,
    names: tuple[str, str] = ("heliograph", "pulsar"),
) -> tuple[Table, list[str]]:
    """The figures of both by case, and a sentence for each bound that was missed. names: of both, in the table."""
    table = Table(title=f"medians of {rounds} interleaved rounds", title_justify="left")
    for column in ("case", *names, "ratio", "CPU µs/entry", f"{names[1]}'s", "ratio"):
        table.add_column(column, justify="left" if column == "case" else "right")
    missed: list[str] = []
    for number, case in enumerate(cases):
        results: list[tuple[dict[str, float], dict[str, float]]] = []
        with console.status(case.name):
            for i in range(rounds):
                topic = f"{topics}/bench-{number}-{i}"
                results.append((measure(ours, case, topic), measure(theirs, case, topic)))
        ratios = {
            f: median(a[f] / b[f] for a, b in results if b[f])
            for f in (case.figure, "cpu")
            if any(b[f] for _, b in results)
        }
        table.add_row(
            case.name,
            f"{middle(results, 0, case.figure):,.2f} {case.unit}",
            f"{middle(results, 1, case.figure):,.2f}",
            f"{ratios.get(case.figure, 0):.2f}",
            f"{middle(results, 0, 'cpu'):.1f}",
            f"{middle(results, 1, 'cpu'):.1f}",
            f"{ratios.get('cpu', 0):.2f}",
        )
        console.print(f"{case.name}: ratio {ratios.get(case.figure, 0):.2f}, CPU ratio {ratios.get('cpu', 0):.2f}")
        for figure, bound, kind in case.want:
            if (ratios[figure] < bound) if kind == "min" else (ratios[figure] > bound):
                missed.append(
                    f"{case.name}: {figure} ratio {ratios[figure]:.2f}, promised "
                    f"{'at least' if kind == 'min' else 'at most'} {bound}"
                )
    return table, missed


ROLE, LOGIN = "bench", "operator:of the benchmark"
"""What clients are, who present nothing; and who may change what they are allowed."""


def authorised(folder: Path) -> str:
    """Settings of security, as JSON: clients are a role that is no super user."""
    user, _, password = LOGIN.partition(":")
    hashed = base64.b64encode(hashlib.sha1(password.encode()).digest()).decode()
    (folder / "users").write_text(f"{user}:{{SHA}}{hashed}\n")
    basic = {"authentication": ["basic"], "basic_file": str(folder / "users"), "anonymous_role": ROLE}
    return json.dumps({**basic, "authorization": True, "super_users": [user]})


def everything_on(ours: Server, namespace: str) -> None:
    """Deduplication, schema checks, and the grant of the clients' role; the processes were started with
    `authorised`.
    """
    for _, admin in ours.regions.values():
        url = f"http://127.0.0.1:{admin}/admin/v2/namespaces/{namespace}"
        rest("POST", f"{url}/permissions/{ROLE}", ["produce", "consume"], login=LOGIN)
        rest("POST", f"{url}/deduplication", True, login=LOGIN)
        rest("POST", f"{url}/schemaValidationEnforced", True, login=LOGIN)


@contextlib.contextmanager
def scraped(*servers: Server) -> Iterator[None]:
    """Each broker's /metrics, every two seconds."""
    ended = threading.Event()

    def scrape() -> None:
        while not ended.wait(2.0):
            for server in servers:
                for _, admin in server.regions.values():
                    with (
                        contextlib.suppress(OSError),
                        urllib.request.urlopen(f"http://127.0.0.1:{admin}/metrics/", timeout=20) as answer,
                    ):
                        answer.read()

    thread = threading.Thread(target=scrape)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def pair_of_pulsars(folder: Path) -> Server:
    """Two real clusters that replicate to each other, as one server."""
    a, b = Pulsar(folder / "pa", "a"), Pulsar(folder / "pb", "b")
    for here, (name, there) in ((a, ("b", b)), (b, ("a", a))):
        service, web = next(iter(there.regions.values()))
        url = f"http://127.0.0.1:{next(iter(here.regions.values()))[1]}/admin/v2"
        rest(
            "PUT",
            f"{url}/clusters/{name}",
            {"serviceUrl": f"http://127.0.0.1:{web}", "brokerServiceUrl": f"pulsar://127.0.0.1:{service}"},
        )
    for server in (a, b):
        url = f"http://127.0.0.1:{next(iter(server.regions.values()))[1]}/admin/v2"
        rest("PUT", f"{url}/tenants/geo", {"adminRoles": [], "allowedClusters": ["a", "b"]})
        rest("PUT", f"{url}/namespaces/geo/both", {"replication_clusters": ["a", "b"]})

    class Pair(Server):
        kind = "pulsar"

        def pids(self) -> list[int]:
            return a.pids() + b.pids()

        def stop(self) -> None:
            a.stop()
            b.stop()

    pair = Pair()
    pair.regions = {**a.regions, **b.regions}
    return pair


def pair_of_regions(folder: Path, login: str) -> Server:
    server = Heliograph(folder / "hab", ("a", "b"))
    url = f"http://127.0.0.1:{server.regions['a'][1]}/admin/v2"
    rest("PUT", f"{url}/tenants/geo", {"adminRoles": [], "allowedClusters": ["a", "b"]}, login=login)
    rest("PUT", f"{url}/namespaces/geo/both", {"replication_clusters": ["a", "b"]}, login=login)
    return server


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--only", action="append", default=[], help="cases whose name holds this; may be given several times"
    )
    parser.add_argument("--list", action="store_true", help="the names of the cases")
    parser.add_argument("--no-link", action="store_true", help="without the two-cluster cases")
    parser.add_argument("--check", action="store_true", help="exit 1 where a promised ratio is missed")
    parser.add_argument(
        "--plain",
        action="store_true",
        help="without deduplication, checks of schemas, and authorisation on our side, and without scrapes",
    )
    options = parser.parse_args()
    if options.list:
        print("\n".join(case.name for case in (*ONE, *LINK)))
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the servers are stopped then too
    console = Console(width=140)

    def chosen(cases: tuple[Case, ...]) -> tuple[Case, ...]:
        return tuple(c for c in cases if not options.only or any(part in c.name for part in options.only))

    def watched(*servers: Server) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext() if options.plain else scraped(*servers)

    missed: list[str] = []
    with tempfile.TemporaryDirectory(prefix="heliograph-bench-") as scratch:
        folder = Path(scratch)
        if not options.plain:
            os.environ["HELIOGRAPH_SECURITY"] = authorised(folder)
        servers: list[Server] = []
        try:
            if chosen(ONE):
                servers += [Heliograph(folder / "h"), Pulsar(folder / "p")]
                ours, theirs = servers
                if not options.plain:
                    everything_on(ours, "public/default")
                time.sleep(3)  # memory is compared at rest, behind what starting has begun
                console.print(
                    f"start: {ours.start_s:.1f} s against {theirs.start_s:.1f} s, ratio "
                    f"{ours.start_s / theirs.start_s:.2f}"
                )
                pss, rss = ours.memory_mb("pss"), theirs.memory_mb("rss")
                console.print(f"idle memory: PSS {pss:.0f} MB against RSS {rss:.0f} MB, ratio {pss / rss:.2f}")
                if ours.start_s > START * theirs.start_s:
                    missed.append(f"start takes over {START} of Pulsar's")
                if pss > IDLE * rss:
                    missed.append(f"idle memory is over {IDLE} of Pulsar's")
                with console.status("warming the JVM"):
                    for case in ONE[:2]:
                        measure(theirs, case, "persistent://public/default/warm")
                        measure(ours, case, "persistent://public/default/warm")
                with watched(ours, theirs):
                    table, more = compare(
                        chosen(ONE), ours, theirs, options.rounds, "persistent://public/default", console
                    )
                missed += more
                console.print(table)
                pss, rss = ours.memory_mb("pss"), theirs.memory_mb("rss")
                console.print(f"memory after load: PSS {pss:.0f} MB against RSS {rss:.0f} MB, ratio {pss / rss:.2f}")
                if pss > LOADED * rss:
                    missed.append(f"memory after load is over {LOADED} of Pulsar's")
                while servers:
                    servers.pop().stop()
            if chosen(LINK) and not options.no_link:
                servers += [pair_of_regions(folder, "" if options.plain else LOGIN), pair_of_pulsars(folder)]
                if not options.plain:
                    everything_on(servers[0], "geo/both")
                with watched(*servers):
                    table, more = compare(
                        chosen(LINK), servers[0], servers[1], options.rounds, "persistent://geo/both", console
                    )
                missed += more
                console.print(table)
        finally:
            for server in servers:
                server.stop()
    for sentence in missed:
        console.print(f"[red]missed[/] {sentence}")
    sys.exit(1 if missed and options.check else 0)


if __name__ == "__main__":
    main()
