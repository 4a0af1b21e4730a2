"""What differs between two copies is found, and named, on tables made by hand; against real regions: geo_tests/wan/test_spark_jobs.py."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from heliograph.model.errors import ConfigError
from heliograph.spark.jobs import audit as audit_module
from heliograph.spark.jobs.audit import audit, start

pytest.importorskip("pyspark")
NOW_MS = 100_000
COLUMNS = "topic string, origin_region string, publish_time timestamp, region int, epoch int, incarnation string, ledger long, entry long, batch_index int"


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    from heliograph.spark import session

    made = session("audit", settings={"spark.sql.shuffle.partitions": "2"})
    yield made
    made.stop()


def test_what_differs_is_found(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def message(topic: str, entry: int, ledger: int = 3) -> tuple[Any, ...]:
        return topic, "us", datetime.fromtimestamp(entry, UTC), 1, 1, "abcd", ledger, entry, 0

    us = [*(message("t", n) for n in range(10)), message("twin", 0)]
    eu = [*(message("t", n) for n in (2, 3, 6, 6, 7)), message("twin", 0)]
    given = {"us": us, "eu": eu}
    monkeypatch.setattr(audit_module, "_side", lambda spark, source: spark.createDataFrame(given[source["region"]], COLUMNS))
    report, ranges = audit(spark, {"us": {"region": "us"}, "eu": {"region": "eu"}}, NOW_MS, 100)
    assert not report["same"] and report["topics"]["twin"]["same"]
    found = report["topics"]["t"]
    assert (found["both"], found["messages"], found["duplicates"]) == (5 - 1, {"us": 10, "eu": 5}, {"us": 0, "eu": 1})
    assert [(each["in"], each["kind"], each["messages"]) for each in found["missing"]] == [("eu", "before", 2), ("eu", "behind", 2), ("eu", "gap", 2)]
    assert found["missing"][1]["age_ms"] == {"p50": 91_000, "p90": 92_000, "p99": 92_000, "max": 92_000}
    assert [(r["kind"], r["first_entry"], r["last_entry"], r["messages"]) for r in ranges] == [("before", 0, 1, 2), ("gap", 4, 5, 2), ("behind", 8, 9, 2)]
    empty = audit(spark, {"eu": {"region": "eu"}, "us": {"region": "us"}}, NOW_MS, 1)
    assert len(empty[1]) == 1, "no more ranges than were asked for"


@pytest.mark.parametrize(
    ("options", "what"),
    [({}, "wants regions"), ({"regions": {"us": "a", "eu": "b"}}, "wants path"), ({"region": 1}, "no option 'region'"), ({"regions": {"us": "a"}}, "two names")],
)
def test_what_is_wrong_is_said(options: dict[str, Any], what: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=what):
        start(None, {}, "audit", options)
