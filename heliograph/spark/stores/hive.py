"""Tables in Hive's metastore: external ones, over files that others write; wide tables are partitioned by `bucket`,
those of the ETL by `batch`.

Is: the table, its columns, and its partitions, made where they are not there. Isn't: INSERT OVERWRITE, which a kill
leaves half done; files come by a rename.
Invariants: files first, then the metastore; each statement may be repeated, so a batch that died between the two is
completed by its next delivery.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from heliograph.model.errors import ConfigError
from heliograph.spark.stores.parquet import ParquetStore
from heliograph.spark.stores.rows import Upsert
from heliograph.spark.stores.sql_names import identifier


class HiveStore:
    """spark: a session whose catalogue is Hive's; root: where the files lie, reached by everything that reads the
    tables; database: of the metastore.
    """

    def __init__(self, spark: Any, root: Path, database: str) -> None:
        self._metastore, self._files = HiveTables(spark, root, database, "bucket"), ParquetStore(root)

    def upsert(self, given: Upsert) -> None:
        buckets = self._files.replace(given)
        self._metastore.tell(given.table, {field.name: kind_of(field) for field in given.rows.schema}, buckets)

    def close(self) -> None:
        self._files.close()


class HiveTables:
    """External tables over folders `TABLE/by=VALUE` below `root`. Raises ConfigError where the session has no Hive."""

    def __init__(self, spark: Any, root: Path, database: str, by: str) -> None:
        if spark.conf.get("spark.sql.catalogImplementation", "in-memory") != "hive":
            raise ConfigError(
                'Hive wants a session with a metastore: put "spark.sql.catalogImplementation" = "hive", and where '
                "that is, into [spark.conf]"
            )
        self._spark, self._root, self._database, self._by = spark, root, database, by
        self._known: dict[str, set[str]] = {}
        """By table that is there, its columns, in small letters."""

    def tell(self, table: str, columns: Mapping[str, str], values: Sequence[str]) -> None:
        """That there is a table with these columns, by name and type, among others, and that it has those folders."""
        name = f"{identifier(self._database)}.{identifier(table)}"
        known = self._known.pop(table, None)  # known again once all is told: after an error it is looked at anew
        if known is None:
            first = ", ".join(f"{identifier(column)} {kind}" for column, kind in columns.items())
            place = str(self._root / table).replace("\\", "\\\\").replace("'", "\\'")
            # a session's own default may be HDFS, and the files are not there
            place = f"STORED AS PARQUET LOCATION 'file:{place}'"
            self._spark.sql(f"CREATE DATABASE IF NOT EXISTS {identifier(self._database)}")
            self._spark.sql(
                f"CREATE EXTERNAL TABLE IF NOT EXISTS {name} ({first}) PARTITIONED BY (`{self._by}` string) {place}"
            )
            known = {column.lower() for column in self._spark.table(name).columns}
        if new := [f"{identifier(column)} {kind}" for column, kind in columns.items() if column.lower() not in known]:
            self._spark.sql(f"ALTER TABLE {name} ADD COLUMNS ({', '.join(new)})")
        if parts := [f"PARTITION (`{self._by}`='{each}')" for each in values]:
            self._spark.sql(f"ALTER TABLE {name} ADD IF NOT EXISTS {' '.join(parts)}")
        self._spark.sql(f"REFRESH TABLE {name}")
        self._known[table] = known | {column.lower() for column in columns}

    def answers(self) -> bool:
        """Whether the metastore is there at all, whatever it refuses."""
        try:
            self._spark.catalog.databaseExists(self._database)
        except Exception:  # Spark's, of whatever its client says
            return False
        return True

    def forget(self, table: str, value: str) -> None:
        """That folder, which is not there any more."""
        name = f"{identifier(self._database)}.{identifier(table)}"
        if self._spark.catalog.tableExists(name):
            self._spark.sql(f"ALTER TABLE {name} DROP IF EXISTS PARTITION (`{self._by}`='{value}')")


def kind_of(field: pa.Field) -> str:
    """Its type in Spark's and Hive's words."""
    from pyspark.sql.pandas.types import from_arrow_type

    return str(from_arrow_type(field.type, prefer_timestamp_ntz=False).simpleString())
