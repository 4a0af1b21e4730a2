"""`heliograph demo`: three regions on this machine, messages round the world, faults, and a verdict.

Is: a script that uses the product as a user does: the supervisor, the admin REST, the official client, Spark.
Isn't: part of any server. Whatever happens, what it started is stopped and its folder removed; every check that failed
makes the exit code 1. What came later than it should on a machine with nothing else to do is shown, and no failure.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table

from heliograph.model.errors import ConfigError, HeliographError
from region_node.instance.control import STARTED_S, call
from region_node.instance.launch import alive, start_background, stop_background
from region_node.instance.plan.layout import InstancePlan, make_plan, save_plan
from region_node.instance.plan.loopback_ports import LoopbackPorts

REGIONS = ("us", "eu", "ap")
TOPIC = "persistent://demo/world/events"
RATE_PER_S = 100
CUT_S = 4.0
LEASE_S = 3.0
_PATIENCE_S = 120.0
_SPARK_S = 300.0


@dataclass(slots=True)
class Tally:
    """What happened in one region so far. Written by client threads, read by the display."""

    sent: int = 0
    acked: set[str] = field(default_factory=set)
    failed: int = 0
    received: int = 0
    last_ack_at: float = 0.0
    longest_gap_s: float = 0.0


class DemoTraffic:
    """Named producers and consumers of the official client, one of each in every region."""

    def __init__(self, urls: dict[str, str], log: Path) -> None:
        import pulsar

        self._pulsar, self._urls = pulsar, urls
        self.tallies = {region: Tally() for region in urls}
        self._publish = threading.Event()
        self._stop = threading.Event()
        quiet = pulsar.FileLogger(pulsar.LoggerLevel.Info, str(log))
        self._clients = {
            region: pulsar.Client(url, logger=quiet, operation_timeout_seconds=30) for region, url in urls.items()
        }
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        for region, client in self._clients.items():
            consumer = client.subscribe(TOPIC, "viewer", initial_position=self._pulsar.InitialPosition.Earliest)
            producer = client.create_producer(
                TOPIC, f"demo-{region}", block_if_queue_full=True, send_timeout_millis=0, batching_enabled=False
            )
            self._threads += [
                threading.Thread(target=self._produce, args=(region, producer), daemon=True),
                threading.Thread(target=self._consume, args=(region, consumer), daemon=True),
            ]
        self._publish.set()
        for thread in self._threads:
            thread.start()

    def _produce(self, region: str, producer: Any) -> None:
        tally = self.tallies[region]
        due = time.monotonic()
        while self._publish.is_set():
            body = f"{region}-{tally.sent}"

            def acked(result: Any, _: Any, body: str = body) -> None:
                if result == self._pulsar.Result.Ok:
                    now = time.monotonic()
                    if tally.last_ack_at:
                        tally.longest_gap_s = max(tally.longest_gap_s, now - tally.last_ack_at)
                    tally.last_ack_at = now
                    tally.acked.add(body)
                else:
                    tally.failed += 1

            producer.send_async(body.encode(), acked, properties={"region": region})
            tally.sent += 1
            due += 1 / RATE_PER_S
            time.sleep(max(0.0, due - time.monotonic()))
        with contextlib.suppress(Exception):
            producer.flush()

    def _consume(self, region: str, consumer: Any) -> None:
        tally = self.tallies[region]
        while not self._stop.is_set():
            try:
                message = consumer.receive(timeout_millis=200)
            except self._pulsar.Timeout:
                continue
            except self._pulsar.PulsarException:
                if self._stop.is_set():
                    return
                continue
            tally.received += 1
            consumer.acknowledge(message)

    def settle(self, timeout_s: float) -> bool:
        """Ends publishing; true when every message sent has been answered within the time."""
        self._publish.clear()
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if all(len(t.acked) + t.failed == t.sent for t in self.tallies.values()):
                return True
            time.sleep(0.05)
        return False

    def read_all(self, region: str) -> list[str]:
        """Every message of the region's copy, from the earliest."""
        reader = self._clients[region].create_reader(TOPIC, self._pulsar.MessageId.earliest)
        bodies: list[str] = []
        while reader.has_message_available():
            bodies.append(reader.read_next(timeout_millis=60_000).data().decode())
        reader.close()
        return bodies

    def close(self) -> None:
        self._publish.clear()
        self._stop.set()
        for thread in self._threads:
            thread.join(5)
        for client in self._clients.values():
            with contextlib.suppress(Exception):
                client.close()


class Demo:
    """One run, step by step; `failures` says what went wrong, in sentences."""

    def __init__(self, data: Path, plan: InstancePlan, console: Console, *, phase_s: float) -> None:
        self.data, self.plan, self.console, self.phase_s = data, plan, console, phase_s
        self.failures: list[str] = []
        self.late = 0
        self.admin = {r.name: f"http://127.0.0.1:{r.admin_port}" for r in plan.regions}
        self.traffic = DemoTraffic(
            {r.name: f"pulsar://127.0.0.1:{r.service_port}" for r in plan.regions}, data / "logs" / "clients.log"
        )
        self._seen: tuple[float, dict[str, tuple[int, int]]] = (0.0, {})

    def check(self, good: bool, claim: str) -> None:
        self.console.print(f"  [{'green]ok  ' if good else 'red]FAIL'}[/] {claim}", soft_wrap=True)
        if not good:
            self.failures.append(claim)

    def in_time(self, good: bool, claim: str) -> None:
        self.console.print(f"  [{'green]ok  ' if good else 'yellow]late'}[/] {claim}", soft_wrap=True)
        self.late += not good

    # -- looking ------------------------------------------------------------------------------------------------------

    def links(self) -> dict[tuple[str, str], dict[str, Any]]:
        rows = call(self.data, "status")["links"]
        return {(row["source"], row["target"]): row for row in rows if row["topic"] == TOPIC}

    def _picture(self, title: str, links: dict[tuple[str, str], dict[str, Any]]) -> Group:
        now, counts = time.monotonic(), {r: (t.sent, t.received) for r, t in self.traffic.tallies.items()}
        then, before = self._seen
        span = max(1e-6, now - then)
        self._seen = (now, counts)
        regions = Table(title=title, title_justify="left")
        for column in ("region", "in msgs/s", "out msgs/s", "published", "acknowledged", "received"):
            regions.add_column(column, justify="left" if column == "region" else "right")
        for name, tally in self.traffic.tallies.items():
            sent, received = before.get(name, counts[name])
            rates = (f"{(tally.sent - sent) / span:.0f}", f"{(tally.received - received) / span:.0f}")
            regions.add_row(name, *rates, str(tally.sent), str(len(tally.acked)), str(tally.received))
        table = Table()
        for column in ("link", "state", "backlog msgs", "backlog bytes", "age s"):
            table.add_column(column, justify="left" if column in ("link", "state") else "right")
        for (source, target), row in sorted(links.items()):
            state = "[green]connected[/]" if row["connected"] else f"[red]{row.get('cause') or row['state']}[/]"
            table.add_row(
                f"{source} → {target}",
                state,
                str(row["backlog_messages"]),
                str(row["backlog_bytes"]),
                f"{row['age_s']:.1f}",
            )
        return Group(regions, table)

    def watch(
        self, title: str, seconds: float, until: Callable[[dict[tuple[str, str], dict[str, Any]]], bool] | None = None
    ) -> bool:
        """Shows the live picture for a time, or until the links are as wanted; says whether they were."""
        deadline = time.monotonic() + seconds
        with Live(console=self.console, refresh_per_second=4, transient=True) as live:
            while True:
                links = self.links()
                picture = self._picture(title, links)
                live.update(picture)
                if until is not None and until(links):
                    break
                if time.monotonic() >= deadline:
                    break
                time.sleep(0.3)
        self.console.print(picture)
        return until is None or until(links)

    @staticmethod
    def drained(links: dict[tuple[str, str], dict[str, Any]]) -> bool:
        return len(links) == len(REGIONS) * (len(REGIONS) - 1) and all(
            row["backlog_messages"] == 0 and row["connected"] for row in links.values()
        )

    # -- steps --------------------------------------------------------------------------------------------------------

    def provision(self) -> None:
        self.console.rule("a tenant and a namespace, written once, seen everywhere")
        _rest("PUT", f"{self.admin['us']}/admin/v2/tenants/demo", {"adminRoles": [], "allowedClusters": list(REGIONS)})
        started = time.monotonic()
        _rest(
            "PUT",
            f"{self.admin['us']}/admin/v2/namespaces/demo/world",
            {"replication_clusters": list(REGIONS), "bundles": {"numBundles": 4}},
        )
        _rest("POST", f"{self.admin['us']}/admin/v2/namespaces/demo/world/replication", list(REGIONS))
        _rest("POST", f"{self.admin['us']}/admin/v2/namespaces/demo/world/deduplication", True)
        _rest(
            "POST",
            f"{self.admin['us']}/admin/v2/namespaces/demo/world/retention",
            {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1},
        )
        for region in REGIONS:
            arrived = _eventually(_PATIENCE_S, partial(self._has_namespace, region))
            self.check(
                arrived,
                f"namespace demo/world with its policies is in {region} after {time.monotonic() - started:.2f} s",
            )

    def _has_namespace(self, region: str) -> bool:
        base = f"{self.admin[region]}/admin/v2/namespaces/demo/world"
        try:
            return sorted(_rest("GET", f"{base}/replication")) == sorted(REGIONS) and bool(
                _rest("GET", f"{base}/deduplication")
            )
        except (HeliographError, TypeError):
            return False

    def publish(self) -> None:
        self.console.rule("publishing and consuming in every region with the official client")
        self.traffic.start()
        self.watch("all links up", self.phase_s)
        for region, tally in self.traffic.tallies.items():
            both = _eventually(
                _PATIENCE_S,
                lambda tally=tally: bool(tally.acked) and tally.received > len(tally.acked),  # type: ignore[misc]
            )
            self.check(both, f"{region} publishes, and receives what the others publish")

    def cut(self) -> None:
        self.console.rule(f"us - eu cut both ways for {CUT_S:.0f} s, publishing goes on")
        call(self.data, "cut", source="us", target="eu")
        cut_at = time.monotonic()
        self.watch("us - eu is cut", CUT_S)
        self.check(
            _eventually(_PATIENCE_S, lambda: self._goes_on_but_for({"us", "eu"})), "the other links go on meanwhile"
        )
        links, lasted = self.links(), time.monotonic() - cut_at
        for pair in (("us", "eu"), ("eu", "us")):
            row = links.get(pair, {"backlog_messages": 0, "backlog_bytes": 0, "age_s": 0.0})
            backlog, age = row["backlog_messages"], row["age_s"]
            self.check(
                backlog > RATE_PER_S and row["backlog_bytes"] > 0,
                f"{pair[0]} → {pair[1]}: backlog {backlog} messages while it is down",
            )
            self.in_time(
                abs(age - lasted) < 1.5,
                f"{pair[0]} → {pair[1]}: oldest unacknowledged {age:.1f} s old, the cut lasts {lasted:.1f} s",
            )
        call(self.data, "heal", source="us", target="eu")
        healed = self.watch(
            "healed",
            _PATIENCE_S,
            lambda rows: all(r["age_s"] < 1.0 and r["connected"] for r in rows.values()) and len(rows) == 6,
        )
        self.check(healed, "the links caught up by themselves")

    def _goes_on_but_for(self, cut: set[str]) -> bool:
        """Every other link delivers, and what the cut one has not is more than what is under way at any time."""
        links = self.links()
        return len(links) == len(REGIONS) * (len(REGIONS) - 1) and all(
            row["backlog_messages"] > RATE_PER_S if set(pair) == cut else row["age_s"] < 2.0
            for pair, row in links.items()
        )

    def kill(self) -> None:
        self.console.rule("a bookie and the owner of the topic are killed (SIGKILL)")
        owner = self._owner()
        tally = self.traffic.tallies["us"]
        tally.longest_gap_s = 0.0
        call(self.data, "kill", process="us-bookie-0")
        call(self.data, "kill", process=owner)
        killed_at = time.monotonic()
        taken = _eventually(_PATIENCE_S, lambda: self._owner() not in ("", owner))
        took_s = time.monotonic() - killed_at
        self.check(taken, f"{owner} owned the topic; {self._owner() or 'nobody'} does")
        self.in_time(took_s <= LEASE_S + 1.5, f"that was after {took_s:.1f} s (lease {LEASE_S:.0f} s + 1 s)")
        self.watch("us runs on one broker and two bookies", self.phase_s / 2)
        again = _eventually(_PATIENCE_S, lambda: tally.last_ack_at > killed_at + LEASE_S / 2)
        self.check(
            again, f"clients reconnected by themselves; us published nothing for {tally.longest_gap_s:.1f} s at most"
        )
        for name in (owner, "us-bookie-0"):
            call(self.data, "start", timeout_s=STARTED_S, process=name)
        self.watch("both are back", self.phase_s / 2)

    def _owner(self) -> str:
        try:
            answer = _rest("GET", f"{self.admin['us']}/lookup/v2/topic/{TOPIC.replace('://', '/')}")
        except HeliographError:
            return ""
        port = int(str(answer.get("brokerUrl", ":0")).rpartition(":")[2])
        return next((b.name for b in self.plan.region("us").brokers if b.ports["service"] == port), "")

    def settle(self) -> None:
        self.console.rule("publishing ends; the links drain")
        self.check(self.traffic.settle(_PATIENCE_S), "every message that was sent has been acknowledged")
        self.check(self.watch("draining", _PATIENCE_S, self.drained), "all links drained to zero")

    def compare(self) -> dict[str, int]:
        """Reads every copy from the earliest; returns messages per origin as they should be."""
        self.console.rule("every region's copy, read from the earliest message")
        copies = {region: self.traffic.read_all(region) for region in REGIONS}
        acked = set().union(*(t.acked for t in self.traffic.tallies.values()))
        first = set(copies[REGIONS[0]])
        for region, bodies in copies.items():
            held = set(bodies)
            self.check(len(held) == len(bodies), f"{region}: {len(bodies)} messages, each once")
            missing = sorted(acked - held)
            self.check(
                not missing,
                f"{region}: all {len(acked)} acknowledged ones are there"
                + (f"; missing {missing[:5]}" if missing else ""),
            )
            self.check(held == first, f"{region}: the same set as in {REGIONS[0]}")
            last: dict[str, int] = {}
            ordered = True
            for body in bodies:
                origin, _, number = body.rpartition("-")
                ordered = ordered and int(number) > last.get(origin, -1)
                last[origin] = int(number)
            self.check(ordered, f"{region}: in the order of each origin")
        return dict(Counter(body.rpartition("-")[0] for body in copies["ap"]))

    def count_by_spark(self, spark: subprocess.Popen[str], expected: dict[str, int]) -> None:
        self.console.rule("a Spark job counts the local copy of ap by origin region")
        assert spark.stdin is not None
        try:
            with self.console.status("Spark"):
                out, err = spark.communicate(
                    json.dumps({"admin_url": self.admin["ap"], "topic": TOPIC}) + "\n", timeout=_SPARK_S
                )
            counts = json.loads(out.strip().splitlines()[-1]) if out.strip() else {}
        except (subprocess.TimeoutExpired, BrokenPipeError, ValueError) as error:
            counts, err = {}, str(error)
        self.check(counts == expected, f"Spark counts {counts}, the readers {expected}")
        if counts != expected and err:
            self.console.print(err[-1500:], markup=False)


def _rest(method: str, url: str, body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            text, kind = answer.read(), answer.headers.get_content_type()
    except urllib.error.HTTPError as error:
        if error.code in (307, 308):
            return _rest(method, error.headers["Location"], body)
        raise ConfigError(f"{method} {url}: {error.code} {error.read().decode(errors='replace')[:300]}") from error
    except OSError as error:
        raise ConfigError(f"{method} {url}: {error}") from error
    if not text:
        return None
    return json.loads(text) if kind == "application/json" else text.decode()


def _eventually(seconds: float, good: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + seconds
    while not good():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


@contextlib.contextmanager
def _spark_job(wanted: bool) -> Iterator[subprocess.Popen[str] | None]:
    """The JVM starts early, beside everything else, and waits for its question."""
    if not wanted:
        yield None
        return
    command = [sys.executable, "-P", "-m", "heliograph.spark.origins", "--wait"]  # what lies in the folder is anybody's
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tempfile.gettempdir(),
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def run_demo(*, keep: bool, phase_s: float, with_spark: bool) -> int:
    """Returns the exit code: 0 where every check held."""
    console = Console()
    if with_spark and shutil.which("java") is None:
        raise ConfigError("the demo's Spark job needs a JDK 17 or newer: install one, or run the demo with --no-spark")
    started = time.monotonic()
    data = Path(tempfile.mkdtemp(prefix="heliograph-demo-"))
    ports_kept = LoopbackPorts()
    plan = make_plan(list(REGIONS), brokers={"us": 2, "eu": 1, "ap": 1}, bookies=3, wan="default", ports=ports_kept)
    save_plan(data, plan)
    failures: list[str] = []
    late = 0
    pids: list[int] = []
    try:
        with _spark_job(with_spark) as spark:
            console.rule("three regions on this machine: us, eu, ap")
            begun = time.monotonic()
            pids.append(start_background(data, console))
            ports_kept.close()
            status = call(data, "status")
            pids += [row["pid"] for region in status["regions"].values() for row in region["processes"]] + [
                status["wan"]["pid"]
            ]
            console.print(
                f"{len(pids)} processes in {time.monotonic() - begun:.1f} s; links through Toxiproxy at "
                f"{status['wan']['toxiproxy']}"
            )
            demo = Demo(data, plan, console, phase_s=phase_s)
            failures = demo.failures
            try:
                demo.provision()
                demo.publish()
                demo.cut()
                demo.kill()
                demo.settle()
                counts = demo.compare()
                if spark is not None:
                    demo.count_by_spark(spark, counts)
                status = call(data, "status")
                pids += [
                    row["pid"] for region in status["regions"].values() for row in region["processes"] if row["pid"]
                ]
            finally:
                late = demo.late
                demo.traffic.close()
    except KeyboardInterrupt:
        console.print("interrupted")
        failures.append("interrupted before the end")
    except ConfigError as error:
        failures.append(str(error))
    finally:
        with console.status("stopping everything"):
            if (data / "control.json").exists():
                try:
                    stop_background(data)
                except ConfigError as error:
                    failures.append(str(error))
        left = [pid for pid in dict.fromkeys(pids) if alive(pid)]
        ports = [port for node in plan.nodes() for port in node.ports.values() if port and _listens(port)]
        if left or ports:
            failures.append(f"left behind: processes {left}, ports {ports}")
        if keep or failures:
            console.print(f"data and logs stay in {data}")
        else:
            shutil.rmtree(data, ignore_errors=True)
    console.rule(f"{time.monotonic() - started:.0f} s")
    if failures:
        console.print("[red]the demo failed:[/]")
        for sentence in failures:
            console.print(f"  - {sentence}")
        return 1
    console.print(
        "[green]verdict: every region holds the same messages, each once, in order, and all that was acknowledged; "
        "nothing was left behind[/]"
    )
    if late:
        console.print(f"[yellow]late: {late} of them; each comes in time on a machine with nothing else to do[/]")
    return 0


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
