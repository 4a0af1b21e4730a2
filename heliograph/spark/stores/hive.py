"""Wide tables in Hive's metastore: external tables, partitioned by `bucket`, of the files that the parquet store writes.

Is: the table, its columns, and its partitions, made where they are not there. Isn't: INSERT OVERWRITE, which a kill leaves half done; files come by a rename.
Invariants: files first, then the metastore; each statement may be repeated, so a batch that died between the two is completed by its next delivery.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

from heliograph.model.errors import ConfigError
from heliograph.spark.stores.parquet import ParquetStore
from heliograph.spark.stores.rows import Upsert


class HiveStore:
    """spark: a session whose catalogue is Hive's; root: where the files lie, reached by everything that reads the tables; database: of the metastore."""

    def __init__(self, spark: Any, root: Path, database: str) -> None:
        if spark.conf.get("spark.sql.catalogImplementation", "in-memory") != "hive":
            raise ConfigError(
                'store hive wants a session with Hive\'s metastore: put "spark.sql.catalogImplementation" = "hive", and where that is, into [spark.conf]'
            )
        self._spark, self._files, self._root, self._database = spark, ParquetStore(root), root, database

    def upsert(self, given: Upsert) -> None:
        buckets = self._files.replace(given)
        name = f"`{self._database}`.`{given.table}`"
        kinds = {field.name: _kind(field) for field in given.rows.schema}
        columns = ", ".join(f"`{column}` {kind}" for column, kind in kinds.items())
        self._spark.sql(f"CREATE DATABASE IF NOT EXISTS `{self._database}`")
        self._spark.sql(
            f"CREATE EXTERNAL TABLE IF NOT EXISTS {name} ({columns}) PARTITIONED BY (bucket string) STORED AS PARQUET LOCATION '{self._root / given.table}'"
        )
        known = {column.lower() for column in self._spark.table(name).columns}
        if new := [f"`{column}` {kind}" for column, kind in kinds.items() if column.lower() not in known]:
            self._spark.sql(f"ALTER TABLE {name} ADD COLUMNS ({', '.join(new)})")
        if parts := [f"PARTITION (bucket='{each}')" for each in buckets]:
            self._spark.sql(f"ALTER TABLE {name} ADD IF NOT EXISTS {' '.join(parts)}")
        self._spark.sql(f"REFRESH TABLE {name}")

    def close(self) -> None:
        self._files.close()


def _kind(field: pa.Field) -> str:
    from pyspark.sql.pandas.types import from_arrow_type

    return str(from_arrow_type(field.type, prefer_timestamp_ntz=False).simpleString())
