"""Which notes of the ETL the metastore hears of, in what order they may come."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import pytest

pytest.importorskip("pyspark")

from heliograph.spark.jobs.landing import STAGING
from heliograph.spark.jobs.metastore import InMetastore
from heliograph.spark.queries import Fixed


class Hive:
    def __init__(self) -> None:
        self.told: list[tuple[str, str]] = []

    def tell(self, table: str, columns: dict[str, str], values: list[str]) -> None:
        self.told += [(table, value) for value in values]


def test_a_note_that_becomes_the_oldest_is_told_whole(tmp_path: Path) -> None:
    """Two groups of the ETL: the number of a micro-batch is its query's own."""
    notes, hive = tmp_path / STAGING / "_landed", Hive()
    notes.mkdir(parents=True)

    def note(batch: str, tables: list[str]) -> None:
        (notes / f"{batch}.1.json").write_text(json.dumps({"batch": batch, "tables": {table: {"n": "bigint"} for table in tables}, "gone": []}))

    metastore = InMetastore(Fixed([]), tmp_path, cast(Any, hive))
    many = [f"t{n:02d}" for n in range(24)]
    note("batch=0000000100-light", ["_quarantine", *many])
    metastore.look()
    note("batch=0000000007-heavy", ["_quarantine", "t00"])
    for _ in range(4):
        metastore.look()
    assert not metastore.busy and set(hive.told) == {
        *(("_quarantine", f"batch={batch}") for batch in ("0000000100-light", "0000000007-heavy")),
        *((table, "batch=0000000100-light") for table in many),
        ("t00", "batch=0000000007-heavy"),
    }
