"""Processes of a Spark job and of its region, killed one after another at points that a seed picks, while messages are
published and read.

Is: the harness of the kill tests and of `make soak-spark`: publishes, runs `heliograph spark run`, kills, and compares
what came out with what went in.
Isn't: a test's expectations about one kind of kill, or what a sink is (`spark_sinks`); whole regions are
`spark_regions`.
A moment is anywhere in the micro-batch of the query that is slowest at that time, so it is anywhere in those of the
others, too.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
import pulsar

from geo_tests.wan.instance import PROGRAM, Instance, eventually, rest
from geo_tests.wan.spark_sinks import SERVERS, SINKS, Sinks, metastore_verdict, told, verdict
from tests.heliograph.spark.running import PATIENT

READER = "reader"
"""One of Spark's Python workers that talks to the region at this moment: it reads a task's entries, or writes a task's
rows.
"""
ENGINE = "engine"
"""One kind more, where there is one: ClickHouse's process beside the driver."""
KINDS = ("driver", "jvm", "worker", READER, "offset", "broker", "bookie")
ALL_AT_ONCE = ("worker", "offset")
"""Of these each query has its own, so all of them die: what is killed is something that each sink uses."""
LIMITS = (
    "light_bytes_s = 1e12, heavy_bytes_s = 1e12",
    "light_bytes_s = 0, heavy_bytes_s = 0",
    "light_bytes_s = 0, queries_max = 2",
)
"""All topics light; each by itself; all in the middle."""
CHDB = ("chdb==4.4.0", "chdb-core==26.9.0")
_TICK_S = 0.02
_SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Of a JVM that lives for a minute: what it compiles well it would not use."""


def arrived(instance: Instance, region: str, topic: str, count: int, patience_s: float = 240) -> list[str]:
    """The bodies that the topic has there, in its order, once there are so many."""
    reader, bodies = instance.client(region).create_reader(topic, pulsar.MessageId.earliest), list[str]()

    def enough() -> bool:
        while reader.has_message_available():
            bodies.append(reader.read_next(timeout_millis=60_000).data().decode())
        return len(bodies) >= count

    eventually(enough, f"{count} messages of {topic} in {region}", patience_s)
    reader.close()
    return bodies


class Publisher(threading.Thread):
    """Some messages every few milliseconds, with the official client, until `stop`; each body once."""

    def __init__(self, instance: Instance, topics: list[str]) -> None:
        super().__init__(daemon=True)
        how = {**PATIENT, "batching_enabled": True, "max_pending_messages": 50_000}
        self._producers = [instance.client("us").create_producer(topic, **how) for topic in topics]
        self._stopping = threading.Event()
        self.published: list[str] = []

    def run(self) -> None:
        while not self._stopping.wait(_TICK_S):
            for producer in self._producers:
                body = f'{{"n": {len(self.published)}}}'
                producer.send_async(body.encode(), None)
                self.published.append(body)

    def stop(self) -> list[str]:
        """All that was published, every one of it acknowledged."""
        self._stopping.set()
        self.join()
        for producer in self._producers:
            producer.flush()
            producer.close()
        return self.published


class Job(Sinks):
    """`heliograph spark run` on a file with a query for each of its sinks."""

    def __init__(
        self,
        instance: Instance,
        folder: Path,
        name: str,
        sinks: Sequence[str] = SINKS,
        servers: Mapping[str, str] | None = None,
        modules: str = "",
        *,
        region: str = "us",
        sources: Sequence[str] = (),
        source: str = "tasks_min = 2",
        twice: Counter[str] | None = None,
    ) -> None:
        """As Sinks. modules: a folder with packages that the job wants and this environment lacks."""
        super().__init__(
            instance, folder, name, sinks, servers, region=region, sources=sources, source=source, twice=twice
        )
        self.killed, self.in_batch, self.kinds = Counter[str](), Counter[str](), Counter[str]()
        """By sink, how many deaths of something it uses came behind a batch that it had committed since the one before,
        and how many of them while the next one was planned and not committed; by kind, how many deaths there were.
        """
        admin = ",".join(
            sorted(
                {row["admin_url"] for row in rest("GET", f"{instance.admin(region)}/heliograph/v1/status")["brokers"]}
            )
        )
        text = f"""
            heliograph.admin_url = "{admin}"
            supervise = {{ progress_s = 1, pause_max_s = 2, stop_s = 240 }}
            [spark]
            master = "local[2,4]"
            [spark.conf]
            "spark.driver.memory" = "800m"
            "spark.driver.extraJavaOptions" = "{_SHORT_LIVED}"
        """
        text += "".join(f"{json.dumps(key)} = {json.dumps(value)}\n" for key, value in self.metastore().items())
        folder.mkdir(parents=True, exist_ok=True)
        self._text = text + self.queries()
        self.turn(0)
        self._log = (folder / "job.log").open("ab")
        paths = [path for path in (os.environ.get("PYTHONPATH", ""), modules) if path]
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
        self.process = subprocess.Popen(
            [PROGRAM, "spark", "run", str(folder / "job.toml")], stdout=self._log, stderr=subprocess.STDOUT, env=env
        )

    def turn(self, number: int) -> None:
        """What the driver reads at its next start: for `tiers`, other limits each time."""
        new = self.folder / "job.toml.new"
        new.write_text(self._text.replace("LIMITS", LIMITS[number % len(LIMITS)]))
        new.replace(self.folder / "job.toml")

    def batches(self) -> int:
        """Committed ones of the query that has the fewest: a kill is behind a batch of every sink."""
        return min(self.committed().values())

    def slowest_s(self) -> float:
        """What the newest micro-batch took of the query where that is longest; at least a second, which is the
        trigger.
        """
        took = {row["query"]: row["took_ms"] / 1000 for row in events(self.log()) if row["event"] == "query.progress"}
        return max([1.0, *took.values()])

    def victims(self, kind: str, rng: random.Random) -> list[int]:
        """Process ids; of most kinds one."""
        if kind in ("broker", "bookie"):
            rows = [
                row
                for row in self.instance.status()["regions"][self.region]["processes"]
                if row["pid"] and kind in row["name"]
            ]
            return [int(rng.choice(sorted(rows, key=lambda row: str(row["name"])))["pid"])] if rows else []
        wanted: dict[str, Callable[[str], bool]] = {
            "driver": lambda line: "heliograph.spark.driver" in line,
            "jvm": lambda line: "org.apache.spark.deploy.SparkSubmit" in line,
            "worker": lambda line: "pyspark.daemon" in line,
            READER: lambda line: "pyspark.daemon" in line,
            "offset": lambda line: "python_streaming_source_runner" in line,
            ENGINE: lambda line: "heliograph.spark.stores.embedded" in line,
        }
        found = []
        for child in psutil.Process(self.process.pid).children(recursive=True):
            try:
                if wanted[kind](" ".join(child.cmdline())) and (kind != READER or _talks(child)):
                    found.append(child.pid)
            except psutil.Error:
                continue
        return found if kind in ALL_AT_ONCE else [rng.choice(sorted(found))] if found else []

    def kill(self, kind: str, rng: random.Random) -> list[int]:
        """The process ids that were killed; none: there was none, or they ended by themselves at this moment."""
        killed = []
        for pid in self.victims(kind, rng):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                killed.append(pid)
        return killed

    def died(self, kind: str, counted: Mapping[str, int]) -> dict[str, int]:
        """Counts a death of that kind. counted: batches at the one before. Returns what is committed now."""
        now, within = self.committed(), self.under_way()
        using = {ENGINE: ("embedded",), READER: ()}.get(
            kind, self.sinks
        )  # of one worker nobody knows whose task it had
        behind = [sink for sink in using if now[sink] > counted[sink]]
        self.kinds[kind] += 1
        self.killed.update(behind)
        self.in_batch.update(sink for sink in behind if sink in within)
        return now

    def end(self) -> None:
        """Kills all of it at once, and whoever would start it again first."""
        supervisor = psutil.Process(self.process.pid)
        everything = [supervisor, *supervisor.children(recursive=True)]
        for process in everything:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(everything)
        self.process.wait()
        self._log.close()

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.stop()
        self._log.close()

    def stop(self) -> int:
        """The exit code of a stop by SIGTERM."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(300)


def kill_some(
    job: Job,
    kinds: list[str],
    rng: random.Random,
    say: Callable[[str], Any] = lambda _: None,
    patience_s: float = 600,
    until: float = math.inf,
) -> int:
    """A death of each kind in turn, each behind new batches and a moment that the seed picks, before `until`. Returns
    how many there were.

    Behind a batch of each sink; twice in ten of any, so that others are on their way up; once in ten of none, so that
    Spark itself may be.
    """
    pause, killed, moving, seen, counted = threading.Event(), 0, False, 0, dict.fromkeys(job.sinks, 0)
    for number, kind in enumerate(kinds, 1):
        if time.monotonic() > until:
            break
        job.turn(number)
        before, slowest_s, drawn = job.committed(), job.slowest_s(), rng.random()
        enough: Callable[..., bool] = all if drawn < 0.7 else any if drawn < 0.9 else lambda _: True

        def on(
            before: Mapping[str, int] = before,
            enough: Callable[..., bool] = enough,
            seen: int = seen,
            moving: bool = moving,
        ) -> bool:
            """A move comes before the first batch of a driver that has one to make."""
            now = job.committed()
            return (
                job.process.poll() is not None
                or enough(now[sink] > before[sink] for sink in job.sinks)
                or (moving and moves(job.log())[0] > seen)
            )

        eventually(on, f"batches before a {kind} is killed", patience_s)
        assert job.process.poll() is None, job.log()[-3000:]
        pause.wait(rng.random() * (4 if moving else min(slowest_s, 30)))
        seen = moves(job.log())[0]
        moving = (
            "tiers" in job.sinks and kind in ("driver", "jvm") and rng.random() < 0.6
        )  # topics move when it starts: the next one dies in the middle
        pids = eventually(lambda kind=kind: job.kill(kind, rng), f"a {kind} to kill", 240)
        killed += 1
        counted = job.died(kind, counted)
        say(f"{time.strftime('%H:%M:%S')} killed a {kind} behind {counted}, in the middle of {job.under_way()}")
        if kind in (
            "broker",
            "bookie",
        ):  # the instance starts it again; two of three bookies down would be another test

            def back(pids: list[int] = pids) -> bool:
                rows = job.instance.status()["regions"][job.region]["processes"]
                return all(row["pid"] and row["pid"] not in pids for row in rows)

            eventually(back, f"the {kind} is back", 240)
    return killed


def events(log: str) -> Iterator[dict[str, Any]]:
    """What the job told, among what Spark said."""
    for line in log.splitlines():
        if line.startswith('{"at": ') and line.endswith("}"):
            yield json.loads(line)


def _talks(process: psutil.Process) -> bool:
    return any(each.status == psutil.CONN_ESTABLISHED for each in process.net_connections(kind="tcp"))


def moves(log: str) -> tuple[int, int]:
    """(moves of topics between queries that began, those of them that a death interrupted), as the job tells it."""
    begun, died, going = 0, 0, False
    for event in (row["event"] for row in events(log)):
        if event == "tiers.moving":
            begun, going = begun + 1, True
        elif event == "tiers.hold":
            going = False
        elif event in ("driver.died", "query.failed") and going:
            died, going = died + 1, False
    return begun, died


def main() -> None:
    """A soak: many kills on one instance. Prints each, and the verdict."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--kills", type=int, default=42)
    parser.add_argument("--minutes", type=float, default=60, help="no kill begins after that")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--sinks", default=",".join(SINKS), help="some of these, or any other that the head of this module names"
    )
    parser.add_argument(
        "--kinds", default="", help=f"what is killed: some of {', '.join((*KINDS, ENGINE))}; all, where it is not said"
    )
    parser.add_argument(
        "--regions", type=int, default=0, help="instead: so many whole regions are killed, one and the other in turn"
    )
    options = parser.parse_args()
    if {"topic", "portable"} <= set(options.sinks.split(",")):
        parser.error("topic and portable write to the same topic: name one of them")
    if options.regions:
        from geo_tests.wan.spark_regions import soak

        print(
            json.dumps(
                soak(
                    options.regions,
                    options.seed,
                    time.monotonic() + options.minutes * 60,
                    lambda line: print(line, flush=True),
                )
            ),
            flush=True,
        )
        return
    from heliograph.spark import session

    rng = random.Random(options.seed)
    with tempfile.TemporaryDirectory(prefix="heliograph-soak-") as folder, contextlib.ExitStack() as stack:
        instance = Instance(Path(folder) / "data", regions=("us",), wan="none", brokers="2", bookies=3)
        try:
            instance.namespace("public/geo", ["us"])
            sinks = options.sinks.split(",")
            asked = options.kinds.split(",") if options.kinds else [*KINDS, *([ENGINE] if "embedded" in sinks else [])]
            kinds = [kind for _ in range(-(-options.kills // len(asked))) for kind in rng.sample(asked, len(asked))][
                : options.kills
            ]
            servers, modules = {}, ""
            if wanted := SERVERS if "servers" in sinks else ("redis",) if "profiles" in sinks else ():
                from tests.system.stores import clickhouse_running, redis_running

                for name, running in zip(wanted, (redis_running, clickhouse_running), strict=False):
                    (Path(folder) / name).mkdir()
                    servers[name] = stack.enter_context(running(Path(folder) / name))
            if "embedded" in sinks:
                from tests.system.programs import python_packages

                modules = str(python_packages(*CHDB))
                sys.path.append(modules)
            with Job(instance, Path(folder) / "job", "soak", sinks, servers, modules) as job:
                publisher = Publisher(instance, job.sources)
                publisher.start()
                killed = kill_some(
                    job, kinds, rng, lambda line: print(line, flush=True), until=time.monotonic() + options.minutes * 60
                )
                published = publisher.stop()
                spark = session("verdict", settings=job.metastore())
                verdict(job, published, spark)
                begun_at = time.monotonic()
                eventually(lambda: told(job), "the metastore hears of the newest files")
                told_s = round(time.monotonic() - begun_at, 1)
                assert job.stop() == 0, job.log()[-3000:]
                metastore_verdict(job, published, spark)
                begun, died = moves(job.log())
            found = {
                "kills": killed,
                "seed": options.seed,
                "published": len(published),
                "lost": 0,
                "duplicated": 0,
                "by_kind": dict(job.kinds),
            }
            found |= {"by_sink": dict(job.killed), "in_batch": dict(job.in_batch)} | (
                {"told_s": told_s} if "hive" in sinks else {}
            )
            found |= {"moves": begun, "moves_killed": died} if "tiers" in job.sinks else {}
            print(json.dumps(found), flush=True)
        finally:
            instance.down()


if __name__ == "__main__":
    sys.exit(main())
