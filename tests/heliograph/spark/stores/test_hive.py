"""Statements that Hive's metastore hears, of names and places that are not plain; the real one is asked in
tests/system.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

pytest.importorskip("pyspark")

from heliograph.spark.stores.hive import HiveTables


def test_a_table_lies_where_its_files_are_whatever_the_session_takes_a_path_for() -> None:
    said: list[str] = []
    spark: Any = MagicMock()
    spark.conf.get.return_value = "hive"
    spark.sql = said.append
    HiveTables(spark, Path("/data/it's here"), "lake", "batch").tell("t", {"n": "bigint"}, ["0-a"])
    (made,) = (text for text in said if text.startswith("CREATE EXTERNAL"))
    assert made.endswith("LOCATION 'file:/data/it\\'s here/t'")
    assert said[-2:] == [
        "ALTER TABLE `lake`.`t` ADD IF NOT EXISTS PARTITION (`batch`='0-a')",
        "REFRESH TABLE `lake`.`t`",
    ]


def test_a_name_stays_a_name_whatever_is_in_it() -> None:
    said: list[str] = []
    spark: Any = MagicMock()
    spark.conf.get.return_value = "hive"
    spark.sql = said.append
    HiveTables(spark, Path("/data"), "lake", "batch").tell("t", {"n` int); DROP TABLE u; --": "bigint"}, ["0-a"])
    (made,) = (text for text in said if text.startswith("CREATE EXTERNAL"))
    assert "(`n`` int); DROP TABLE u; --` bigint)" in made
