"""Processes of a Spark job and of its region, killed one after another at points that a seed picks, while messages are published and read.

Is: the harness of the kill tests and of `make soak-spark`: publishes, runs `heliograph spark run`, kills, and compares what came out with what went in.
Isn't: a test's expectations about one kind of kill.
Two queries of one job: into parquet (read back as Spark reads it), and through our own sink into another topic.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from geo_tests.wan.instance import PROGRAM, Instance, eventually, rest

KINDS = ("driver", "jvm", "worker", "offset", "broker", "bookie")
_TICK_S = 0.02


class Publisher(threading.Thread):
    """Some messages every few milliseconds, with the official client, until `stop`; each body once."""

    def __init__(self, instance: Instance, topics: list[str]) -> None:
        super().__init__(daemon=True)
        self._producers = [instance.client("us").create_producer(topic, batching_enabled=True, send_timeout_millis=0) for topic in topics]
        self._stopping = threading.Event()
        self.published: list[str] = []

    def run(self) -> None:
        while not self._stopping.wait(_TICK_S):
            for producer in self._producers:
                body = f"m{len(self.published)}"
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


class Job:
    """`heliograph spark run` on a file with both queries."""

    def __init__(self, instance: Instance, folder: Path, name: str) -> None:
        self.folder, self.instance = folder, instance
        self.sources = [f"persistent://public/geo/{name}-in-{n}" for n in range(2)]
        self.target = f"persistent://public/geo/{name}-out"
        admin = ",".join(sorted({row["admin_url"] for row in rest("GET", f"{instance.admin('us')}/heliograph/v1/status")["brokers"]}))
        source = f'{{ topics = "{",".join(self.sources)}", subscription = "{name}", tasks_min = 2 }}'
        text = f"""
            heliograph.admin_url = "{admin}"
            supervise = {{ progress_s = 1, pause_max_s = 2, stop_s = 60 }}
            [spark]
            master = "local[2,4]"
            conf = {{ "spark.driver.memory" = "600m" }}
            [[query]]
            name = "files"
            checkpoint = "{folder}/files.state"
            select = ["cast(value as string) as body"]
            source = {source}
            sink = {{ format = "parquet", path = "{folder}/files" }}
            [[query]]
            name = "topic"
            checkpoint = "{folder}/topic.state"
            select = ["value"]
            source = {source.replace(f'"{name}"', f'"{name}-2"')}
            sink = {{ format = "heliograph", topic = "{self.target}" }}
        """
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "job.toml").write_text(text)
        self._log = (folder / "job.log").open("ab")
        self.process = subprocess.Popen([PROGRAM, "spark", "run", str(folder / "job.toml")], stdout=self._log, stderr=subprocess.STDOUT)

    def batches(self) -> int:
        """Committed ones of both queries."""
        found = 0
        for query in ("files", "topic"):
            commits = self.folder / f"{query}.state" / "commits"
            found += max((int(path.name) + 1 for path in commits.glob("*") if path.name.isdecimal()), default=0) if commits.is_dir() else 0
        return found

    def log(self) -> str:
        return (self.folder / "job.log").read_text(errors="replace")

    def victim(self, kind: str, rng: random.Random) -> int | None:
        """A process id; None: there is none at this moment."""
        if kind in ("broker", "bookie"):
            rows = [row for row in self.instance.status()["regions"]["us"]["processes"] if row["pid"] and kind in row["name"]]
            return int(rng.choice(sorted(rows, key=lambda row: str(row["name"])))["pid"]) if rows else None
        wanted: dict[str, Callable[[str], bool]] = {
            "driver": lambda line: "heliograph.spark.driver" in line,
            "jvm": lambda line: "org.apache.spark.deploy.SparkSubmit" in line,
            "worker": lambda line: "pyspark.daemon" in line,
            "offset": lambda line: "python_streaming_source_runner" in line,
        }
        found = []
        for child in psutil.Process(self.process.pid).children(recursive=True):
            try:
                if wanted[kind](" ".join(child.cmdline())):
                    found.append(child.pid)
            except psutil.Error:
                continue
        return rng.choice(sorted(found)) if found else None

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.stop()
        self._log.close()

    def stop(self) -> int:
        """The exit code of a stop by SIGTERM."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(90)


def kill_some(job: Job, kinds: list[str], rng: random.Random, say: Callable[[str], Any] = lambda _: None, patience_s: float = 400) -> None:
    """One victim of each kind in turn, each time behind a new batch and a moment that the seed picks."""
    pause = threading.Event()
    for kind in kinds:
        before = job.batches()
        eventually(lambda before=before: job.process.poll() is not None or job.batches() >= before + 2, f"batches before a {kind} is killed", patience_s)
        assert job.process.poll() is None, job.log()[-3000:]
        pause.wait(rng.random())
        pid = eventually(lambda kind=kind: job.victim(kind, rng), f"a {kind} to kill", 60)
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue  # it ended by itself at this moment
        say(f"killed a {kind} behind batch {before}")
        if kind in ("broker", "bookie"):  # the instance starts it again; two of three bookies down would be another test

            def back(pid: int = pid) -> bool:
                rows = job.instance.status()["regions"]["us"]["processes"]
                return all(row["pid"] and row["pid"] != pid for row in rows)

            eventually(back, f"the {kind} is back")


def verdict(job: Job, published: list[str], spark: Any, patience_s: float = 300) -> None:
    """Waits until everything came out of both queries, then compares. Raises AssertionError."""
    expected = Counter(published)

    def files() -> Counter[str]:
        if not (job.folder / "files" / "_spark_metadata").is_dir():
            return Counter()
        return Counter(row.body for row in spark.read.schema("body string").parquet(str(job.folder / "files")).collect())

    def topic() -> Counter[str]:
        return Counter(job.instance.read_all("us", job.target))

    for name, read in (("parquet", files), ("our sink", topic)):
        try:
            eventually(lambda read=read: sum(read().values()) >= len(published), f"all of {len(published)} messages in {name}", patience_s)
        finally:
            found = read()
            lost, more = expected - found, found - expected
            text = f"{name}: {sum(lost.values())} lost ({list(lost)[:5]}), {sum(more.values())} too many ({list(more)[:5]}) of {len(published)}"
            assert not lost and not more, f"{text}\n{job.log()[-3000:]}"


def main() -> None:
    """A soak: many kills on one instance. Prints each, and the verdict."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=36)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    from heliograph.spark import session

    rng = random.Random(options.seed)
    with tempfile.TemporaryDirectory(prefix="heliograph-soak-") as folder:
        instance = Instance(Path(folder) / "data", regions=("us",), wan="none", brokers="2", bookies=3)
        try:
            instance.namespace("public/geo", ["us"])
            kinds = [kind for _ in range(-(-options.kills // len(KINDS))) for kind in rng.sample(KINDS, len(KINDS))][: options.kills]
            with Job(instance, Path(folder) / "job", "soak") as job:
                publisher = Publisher(instance, job.sources)
                publisher.start()
                kill_some(job, kinds, rng, lambda line: print(line, flush=True))
                published = publisher.stop()
                verdict(job, published, session("verdict"), 300)
                code = job.stop()
            print(json.dumps({"kills": len(kinds), "seed": options.seed, "published": len(published), "lost": 0, "duplicated": 0, "exit": code}))
        finally:
            instance.down()


if __name__ == "__main__":
    sys.exit(main())
