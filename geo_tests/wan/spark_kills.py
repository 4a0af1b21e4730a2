"""Processes of a Spark job and of its region, killed one after another at points that a seed picks, while messages are published and read.

Is: the harness of the kill tests and of `make soak-spark`: publishes, runs `heliograph spark run`, kills, and compares what came out with what went in.
Isn't: a test's expectations about one kind of kill; whole regions are `spark_regions`.
One job with a query for each sink: Spark's own parquet (read back as Spark reads it), our sink into another topic, the shipped ETL into a table of
parquet files and into a Delta table (read back as anybody reads them, who knows of no checkpoint), and a wide table that counts, in three stores.
Asked for by name: `tiers`, the ETL whose topics go from one query to another and back at each start of the driver; `iceberg`, the ETL into an Iceberg
table; `servers`, the wide table in a Redis and a ClickHouse of Debian's packages; `hive`, the ETL into Hive, read back by what Spark's metastore says;
`embedded`, the wide table in ClickHouse's engine of the package chdb and in Hive; `profiles`, the newest row of each key in Redis; `replay`, into a topic;
`portable`, our sink with rows in places that hold in every region; `folders`, the table of SQL text: a folder a micro-batch.
A moment is anywhere in the micro-batch of the query that is slowest at that time, so it is anywhere in those of the others, too.
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
from urllib.parse import unquote

import psutil
import pulsar
import pyarrow as pa
import pyarrow.dataset as ds
from deltalake import DeltaTable, QueryBuilder
from pyiceberg.catalog import load_catalog

from geo_tests.wan.instance import PROGRAM, Instance, eventually, rest
from heliograph.spark.stores.clickhouse import Engine, HttpEngine
from heliograph.spark.stores.embedded import ChdbEngine
from tests.spark.running import PATIENT

READER = "reader"
"""One of Spark's Python workers that talks to the region at this moment: it reads a task's entries, or writes a task's rows."""
ENGINE = "engine"
"""One kind more, where there is one: ClickHouse's process beside the driver."""
KINDS = ("driver", "jvm", "worker", READER, "offset", "broker", "bookie")
ALL_AT_ONCE = ("worker", "offset")
"""Of these each query has its own, so all of them die: what is killed is something that each sink uses."""
SINKS = ("files", "topic", "tables", "delta", "wide")
LIMITS = ("light_bytes_s = 1e12, heavy_bytes_s = 1e12", "light_bytes_s = 0, heavy_bytes_s = 0", "light_bytes_s = 0, queries_max = 2")
"""All topics light; each by itself; all in the middle."""
STORES = ("parquet", "delta", "iceberg")
SERVERS = ("redis", "clickhouse")
IN_HIVE = {"hive": ("default", "all"), "embedded": ("wide", "by_minute")}
"""By sink, its table in the metastore."""
PROFILES = 50
"""Keys of `profiles`, each of a single topic."""
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


class Job:
    """`heliograph spark run` on a file with a query for each of `sinks`."""

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
        """servers: the URL of each of SERVERS, for the sinks that want it. modules: a folder with packages that the job wants and this environment lacks.

        region: where it reads and writes. sources: topics, else two of its own. source: options of each query's. twice: bodies that a region stored and could
        not send before it was lost: once it was back, `portable`'s topic has them twice.
        """
        self.folder, self.instance, self.sinks, self.servers, self.region = folder, instance, tuple(sinks), servers or {}, region
        self.killed, self.in_batch, self.kinds = Counter[str](), Counter[str](), Counter[str]()
        """By sink, how many deaths of something it uses came behind a batch that it had committed since the one before, and how many of them while the next
        one was planned and not committed; by kind, how many deaths there were."""
        self.twice = twice or Counter[str]()
        self.sources, self._source = list(sources) or [f"persistent://public/geo/{name}-in-{n}" for n in range(2)], source
        self.target, self.replayed = f"persistent://public/geo/{name}-out", f"persistent://public/geo/{name}-again"
        admin = ",".join(sorted({row["admin_url"] for row in rest("GET", f"{instance.admin(region)}/heliograph/v1/status")["brokers"]}))
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
        self._text = text + "".join(self._query(sink, f"{name}-{sink}") for sink in sinks)
        self.turn(0)
        self._log = (folder / "job.log").open("ab")
        paths = [path for path in (os.environ.get("PYTHONPATH", ""), modules) if path]
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
        self.process = subprocess.Popen([PROGRAM, "spark", "run", str(folder / "job.toml")], stdout=self._log, stderr=subprocess.STDOUT, env=env)

    def metastore(self) -> dict[str, str]:
        """Settings of a session that sees the job's metastore, once the job is over: Derby has one process at a time."""
        if not set(self.sinks) & set(IN_HIVE):
            return {}
        place = f"jdbc:derby:;databaseName={self.folder}/metastore;create=true"
        found = {"spark.sql.catalogImplementation": "hive", "spark.sql.warehouse.dir": f"{self.folder}/warehouse"}
        return found | {"spark.hadoop.javax.jdo.option.ConnectionURL": place}

    def turn(self, number: int) -> None:
        """What the driver reads at its next start: for `tiers`, other limits each time."""
        new = self.folder / "job.toml.new"
        new.write_text(self._text.replace("LIMITS", LIMITS[number % len(LIMITS)]))
        new.replace(self.folder / "job.toml")

    def _query(self, sink: str, subscription: str) -> str:
        checkpoint = f'checkpoint = "{self.folder}/{sink}.state"'
        if sink in ("tables", "delta", "iceberg", "hive", "tiers"):
            return f"""
            [[query]]
            name = "{sink}"
            job = "etl"
            [query.options]
            topics = {json.dumps(self.sources)}
            subscription = "{subscription}"
            path = "{self.folder}/{sink}"
            format = "{sink if sink in ("delta", "iceberg", "hive") else "parquet"}"
            {checkpoint}
            trigger = "1 second"
            source = {{ {self._source} }}
            {"tiers = { rebalance_s = 1, LIMITS }" if sink == "tiers" else ""}
            [[query.options.table]]
            schema = "raw"
            name = "all"
            """
        if sink == "profiles":
            return f"""
            [[query]]
            name = "{sink}"
            job = "redis"
            [query.options]
            topics = {json.dumps(self.sources)}
            subscription = "{subscription}"
            {checkpoint}
            trigger = "1 second"
            source = {{ {self._source} }}
            url = "{self.servers["redis"]}"
            prefix = "soak:"
            table = "newest"
            schema = "n bigint"
            keys = ["pmod(n, {PROFILES}) as k"]
            columns = ["n"]
            """
        if sink == "replay":
            return f"""
            [[query]]
            name = "{sink}"
            job = "replay"
            [query.options]
            topics = {json.dumps(self.sources)}
            source = {{ subscription = "{subscription}" }}
            {checkpoint}
            to = "{self.replayed}"
            rate = 5000
            follow = true
            """
        if sink in ("wide", "servers", "embedded"):
            targets = ", ".join(f'{{ store = "{store}", path = "{self.folder}/wide/{store}" }}' for store in STORES)
            if sink == "servers":
                targets = ", ".join(f'{{ store = "{store}", url = "{self.servers[store]}" }}' for store in SERVERS)
            if sink == "embedded":
                place = f"{self.folder}/embedded"
                targets = f'{{ store = "clickhouse", path = "{place}/engine" }}, {{ store = "hive", path = "{place}/hive", database = "wide" }}'
            return f"""
            [[query]]
            name = "{sink}"
            job = "wide"
            [query.options]
            topics = {json.dumps(self.sources)}
            subscription = "{subscription}"
            {checkpoint}
            trigger = "1 second"
            source = {{ {self._source} }}
            schema = "n bigint"
            keys = ["_topic as source"]
            columns = {{ seen = "count(*)", total = "sum(n)" }}
            table = [{{ name = "by_minute", period = "1 minute" }}]
            target = [{targets}]
            state_tasks = 2
            """
        columns = {"files": ["cast(value as string) as body"], "portable": ["value", "coordinate"]}.get(sink, ["value"])
        portable = ", portable_tasks = 2" if sink == "portable" else ""
        into = {
            "files": f'{{ format = "parquet", path = "{self.folder}/files" }}',
            "folders": f'{{ format = "table", path = "{self.folder}/folders/all" }}',
        }.get(sink, f'{{ format = "heliograph", topic = "{self.target}" }}')
        return f"""
            [[query]]
            name = "{sink}"
            {checkpoint}
            trigger = "1 second"
            select = {json.dumps(columns)}
            source = {{ topics = "{",".join(self.sources)}", subscription = "{subscription}", {self._source}{portable} }}
            sink = {into}
        """

    def batches(self) -> int:
        """Committed ones of the query that has the fewest: a kill is behind a batch of every sink."""
        return min(self.committed().values())

    def committed(self) -> dict[str, int]:
        return {sink: self._committed(sink) for sink in self.sinks}

    def _committed(self, sink: str) -> int:
        if sink == "tiers":  # checkpoints come and go
            return len(list((self.folder / sink / "all").glob("batch=*")))
        return _newest(self.folder / f"{sink}.state" / "commits") + 1

    def under_way(self) -> list[str]:
        """Sinks with a micro-batch that is planned and not committed."""
        found = []
        for sink in self.sinks:
            state = self.folder / f"{sink}.state"
            if any(_newest(place / "offsets") > _newest(place / "commits") for place in (state, *state.glob("*.*"))):
                found.append(sink)
        return found

    def log(self) -> str:
        return (self.folder / "job.log").read_text(errors="replace")

    def slowest_s(self) -> float:
        """What the newest micro-batch took of the query where that is longest; at least a second, which is the trigger."""
        took = {row["query"]: row["took_ms"] / 1000 for row in events(self.log()) if row["event"] == "query.progress"}
        return max([1.0, *took.values()])

    def victims(self, kind: str, rng: random.Random) -> list[int]:
        """Process ids; of most kinds one."""
        if kind in ("broker", "bookie"):
            rows = [row for row in self.instance.status()["regions"][self.region]["processes"] if row["pid"] and kind in row["name"]]
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
        using = {ENGINE: ("embedded",), READER: ()}.get(kind, self.sinks)  # of one worker nobody knows whose task it had
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
    job: Job, kinds: list[str], rng: random.Random, say: Callable[[str], Any] = lambda _: None, patience_s: float = 600, until: float = math.inf
) -> int:
    """A death of each kind in turn, each behind new batches and a moment that the seed picks, before `until`. Returns how many there were.

    Behind a batch of each sink; twice in ten of any, so that others are on their way up; once in ten of none, so that Spark itself may be.
    """
    pause, killed, moving, seen, counted = threading.Event(), 0, False, 0, dict.fromkeys(job.sinks, 0)
    for number, kind in enumerate(kinds, 1):
        if time.monotonic() > until:
            break
        job.turn(number)
        before, slowest_s, drawn = job.committed(), job.slowest_s(), rng.random()
        enough: Callable[..., bool] = all if drawn < 0.7 else any if drawn < 0.9 else lambda _: True

        def on(before: Mapping[str, int] = before, enough: Callable[..., bool] = enough, seen: int = seen, moving: bool = moving) -> bool:
            """A move comes before the first batch of a driver that has one to make."""
            now = job.committed()
            return job.process.poll() is not None or enough(now[sink] > before[sink] for sink in job.sinks) or (moving and moves(job.log())[0] > seen)

        eventually(on, f"batches before a {kind} is killed", patience_s)
        assert job.process.poll() is None, job.log()[-3000:]
        pause.wait(rng.random() * (4 if moving else min(slowest_s, 30)))
        seen = moves(job.log())[0]
        moving = "tiers" in job.sinks and kind in ("driver", "jvm") and rng.random() < 0.6  # topics move when it starts: the next one dies in the middle
        pids = eventually(lambda kind=kind: job.kill(kind, rng), f"a {kind} to kill", 240)
        killed += 1
        counted = job.died(kind, counted)
        say(f"{time.strftime('%H:%M:%S')} killed a {kind} behind {counted}, in the middle of {job.under_way()}")
        if kind in ("broker", "bookie"):  # the instance starts it again; two of three bookies down would be another test

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


def _newest(folder: Path) -> int:
    """The number of the newest micro-batch in one of a checkpoint's logs."""
    return max((int(path.name) for path in folder.glob("*") if path.name.isdecimal()), default=-1)


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


def sums(topics: list[str], published: list[str]) -> dict[str, tuple[int, int]]:
    """By topic, which the publisher takes in turn, how many bodies there are, and their numbers' sum: one lost is not made up for by another one twice."""
    of = {topic: range(first, len(published), len(topics)) for first, topic in enumerate(topics)}
    return {topic: (len(numbers), sum(numbers)) for topic, numbers in of.items() if numbers}


def wide_rows(store: str, folder: Path, table: str) -> list[dict[str, Any]]:
    """Of a table store, as another reader sees them; none where there is no table yet."""
    if store == "parquet":
        files = sorted(str(path) for path in (folder / table).glob("bucket=*/*.parquet"))
        return list(ds.dataset(files).to_table().to_pylist()) if files else []
    if store == "delta":
        if not DeltaTable.is_deltatable(str(folder / table)):
            return []
        return list(pa.table(QueryBuilder().register("t", DeltaTable(str(folder / table))).execute("select * from t")).to_pylist())
    catalog = load_catalog("heliograph", type="sql", uri=f"sqlite:///{folder / 'catalog.db'}", warehouse=f"file://{folder}")
    return list(catalog.load_table(f"default.{table}").scan().to_arrow().to_pylist()) if catalog.table_exists(f"default.{table}") else []


def seen_by(engine: Engine, table: str) -> list[dict[str, Any]]:
    """`source`, `seen`, and `total` of each row in ClickHouse, by a connection of its own."""
    try:
        if not int(engine.run(f"SELECT count() FROM system.tables WHERE name = '{table}'")):
            return []
        lines = engine.run(f"SELECT source, seen, total FROM {table} FORMAT TabSeparated").decode().splitlines()
        return [{"source": source, "seen": int(seen), "total": int(total)} for source, seen, total in (line.split("\t") for line in lines)]
    finally:
        engine.close()


def server_rows(store: str, url: str, table: str) -> list[dict[str, Any]]:
    """`source`, `seen`, and `total` of each row in one of SERVERS, as another client sees them."""
    if store == "redis":
        from redis import Redis

        hashes = Redis.from_url(url, decode_responses=True)
        found = {key: hashes.hmget(key, "seen", "total") for key in hashes.keys(f"{table}:2*")}
        return [{"source": unquote(key.rpartition(":")[2]), "seen": int(seen or 0), "total": int(total or 0)} for key, (seen, total) in found.items()]
    return seen_by(HttpEngine(url), table)


def _bodies(rows: pa.Table | None) -> Counter[str]:
    return Counter() if rows is None else Counter(value.decode() for value in rows["value"].to_pylist())


def verdict(job: Job, published: list[str], spark: Any, patience_s: float = 600) -> None:
    """Waits until everything came out of all queries, then compares. Raises AssertionError."""
    assert published, "nothing was published, so nothing is shown"
    expected = Counter(published)

    def files() -> Counter[str]:
        if not (job.folder / "files" / "_spark_metadata").is_dir():
            return Counter()
        return Counter(row.body for row in spark.read.schema("body string").parquet(str(job.folder / "files")).collect())

    def topic(name: str = job.target) -> Counter[str]:
        return Counter(job.instance.read_all(job.region, name))

    def tables(sink: str = "tables") -> Counter[str]:
        found = [str(path) for path in (job.folder / sink / "all").glob("batch=*/*.parquet")]
        return _bodies(ds.dataset(found).to_table(columns=["value"]) if found else None)

    def iceberg() -> Counter[str]:
        place = job.folder / "iceberg"
        if not (place / "catalog.db").exists():
            return Counter()
        catalog = load_catalog("heliograph", type="sql", uri=f"sqlite:///{place / 'catalog.db'}", warehouse=f"file://{place}")
        return _bodies(catalog.load_table("default.all").scan().to_arrow()) if catalog.table_exists("default.all") else Counter()

    def delta() -> Counter[str]:
        place = str(job.folder / "delta" / "all")
        if not DeltaTable.is_deltatable(place):
            return Counter()
        return _bodies(pa.table(QueryBuilder().register("t", DeltaTable(place)).execute("select value from t")))

    counted = sums(job.sources, published)
    for sink, stores in (("wide", STORES), ("servers", SERVERS), ("embedded", ("engine", "hive"))):
        for store in stores if sink in job.sinks else ():

            def counts(store: str = store, sink: str = sink) -> dict[str, tuple[int, int]]:
                folder = job.folder / sink / store
                if store == "engine":
                    found = seen_by(ChdbEngine(str(folder)), "by_minute") if folder.is_dir() else []
                elif sink == "servers":
                    found = server_rows(store, job.servers[store], "by_minute")
                else:
                    found = wide_rows("parquet" if store == "hive" else store, folder, "by_minute")
                made = dict[str, tuple[int, int]]()
                for row in found:
                    seen, total = made.get(row["source"], (0, 0))
                    made[row["source"]] = seen + row["seen"], total + row["total"]
                return made

            def all_seen(counts: Callable[[], dict[str, tuple[int, int]]] = counts) -> bool:
                return sum(seen for seen, _ in counts().values()) >= len(published)

            try:
                eventually(all_seen, f"all of {len(published)} messages in the wide table, {store}", patience_s)
            finally:
                assert counts() == counted, f"{sink}, {store}: {counts()} and not {counted}\n{job.log()[-3000:]}"
    if "profiles" in job.sinks:
        newest = {number % PROFILES: number for number in range(len(published))}
        try:
            eventually(lambda: profiles(job.servers["redis"]) == newest, "the newest row of each key in Redis", patience_s)
        finally:
            there = profiles(job.servers["redis"])
            assert there == newest, f"profiles: {sorted(set(there.items()) ^ set(newest.items()))[:10]}\n{job.log()[-3000:]}"
    readers = {"files": files, "topic": topic, "tables": tables, "delta": delta, "iceberg": iceberg, "tiers": lambda: tables("tiers")}
    readers |= {"hive": lambda: tables("hive"), "folders": lambda: tables("folders"), "replay": lambda: topic(job.replayed), "portable": topic}
    for name, read in readers.items():
        if name not in job.sinks:
            continue
        wanted = expected + job.twice if name == "portable" else expected
        try:
            eventually(lambda read=read, wanted=wanted: read().total() >= wanted.total(), f"all of {len(published)} messages in {name}", patience_s)
        finally:
            found = read()
            lost, more = wanted - found, found - wanted
            text = f"{name}: {sum(lost.values())} lost ({list(lost)[:5]}), {sum(more.values())} too many ({list(more)[:5]}) of {len(published)}"
            assert not lost and not more, f"{text}\n{job.log()[-3000:]}"


def profiles(url: str) -> dict[int, int]:
    """By key, its newest number, as another client sees it."""
    from redis import Redis

    client = Redis.from_url(url, decode_responses=True)
    return {int(key.rpartition(":")[2]): int(client.hget(key, "n") or -1) for key in client.keys("soak:newest:[0-9]*")}


def told(job: Job) -> bool:
    """Whether the metastore has heard of all that the ETL landed."""
    return "hive" not in job.sinks or not list((job.folder / "hive" / "_staging" / "_landed").glob("*.json"))


def metastore_verdict(job: Job, published: list[str], spark: Any) -> None:
    """Once the job is over: the same of Hive's tables, by the partitions that the metastore names. Raises AssertionError."""
    of = {sink: f"`{database}`.`{table}`" for sink, (database, table) in IN_HIVE.items() if sink in job.sinks}
    if "hive" in of:
        assert Counter(bytes(row.value).decode() for row in spark.sql(f"SELECT value FROM {of['hive']}").collect()) == Counter(published), "hive, the metastore"
    if "embedded" in of:
        rows = spark.sql(f"SELECT source, sum(seen) AS seen, sum(total) AS total FROM {of['embedded']} GROUP BY source").collect()
        assert {row.source: (row.seen, row.total) for row in rows} == sums(job.sources, published), "embedded, the metastore"


def main() -> None:
    """A soak: many kills on one instance. Prints each, and the verdict."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=42)
    parser.add_argument("--minutes", type=float, default=60, help="no kill begins after that")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--sinks", default=",".join(SINKS), help="some of these, or any other that the head of this module names")
    parser.add_argument("--kinds", default="", help=f"what is killed: some of {', '.join((*KINDS, ENGINE))}; all, where it is not said")
    parser.add_argument("--regions", type=int, default=0, help="instead: so many whole regions are killed, one and the other in turn")
    options = parser.parse_args()
    if options.regions:
        from geo_tests.wan.spark_regions import soak

        print(json.dumps(soak(options.regions, options.seed, time.monotonic() + options.minutes * 60, lambda line: print(line, flush=True))), flush=True)
        return
    from heliograph.spark import session

    rng = random.Random(options.seed)
    with tempfile.TemporaryDirectory(prefix="heliograph-soak-") as folder, contextlib.ExitStack() as stack:
        instance = Instance(Path(folder) / "data", regions=("us",), wan="none", brokers="2", bookies=3)
        try:
            instance.namespace("public/geo", ["us"])
            sinks = options.sinks.split(",")
            asked = options.kinds.split(",") if options.kinds else [*KINDS, *([ENGINE] if "embedded" in sinks else [])]
            kinds = [kind for _ in range(-(-options.kills // len(asked))) for kind in rng.sample(asked, len(asked))][: options.kills]
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
                killed = kill_some(job, kinds, rng, lambda line: print(line, flush=True), until=time.monotonic() + options.minutes * 60)
                published = publisher.stop()
                spark = session("verdict", settings=job.metastore())
                verdict(job, published, spark)
                begun_at = time.monotonic()
                eventually(lambda: told(job), "the metastore hears of the newest files")
                told_s = round(time.monotonic() - begun_at, 1)
                assert job.stop() == 0, job.log()[-3000:]
                metastore_verdict(job, published, spark)
                begun, died = moves(job.log())
            found = {"kills": killed, "seed": options.seed, "published": len(published), "lost": 0, "duplicated": 0, "by_kind": dict(job.kinds)}
            found |= {"by_sink": dict(job.killed), "in_batch": dict(job.in_batch)} | ({"told_s": told_s} if "hive" in sinks else {})
            found |= {"moves": begun, "moves_killed": died} if "tiers" in job.sinks else {}
            print(json.dumps(found), flush=True)
        finally:
            instance.down()


if __name__ == "__main__":
    sys.exit(main())
