"""A job under `kill -9`: its worker, its broker, its JVM, a bookie, and a region in the middle of a batch; nothing is lost, nothing comes twice.

By `make test-system`. Dozens of kills of all kinds: `make soak-spark`.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from geo_tests.wan.instance import Instance, eventually, heliograph
from geo_tests.wan.spark_kills import Job, Publisher, kill_some, verdict

pytest.importorskip("pyspark")
pytestmark = pytest.mark.system  # two JVMs, and restarts of one, beside the region: minutes on a busy machine


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    from heliograph.spark import session

    made = session("verdict")
    yield made
    made.stop()


@pytest.mark.timeout(1200)
def test_what_is_killed_loses_nothing_and_repeats_nothing(pair: Instance, spark: Any, tmp_path: Path) -> None:
    with Job(pair, tmp_path / "job", "killed") as job:
        publisher = Publisher(pair, job.sources)
        publisher.start()
        try:
            kill_some(job, ["worker", "broker", "jvm", "bookie"], random.Random(5))
        finally:
            published = publisher.stop()
        verdict(job, published, spark)
        assert job.stop() == 0, job.log()[-3000:]
        log = job.log()
        assert '"event": "driver.died"' in log and '"event": "query.progress"' in log and '"event": "job.stopped"' in log


@pytest.mark.timeout(400)
def test_a_region_is_killed_in_the_middle_of_a_batch(pair: Instance, spark: Any, tmp_path: Path) -> None:
    """The same checkpoint in the other region gives what a query gives that nothing happened to."""
    topic, published = "persistent://public/geo/region-lost", list[str]()
    for region in ("us", "eu"):
        producer = pair.client(region).create_producer(topic, batching_enabled=True, batching_max_messages=20)
        for n in range(400):
            published.append(f"{region}-{n}")
            producer.send_async(published[-1].encode(), None, partition_key=f"k{n % 5}")
        producer.flush()
        producer.close()
    eventually(lambda: len(pair.links(topic)) == 2 and all(r["backlog_messages"] == 0 for r in pair.links(topic).values()), "drained")
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
        options = {"admin_url": pair.admin(region), "topic": topic, "subscription": "lost", "max_bytes_per_trigger": "5000", "patience_s": "2"}
        rows = spark.readStream.format("heliograph").options(**options).load().selectExpr(*columns)
        return rows.writeStream.foreachBatch(keep).option("checkpointLocation", str(tmp_path / "state")).trigger(availableNow=True).start()

    try:
        with pytest.raises(Exception, match=r"does not answer|broke off"):
            start("us").awaitTermination(200)
        assert len(begun) == 2
        query = start("eu")
        assert query.awaitTermination(200) and query.exception() is None
        assert begun[2] == begun[1] and len(begun) > 3, "what was cut off ran again, and more came"
        found = spark.read.parquet(str(tmp_path / "out")).drop("batch").collect()
        undisturbed = spark.read.format("heliograph").options(admin_url=pair.admin("eu"), topic=topic).load().selectExpr(*columns).collect()
        assert sorted(row.body for row in found) == sorted(published)
        assert sorted(map(str, found)) == sorted(map(str, undisturbed))
    finally:
        for name in names:
            heliograph("process", "start", name, "--data", str(pair.data), check=False)
        eventually(lambda: all(row["pid"] for row in pair.status()["regions"]["us"]["processes"]), "us is back")
