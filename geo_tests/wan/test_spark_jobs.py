"""The shipped jobs against a real region, as `heliograph spark run` runs them."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import psutil
import pulsar
import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from geo_tests.wan.instance import Instance
from geo_tests.wan.spark_kills import arrived
from geo_tests.wan.spark_sinks import STORES, wide_rows
from heliograph.client.admin_http import Http
from heliograph.client.block_reader import BlockReader
from heliograph.model.errors import ConfigError, NotAllowed
from heliograph.spark.job_files.running_queries import state_of
from tests.heliograph.spark.running import NAMESPACE, PATIENT, forget, publish, run, started
from tests.heliograph.spark.stores.support import dying
from tests.region_node.live import provisioned, until
from tests.region_node.region_processes import Region
from tests.region_node.rest_client import Rest

pytestmark = pytest.mark.long

pyspark = pytest.importorskip("pyspark")


@pytest.fixture(scope="module")
def region(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Region]:
    with provisioned(tmp_path_factory.mktemp("jobs")) as made:
        yield made


@pytest.fixture(scope="module")
def client(region: Region) -> Iterator[pulsar.Client]:
    made = pulsar.Client(region.service_url(), logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    yield made
    made.close()


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    from heliograph.spark import session

    made = session("jobs", settings={"spark.sql.shuffle.partitions": "4"})
    yield made
    made.stop()


def read(folder: Path) -> pa.Table:
    """As any reader of parquet does, which knows of no checkpoint."""
    files = sorted(folder.glob("batch=*/*.parquet"))
    columns = json.loads((folder / "_columns.json").read_text())
    schema = pa.unify_schemas([ds.dataset(str(path)).schema for path in files])
    assert set(schema.names) == set(columns)
    return ds.dataset([str(path) for path in files], schema=schema).to_table()


def deduplicate(region: Region) -> None:
    assert Rest(region.admin_url())("POST", "/admin/v2/namespaces/public/default/deduplication", True)[0] == 204


def test_topics_go_to_tables_of_their_own_and_poison_to_the_quarantine(
    region: Region, client: pulsar.Client, spark: Any, tmp_path: Path
) -> None:
    options: dict[str, Any] = {
        "namespace": "public/default",
        "topics_pattern": "etl-.*",
        "subscription": "etl",
        "path": str(tmp_path / "lake"),
        "checkpoint": str(tmp_path / "state"),
        "trigger": "available now",
        "table": [
            {"topics": "etl-orders", "schema": "id bigint, price double, _publish_time timestamp", "name": "orders"},
            {"topics": "etl-users-.*", "schema": "name string"},
            {"topics": "etl-bytes", "schema": "raw"},
        ],
    }
    lake = tmp_path / "lake"
    publish(
        client,
        "etl-orders",
        [json.dumps({"id": n, "price": n / 2}) for n in range(100)] + ["{broken", '{"id": "text"}'],
    )
    publish(client, "etl-users-1", [json.dumps({"name": f"u{n}"}) for n in range(30)])
    publish(client, "etl-bytes", ["any", "thing"])
    publish(client, "etl-nobody", ["lost?"])
    run(spark, "etl", region.admin_url(), options)
    orders = read(lake / "orders")
    assert sorted(orders["id"].to_pylist()) == list(range(100)) and orders["_publish_time"].null_count == 0
    assert sorted(read(lake / "etl-bytes")["value"].to_pylist()) == [b"any", b"thing"]
    poison = read(lake / "_quarantine").to_pylist()
    assert sorted((row["topic"].rpartition("/")[2], row["value"]) for row in poison) == [
        ("etl-nobody", b"lost?"),
        ("etl-orders", b'{"id": "text"}'),
        ("etl-orders", b"{broken"),
    ]
    assert all(row["coordinate"]["ledger"] >= 0 and row["reason"] for row in poison)
    # a new topic, a new column, and the last batch again, as if the driver had died before Spark wrote that it was done
    options["table"][0]["schema"] = "id bigint, price double, country string, _publish_time timestamp"
    publish(client, "etl-users-2", ["{}"])
    publish(client, "etl-orders", [json.dumps({"id": 100, "country": "FR"})])
    run(spark, "etl", region.admin_url(), options)
    forget(tmp_path / "state")
    run(spark, "etl", region.admin_url(), options)
    orders = read(lake / "orders")
    assert sorted(orders["id"].to_pylist()) == list(range(101))
    assert Counter(orders["country"].to_pylist()) == {None: 100, "FR": 1}
    assert read(lake / "etl-users-1").num_rows == 30 and read(lake / "etl-users-2").to_pylist() == [{"name": None}]
    assert read(lake / "_quarantine").num_rows == 3


def test_registered_schemas_grow_in_tables_of_each_format(
    region: Region, client: pulsar.Client, spark: Any, tmp_path: Path
) -> None:
    pytest.importorskip("deltalake")
    pytest.importorskip("pyiceberg")
    from pulsar.schema import AvroSchema, Integer, Record, String

    class One(Record):  # type: ignore[misc, unused-ignore]
        _avro_namespace = "t"
        id = Integer()

    class Two(Record):  # type: ignore[misc, unused-ignore]
        _avro_namespace = "t"
        id = Integer()
        city = String(required_default=True)

    Two.__name__ = "One"
    topic, formats = f"{NAMESPACE}/lake-visits", ("parquet", "delta", "iceberg")

    def visits(kind: Any, *records: Any) -> None:
        producer = client.create_producer(topic, schema=AvroSchema(kind), batching_enabled=False)
        for record in records:
            producer.send(record)
        producer.close()

    def tables() -> list[list[tuple[Any, ...]]]:
        found = [
            read(tmp_path / "parquet" / "lake-visits").to_pylist(),
            *(wide_rows(each, tmp_path / each, "lake-visits") for each in formats[1:]),
        ]
        return [sorted((row["id"], row.get("city")) for row in rows) for rows in found]

    options: list[dict[str, Any]] = [
        {
            "topics": [topic],
            "format": each,
            "path": str(tmp_path / each),
            "checkpoint": str(tmp_path / f"{each}.state"),
            "trigger": "available now",
        }
        for each in formats
    ]
    for each in options:
        each["table"] = [{"schema": "registered"}]
    visits(One, One(id=1), One(id=2))
    run(spark, "etl", region.admin_url(), *options)
    assert tables() == [[(1, None), (2, None)]] * 3
    visits(Two, Two(id=3, city="Oslo"))
    run(spark, "etl", region.admin_url(), *options)
    assert tables() == [[(1, None), (2, None), (3, "Oslo")]] * 3
    for format_ in formats:
        forget(tmp_path / f"{format_}.state")
    run(spark, "etl", region.admin_url(), *options)
    assert tables() == [[(1, None), (2, None), (3, "Oslo")]] * 3, "a second delivery of the last micro-batch"
    from heliograph.spark.jobs.tiers import measured

    http = Http(region.admin_url())
    assert set(measured(http, [topic, f"{NAMESPACE}/none-such"])) == {topic}, "what brokers say, for tiers"
    http.close()


def test_topics_move_between_tiers_with_where_they_stand(
    region: Region, client: pulsar.Client, spark: Any, tmp_path: Path
) -> None:
    """Limits say that no topic is light, and then that all are, whatever brokers measure; each time a micro-batch is
    unfinished.
    """
    from heliograph.spark.jobs import tier_generations

    state, lake, topics = tmp_path / "state", tmp_path / "lake", ("tier-a", "tier-b")
    options: dict[str, Any] = {
        "namespace": "public/default",
        "topics_pattern": "tier-.*",
        "subscription": "tiers",
        "path": str(lake),
        "checkpoint": str(state),
        "trigger": "available now",
        "source": {"max_bytes_per_trigger": 6000},
        "table": [{"schema": "n bigint"}],
    }
    light, busy = (
        {"rebalance_s": 0, "light_bytes_s": 1e12, "heavy_bytes_s": 1e12},
        {"rebalance_s": 0, "light_bytes_s": 0, "queries_max": 2},
    )
    published = 0

    def more(tiers: Mapping[str, float], labels: list[str]) -> None:
        nonlocal published
        for topic in topics:
            publish(client, topic, [json.dumps({"n": n}) for n in range(published, published + 300)])
        published += 300
        run(spark, "etl", region.admin_url(), {**options, "tiers": tiers} if tiers else options)
        assert sorted(path.name for path in state.glob("*.?")) == labels
        for topic in topics:
            assert sorted(read(lake / topic)["n"].to_pylist()) == list(range(published))

    more({}, [])
    forget(state)  # it never had tiers, and is in the middle of a micro-batch: its checkpoint is taken over
    more(busy, ["light.1", "middle-0.1"])
    forget(state / "middle-0.1")
    with dying(
        tier_generations, "replace_file", 1, after=False
    ) as deaths:  # all have ended, and the new ones are told where to begin
        run(spark, "etl", region.admin_url(), {**options, "tiers": light})
    assert deaths == [1] and json.loads((state / "tiers.json").read_text())["generation"] == 1
    more(light, ["light.2"])
    with pytest.raises(ConfigError, match="ran with tiers"):
        run(spark, "etl", region.admin_url(), options)


@pytest.mark.system
def test_a_driver_that_is_killed_in_the_middle_of_batches_loses_and_doubles_nothing(
    region: Region, client: pulsar.Client, tmp_path: Path
) -> None:
    lake, job = tmp_path / "lake", tmp_path / "job.toml"
    for topic in ("kill-a", "kill-b"):
        publish(client, topic, [json.dumps({"n": n}) for n in range(400)])

    def write(trigger: str) -> None:
        job.write_text(
            f"""
            heliograph.admin_url = "{region.admin_url()}"
            [[query]]
            name = "etl"
            job = "etl"
            [query.options]
            namespace = "public/default"
            topics_pattern = "kill-.*"
            path = "{lake}"
            checkpoint = "{tmp_path}/state"
            trigger = "{trigger}"
            source = {{ max_bytes_per_trigger = 4000, task_bytes = 1500 }}
            [[query.options.table]]
            schema = "n bigint"
            """
        )

    def start() -> subprocess.Popen[bytes]:
        with (tmp_path / "log").open("ab") as log:
            return subprocess.Popen([sys.executable, "-m", "heliograph.spark.driver", str(job)], stdout=log, stderr=log)

    write("0 seconds")
    process = start()
    children: list[psutil.Process] = []
    try:
        # files are staged, and their batch has not landed: the middle of one that is not the first
        until(
            lambda: (
                process.poll() is None
                and list(lake.glob("kill-a/batch=*"))
                and list((lake / "_staging").glob("*/*/kill-a/*.parquet"))
            ),
            400,
        )
        children = psutil.Process(process.pid).children(recursive=True)
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    psutil.wait_procs(children, timeout=240)  # Java sees by itself that its driver is gone
    before = len(list(lake.glob("kill-a/batch=*")))
    assert 0 < read(lake / "kill-a").num_rows < 400, "in the middle"
    write("available now")
    process = start()
    assert process.wait(600) == 0, (tmp_path / "log").read_text()[-3000:]
    for topic in ("kill-a", "kill-b"):
        assert sorted(read(lake / topic)["n"].to_pylist()) == list(range(400))
    assert len(list(lake.glob("kill-a/batch=*"))) > before


@pytest.mark.timeout(1500)
def test_a_wide_table_of_topics_and_an_offline_table_in_one_pass(
    region: Region, client: pulsar.Client, spark: Any, tmp_path: Path
) -> None:
    def body(n: int, hour: int, **more: Any) -> str:
        return json.dumps({"user": f"u{n % 3}", "at": f"2026-01-31T{hour:02d}:{n % 60:02d}:00Z", **more})

    assert Rest(region.admin_url())("PUT", "/admin/v2/persistent/public/default/ab-clicks/partitions", 2)[0] == 204
    nowhere = [
        "{broken",
        '{"user": "u0"}',
        '{"at": "2026-01-31T10:00:00Z"}',
        '{"user": "u0", "at": "2100-01-01T00:00:00Z"}',
    ]  # a clock that is wrong
    publish(client, "ab-clicks", [body(n, 10 + n // 45) for n in range(90)] + nowhere)
    publish(client, "ab-orders", [body(n, 10, amount=n / 2) for n in range(30)])
    targets = [{"store": kind, "path": str(tmp_path / kind)} for kind in STORES]
    common: dict[str, Any] = {"keys": ["user"], "target": targets}
    common["table"] = [{"name": "hourly", "period": "1 hour"}, {"name": "daily", "period": "1 day"}]
    read_from = {
        "namespace": "public/default",
        "topics_pattern": "ab-.*",
        "subscription": "ab",
        "checkpoint": str(tmp_path / "state"),
    }
    read_as = {
        "schema": "user string, amount double, at timestamp",
        "time": "at",
        "trigger": "available now",
        "state_tasks": 2,
    }
    online = common | read_from | read_as
    online |= {
        "columns": {
            "clicks": {"topics": "ab-clicks", "value": "count(*)"},
            "orders": {"topics": "ab-(orders|buys)", "value": "count(*)"},
            "paid": {"topics": "ab-orders", "value": "sum(amount)"},
        },
    }
    (tmp_path / "users.json").write_text(
        "".join(json.dumps({"user": f"u{n}", "day": "2026-01-31", "age": 30 + n}) + "\n" for n in range(1, 4))
    )
    offline = common | {
        "offline": {"format": "json", "path": str(tmp_path / "users.json")},
        "time": "timestamp(day)",
        "columns": {"age": "max(age)"},
    }
    offline["table"] = [{"name": "daily", "period": "1 day"}]

    def tables() -> dict[str, list[tuple[Any, ...]]]:
        found = {}
        for name, columns in (("hourly", ["clicks", "orders", "paid"]), ("daily", ["clicks", "orders", "paid", "age"])):
            of = [wide_rows(store, tmp_path / store, name) for store in STORES]
            rows = [
                sorted((row["period"].hour, row["user"], *(row.get(column) for column in columns)) for row in each)
                for each in of
            ]
            assert rows[0] == rows[1] == rows[2], name
            found[name] = rows[0]
        return found

    run(spark, "wide", region.admin_url(), online)
    hourly = [(10, f"u{n}", 15, 10, sum(range(n, 30, 3)) / 2) for n in range(3)] + [
        (11, f"u{n}", 15, 0, None) for n in range(3)
    ]
    import importlib

    assert importlib.import_module("heliograph.spark.jobs.wide").start(spark, {}, "ages", offline) == []
    first = tables()
    assert first["hourly"] == hourly
    paid = [row[4] for row in hourly[:3]]
    assert first["daily"] == [
        (0, "u0", 30, 10, paid[0], None),
        (0, "u1", 30, 10, paid[1], 31),
        (0, "u2", 30, 10, paid[2], 32),
        (0, "u3", None, None, None, 33),
    ]
    forget(tmp_path / "state")
    run(spark, "wide", region.admin_url(), online)
    assert tables() == first, "a batch that came twice"
    publish(client, "ab-buys", [body(1, 11), body(1, 11)])  # a new topic, a known row
    run(spark, "wide", region.admin_url(), online)
    assert tables()["hourly"] == [*hourly[:4], (11, "u1", 15, 2, None), hourly[5]]
    assert tables()["daily"][1] == (0, "u1", 30, 12, paid[1], 31)
    known, columns = tables(), online["columns"]
    swapped = {name: columns[name] for name in ("orders", "clicks", "paid")}  # to Spark, the same two numbers
    for change in (
        {"columns": swapped},
        {"table": [*online["table"], {"name": "weekly", "period": "7 days"}]},
        {"time": "at - interval 1 hour"},
    ):
        with pytest.raises(ConfigError, match=f"{next(iter(change))}: not as it was"):
            run(spark, "wide", region.admin_url(), online | change)

    def kept() -> tuple[int, int]:
        """(rows of state, rows that came too late) of a run."""
        wide, streams = importlib.import_module("heliograph.spark.jobs.wide"), list[Any]()
        genuine = wide.started

        def tracked(*given: Any) -> Any:
            streams.append(genuine(*given))
            return streams[-1]

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(wide, "started", tracked)
            run(spark, "wide", region.admin_url(), online)
            progress = [state_of(each) for each in streams[-1].recentProgress]
        return progress[-1]["state_rows"], sum(each["late_rows"] for each in progress)

    publish(client, "ab-clicks", [json.dumps({"user": "u9", "at": "2026-02-03T10:00:00Z"})])
    assert kept() == (2, 0), "what no row may come for any more is not kept: a day, and the lateness, have passed"
    publish(client, "ab-clicks", [body(0, 11), json.dumps({"user": "u9", "at": "2026-02-03T08:30:00Z"})])
    assert kept() == (3, 2), (
        "a row that is late for its hour, and for its day; one that is an hour and a half late, in a day that is open"
    )
    known["hourly"] = sorted([*known["hourly"], (10, "u9", 1, 0, None), (8, "u9", 1, 0, None)])
    known["daily"] = sorted([*known["daily"], (0, "u9", 2, 0, None, None)])
    assert tables() == known, "what a target has of old periods stays"


def test_rows_of_a_topic_have_the_same_task_in_whatever_order_they_come(spark: Any) -> None:
    from heliograph.spark import portable

    rows = [(f"t{n % 3}", n) for n in range(200)]

    def tasks(rows: list[Any], before: int) -> list[set[int]]:
        made = portable(
            spark.createDataFrame(rows, "topic string, n int").selectExpr("*", "n as coordinate").repartition(before), 4
        ).select("n")
        return [{row.n for row in task} for task in made.rdd.glom().collect()]

    first = tasks(rows, 2)
    assert len(first) == 4 and sorted(n for task in first for n in task) == list(range(200))
    assert tasks(random.Random(3).sample(rows, len(rows)), 5) == first
    with pytest.raises(ConfigError, match="wants the columns topic and coordinate"):
        portable(spark.createDataFrame(rows, "topic string, n int"))


def test_the_newest_row_of_a_key_is_by_a_topics_order_and_then_by_time(spark: Any) -> None:
    from heliograph.spark.jobs.redis import newest
    from heliograph.spark.jobs.sql_expressions import declared

    place = ("_topic", "_publish_time", "_ledger", "_entry", "_batch_index")
    schema = declared({"schema": "user string, city string, gone boolean"}, place, "here")
    at = [datetime(2026, 1, 1, second=n, tzinfo=UTC) for n in range(10)]
    rows = [
        ("U0", "published late", None, "t", at[9], 1, 0, 0),
        ("u0", "stored last", None, "t", at[1], 1, 0, 1),
        ("u1", "here", None, "t", at[1], 1, 2, None),
        ("u1", None, True, "t", at[1], 1, 3, None),
        (None, "no key", None, "t", at[1], 1, 4, None),
        ("u2", "early", None, "t2", at[1], 9, 9, None),
        ("u2", "late", None, "t3", at[5], 1, 1, None),
    ]
    names = ("user", "city", "gone", *place)
    given = spark.createDataFrame(
        [tuple(dict(zip(names, row, strict=True))[name] for name in schema.names) for row in rows], schema
    )
    found = newest(given, {"user": "lower(user)"}, {"city": "city"}, "gone").collect()
    assert sorted((row.user, row.city) for row in found) == [("u0", "stored last"), ("u1", None), ("u2", "late")]


def test_a_replay_publishes_each_message_once_at_its_rate_with_its_schema(
    region: Region, client: pulsar.Client, spark: Any, tmp_path: Path
) -> None:
    from pulsar.schema import AvroSchema, Integer, Record, String, StringSchema

    class One(Record):  # type: ignore[misc, unused-ignore]
        id = Integer()

    class Two(Record):  # type: ignore[misc, unused-ignore]
        id = Integer()
        city = String(required_default=True)

    Two.__name__ = "One"
    source, target = f"{NAMESPACE}/replay-from", f"{NAMESPACE}/replay-to"
    typed = {f"{source}-{number}": kinds for number, kinds in enumerate(((One, Two), (Two,)))}
    producer = client.create_producer(source, batching_enabled=True, **PATIENT)
    for n in range(300):
        producer.send_async(
            b"%d" % n, None, partition_key=f"k{n % 7}", properties={"n": str(n)}, event_timestamp=1000 + n
        )
    producer.flush()
    deduplicate(region)
    keys = [b"\xff\x00", b"\xfe", b"text", b"\xff\x00"]  # as Kafka's clients have them
    odd = spark.createDataFrame([(b"odd", key) for key in keys], "value binary, key binary").coalesce(1)
    odd.write.format("heliograph").options(admin_url=region.admin_url(), topic=f"{source}-keys").mode("append").save()
    for topic, kinds in typed.items():
        for number, kind in enumerate(kinds):
            producer = client.create_producer(topic, schema=AvroSchema(kind), **PATIENT)
            producer.send(kind(id=number))
            producer.close()
    ending = time.time_ns() // 1_000_000 + 1
    until(lambda: time.time_ns() // 1_000_000 > ending)
    publish(client, "replay-from", ["too late"])
    topics = [source, f"{source}-keys", *typed]
    options = {
        "topics": topics,
        "to": target,
        "rate": 100,
        "checkpoint": str(tmp_path / "state"),
        "ending": str(ending),
    }
    run(spark, "replay", region.admin_url(), options)
    forget(tmp_path / "state")
    run(spark, "replay", region.admin_url(), options)

    def rows(*topics: str) -> list[Any]:
        of = spark.read.format("heliograph").options(admin_url=region.admin_url(), topics=",".join(topics))
        return list(of.load().orderBy("ledger", "entry", "batch_index").collect())

    def by_definition(*topics: str) -> Counter[tuple[bytes, str]]:
        reader = BlockReader(region.admin_url())
        known = {topic: {row["version"]: row["data"] for row in reader.schemas(topic)} for topic in topics}
        reader.close()
        return Counter(
            (bytes(row.value), known[row.topic][row.schema_version])
            for row in rows(*topics)
            if row.schema_version is not None
        )

    raw = (
        spark.read.format("heliograph")
        .schema("key string, base64_key boolean, value binary")
        .options(admin_url=region.admin_url(), topic=target)
    )
    binary = Counter((row.key, row.base64_key) for row in raw.load().collect() if bytes(row.value) == b"odd")
    assert binary == {("/wA=", True): 2, ("/g==", True): 1, ("text", False): 1}
    plain = [row for row in rows(target) if row.schema_version is None and bytes(row.value) != b"odd"]
    found = [(bytes(r.value), r.key, r.properties["n"], round(r.event_time.timestamp() * 1000)) for r in plain]
    assert found == [(b"%d" % n, f"k{n % 7}", str(n), 1000 + n) for n in range(300)]
    # 300 messages, 100 a second: the last came no sooner than 2 s after the first, whatever else was slow
    assert plain[-1].publish_time.timestamp() - plain[0].publish_time.timestamp() > 1.5
    assert by_definition(target) == by_definition(*typed) and len(by_definition(target)) == 3
    client.create_producer(f"{source}-2", schema=StringSchema()).close()
    with pytest.raises(
        NotAllowed, match=r"replay-from-2 cannot be registered at .*replay-to"
    ):  # before anything is written
        run(
            spark,
            "replay",
            region.admin_url(),
            {**options, "topics": [f"{source}-2"], "checkpoint": str(tmp_path / "other")},
        )


def test_a_model_learns_from_a_stream_as_the_page_says(
    region: Region, client: pulsar.Client, spark: Any, tmp_path: Path
) -> None:
    """The sample of docs/spark.md, with this test's names; a micro-batch that comes again teaches nothing."""
    rng = random.Random(4)
    told = [{"price": rng.random(), "visits": rng.random()} for _ in range(1500)]
    publish(client, "offers", [json.dumps({**each, "bought": each["visits"] > each["price"]}) for each in told])
    page = (Path(__file__).resolve().parents[2] / "docs" / "spark.md").read_text()
    (text,) = [block for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "def learn(" in block]
    for theirs, mine in (
        ("/data/", f"{tmp_path}/"),
        ("http://127.0.0.1:8080", region.admin_url()),
        (".start()", ".trigger(availableNow=True).start()"),
    ):
        assert theirs in text
        text = text.replace(theirs, mine)
    model = tmp_path / "offers.model"

    def run_it() -> dict[str, Any]:
        def start() -> Any:
            names: dict[str, Any] = {}
            exec(text, names)
            return names["query"]

        query = started(start)
        assert query.awaitTermination(600) and query.exception() is None
        found: dict[str, Any] = json.loads(model.read_text())
        return found

    learned = run_it()
    _, price, visits = learned["weights"]
    assert learned["batch"] == 0 and price < -1 and visits > 1
    forget(tmp_path / "offers.state")
    assert run_it() == learned


def test_two_regions_copies_are_compared(pair: Instance, spark: Any, tmp_path: Path) -> None:
    topics = [f"persistent://public/geo/audited-{n}" for n in range(2)]
    for topic in topics:
        for region in ("us", "eu"):
            producer = pair.client(region).create_producer(topic, batching_enabled=True, **PATIENT)
            for n in range(100):
                producer.send_async(b"%d" % n, None)
            producer.flush()
    for topic in topics:
        for region in ("us", "eu"):
            arrived(pair, region, topic, 200)
    regions = {name: pair.admin(name) for name in ("us", "eu")}
    from heliograph.spark.jobs.audit import start

    assert start(spark, {}, "audit", {"topics": topics, "regions": regions, "path": str(tmp_path / "audit")}) == []
    report = json.loads((tmp_path / "audit" / "report.json").read_text())
    assert report["same"] and sorted(report["topics"]) == topics
    assert all(
        found["both"] == 200 and found["messages"] == {"us": 200, "eu": 200} for found in report["topics"].values()
    )
    assert (tmp_path / "audit" / "ranges.csv").read_text().count("\n") == 1
    for found in report["topics"].values():
        assert [(each["from"], each["in"], each["messages"]) for each in found["arrived"]] == [
            ("us", "eu", 100),
            ("eu", "us", 100),
        ]
        assert all(
            0 <= each["lag_ms"]["p50"] <= each["lag_ms"]["p99"] <= each["lag_ms"]["max"] < 3_600_000
            for each in found["arrived"]
        )
    assert report["plot"] == "lag.svg" and "audited-0: us to eu" in (tmp_path / "audit" / "lag.svg").read_text()


def test_what_differs_between_two_copies_is_found(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from heliograph.spark.jobs import audit as audit_module

    def message(topic: str, entry: int, ledger: int = 3, late: int = 0) -> tuple[Any, ...]:
        at = datetime.fromtimestamp(entry, UTC)
        return topic, "us", at, at + timedelta(seconds=late), at, "p", None, entry, 1, 1, "abcd", ledger, entry, 1

    columns = (
        "topic string, origin_region string, publish_time timestamp, stored_time timestamp, origin_time timestamp,"
    )
    columns += " producer_name string, replicate_to string, first_sequence_id long,"
    columns += " region int, epoch int, incarnation string, ledger long, entry long, messages int"
    us = [*(message("t", n) for n in range(10)), message("twin", 0)]
    eu = [
        *(message("t", n, late=late) for n, late in ((2, 1), (3, 2), (6, 3), (6, 90), (7, -5))),
        message("twin", 0, late=7),
    ]
    given = {"us": us, "eu": eu}
    monkeypatch.setattr(
        audit_module, "_side", lambda spark, source: spark.createDataFrame(given[source["region"]], columns)
    )
    monkeypatch.setattr(audit_module, "ask", lambda source, topic: {})
    report, ranges = audit_module.audit(spark, {"us": {"region": "us"}, "eu": {"region": "eu"}}, 100_000, 100)
    assert not report["same"] and report["topics"]["twin"]["same"]
    found = report["topics"]["t"]
    assert (found["both"], found["messages"], found["duplicates"]) == (4, {"us": 10, "eu": 5}, {"us": 0, "eu": 1})
    assert [(each["in"], each["kind"], each["messages"]) for each in found["missing"]] == [
        ("eu", "before", 2),
        ("eu", "behind", 2),
        ("eu", "gap", 2),
    ]
    lag = {"p50": 1000, "p90": 3000, "p99": 3000, "max": 3000}
    assert found["arrived"] == [{"in": "eu", "from": "us", "messages": 4, "lag_ms": lag}], (
        "the second copy of a message is no arrival"
    )
    assert report["topics"]["twin"]["arrived"][0]["lag_ms"]["max"] == 7000
    assert found["missing"][1]["age_ms"] == {"p50": 91_000, "p90": 92_000, "p99": 92_000, "max": 92_000}
    assert [(r["kind"], r["first_entry"], r["last_entry"], r["messages"]) for r in ranges] == [
        ("before", 0, 1, 2),
        ("gap", 4, 5, 2),
        ("behind", 8, 9, 2),
    ]
    for lines in (
        5,
        0,
    ):  # as a user runs it: the report, the ranges, and their picture, which goes when there is no lag to show any more
        job = {"topics": ["t"], "regions": {"us": "http://us", "eu": "http://eu"}, "path": str(tmp_path)}
        assert audit_module.start(spark, {}, "audit", job) == []
        assert json.loads((tmp_path / "report.json").read_text())["plot"].partition(":")[0] == (
            "lag.svg" if lines else "none"
        )
        assert (tmp_path / "lag.svg").exists() == bool(lines)
        if lines:
            picture = ElementTree.parse(tmp_path / "lag.svg")
            texts = [each.text for each in picture.iter("{http://www.w3.org/2000/svg}text")]
            assert {
                "t: gap in eu",
                "t: behind in eu",
                "t: before in eu",
                "t: us to eu",
                "twin: us to eu",
                "p99",
                "max",
            } <= set(texts)
            assert len(list(picture.iter("{http://www.w3.org/2000/svg}title"))) == 4 * lines
        given["eu"] = given["us"] = []
