"""Spark on a region's topics, against Spark's own JSON reader on the same rows, interleaved in one run: `python -m
benchmarks.spark [case ...]`.

Is: batch12, batch4 (a noop sink), parquet (streams into parquet), trigger (how long a micro-batch of a few rows takes),
source (bytes a core: the reader alone), tables (a thousand topics into a thousand tables by the shipped ETL), discover
(ten thousand topics), wide (one pass against a join); and by name
only: tables10k (ten thousand topics into as many tables), audit (two copies compared, by the million messages).
Isn't: a proof of what is read.
Each case prints a line of JSON: ours, native, and the ratio; walls are the best of the rounds, CPU is of the JVM and
its Python workers, and of the region. Exit code 1 where a case misses what is promised of it; such a line says so
(`missed`).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import reduce
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet as pq

from benchmarks.servers import Heliograph, rest
from heliograph.client.block_reader import BlockReader
from heliograph.client.broker_connections import Brokers
from heliograph.client.producer import Message, TopicProducer

NAMESPACE = "public/spark"
ROWS = 2_000_000
DDL4 = "id bigint, user string, score double, country string"
DDL12 = (
    f"{DDL4}, at timestamp, page string, session string, device string, amount double, count int, flag boolean, note "
    "string"
)
GATES = {"batch12": 0.60, "batch4": 0.65, "parquet": 0.85}


def rows(count: int, seed: int = 1) -> list[bytes]:
    """JSON objects of about 195 bytes with the 12 columns."""
    rng = random.Random(seed)
    countries, made = ("no", "fr", "sg", "br", "id", "us", "eg"), []
    for n in range(count):
        made.append(
            b'{"id":%d,"user":"user-%d","score":%.3f,"country":"%s","at":"2026-01-%02dT%02d:%02d:00Z",'
            b'"page":"/p/%d","session":"%08x",'
            b'"device":"d%d","amount":%.2f,"count":%d,"flag":%s,"note":"n%d"}'
            % (
                *(
                    n,
                    rng.randrange(100_000),
                    rng.random(),
                    countries[n % 7].encode(),
                    n % 28 + 1,
                    n % 24,
                    n % 60,
                    n % 1000,
                ),
                *(rng.getrandbits(32), n % 50, rng.random() * 100, n % 9, b"true" if n % 2 else b"false", n % 100),
            )
        )
    return made


async def publish(admin: str, topic: str, payloads: list[bytes]) -> None:
    await publish_many(admin, {topic: payloads})


async def publish_many(admin: str, topics: dict[str, list[bytes]], *, batch: int = 1000) -> None:
    gate, brokers = asyncio.Semaphore(32), Brokers(admin)

    async def one(topic: str, payloads: list[bytes]) -> None:
        async with gate:
            producer = TopicProducer(brokers, topic, "benchmark")
            now = time.time_ns() // 1_000_000
            for first in range(0, len(payloads), batch):
                await producer.send([Message(payload) for payload in payloads[first : first + batch]], first, now)
            await producer.flush()
            producer.close()

    await asyncio.gather(*(one(topic, payloads) for topic, payloads in topics.items()))
    brokers.close()


class Bench:
    """One region, one session, and the rows in both forms."""

    def __init__(self, folder: Path, count: int, rounds: int, topics: int) -> None:
        self.folder, self.count, self.rounds, self.topics_count = folder, count, rounds, topics
        self.server = Heliograph(folder / "region")
        self.region = {child.pid for child in psutil.Process().children(recursive=True)} | set(self.server.pids())
        self.admin = f"http://127.0.0.1:{next(iter(self.server.regions.values()))[1]}"
        rest("PUT", f"{self.admin}/admin/v2/namespaces/{NAMESPACE}", {})
        rest(
            "POST",
            f"{self.admin}/admin/v2/namespaces/{NAMESPACE}/retention",
            {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1},
        )
        os.environ["PYSPARK_PYTHON"] = sys.executable
        from heliograph.spark import session

        self.spark = session("benchmark", settings={"spark.driver.memory": "2g"})
        self._filled = False

    def close(self) -> None:
        self.spark.stop()
        self.server.stop()

    def topics(self) -> dict[str, str]:
        """Options of the source for the rows, which are published at the first call; four topics, four files."""
        names = [f"persistent://{NAMESPACE}/rows-{n}" for n in range(4)]
        if not self._filled:
            self._filled = True
            payloads, quarter = rows(self.count), self.count // 4
            (self.folder / "json").mkdir()
            for n, name in enumerate(names):
                part = payloads[n * quarter : (n + 1) * quarter]
                (self.folder / "json" / f"{n}.json").write_bytes(b"\n".join(part))
                asyncio.run(publish(self.admin, name, part))
        return {"admin_url": self.admin, "topics": ",".join(names)}

    @property
    def files(self) -> str:
        return str(self.folder / "json")

    def measured(self, act: Callable[[], Any]) -> tuple[float, float, float]:
        """(wall, CPU of the JVM and its workers, CPU of the region), seconds."""
        cpu, server, begun = _cpu_s(self.region), self.server.cpu_s(), time.perf_counter()
        act()
        return time.perf_counter() - begun, _cpu_s(self.region) - cpu, self.server.cpu_s() - server

    def compare(self, case: str, ours: Callable[[], Any], native: Callable[[], Any]) -> dict[str, Any]:
        """Measures both, interleaved, each warmed once; `ratio` is that of the best times, `ratios` are those of the
        rounds.
        """
        ours()
        native()
        pairs = [(self.measured(ours), self.measured(native)) for _ in range(self.rounds)]
        best = [min(side) for side in zip(*pairs, strict=True)]
        ratios = sorted(round(b[0] / a[0], 2) for a, b in pairs)
        krows = [round(self.count / wall / 1000) for wall, *_ in best]
        cpu_ratio = best[1][1] / best[0][1]
        found = {
            "ours_krows_s": krows[0],
            "native_krows_s": krows[1],
            "ratio": round(best[1][0] / best[0][0], 2),
            "ratios": ratios,
        }
        return {**found, "cpu_ratio": round(cpu_ratio, 2), "region_cpu_s": round(best[0][2], 2), "gate": GATES[case]}


def _cpu_s(region: set[int]) -> float:
    """User and system seconds of this process's children (the JVM, its Python daemons and workers), but for the
    region's.
    """
    total = 0.0
    for child in psutil.Process().children(recursive=True):
        try:
            if child.pid not in region and not {parent.pid for parent in child.parents()} & region:
                times = child.cpu_times()
                total += times.user + times.system + times.children_user + times.children_system
        except psutil.NoSuchProcess:
            continue
    return total


def batch(bench: Bench, case: str, ddl: str) -> dict[str, Any]:
    def noop(reader: Any) -> None:
        reader.write.format("noop").mode("overwrite").save()

    options = bench.topics()
    return bench.compare(
        case,
        lambda: noop(bench.spark.read.format("heliograph").schema(ddl).options(**options).load()),
        lambda: noop(bench.spark.read.schema(ddl).json(bench.files)),
    )


def parquet(bench: Bench) -> dict[str, Any]:
    """The whole of a query, and `running`: its micro-batches alone. The start of a Python source's process, a second of
    Spark's own, is paid once.
    """
    options, number = bench.topics(), iter(range(1000))
    running: dict[str, list[float]] = {"ours": [], "native": []}

    def stream(side: str, rows_: Any) -> None:
        out = bench.folder / f"out-{next(number)}"
        writer = (
            rows_.writeStream.format("parquet")
            .option("path", str(out / "data"))
            .option("checkpointLocation", str(out / "state"))
        )
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        if query.exception() is not None:
            raise query.exception()
        running[side].append(
            sum(progress["durationMs"].get("triggerExecution", 0) for progress in query.recentProgress) / 1000
        )
        shutil.rmtree(out)

    big = {**options, "max_bytes_per_trigger": str(1 << 30)}
    found = bench.compare(
        "parquet",
        lambda: stream("ours", bench.spark.readStream.format("heliograph").schema(DDL12).options(**big).load()),
        lambda: stream("native", bench.spark.readStream.schema(DDL12).json(bench.files)),
    )
    ours, native = (min(running[side][1:]) for side in ("ours", "native"))
    rates = {
        "running_ours_krows_s": round(bench.count / ours / 1000),
        "running_native_krows_s": round(bench.count / native / 1000),
    }
    return {**found, **rates, "running_ratio": round(native / ours, 2)}


def trigger(bench: Bench) -> dict[str, Any]:
    """A topic that gets a few rows ten times a second; how long its micro-batches take."""
    topic, state = f"persistent://{NAMESPACE}/few", bench.folder / "few"
    payloads = rows(400)
    asyncio.run(publish(bench.admin, topic, payloads[:10]))
    rows_ = (
        bench.spark.readStream.format("heliograph")
        .schema(DDL12)
        .options(admin_url=bench.admin, topic=topic, tasks_min="1", subscription="s")
        .load()
    )
    query = (
        rows_.writeStream.format("noop")
        .option("checkpointLocation", str(state))
        .trigger(processingTime="0 seconds")
        .start()
    )
    seen: dict[int, int] = {}

    async def feed() -> None:
        brokers = Brokers(bench.admin)
        producer = TopicProducer(brokers, topic, "feed")
        for n in range(0, 400, 4):
            await producer.send([Message(payload) for payload in payloads[n : n + 4]], n, time.time_ns() // 1_000_000)
            await asyncio.sleep(0.1)
            for progress in query.recentProgress:
                if progress["numInputRows"]:
                    seen[progress["batchId"]] = progress["durationMs"]["triggerExecution"]
        await producer.flush()
        producer.close()
        brokers.close()

    asyncio.run(feed())
    query.stop()
    took = sorted(seen.values())[: -max(1, len(seen) // 20)]  # the first batches start the workers
    return {
        "batches": len(seen),
        "p50_ms": statistics.median(took),
        "min_ms": took[0],
        "p90_ms": took[int(len(took) * 0.9)],
        "gate_ms": 150,
    }


def source(bench: Bench) -> dict[str, Any]:
    """What one core reads over the network: the reader alone, payloads cut from their batches, also straight from
    bookies; and what that costs the region.
    """
    from heliograph.spark.columns.entry_columns import MessageRows

    reader = BlockReader(bench.admin)
    snapshots = reader.snapshots(bench.topics()["topics"].split(","))
    ranges = [(topic, ledger, 0, entries - 1) for topic, s in snapshots.items() for ledger, entries, _ in s.ledgers]
    size = sum(size for s in snapshots.values() for _, _, size in s.ledgers)
    found: dict[str, Any] = {}
    for what in ("blocks", "payloads", "direct"):
        best = (0.0, 0.0, 0.0)
        for _ in range(bench.rounds):
            server, cpu, begun, count = bench.server.cpu_s(), time.process_time(), time.perf_counter(), 0
            gathered = MessageRows(frozenset(), keep_bad=False)
            for number, ledger, first, run in reader.runs(
                ranges, placed=range(len(ranges)) if what == "direct" else ()
            ):
                if what != "blocks":
                    gathered.add(ranges[number][0], snapshots[ranges[number][0]], ledger, first, run)
                    if len(gathered) > 8192:
                        count, gathered = count + len(gathered), MessageRows(frozenset(), keep_bad=False)
            wall, cpu, server = time.perf_counter() - begun, time.process_time() - cpu, bench.server.cpu_s() - server
            best = max(best, (size / cpu / 1e6, size / wall / 1e6, size / server / 1e6))
        found[what] = {"mb_s_a_core": round(best[0]), "mb_s_wall": round(best[1]), "region_mb_s_a_core": round(best[2])}
    return {**found, "gate_mb_s_a_core": 200}


def discover(bench: Bench) -> dict[str, Any]:
    """Topics of a namespace that a new query has never seen: found, read, and counted."""
    count = bench.topics_count
    names = [f"persistent://{NAMESPACE}/d-{n:05d}" for n in range(count)]
    begun = time.perf_counter()
    asyncio.run(publish_many(bench.admin, {name: [b'{"id":1}'] for name in names}))
    made_s = time.perf_counter() - begun
    begun = time.perf_counter()
    found = []
    rows_ = (
        bench.spark.readStream.format("heliograph")
        .options(admin_url=bench.admin, namespace=NAMESPACE, topics_pattern="d-.*")
        .load()
        .select("topic")
    )
    query = rows_.writeStream.foreachBatch(lambda part, _: found.append(part.distinct().count()))
    query = query.option("checkpointLocation", str(bench.folder / "discover")).trigger(availableNow=True).start()
    query.awaitTermination()
    if query.exception() is not None or sum(found) != count:
        raise SystemExit(f"{sum(found)} of {count} topics were read: {query.exception()}")
    return {
        "topics": count,
        "publish_s": round(made_s, 1),
        "seconds": round(time.perf_counter() - begun, 1),
        "gate_s": 60,
    }


def tables(bench: Bench, topics: int = 1000, **gate: float) -> dict[str, Any]:
    """Topics of very different sizes, four columns, into a table of parquet each by the shipped ETL, in one
    micro-batch; best of the rounds.
    """
    from heliograph.spark.jobs.etl import start

    count = 500_000
    payloads, weights = rows(count), [1 / (n + 1) for n in range(topics)]
    sizes = [max(1, int(count * weight / sum(weights))) for weight in weights]
    sizes[0] += count - sum(sizes)
    parts: dict[str, list[bytes]] = {}
    at = 0
    for n, size in enumerate(sizes):
        parts[f"persistent://{NAMESPACE}/t{topics}-{n:05d}"] = payloads[at : at + size]
        at += size
    asyncio.run(publish_many(bench.admin, parts))
    walls, cpus = [], []
    for number in range(bench.rounds + 1):  # the first starts the workers
        folder = bench.folder / f"tables-{number}"
        options = {
            "namespace": NAMESPACE,
            "topics_pattern": f"t{topics}-.*",
            "path": str(folder),
            "checkpoint": str(folder) + ".state",
        }
        options |= {"trigger": "available now", "table": [{"schema": DDL4}]}

        def act(options: dict[str, Any] = options) -> None:
            for query in start(bench.spark, {"admin_url": bench.admin}, "tables", options).streams:
                query.awaitTermination()
                if query.exception() is not None:
                    raise SystemExit(f"tables: {query.exception()}")

        wall, cpu, _ = bench.measured(act)
        walls.append(wall)
        cpus.append(cpu)
        files = list(folder.glob("t*/batch=*/*.parquet"))
        found = sum(pq.read_metadata(path).num_rows for path in files)
        if found != count or len({path.parent.parent for path in files}) != topics:
            raise SystemExit(f"tables: {found} of {count} rows in {len(files)} files")
        shutil.rmtree(folder)
    return {
        "topics": topics,
        "rows": count,
        "files": len(files),
        "seconds": round(min(walls[1:]), 2),
        "cpu_s": round(min(cpus[1:]), 2),
        **gate,
    }


def wide(bench: Bench) -> dict[str, Any]:
    """A column a topic by user, 100,000 users: in one pass over all topics, and by joining what each topic gives."""
    from pyspark.sql import functions as sf

    options = bench.topics()
    names = options["topics"].split(",")

    def read(topics: str) -> Any:
        return (
            bench.spark.read.format("heliograph")
            .schema("user string, amount double, _topic string")
            .options(**{**options, "topics": topics})
            .load()
        )

    def union() -> Any:
        columns = [
            sf.round(sf.sum(sf.when(sf.col("_topic") == name, sf.col("amount"))), 3).alias(f"c{n}")
            for n, name in enumerate(names)
        ]
        return read(options["topics"]).groupBy("user").agg(*columns)

    def join() -> Any:
        sides = [
            read(name).groupBy("user").agg(sf.round(sf.sum("amount"), 3).alias(f"c{n}")) for n, name in enumerate(names)
        ]
        return reduce(lambda left, right: left.join(right, "user", "outer"), sides)

    if union().exceptAll(join()).count() or join().exceptAll(union()).count():
        raise SystemExit("wide: the two tables differ")
    walls = [
        [
            bench.measured(lambda made=made: made().write.format("noop").mode("overwrite").save())[0]
            for made in (union, join)
        ]
        for _ in range(bench.rounds)
    ]
    best = [min(side) for side in zip(*walls, strict=True)]
    return {
        "topics": len(names),
        "union_s": round(best[0], 2),
        "join_s": round(best[1], 2),
        "ratio": round(best[1] / best[0], 2),
        "gate": 1.0,
    }


def audit(bench: Bench) -> dict[str, Any]:
    """The shipped audit over the same topics twice, in place of two regions: what a million messages cost Spark and the
    region. Small messages, big batches.
    """
    from heliograph.spark.jobs.audit import audit as compare

    topics = {f"persistent://{NAMESPACE}/a-{n}": [b"%d" % n] * (bench.count // 8) for n in range(8)}
    asyncio.run(publish_many(bench.admin, topics))
    source = {"admin_url": bench.admin, "topics": ",".join(topics)}
    seen: list[bool] = []

    def act() -> None:
        seen.append(compare(bench.spark, {"us": source, "eu": source}, time.time_ns() // 1_000_000, 1000)[0]["same"])

    wall, cpu, region = bench.measured(act)
    if seen != [True]:
        raise SystemExit("audit: a topic differs from itself")
    a_million = {
        name: round(value * 1e6 / bench.count, 2)
        for name, value in (("seconds", wall), ("cpu_s", cpu), ("region_cpu_s", region))
    }
    return {"messages": bench.count, "a_million": a_million}


CASES: dict[str, Callable[[Bench], dict[str, Any]]] = {
    "batch12": lambda bench: batch(bench, "batch12", DDL12),
    "batch4": lambda bench: batch(bench, "batch4", DDL4),
    "parquet": parquet,
    "trigger": trigger,
    "source": source,
    "tables": lambda bench: tables(bench, gate_s=8),
    "discover": discover,
    "wide": wide,
}
NAMED: dict[str, Callable[[Bench], dict[str, Any]]] = {"tables10k": lambda bench: tables(bench, 10_000), "audit": audit}
"""These cases run only where they are asked for by name."""


def missed(found: dict[str, Any]) -> list[str]:
    """Which of its promises a case has not kept."""
    held = {
        "ratio": found.get("ratio", 1.0) >= found.get("gate", 0.0),
        "p50_ms": found.get("p50_ms", 0) <= found.get("gate_ms", 0),
        "seconds": found.get("seconds", 0) <= found.get("gate_s", 0),
        "mb_s_a_core": all(
            found[what]["mb_s_a_core"] >= found["gate_mb_s_a_core"]
            for what in ("blocks", "payloads", "direct")
            if "gate_mb_s_a_core" in found
        ),
    }
    gates = {"ratio": "gate", "p50_ms": "gate_ms", "seconds": "gate_s", "mb_s_a_core": "gate_mb_s_a_core"}
    return [what for what, kept in held.items() if not kept and gates[what] in found]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument(
        "cases",
        nargs="*",
        metavar="case",
        help=f"of {', '.join(CASES)}, all of these where none is given; {', '.join(NAMED)}",
    )
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--topics", type=int, default=10_000, help="of discover")
    options = parser.parse_args()
    every = {**CASES, **NAMED}
    unknown = set(options.cases) - set(every)
    if unknown:
        parser.error(f"no case {min(unknown)}; there are {', '.join(every)}")
    with tempfile.TemporaryDirectory(prefix="heliograph-spark-") as folder:
        bench = Bench(Path(folder), options.rows, options.rounds, options.topics)
        try:
            failed = False
            for case in options.cases or CASES:
                found = every[case](bench)
                if late := missed(found):
                    found, failed = {**found, "missed": late}, True
                print(json.dumps({"case": case, **found}), flush=True)
        finally:
            bench.close()
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
