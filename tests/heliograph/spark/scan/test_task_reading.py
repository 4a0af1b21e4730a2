"""Which columns a task makes, and which it refuses with a sentence before anything is read."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark")

from pyspark.sql.types import ArrayType, BinaryType, DoubleType, LongType, StringType, StructType, VariantType

from heliograph.model.errors import ConfigError
from heliograph.spark.columns.declared_columns import Declared
from heliograph.spark.scan.source_options import Options
from heliograph.spark.scan.task_reading import payload_columns


def options(columns: str) -> Options:
    return Options({"admin_url": "http://127.0.0.1:8080", "topic": "persistent://a/b/c", "columns": columns})


def test_raw_columns_have_the_types_of_the_message() -> None:
    whole = StructType().add("topic", StringType()).add("value", BinaryType()).add("entry", LongType())
    assert payload_columns(options("auto"), whole) is None
    assert payload_columns(options("raw"), StructType().add("value", StringType())) is None
    for columns in ("auto", "raw"):
        with pytest.raises(
            ConfigError, match=r"the column value is the message's own here, binary, and not double: .*columns = 'json'"
        ):
            payload_columns(options(columns), StructType().add("topic", StringType()).add("value", DoubleType()))
    with pytest.raises(ConfigError, match="'raw' knows no column price"):
        payload_columns(options("raw"), StructType().add("price", DoubleType()))
    with pytest.raises(ConfigError, match="the column value is NOT NULL"):
        payload_columns(options("raw"), StructType().add("value", StringType(), nullable=False))
    assert isinstance(payload_columns(options("json"), StructType().add("value", DoubleType())), Declared)


def test_a_variant_is_refused_wherever_it_is() -> None:
    with pytest.raises(ConfigError, match=r"parse_json\(inner\)"):
        payload_columns(options("auto"), StructType().add("inner", StructType().add("deep", ArrayType(VariantType()))))
