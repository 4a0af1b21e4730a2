"""Rows have places in a task that follow from their coordinates alone."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from heliograph.model.errors import ConfigError
from heliograph.spark.portable import placed, tasks_of
from heliograph.spark.sink import SinkOptions

KIND = pa.struct(
    [("region", pa.int32()), ("epoch", pa.int32()), ("incarnation", pa.string()), ("ledger", pa.int64()), ("entry", pa.int64()), ("batch_index", pa.int32())]
)


def coordinate(n: int) -> dict[str, Any]:
    return {"region": n % 2, "epoch": 0, "incarnation": "abcd", "ledger": n // 40, "entry": n // 4 % 10, "batch_index": n % 4}


def batches(rows: list[tuple[int, Any]], size: int) -> list[pa.RecordBatch]:
    values, places = pa.array([value for value, _ in rows]), pa.array([place for _, place in rows], KIND)
    return pa.table({"value": values, "coordinate": places}).to_batches(size)


@pytest.mark.parametrize("seed", range(20))
def test_the_same_rows_have_the_same_places(seed: int) -> None:
    rng = random.Random(seed)
    rows = [(n, coordinate(n)) for n in range(400)]
    wanted = sorted(rows, key=lambda row: tuple(row[1].values()))
    made = list(placed(iter(batches(rng.sample(rows, len(rows)), rng.randrange(1, 90)))))
    assert [n for batch in made for n in batch["value"].to_pylist()] == [n for n, _ in wanted]
    assert all(batch.schema.names == ["value"] for batch in made)
    for region in (0, 1):
        own = [n for batch in made for n in batch["value"].to_pylist() if n % 2 == region]
        assert own == sorted(own), "an origin's rows keep their order"


def test_rows_of_one_message_stay_as_they_came() -> None:
    rows = [(10, coordinate(8)), (1, coordinate(2)), (11, coordinate(8)), (2, coordinate(2)), (12, coordinate(8))]
    assert [n for batch in placed(iter(batches(rows, 2))) for n in batch["value"].to_pylist()] == [1, 2, 10, 11, 12]
    assert list(placed(iter([]))) == []


def test_a_row_without_a_coordinate_is_refused() -> None:
    with pytest.raises(ConfigError, match="no coordinate"):
        list(placed(iter(batches([(1, coordinate(1)), (2, None)], 9))))
    with pytest.raises(ConfigError, match="portable_tasks is '0'"):
        tasks_of("0")
    with pytest.raises(ConfigError, match="coordinate is string"):
        SinkOptions({"admin_url": "http://x", "topic": "a"}, StructType().add("value", "string").add("coordinate", "string"))
