"""What the ETL parked is said, all that came at once in one line, and once."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

import pyarrow as pa

from heliograph.client.block_reader import BlockReader
from heliograph.spark.job_files.running_queries import Fixed
from heliograph.spark.lake.landing import Landing
from heliograph.spark.lake.quarantine import QuarantinedQueries
from heliograph.spark.lake.tables_sink import POISON, Files, TableRule


def test_what_is_in_the_quarantine_is_said_by_topic_and_reason(tmp_path: Path) -> None:
    said: list[dict[str, Any]] = []
    now = [0.0]
    landing, parked = (
        Landing(tmp_path),
        QuarantinedQueries(
            Fixed([]), tmp_path, "lake", say=lambda event, **fields: said.append({event: fields}), clock=lambda: now[0]
        ),
    )
    for task in range(2):
        files = Files(
            landing, [TableRule("never", "raw", "x")], "_quarantine", BlockReader("http://none"), "query", 0, task
        )
        for topic in ("a", "a", "b"):
            row = {"topic": f"persistent://t/n/{topic}", "value": b"{}"}
            files.add(
                pa.record_batch(
                    {
                        name: pa.array([row.get(name)], pa.binary() if name == "value" else pa.string())
                        for name in POISON
                    }
                )
            )
        staged = files.close()
        assert sum(each.rows for each in staged) == files.parked.total() == 3
    parked.look()
    assert said == []
    landing.note_parked("query", 0, files.parked)
    landing.note_parked("query", 1, Counter({(f"t{n}", "why" * 100): 1 for n in range(5)}))
    parked.look()
    (line,) = said
    fields = line["etl.quarantined"]
    assert (fields["query"], fields["rows"], fields["topics"], len(fields["most"])) == ("lake", 8, 7, 3)
    assert fields["most"][0] == {
        "topic": "persistent://t/n/a",
        "rows": 2,
        "reason": "no rule names a table for this topic",
    }
    landing.note_parked("query", 2, Counter({("t", "why"): 1}))
    parked.look()
    assert len(said) == 1, "not one a micro-batch"
    parked.close()
    assert len(said) == 2 and not list((tmp_path / "_staging" / "_parked").iterdir())
