"""The batch source against a real region: every kind of entry that the official client writes, counted and compared."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pulsar
import pytest

from geo_tests.wan.instance import Instance, eventually, rest

pyspark = pytest.importorskip("pyspark")
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


@pytest.mark.timeout(240)
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
            producer = client.create_producer(TOPIC, f"{region}-{i}", **options)
            for n in range(50):
                body, key = f"{region}-{i}-{n}".encode() * 20, f"k{n % 3}" if n % 2 else None
                producer.send_async(body, None, properties={"n": str(n)}, **({"partition_key": key} if key else {}))
                expected[(region, key, body)] += 1
            producer.flush()
    eventually(lambda: len(pair.links(TOPIC)) == 2 and all(r["backlog_messages"] == 0 for r in pair.links(TOPIC).values()), "drained")
    for region in ("us", "eu"):
        rows = spark.read.format("heliograph").options(admin_url=pair.admin(region), topic=TOPIC, task_bytes="20000").load()
        assert rows.rdd.getNumPartitions() > 1
        found = rows.collect()
        assert Counter((r.origin_region, r.key, bytes(r.value)) for r in found) == expected
        assert all(r.properties["n"].isdigit() and r.publish_time is not None for r in found)
        coordinates = {tuple(r.coordinate) for r in found}
        assert len(coordinates) == len(found)
        if region == "us":
            there = coordinates
    assert coordinates == there, "the same messages have the same coordinates in both regions"


@pytest.mark.timeout(240)
def test_a_stream_reads_each_message_once_through_restarts_and_new_topics(pair: Instance, spark: Any, tmp_path: Path) -> None:
    client, published = pair.client("us"), []

    def publish(topic: str, count: int) -> None:
        producer = client.create_producer(f"persistent://public/geo/{topic}", batching_enabled=topic.endswith("a"))
        for _ in range(count):
            published.append(f"{topic}-{len(published)}")
            producer.send_async(published[-1].encode(), None)
        producer.flush()
        producer.close()

    options = {"admin_url": pair.admin("us"), "namespace": "public/geo", "topics_pattern": "stream-.*", "subscription": "spark"}

    def run(**more: str) -> list[str]:
        """Everything that is there now, in micro-batches, appended to a table of files."""
        rows = spark.readStream.format("heliograph").options(**options, **more).load().selectExpr("cast(value as string) as body", "topic")
        writer = rows.writeStream.format("parquet").option("path", str(tmp_path / "out")).option("checkpointLocation", str(tmp_path / "state"))
        query = writer.trigger(availableNow=True).start()
        assert query.awaitTermination(120), query.lastProgress
        return sorted(row.body for row in spark.read.parquet(str(tmp_path / "out")).collect())

    publish("stream-a", 300)
    publish("stream-b", 50)
    assert run(max_bytes_per_trigger="2000") == sorted(published), "several small batches"
    publish("stream-a", 40)
    publish("stream-c", 60)  # it comes while the checkpoint knows of two
    assert run() == sorted(published)
    assert run() == sorted(published), "nothing new, nothing again"
    stats = rest("GET", f"{pair.admin('us')}/admin/v2/persistent/public/geo/stream-b/stats")
    assert stats["subscriptions"]["spark"]["msgBacklog"] == 0 and not stats["subscriptions"]["spark"]["consumers"]
    with pytest.raises(Exception, match="starting"):
        spark.readStream.format("heliograph").options(**options, starting="now").load().writeStream.format("noop").start().awaitTermination()


@pytest.mark.timeout(120)
def test_what_is_missing_is_said(pair: Instance, spark: Any) -> None:
    with pytest.raises(Exception, match="admin_url"):
        spark.read.format("heliograph").options(topic=TOPIC).load().count()
    with pytest.raises(Exception, match="no-such"):
        spark.read.format("heliograph").options(admin_url=pair.admin("us"), topic="persistent://public/geo/no-such").load().count()
