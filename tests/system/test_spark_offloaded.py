"""Offloaded ledgers are read straight from a real S3 server (versitygw), by URLs that the broker signed; from the
broker where that cannot be.

By the source's own reader, and by the shipped ETL, which fills its tables from what only the bucket has.
"""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest

from geo_tests.wan.instance import eventually
from heliograph.client.block_reader import BlockReader
from heliograph.client.object_reader import ObjectRange
from heliograph.spark.columns.entry_columns import MessageRows
from tests.heliograph.spark import running
from tests.system.object_store import S3, TOPIC, Standalone, payload

pytestmark = pytest.mark.system
COUNT = 3000


@pytest.fixture
def region(s3: S3, tmp_path: Path) -> Iterator[Standalone]:
    with Standalone(tmp_path / "region", s3.endpoint) as made:
        made.rest(
            "POST",
            "/admin/v2/namespaces/public/default/retention",
            {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1},
        )
        for start in range(0, COUNT, 1000):
            made.publish(start, start + 1000)
            made.roll_over()
        made.publish(COUNT, COUNT + 10)  # the open ledger
        made.command("topics", "offload", TOPIC)
        eventually(lambda: len(s3.objects()) == 3, "three ledgers are in the bucket", 400)
        eventually(
            lambda: "done" in made.command("tier", "status", TOPIC, fails=None),
            "the broker has read them back, and knows that they are there",
        )
        yield made


def cold_bytes(region: Standalone) -> float:
    """How much brokers read from the store, as they count it."""
    with urllib.request.urlopen(f"http://127.0.0.1:{region.web}/metrics", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith("heliograph_tier_read_bytes_total"))


def read(reader: BlockReader, *, direct: bool = True) -> list[bytes | None]:
    snapshot = reader.snapshot(TOPIC)
    ranges = [(snapshot.topic, ledger, 0, entries - 1) for ledger, entries, _ in snapshot.ledgers]
    placed = [number for number, part in enumerate(ranges) if direct and part[1] < snapshot.last[0]]
    rows = MessageRows(frozenset(), keep_bad=False)
    for number, ledger, first, run in reader.runs(ranges, placed=placed):
        rows.add(ranges[number][0], snapshot, ledger, first, run)
    return rows.values


def test_closed_ledgers_come_from_the_bucket_and_else_from_the_broker(
    region: Standalone, s3: S3, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = [payload(n) for n in range(COUNT + 10)]
    admin = f"http://127.0.0.1:{region.web}"
    by_broker: list[int] = []
    genuine = BlockReader._from_broker

    def noted(self: BlockReader, streams: Any, left: Any, number: int, places: Any, **may: bool) -> Any:
        by_broker.append(number)
        return genuine(self, streams, left, number, places, **may)

    monkeypatch.setattr(BlockReader, "_from_broker", noted)
    assert read(BlockReader(admin)) == expected
    ledgers = len(BlockReader(admin).snapshot(TOPIC).ledgers)
    assert by_broker == [ledgers - 1], "the open ledger alone was asked of the broker"
    places = BlockReader(admin)._places({0: (TOPIC, BlockReader(admin).snapshot(TOPIC).ledgers[0][0], 5, 9)})
    assert (
        isinstance(places[0], ObjectRange)
        and places[0].url.startswith(f"{s3.endpoint}/")
        and "X-Amz-Signature=" in places[0].url
    )
    s3.process.stop(kill=True)  # the worker cannot reach the store; the bookies have it all yet
    by_broker.clear()
    assert read(BlockReader(admin)) == expected and len(set(by_broker)) == ledgers


def test_the_etl_fills_a_table_with_what_only_the_bucket_has(region: Standalone, s3: S3, tmp_path: Path) -> None:
    """Years of a topic: a new job begins at the earliest, whose ledgers no bookie has any more, and goes on with the
    open one.
    """
    pytest.importorskip("pyspark")
    from heliograph.spark import session

    region.rest("PUT", "/admin/v2/namespaces/public/default/offloadDeletionLagMs", 0)
    eventually(lambda: len(region.local_ledgers()) == 1, "the bookies are rid of what is offloaded", 400)
    spark = session("back-fill")
    try:
        options = {
            "topics": [TOPIC],
            "subscription": "etl",
            "path": str(tmp_path / "lake"),
            "checkpoint": str(tmp_path / "state"),
            "trigger": "available now",
        }
        options |= {"source": {"max_bytes_per_trigger": 400_000}, "table": [{"schema": "raw", "name": "all"}]}
        running.run(spark, "etl", f"http://127.0.0.1:{region.web}", options)
        files = sorted(str(path) for path in (tmp_path / "lake" / "all").glob("batch=*/*.parquet"))
        found = ds.dataset(files).to_table(columns=["value", "coordinate"])
        assert sorted(found["value"].to_pylist()) == sorted(payload(n) for n in range(COUNT + 10))
        assert len(files) > 2 and len({at["ledger"] for at in found["coordinate"].to_pylist()}) == 4
        during = cold_bytes(region)  # brokers look there for where positions lie
        assert read(BlockReader(f"http://127.0.0.1:{region.web}"), direct=False) == [
            payload(n) for n in range(COUNT + 10)
        ]
        assert cold_bytes(region) > during, "executors asked the bucket: brokers had not read all of it"
    finally:
        spark.stop()
