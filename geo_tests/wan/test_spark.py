"""Source, sink, and SQL against a real region: every kind of entry that the official client writes, counted and
compared.
"""

from __future__ import annotations

import json
import shutil
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pulsar
import pytest
from pulsar.schema import AvroSchema, Integer, JsonSchema, Record, String

from geo_tests.wan.instance import Instance, eventually, rest
from geo_tests.wan.spark_kills import arrived
from heliograph.model.errors import ConfigError
from tests.heliograph.spark.running import PATIENT, forget, started

pyspark = pytest.importorskip("pyspark")
import pyarrow.dataset  # noqa: E402

from heliograph.spark.job_files.running_queries import lag_of  # noqa: E402

pytestmark = pytest.mark.timeout(1800)  # the first one's includes two regions and a JVM that start
TOPIC = "persistent://public/geo/rows"
COMPRESSIONS = (pulsar.CompressionType.ZLib, pulsar.CompressionType.ZSTD, pulsar.CompressionType.LZ4)


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    if shutil.which("java") is None:
        pytest.fail("the Spark tests need a JDK 17 or newer")
    from heliograph.spark import session

    made = session("test")
    yield made
    made.stop()


def test_rows_are_what_was_published(pair: Instance, spark: Any) -> None:
    expected: Counter[tuple[str, str | None, bytes]] = Counter()
    kinds = [
        {"batching_enabled": False},
        {"batching_enabled": True},
        *({"batching_enabled": True, "compression_type": c} for c in COMPRESSIONS),
        {"batching_enabled": False, "compression_type": pulsar.CompressionType.SNAPPY},
    ]
    for region in ("us", "eu"):
        client = pair.client(region)
        for i, options in enumerate(kinds):
            producer = client.create_producer(TOPIC, f"{region}-{i}", **options, **PATIENT)
            for n in range(50):
                body, key = f"{region}-{i}-{n}".encode() * 20, f"k{n % 3}" if n % 2 else None
                producer.send_async(body, None, properties={"n": str(n)}, **({"partition_key": key} if key else {}))
                expected[(region, key, body)] += 1
            producer.flush()
    for region in ("us", "eu"):
        arrived(pair, region, TOPIC, expected.total())
    for region in ("us", "eu"):
        rows = (
            spark.read.format("heliograph")
            .options(admin_url=pair.admin(region), topic=TOPIC, task_bytes="20000")
            .load()
        )
        assert rows.rdd.getNumPartitions() > 1
        found = rows.collect()
        assert Counter((r.origin_region, r.key, bytes(r.value)) for r in found) == expected
        assert all(r.properties["n"].isdigit() and r.publish_time is not None for r in found)
        coordinates = {tuple(r.coordinate) for r in found}
        assert len(coordinates) == len(found)
        if region == "us":
            there = coordinates
    assert coordinates == there, "the same messages have the same coordinates in both regions"
    unregistered = spark.newSession()
    unregistered.sql(
        f"CREATE TEMPORARY VIEW found USING heliograph OPTIONS (admin_url '{pair.admin('eu')}', topic '{TOPIC}')"
    )
    assert unregistered.table("found").count() == expected.total(), (
        "Spark finds the format by the module that is named so"
    )
    where = spark.sparkContext.parallelize([1], 1).map(lambda _: __import__("pyspark").__file__).collect()[0]
    assert where == pyspark.__file__, "workers have byte code, not the zip that they would compile anew"


def test_a_stream_reads_each_message_once_through_restarts_and_new_topics(
    pair: Instance, spark: Any, tmp_path: Path
) -> None:
    client, published = pair.client("us"), []

    def publish(topic: str, count: int) -> None:
        producer = client.create_producer(
            f"persistent://public/geo/{topic}", batching_enabled=topic.endswith("a"), **PATIENT
        )
        for _ in range(count):
            published.append(f"{topic}-{len(published)}")
            producer.send_async(published[-1].encode(), None)
        producer.flush()
        producer.close()

    options = {
        "admin_url": pair.admin("us"),
        "namespace": "public/geo",
        "topics_pattern": "stream-.*",
        "subscription": "spark",
    }

    def run(**more: str) -> list[str]:
        """Everything that is there now, in micro-batches, appended to a table of files."""
        rows = (
            spark.readStream.format("heliograph")
            .options(**options, **more)
            .load()
            .selectExpr("cast(value as string) as body", "topic")
        )
        writer = (
            rows.writeStream.format("parquet")
            .option("path", str(tmp_path / "out"))
            .option("checkpointLocation", str(tmp_path / "state"))
        )
        query = started(writer.trigger(availableNow=True).start)
        assert query.awaitTermination(600), query.lastProgress
        lags.extend(lag_of(progress)["behind_messages"] for progress in query.recentProgress)
        return sorted(row.body for row in spark.read.parquet(str(tmp_path / "out")).collect())

    lags: list[int] = []
    publish("stream-a", 300)
    publish("stream-b", 50)
    assert run(max_bytes_per_trigger="2000") == sorted(published), "several small batches"
    assert lags[0] > 0 and lags[-1] == 0 and lags == sorted(lags, reverse=True), (
        "what is left shows in Spark's own progress"
    )
    publish("stream-a", 40)
    publish("stream-c", 60)  # it comes while the checkpoint knows of two
    assert run() == sorted(published)
    assert run() == sorted(published), "nothing new, nothing again"

    def subscription() -> Any:
        return rest("GET", f"{pair.admin('us')}/admin/v2/persistent/public/geo/stream-b/stats")["subscriptions"][
            "spark"
        ]

    eventually(lambda: subscription()["msgBacklog"] == 0, "the subscription is where the checkpoint is")
    assert not subscription()["consumers"]
    with pytest.raises(Exception, match="starting"):
        spark.readStream.format("heliograph").options(**options, starting="now").load().writeStream.format(
            "noop"
        ).start().awaitTermination()


def test_a_query_goes_on_in_another_region_from_its_checkpoint(pair: Instance, spark: Any, tmp_path: Path) -> None:
    topic, published, state = "persistent://public/geo/moving", [], tmp_path / "state"
    producers = {
        region: pair.client(region).create_producer(topic, batching_enabled=False, **PATIENT) for region in ("us", "eu")
    }
    batches: dict[int, list[str]] = {}
    repeated: list[int] = []

    def publish(count: int) -> None:
        """In both regions at once."""
        for n in range(count):
            for region, producer in producers.items():
                published.append(f"{region}-{len(published)}-{n}")
                producer.send_async(published[-1].encode(), None)
        for producer in producers.values():
            producer.flush()

    def keep(rows: Any, batch: int) -> None:
        found = sorted(row.body for row in rows.collect())
        if batch in batches:
            repeated.append(batch)
            assert batches[batch] == found, f"batch {batch} was run again, and read something else"
        batches[batch] = found

    def run(region: str, more: int | None) -> None:
        """So many batches more, stopped wherever it then is; None: to the end."""
        options = {
            "admin_url": pair.admin(region),
            "topic": topic,
            "subscription": "moving",
            "max_bytes_per_trigger": "3000",
        }
        rows = (
            spark.readStream.format("heliograph").options(**options).load().selectExpr("cast(value as string) as body")
        )
        writer = rows.writeStream.foreachBatch(keep).option("checkpointLocation", str(state))
        before = len(batches)
        if more is None:
            assert (query := started(writer.trigger(availableNow=True).start)).awaitTermination(600), query.lastProgress
            return
        query = started(writer.start)
        try:
            eventually(
                lambda: query.exception() is not None or len(batches) >= before + more,
                f"{more} batches in {region}",
                400,
            )
        finally:
            query.stop()
        assert query.exception() is None, query.exception()

    def drained() -> None:
        for region in ("us", "eu"):
            arrived(pair, region, topic, len(published))

    publish(150)
    run("us", 2)
    publish(60)
    drained()
    run("eu", 2)
    assert 0 < sum(map(len, batches.values())) < len(published), "in the middle, in each region"
    newest = max(
        (path for path in (state / "commits").iterdir() if path.name.isdecimal()), key=lambda path: int(path.name)
    )
    newest.unlink()  # as if the driver had died in the middle of it
    (state / "commits" / f".{newest.name}.crc").unlink(missing_ok=True)
    for path in (state / "offsets").iterdir():
        number = path.name.strip(".").split(".")[0]
        if number.isdecimal() and int(number) > int(
            newest.name
        ):  # the next one, if it was planned when the query was stopped
            path.unlink()
            batches.pop(int(number), None)
    run("us", 1)
    assert int(newest.name) in repeated, "planned in eu, run again in us"
    publish(20)
    drained()
    run("eu", None)
    assert sorted(body for found in batches.values() for body in found) == sorted(published)
    last = max(
        (path for path in (state / "offsets").iterdir() if path.name.isdecimal()), key=lambda path: int(path.name)
    ).read_text()
    assert '"region": "eu"' in last.replace('":"', '": "')
    stats = rest("GET", f"{pair.admin('eu')}/admin/v2/persistent/public/geo/moving/stats")
    assert stats["subscriptions"]["moving"]["msgBacklog"] < len(published)


def test_a_stream_is_written_once_though_its_last_batch_runs_again(pair: Instance, spark: Any, tmp_path: Path) -> None:
    client, source = pair.client("us"), "persistent://public/geo/sink-source"
    producer = client.create_producer(source, batching_enabled=True, **PATIENT)
    state = tmp_path / "state"

    def publish(start: int, stop: int) -> None:
        for n in range(start, stop):
            producer.send_async(b"%d" % n, None, partition_key=f"k{n % 5}")
        producer.flush()

    def run() -> None:
        """From one topic to three, in several tasks."""
        rows = (
            spark.readStream.format("heliograph")
            .options(admin_url=pair.admin("us"), topic=source, task_bytes="3000", tasks_min="3")
            .load()
        )
        made = rows.selectExpr(
            "concat('row ', cast(value as string)) as value",
            "key",
            "concat('persistent://public/geo/sink-', cast(cast(value as string) as int) % 3) as topic",
            "map('n', cast(value as string)) as properties",
            "timestamp_millis(1000 + cast(cast(value as string) as int)) as event_time",
        )
        sink = made.writeStream.format("heliograph").options(admin_url=pair.admin("us"), compression="zstd")
        query = started(sink.option("checkpointLocation", str(state)).trigger(availableNow=True).start)
        assert query.awaitTermination(600), query.lastProgress

    def written() -> list[list[str]]:
        return [pair.read_all("us", f"persistent://public/geo/sink-{n}") for n in range(3)]

    publish(0, 900)
    run()
    expected = [sorted(f"row {n}" for n in range(900) if n % 3 == part) for part in range(3)]
    assert [sorted(bodies) for bodies in written()] == expected
    (newest,) = [path for path in (state / "commits").iterdir() if path.name == "0"]
    newest.unlink()  # as if the driver had died when everything was stored, and nothing committed
    (state / "commits" / ".0.crc").unlink(missing_ok=True)
    run()
    assert [sorted(bodies) for bodies in written()] == expected, "the repeated batch was stored once"
    publish(900, 1200)
    run()
    assert sum(len(bodies) for bodies in written()) == 1200
    message = client.create_reader("persistent://public/geo/sink-1", pulsar.MessageId.earliest).read_next(10_000)
    n = int(message.properties()["n"])
    assert (message.data(), message.partition_key(), message.event_timestamp()) == (
        b"row %d" % n,
        f"k{n % 5}",
        1000 + n,
    )


def test_declared_columns_are_read_and_a_bad_message_is_put_aside(pair: Instance, spark: Any, tmp_path: Path) -> None:
    topic = "persistent://public/geo/declared"
    producer = pair.client("us").create_producer(topic, batching_enabled=True, **PATIENT)
    for n in range(500):
        producer.send_async(
            b'{"id": %d, "user": {"name": "u%d"}, "at": "2026-01-01T00:00:0%d"}' % (n, n % 7, n % 10)
            if n % 100
            else b"poison",
            None,
        )
    producer.flush()
    options = {"admin_url": pair.admin("us"), "topic": topic}
    ddl = "id bigint, user struct<name: string>, at timestamp, _topic string, _corrupt_record string"
    found = spark.read.format("heliograph").schema(ddl).options(**options).load()
    assert found.where("_corrupt_record = 'poison' and id is null").count() == 5
    assert (
        found.where(
            f"id % 100 <> 0 and user.name = concat('u', id % 7) and second(at) = id % 10 and _topic = '{topic}'"
        ).count()
        == 495
    )
    stream = spark.readStream.format("heliograph").schema(ddl).options(**options, mode="DROPMALFORMED").load()
    query = (
        stream.select("id")
        .writeStream.format("parquet")
        .option("path", str(tmp_path / "out"))
        .option("checkpointLocation", str(tmp_path / "state"))
    )
    assert started(query.trigger(availableNow=True).start).awaitTermination(600)
    assert sorted(row.id for row in spark.read.parquet(str(tmp_path / "out")).collect()) == [
        n for n in range(500) if n % 100
    ]
    with pytest.raises(Exception, match="keys are strings"):
        spark.read.format("heliograph").schema("a map<int,string>").options(**options).load().count()
    wrong = (
        spark.readStream.format("heliograph")
        .schema("a map<int,string>")
        .options(**options)
        .load()
        .writeStream.format("noop")
    )
    query = started(wrong.option("checkpointLocation", str(tmp_path / "wrong")).trigger(availableNow=True).start)
    with pytest.raises(Exception, match="keys are strings"):  # said by whoever plans the first micro-batch's tasks
        query.awaitTermination(600)


def test_a_pipeline_is_three_statements(pair: Instance, spark: Any, tmp_path: Path) -> None:
    producer = pair.client("us").create_producer("persistent://public/geo/clicks", batching_enabled=True, **PATIENT)
    for n in range(300):
        producer.send_async(b'{"id": %d, "country": "%s"}' % (n, b"no" if n % 3 else b"fr"), None)
    producer.flush()
    from heliograph.spark import Pipeline

    statements = f"""
        CREATE STREAM TABLE clicks (id bigint, country string) WITH (topic = 'persistent://public/geo/clicks', subscription = 'sql');
        CREATE SINK out WITH (format = 'table', path = '{tmp_path}/out', checkpoint = '{tmp_path}/state', trigger = 'available now');
        CREATE SINK back WITH (format = 'heliograph', checkpoint = '{tmp_path}/back', trigger = 'available now', topic = 'persistent://public/geo/french');
        CREATE OR REPLACE TEMPORARY VIEW french AS SELECT id FROM clicks WHERE country = 'fr';
        INSERT INTO out SELECT * FROM french;
        INSERT INTO back SELECT to_json(struct(id)) AS value FROM STREAM clicks WITH (subscription = 'back') WHERE country = 'fr';
    """  # noqa: E501

    def start() -> list[Any]:
        pipeline = Pipeline(spark, defaults={"admin_url": pair.admin("us")})
        pipeline.run(statements)
        return list(pipeline.queries)

    queries = started(start)
    assert all(query.awaitTermination(600) for query in queries) and len(queries) == 2
    french = [n for n in range(300) if n % 3 == 0]
    forget(tmp_path / "state")
    again = started(start)
    assert all(query.awaitTermination(600) for query in again)
    files = [str(path) for path in (tmp_path / "out").glob("batch=*/*.parquet")]
    assert sorted(pyarrow.dataset.dataset(files).to_table()["id"].to_pylist()) == french, (
        "once, also for who knows nothing of Spark"
    )
    with pytest.raises(ConfigError, match="two INSERTs read clicks"):
        Pipeline(spark, defaults={"admin_url": pair.admin("us")}).run(
            statements + "INSERT INTO back SELECT to_json(struct(id)) AS value FROM french"
        )
    for query in spark.streams.active:
        query.stop()
    assert sorted(pair.read_all("us", "persistent://public/geo/french")) == sorted(f'{{"id":{n}}}' for n in french)


def test_rows_are_written_by_a_job_and_its_name_makes_it_repeatable(pair: Instance, spark: Any) -> None:
    topic = "persistent://public/geo/job"
    pair.client("us").create_producer(topic).close()
    rows = spark.range(5000).selectExpr("cast(id as string) as value").repartition(3)
    job = {"service_url": pair.state["regions"]["us"]["service_url"], "topic": topic, "name": "nightly"}
    for _ in range(2):
        rows.write.format("heliograph").options(**job).mode("append").save()
        assert sorted(map(int, pair.read_all("us", topic))) == list(range(5000))
    found = spark.read.format("heliograph").options(service_url=job["service_url"], region="us", topic=topic).load()
    assert sorted(int(row.value) for row in found.collect()) == list(range(5000)), (
        "a service URL alone, for tasks and driver"
    )
    job["admin_url"] = pair.admin("us")
    for wrong, what in (
        ({"topic": ""}, "give either"),
        ({"compression": "zip"}, "compression"),
        ({"admin_url": "", "service_url": ""}, "admin_url"),
    ):
        with pytest.raises(Exception, match=what):
            rows.write.format("heliograph").options(**{**job, **wrong}).mode("append").save()
    with pytest.raises(Exception, match="column 'id'"):
        spark.range(5).write.format("heliograph").options(**job).mode("append").save()
    with pytest.raises(Exception, match="not overwritten"):
        rows.write.format("heliograph").options(**job).mode("overwrite").save()
    with pytest.raises(Exception, match="deduplicate"):
        rows.write.format("heliograph").options(**{**job, "topic": "persistent://public/default/plain"}).mode(
            "append"
        ).save()


def test_a_topic_that_grows_is_copied_again_by_the_same_name(pair: Instance, spark: Any) -> None:
    """What comes behind the `ending` changes nothing; nor does another number of tasks, for rows that have their places
    by coordinates.
    """
    from heliograph.spark import portable

    topic, more = (
        "persistent://public/geo/grows",
        spark.range(5000).selectExpr("repeat(cast(id as string), 200) as value").repartition(3),
    )
    pair.client("us").create_producer(topic).close()
    job = {"admin_url": pair.admin("us"), "topic": topic}
    spark.range(5000).selectExpr("cast(id as string) as value").repartition(3).write.format("heliograph").options(
        **job, name="first"
    ).mode("append").save()
    ending, copy = str(time.time_ns() // 1_000_000), {**job, "topic": "persistent://public/geo/copied", "name": "copy"}
    pair.client("us").create_producer(copy["topic"]).close()
    for again in range(2):
        made = spark.read.format("heliograph").options(**job, ending=ending, tasks_min=str(2 + again)).load()
        portable(made, 3).select("value", "coordinate").write.format("heliograph").options(**copy).mode("append").save()
        assert sorted(map(int, pair.read_all("us", copy["topic"]))) == list(range(5000)), f"written {again + 1} times"
        more.write.format("heliograph").options(**job, name=f"more-{again}").mode("append").save()


def test_rows_go_to_the_partitions_of_a_topic_by_key(pair: Instance, spark: Any, tmp_path: Path) -> None:
    topic = "persistent://public/geo/parts"
    rest("PUT", f"{pair.admin('us')}/admin/v2/persistent/public/geo/parts/partitions", 3)
    given = [(f"{n}", f"k{n % 7}") for n in range(500)]
    rows = spark.createDataFrame(given, "value string, key string").repartition(4)
    job = {"admin_url": pair.admin("us"), "topic": topic, "name": "2026-01-31"}
    for _ in range(2):
        rows.write.format("heliograph").options(**job).mode("append").save()
    found = spark.read.format("heliograph").options(admin_url=pair.admin("us"), topic=topic).load().collect()
    assert sorted((bytes(row.value).decode(), row.key) for row in found) == sorted(given)
    where = {(row.key, row.partition) for row in found}
    assert len(where) == 7 and len({partition for _, partition in where}) == 3, "a key has one partition"
    for name in ("first", "second"):  # a stream that begins anew counts from 0 again: its producers are others
        source = (
            spark.readStream.format("heliograph")
            .options(admin_url=pair.admin("us"), topic=topic)
            .load()
            .select("value")
        )
        into = {"admin_url": pair.admin("us"), "topic": "persistent://public/geo/parts-again", "name": "same"}
        made = (
            source.writeStream.format("heliograph").options(**into).option("checkpointLocation", str(tmp_path / name))
        )
        query = started(made.trigger(availableNow=True).start)
        assert query.awaitTermination(600) and query.exception() is None
    assert len(pair.read_all("us", "persistent://public/geo/parts-again")) == 1000


def test_what_is_missing_is_said(pair: Instance, spark: Any) -> None:
    with pytest.raises(Exception, match="admin_url"):
        spark.read.format("heliograph").options(topic=TOPIC).load().count()
    with pytest.raises(Exception, match="no-such"):
        spark.read.format("heliograph").options(
            admin_url=pair.admin("us"), topic="persistent://public/geo/no-such"
        ).load().count()


def test_the_subscription_follows_an_idle_query_and_stands_in_for_a_lost_checkpoint(
    pair: Instance, spark: Any, tmp_path: Path
) -> None:
    topic, found = "persistent://public/geo/idle", list[str]()
    producer = pair.client("us").create_producer(topic, batching_enabled=True, **PATIENT)

    def publish(start: int, stop: int) -> None:
        for n in range(start, stop):
            producer.send_async(b"%d" % n, None)
        producer.flush()

    def query(state: str) -> Any:
        rows = (
            spark.readStream.format("heliograph")
            .options(admin_url=pair.admin("us"), topic=topic, subscription="idle", region="us")
            .load()
        )
        writer = rows.selectExpr("cast(value as string) as body").writeStream
        writer = writer.foreachBatch(lambda part, _: found.extend(row.body for row in part.collect()))
        return started(writer.option("checkpointLocation", str(tmp_path / state)).start)

    def backlog() -> Any:
        return rest("GET", f"{pair.admin('us')}/admin/v2/persistent/public/geo/idle/stats")["subscriptions"]["idle"][
            "msgBacklog"
        ]

    def measured() -> float:
        with urllib.request.urlopen(f"{pair.admin('us')}/metrics", timeout=30) as answer:
            lines = [
                line for line in answer.read().decode().splitlines() if line.startswith("pulsar_subscription_back_log{")
            ]
        return next(
            (float(line.rpartition(" ")[2]) for line in lines if topic in line and 'subscription="idle"' in line), -1.0
        )

    publish(0, 100)
    running = query("first")
    try:
        eventually(lambda: running.exception() is not None or len(found) == 100, "all rows", 400)
        assert running.exception() is None
        eventually(lambda: backlog() == 0, "the last batch is behind the subscription though no other one comes", 240)
    finally:
        running.stop()
    publish(100, 150)
    eventually(lambda: backlog() > 0, "what the query has not read shows as backlog, and is held")
    eventually(lambda: measured() == backlog(), "and in the metrics")
    (tmp_path / "first" / "metadata").write_text("no json")  # a checkpoint that cannot be used
    with pytest.raises(Exception, match=r"(?i)metadata|json"):
        query("first").awaitTermination()
    running = query("second")  # without it: from where the subscription stands
    try:
        eventually(lambda: running.exception() is not None or len(found) >= 150, "the rest", 400)
    finally:
        running.stop()
    assert sorted(map(int, found)) == list(range(150))
    for options, what in (
        ({"region": "eu"}, "belongs to region us"),
        ({"topik": "x"}, "no option 'topik'"),
        ({"starting": "soon"}, "2026-01-31T12:00:00Z"),
    ):
        with pytest.raises(Exception, match=what):
            spark.read.format("heliograph").options(admin_url=pair.admin("us"), topic=topic, **options).load().count()


def test_a_part_of_a_topic_is_read_by_time_or_coordinate(pair: Instance, spark: Any) -> None:
    topic = "persistent://public/geo/part"
    producer = pair.client("us").create_producer(topic, batching_enabled=False, **PATIENT)
    for n in range(60):
        producer.send(b"%d" % n)
    options = {"admin_url": pair.admin("us"), "topic": topic}
    rows = (
        spark.read.format("heliograph")
        .options(**options)
        .load()
        .selectExpr("int(cast(value as string)) as n", "coordinate", "publish_time")
        .collect()
    )
    by = {row.n: row for row in rows}
    assert sorted(by) == list(range(60))

    def read(**given: str) -> list[int]:
        found = (
            spark.read.format("heliograph")
            .options(**options, **given)
            .load()
            .selectExpr("int(cast(value as string)) as n")
            .collect()
        )
        return sorted(row.n for row in found)

    def text(row: Any) -> str:
        at = row.coordinate
        return f"{at.region}.{at.epoch}.{int(at.incarnation, 16):x}:{at.ledger}:{at.entry}"

    assert read(starting=text(by[20]), ending=text(by[39])) == list(range(20, 40))
    since = by[30].publish_time.replace(tzinfo=None).isoformat() + "Z"
    first = min(n for n in by if by[n].publish_time >= by[30].publish_time)
    assert read(starting=since) == list(range(first, 60)) and read(ending=since) == list(range(first))


class Order(Record):
    customer = String()
    amount = Integer()


def next_version() -> Any:
    class Order(Record):
        customer = String()
        amount = Integer()
        note = String(required=True, default="none", required_default=True)

    return Order


@pytest.mark.parametrize("kind", [AvroSchema, JsonSchema])
def test_columns_of_a_registered_schema_and_of_its_next_version(pair: Instance, spark: Any, kind: Any) -> None:
    name = f"registered-{kind.__name__.lower()}"
    topic, client = f"persistent://public/geo/{name}", pair.client("us")
    path = f"{pair.admin('us')}/admin/v2/persistent/public/geo/{name}/schemaCompatibilityStrategy"
    client.create_producer(topic, schema=kind(Order)).send(Order(customer="a", amount=1))
    rest("PUT", path, "BACKWARD")
    eventually(lambda: rest("GET", path) == "BACKWARD", "the strategy holds")
    later = next_version()
    client.create_producer(topic, schema=kind(later)).send(later(customer="b", amount=2, note="n"))
    rows = spark.read.format("heliograph").options(admin_url=pair.admin("us"), topic=topic, columns="registered").load()
    assert {"customer", "amount", "note", "_topic", "_corrupt_record"} <= set(rows.columns)
    found = sorted((row.customer, row.amount, row.note, row._corrupt_record) for row in rows.collect())
    assert found == [("a", 1, "none" if kind is AvroSchema else None, None), ("b", 2, "n", None)]
    declared = spark.read.format("heliograph").schema("amount bigint, _schema_version bigint")
    rows = declared.options(admin_url=pair.admin("us"), topic=topic, columns="registered").load()
    assert sorted(tuple(row) for row in rows.collect()) == [(1, 0), (2, 1)]


def test_a_key_and_a_value_of_a_registered_schema_are_columns(pair: Instance, spark: Any) -> None:
    """As Java's clients write them: inline here; keys of messages are in
    tests/heliograph/spark/columns/test_registered_columns.py.
    """
    definition = {"type": "record", "name": "Order", "fields": [{"name": "amount", "type": "int"}]}
    properties = {"key.schema.type": "STRING", "value.schema.type": "JSON", "kv.encoding.type": "INLINE"}
    schema = {"type": "KEY_VALUE", "schema": json.dumps({"key": "", "value": definition}), "properties": properties}
    rest("POST", f"{pair.admin('us')}/admin/v2/schemas/public/geo/pairs/schema", schema)
    producer = pair.client("us").create_producer("persistent://public/geo/pairs")
    for n in range(5):
        key, value = b"k%d" % n, b'{"amount": %d}' % n
        producer.send(len(key).to_bytes(4, "big") + key + len(value).to_bytes(4, "big") + value)
    rows = (
        spark.read.format("heliograph")
        .options(admin_url=pair.admin("us"), topic="persistent://public/geo/pairs", columns="registered")
        .load()
    )
    assert sorted((row.key, row.value.amount, row._corrupt_record) for row in rows.collect()) == [
        (f"k{n}", n, None) for n in range(5)
    ]
