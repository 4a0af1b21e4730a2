"""The sinks of the jobs that the kill tests run: the query of each in a job's file, and what came out of it, as another
reader sees it.

Is: where each lies, how far its checkpoint is, and the comparison with what was published. Isn't: the job's process, or
its deaths (`spark_kills`).
By name: `files`, Spark's own parquet (read back as Spark reads it); `topic`, our sink into another topic; `tables` and
`delta`, the shipped ETL into a table of parquet files and into a Delta table (read back as anybody reads them, who
knows of no checkpoint); `wide`, a wide table that counts, in three stores. Asked for by name: `tiers`, the ETL whose
topics go from one query to another and back at each start of the driver; `iceberg`, the ETL into an Iceberg table;
`servers`, the wide table in a Redis and a ClickHouse of Debian's packages; `hive`, the ETL into Hive, read back by what
Spark's metastore says; `embedded`, the wide table in ClickHouse's engine of the package chdb and in Hive; `profiles`,
the newest row of each key in Redis; `replay`, into a topic; `portable`, our sink with rows in places that hold in every
region; `folders`, the table of SQL text: a folder a micro-batch.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.dataset as ds
from deltalake import DeltaTable, QueryBuilder
from pyiceberg.catalog import load_catalog

from geo_tests.wan.instance import Instance, eventually
from heliograph.spark.stores.clickhouse import Engine, HttpEngine
from heliograph.spark.stores.embedded import ChdbEngine

SINKS = ("files", "topic", "tables", "delta", "wide")
STORES = ("parquet", "delta", "iceberg")
SERVERS = ("redis", "clickhouse")
IN_HIVE = {"hive": ("default", "all"), "embedded": ("wide", "by_minute")}
"""By sink, its table in the metastore."""
PROFILES = 50
"""Keys of `profiles`, each of a single topic."""


class Sinks:
    """Of one job, in its folder."""

    def __init__(
        self,
        instance: Instance,
        folder: Path,
        name: str,
        sinks: Sequence[str] = SINKS,
        servers: Mapping[str, str] | None = None,
        *,
        region: str = "us",
        sources: Sequence[str] = (),
        source: str = "tasks_min = 2",
        twice: Counter[str] | None = None,
    ) -> None:
        """servers: the URL of each of SERVERS, for the sinks that want it.

        region: where it reads and writes. sources: topics, else two of its own. source: options of each query's. twice:
        bodies that a region stored and could not send before it was lost: once it was back, `portable`'s topic has them
        twice.
        """
        self.folder, self.instance, self.name, self.sinks, self.servers, self.region = (
            folder,
            instance,
            name,
            tuple(sinks),
            servers or {},
            region,
        )
        self.twice = twice or Counter[str]()
        self.sources, self._source = (
            list(sources) or [f"persistent://public/geo/{name}-in-{n}" for n in range(2)],
            source,
        )
        self.target, self.replayed = f"persistent://public/geo/{name}-out", f"persistent://public/geo/{name}-again"

    def queries(self) -> str:
        """The queries of the job's file."""
        return "".join(self._query(sink, f"{self.name}-{sink}") for sink in self.sinks)

    def metastore(self) -> dict[str, str]:
        """Settings of a session that sees the job's metastore, once the job is over: Derby has one process at a
        time.
        """
        if not set(self.sinks) & set(IN_HIVE):
            return {}
        place = f"jdbc:derby:;databaseName={self.folder}/metastore;create=true"
        found = {"spark.sql.catalogImplementation": "hive", "spark.sql.warehouse.dir": f"{self.folder}/warehouse"}
        return found | {"spark.hadoop.javax.jdo.option.ConnectionURL": place}

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
                targets = (
                    f'{{ store = "clickhouse", path = "{place}/engine" }}, {{ store = "hive", path = "{place}/hive", '
                    f'database = "wide" }}'
                )
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
        """  # noqa: E501

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


def _newest(folder: Path) -> int:
    """The number of the newest micro-batch in one of a checkpoint's logs."""
    return max((int(path.name) for path in folder.glob("*") if path.name.isdecimal()), default=-1)


def sums(topics: list[str], published: list[str]) -> dict[str, tuple[int, int]]:
    """By topic, which the publisher takes in turn, how many bodies there are, and their numbers' sum: one lost is not
    made up for by another one twice.
    """
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
        return list(
            pa.table(
                QueryBuilder().register("t", DeltaTable(str(folder / table))).execute("select * from t")
            ).to_pylist()
        )
    catalog = load_catalog(
        "heliograph", type="sql", uri=f"sqlite:///{folder / 'catalog.db'}", warehouse=f"file://{folder}"
    )
    return (
        list(catalog.load_table(f"default.{table}").scan().to_arrow().to_pylist())
        if catalog.table_exists(f"default.{table}")
        else []
    )


def seen_by(engine: Engine, table: str) -> list[dict[str, Any]]:
    """`source`, `seen`, and `total` of each row in ClickHouse, by a connection of its own."""
    try:
        if not int(engine.run(f"SELECT count() FROM system.tables WHERE name = '{table}'")):
            return []
        lines = engine.run(f"SELECT source, seen, total FROM {table} FORMAT TabSeparated").decode().splitlines()
        return [
            {"source": source, "seen": int(seen), "total": int(total)}
            for source, seen, total in (line.split("\t") for line in lines)
        ]
    finally:
        engine.close()


def server_rows(store: str, url: str, table: str) -> list[dict[str, Any]]:
    """`source`, `seen`, and `total` of each row in one of SERVERS, as another client sees them."""
    if store == "redis":
        from redis import Redis

        hashes = Redis.from_url(url, decode_responses=True)
        found = {key: hashes.hmget(key, "seen", "total") for key in hashes.keys(f"{table}:2*")}
        return [
            {"source": unquote(key.rpartition(":")[2]), "seen": int(seen or 0), "total": int(total or 0)}
            for key, (seen, total) in found.items()
        ]
    return seen_by(HttpEngine(url), table)


def _bodies(rows: pa.Table | None) -> Counter[str]:
    return Counter() if rows is None else Counter(value.decode() for value in rows["value"].to_pylist())


def verdict(job: Sinks, published: list[str], spark: Any, patience_s: float = 600) -> None:
    """Waits until everything came out of all queries, then compares. Raises AssertionError."""
    assert published, "nothing was published, so nothing is shown"
    expected = Counter(published)

    def files() -> Counter[str]:
        if not (job.folder / "files" / "_spark_metadata").is_dir():
            return Counter()
        return Counter(
            row.body for row in spark.read.schema("body string").parquet(str(job.folder / "files")).collect()
        )

    def topic(name: str = job.target) -> Counter[str]:
        return Counter(job.instance.read_all(job.region, name))

    def tables(sink: str = "tables") -> Counter[str]:
        found = [str(path) for path in (job.folder / sink / "all").glob("batch=*/*.parquet")]
        return _bodies(ds.dataset(found).to_table(columns=["value"]) if found else None)

    def iceberg() -> Counter[str]:
        place = job.folder / "iceberg"
        if not (place / "catalog.db").exists():
            return Counter()
        catalog = load_catalog(
            "heliograph", type="sql", uri=f"sqlite:///{place / 'catalog.db'}", warehouse=f"file://{place}"
        )
        return (
            _bodies(catalog.load_table("default.all").scan().to_arrow())
            if catalog.table_exists("default.all")
            else Counter()
        )

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
            eventually(
                lambda: profiles(job.servers["redis"]) == newest, "the newest row of each key in Redis", patience_s
            )
        finally:
            there = profiles(job.servers["redis"])
            assert there == newest, (
                f"profiles: {sorted(set(there.items()) ^ set(newest.items()))[:10]}\n{job.log()[-3000:]}"
            )
    readers = {
        "files": files,
        "topic": topic,
        "tables": tables,
        "delta": delta,
        "iceberg": iceberg,
        "tiers": lambda: tables("tiers"),
    }
    readers |= {
        "hive": lambda: tables("hive"),
        "folders": lambda: tables("folders"),
        "replay": lambda: topic(job.replayed),
        "portable": topic,
    }
    for name, read in readers.items():
        if name not in job.sinks:
            continue
        wanted = expected + job.twice if name == "portable" else expected
        try:
            eventually(
                lambda read=read, wanted=wanted: read().total() >= wanted.total(),
                f"all of {len(published)} messages in {name}",
                patience_s,
            )
        finally:
            found = read()
            lost, more = wanted - found, found - wanted
            text = (
                f"{name}: {sum(lost.values())} lost ({list(lost)[:5]}), {sum(more.values())} too many "
                f"({list(more)[:5]}) of {len(published)}"
            )
            assert not lost and not more, f"{text}\n{job.log()[-3000:]}"


def profiles(url: str) -> dict[int, int]:
    """By key, its newest number, as another client sees it."""
    from redis import Redis

    client = Redis.from_url(url, decode_responses=True)
    return {int(key.rpartition(":")[2]): int(client.hget(key, "n") or -1) for key in client.keys("soak:newest:[0-9]*")}


def told(job: Sinks) -> bool:
    """Whether the metastore has heard of all that the ETL landed."""
    return "hive" not in job.sinks or not list((job.folder / "hive" / "_staging" / "_landed").glob("*.json"))


def metastore_verdict(job: Sinks, published: list[str], spark: Any) -> None:
    """Once the job is over: the same of Hive's tables, by the partitions that the metastore names. Raises
    AssertionError.
    """
    of = {sink: f"`{database}`.`{table}`" for sink, (database, table) in IN_HIVE.items() if sink in job.sinks}
    if "hive" in of:
        assert Counter(
            bytes(row.value).decode() for row in spark.sql(f"SELECT value FROM {of['hive']}").collect()
        ) == Counter(published), "hive, the metastore"
    if "embedded" in of:
        rows = spark.sql(
            f"SELECT source, sum(seen) AS seen, sum(total) AS total FROM {of['embedded']} GROUP BY source"
        ).collect()
        assert {row.source: (row.seen, row.total) for row in rows} == sums(job.sources, published), (
            "embedded, the metastore"
        )
