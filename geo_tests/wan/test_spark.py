"""The batch source against a real region: every kind of entry that the official client writes, counted and compared."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pulsar
import pytest

from geo_tests.wan.instance import Instance, eventually

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


@pytest.mark.timeout(120)
def test_what_is_missing_is_said(pair: Instance, spark: Any) -> None:
    with pytest.raises(Exception, match="admin_url"):
        spark.read.format("heliograph").options(topic=TOPIC).load().count()
    with pytest.raises(Exception, match="no-such"):
        spark.read.format("heliograph").options(admin_url=pair.admin("us"), topic="persistent://public/geo/no-such").load().count()
