"""Options of the ETL: what is wrong with them is a sentence at the start, and no query that fails for ever."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark")

from pyspark.sql.types import (
    CharType,
    DataType,
    DayTimeIntervalType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    StringType,
    StructField,
    StructType,
    TimestampType,
    VarcharType,
    YearMonthIntervalType,
)

from heliograph.model.errors import ConfigError
from heliograph.spark.jobs.etl import taken


def columns(*fields: tuple[str, DataType]) -> StructType:
    return StructType([StructField(name, kind) for name, kind in fields])


@pytest.mark.parametrize(
    "kind",
    [
        CharType(3),
        VarcharType(3),
        DayTimeIntervalType(),
        YearMonthIntervalType(),
        NullType(),
        MapType(LongType(), LongType()),
    ],
)
def test_a_type_that_no_payload_has_is_refused_at_the_start(kind: DataType) -> None:
    with pytest.raises(ConfigError, match="here: schema cannot be read from payloads: "):
        taken(columns(("id", LongType()), ("odd", kind)), "here")


def test_columns_that_no_task_could_read_are_refused_at_the_start() -> None:
    fine = columns(
        ("id", LongType()),
        ("a b", IntegerType()),
        ("m", MapType(StringType(), StringType())),
        ("_publish_time", TimestampType()),
    )
    assert taken(fine, "here") == fine
    for names, why in (
        (("a", "a"), "two columns a"),
        (("a\nb",), "cannot be read"),
        (("_key",), "no column of the payload"),
    ):
        with pytest.raises(ConfigError, match=why):
            taken(columns(*((name, StringType()) for name in names)), "here")
