"""Rows have places in a task that follow from their coordinates alone."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from heliograph.model.errors import ConfigError
from heliograph.spark.portable import by_content, placed, tasks_of
from heliograph.spark.sink import SinkOptions, _Routes, key_hash

KIND = pa.struct(
    [
        ("region", pa.int32()),
        ("epoch", pa.int32()),
        ("incarnation", pa.string()),
        ("ledger", pa.int64()),
        ("entry", pa.int64()),
        ("batch_index", pa.int32()),
    ]
)


def coordinate(n: int) -> dict[str, Any]:
    return {
        "region": n % 2,
        "epoch": 0,
        "incarnation": "abcd",
        "ledger": n // 40,
        "entry": n // 4 % 10,
        "batch_index": n % 4,
    }


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
        SinkOptions(
            {"admin_url": "http://x", "topic": "a"}, StructType().add("value", "string").add("coordinate", "string")
        )


@pytest.mark.parametrize("seed", range(20))
def test_rows_in_any_order_are_the_same_messages_by_what_they_hold(seed: int) -> None:
    """As blocks of a shuffle come from other machines."""
    rng = random.Random(seed)
    rows = [
        {
            "value": rng.choice((b"a", b"b", b"")),
            "key": rng.choice((None, "k", "l")),
            "properties": rng.choice((None, [], [("a", "1"), ("b", "2")], [("a", "2")])),
            "event_time": rng.choice((None, 5, 7)),
        }
        for _ in range(60)
    ]
    kinds = {
        "value": pa.binary(),
        "key": pa.string(),
        "properties": pa.map_(pa.string(), pa.string()),
        "event_time": pa.timestamp("us", "UTC"),
    }
    schema = pa.schema(list(kinds.items()))

    def listed(given: list[dict[str, Any]]) -> list[Any]:
        batches = pa.Table.from_pylist(given, schema).to_batches(rng.randrange(1, 30))
        return [row for batch in by_content(iter(batches)) for row in batch.to_pylist()]

    made = listed(rows)
    assert made == listed(rng.sample(rows, len(rows))) and len(made) == len(rows)
    assert list(by_content(iter([]))) == []
    with pytest.raises(ConfigError, match="order is 'any'"):
        SinkOptions({"admin_url": "http://x", "topic": "a", "order": "any"}, StructType().add("value", "string"))


def test_a_key_has_a_partition_and_what_has_none_takes_turns() -> None:
    of_java = {"": 0, "a": 97, "hello": 99162322, "polygenelubricants": 0, "😀": 1772899}
    assert {key: key_hash(key) for key in of_java} == of_java, "String.hashCode, without its sign"
    options = SinkOptions({"admin_url": "http://x", "topic": "t"}, StructType().add("value", "string"))
    options.places = lambda topic, _: [f"{topic}-partition-{n}" for n in range(3)] if topic == "parts" else [topic]  # type: ignore[method-assign]

    def ways(task: int) -> list[str]:
        routes = _Routes(options, task)
        asyncio.run(routes.learn(["parts", "plain"]))
        return [
            routes.of("plain", "hello"),
            routes.of("parts", "hello"),
            *(routes.of("parts", None) for _ in range(3001)),
        ]

    made = ways(0)
    assert made[:2] == ["plain", "parts-partition-1"] and made == ways(0)
    assert {place: made[2:].count(place) for place in set(made[2:])} == {
        "parts-partition-0": 1001,
        "parts-partition-1": 1000,
        "parts-partition-2": 1000,
    }
    assert ways(1)[2] == "parts-partition-1", "tasks begin at different ones"
