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
from heliograph.spark.jobs.etl import rules_of, taken


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


@pytest.mark.parametrize(
    ("topics", "name", "clash"),
    [
        (["a/b/t", "a/c/t"], "{topic}", True),
        (["a/b/t", "c/b/t"], "all_{topic}", True),
        (["a/b/t", "a/b/u"], "{topic}", False),
        (["a/b/t", "a/c/t"], "{tenant}.{namespace}.{topic}", False),
        (["a/b/t", "a/c/t"], "one", False),
        ([], "{topic}", False),
    ],
)
def test_tables_of_several_namespaces_have_them_in_their_names(topics: list[str], name: str, clash: bool) -> None:
    """Else two topics of one name would share a table."""
    options = {"topics": topics, "table": [{"schema": "raw", "name": name}]}
    if clash:
        with pytest.raises(ConfigError, match="several namespaces"):
            rules_of(options, "query q", lambda ddl, at: ddl)
    else:
        (rule,) = rules_of(options, "query q", lambda ddl, at: ddl)
        assert rule.name == name
