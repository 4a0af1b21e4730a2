"""A job under `kill -9`: its worker, its broker, its JVM, a bookie, and a region in the middle of a batch; nothing is
lost, nothing comes twice.

By `make test-system`. Dozens of kills of all kinds: `make soak-spark`.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from geo_tests.wan.instance import Instance, eventually, heliograph, rest
from geo_tests.wan.spark_kills import Job, Publisher, arrived, kill_some
from geo_tests.wan.spark_sinks import verdict
from tests.heliograph.spark.running import PATIENT, started

pytest.importorskip("pyspark")
pytestmark = pytest.mark.system  # two JVMs, and restarts of one, beside the region: minutes on a busy machine


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    from heliograph.spark import session

    made = session("verdict")
    yield made
    made.stop()


@pytest.mark.timeout(1800)
def test_what_is_killed_loses_nothing_and_repeats_nothing(pair: Instance, spark: Any, tmp_path: Path) -> None:
    with Job(
        pair, tmp_path / "job", "killed", ("topic", "tables", "wide")
    ) as job:  # each query more makes all of them later on a busy machine
        publisher = Publisher(pair, job.sources)
        publisher.start()
        try:
            assert kill_some(job, ["worker", "broker", "jvm"], random.Random(5)) == 3
            before = job.batches()
            eventually(lambda: job.batches() > before, "the driver that was started again commits", 600)
        finally:
            published = publisher.stop()
        verdict(job, published, spark)
        assert job.stop() == 0, job.log()[-3000:]
        log = job.log()
        assert (
            '"event": "driver.died"' in log and '"event": "query.progress"' in log and '"event": "job.stopped"' in log
        )


@pytest.mark.timeout(1800)
def test_a_region_is_killed_in_the_middle_of_a_batch(pair: Instance, spark: Any, tmp_path: Path) -> None:
    """The same checkpoint in the other region gives what a query gives that nothing happened to."""
    topic, published = "persistent://public/geo/region-lost", list[str]()
    for region in ("us", "eu"):
        producer = pair.client(region).create_producer(
            topic, batching_enabled=True, batching_max_messages=20, **PATIENT
        )
        for n in range(400):
            published.append(f"{region}-{n}")
            producer.send_async(published[-1].encode(), None, partition_key=f"k{n % 5}")
        producer.flush()
        producer.close()
    for region in ("us", "eu"):
        assert sorted(arrived(pair, region, topic, len(published))) == sorted(published)
    names = [row["name"] for row in pair.status()["regions"]["us"]["processes"]]
    begun: list[int] = []
    columns = ("cast(value as string) as body", "key", "origin_region", "coordinate", "publish_time")

    def keep(rows: Any, batch: int) -> None:
        """A batch is its file: written again where it runs again."""
        begun.append(batch)
        if len(begun) == 2:  # the second has been planned, and its tasks have read nothing yet
            for name in names:
                heliograph("process", "kill", name, "--data", str(pair.data))
        rows.write.mode("overwrite").parquet(str(tmp_path / "out" / f"batch={batch}"))

    def start(region: str) -> Any:
        options = {
            "admin_url": pair.admin(region),
            "topic": topic,
            "subscription": "lost",
            "max_bytes_per_trigger": "5000",
        }
        rows = spark.readStream.format("heliograph").options(**options).load().selectExpr(*columns)
        writer = (
            rows.writeStream.foreachBatch(keep)
            .option("checkpointLocation", str(tmp_path / "state"))
            .trigger(availableNow=True)
        )
        return started(writer.start)

    try:
        with pytest.raises(Exception, match=r"does not answer|broke off"):
            start("us").awaitTermination(600)
        assert len(begun) == 2, begun
        query = start("eu")
        assert query.awaitTermination(600) and query.exception() is None
        assert begun[2] == begun[1] and len(begun) > 3, "what was cut off ran again, and more came"
        found = spark.read.parquet(str(tmp_path / "out")).drop("batch").collect()
        undisturbed = (
            spark.read.format("heliograph")
            .options(admin_url=pair.admin("eu"), topic=topic)
            .load()
            .selectExpr(*columns)
            .collect()
        )
        assert sorted(row.body for row in found) == sorted(published)
        assert sorted(map(str, found)) == sorted(map(str, undisturbed))
    finally:
        for name in names:
            heliograph("process", "start", name, "--data", str(pair.data), check=False)
        eventually(lambda: all(row["pid"] for row in pair.status()["regions"]["us"]["processes"]), "us is back", 240)
        stats = f"{pair.admin('us')}/admin/v2/persistent/{topic.partition('://')[2]}/stats"
        eventually(lambda: rest("GET", stats), "us serves the topic again", 240)


@pytest.mark.timeout(1800)
def test_an_unfinished_micro_batch_of_the_sink_is_finished_in_another_region(
    pair: Instance, spark: Any, tmp_path: Path
) -> None:
    """What some of its tasks wrote is stored and replicated; the other region has the sources in another order, and
    writes what is missing.
    """
    from pyspark.sql.functions import udf

    from heliograph.spark import portable

    sources = [f"persistent://public/geo/moved-in-{n}" for n in range(3)]
    target, broken, stored_rest = "persistent://public/geo/moved-out", tmp_path / "broken", tmp_path / "stored"
    for region in ("us", "eu"):
        assert pair.admin(region) and pair.client(region).create_producer(target).close() is None
    published = []
    for number, topic in enumerate(sources):
        how = {"batching_enabled": True, "batching_max_messages": 25, **PATIENT}
        makers = {region: pair.client(region).create_producer(topic, **how) for region in ("us", "eu")}
        for n in range(1200):
            for region, producer in makers.items():
                published.append(f"{number}-{region}-{n}")
                producer.send_async(published[-1].encode(), None)
        for producer in makers.values():
            producer.flush()
            producer.close()
    for topic in sources:
        for region in ("us", "eu"):
            arrived(pair, region, topic, 2400)

    def checked(value: Any) -> Any:
        if broken.exists() and bytes(value).startswith(b"2-us-1"):
            until = time.monotonic() + 600
            while not stored_rest.exists() and time.monotonic() < until:
                time.sleep(0.05)  # in a worker, which has nothing of this test's but the function
            raise ValueError("a worker's end, for this test")
        return value

    def start(region: str) -> Any:
        options = {"admin_url": pair.admin(region), "topics": ",".join(sources)}
        rows = portable(spark.readStream.format("heliograph").options(**options).load(), 4)
        rows = rows.select(udf(checked, "binary", useArrow=False)("value").alias("value"), "coordinate")
        into = {"admin_url": pair.admin(region), "topic": target}
        made = (
            rows.writeStream.format("heliograph").options(**into).option("checkpointLocation", str(tmp_path / "state"))
        )
        return started(made.trigger(availableNow=True).start)

    tasks = (
        portable(spark.createDataFrame([(each, 1) for each in sources], "topic string, coordinate int"), 4)
        .rdd.glom()
        .collect()
    )
    others = [row.topic for task in tasks if sources[2] not in {row.topic for row in task} for row in task]
    broken.touch()
    query = start("us")
    stored = arrived(pair, "us", target, 2400 * len(others))
    stored_rest.touch()
    with pytest.raises(Exception, match="a worker's end"):
        query.awaitTermination(600)
    broken.unlink()
    assert 0 < len(stored) == 2400 * len(others) < len(published), "in the middle of the micro-batch"
    assert sorted(arrived(pair, "eu", target, len(stored))) == sorted(stored), "what is stored is replicated"
    query = start("eu")
    assert query.awaitTermination(600) and query.exception() is None
    found = pair.read_all("eu", target)
    assert sorted(found) == sorted(published)
    for number in range(3):
        for region in ("us", "eu"):
            own = [body for body in found if body.startswith(f"{number}-{region}-")]
            assert own == [f"{number}-{region}-{n}" for n in range(1200)], "each region's messages in their order"
