"""A query's rows as a table of parquet files that any reader may read: a folder a micro-batch, and at will a table of
Hive's metastore over them.

Is: the sink of SQL text that Spark's own file sink cannot be: that one's files are whole only to who reads its
`_spark_metadata`; to all others, Hive among them, a micro-batch that ran again is there twice. Isn't: tables by topic,
Delta, or Iceberg (the ETL).
Invariants: a micro-batch's folder comes by one rename, and stays as it is when the micro-batch comes again; the
metastore hears of it afterwards, in the same micro-batch. Any file system of Hadoop's with such a rename; on one of
this machine's it is on the disks before Spark hears that it is done.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from heliograph.model.errors import ConfigError
from heliograph.spark.stores.micro_batches import older
from heliograph.spark.stores.sql_names import identifier

FORMAT = "table"
OPTIONS = ("path", "hive")
BATCH = "batch"
_PATTERN = re.compile(r"([\\*?\[\]{}])")
"""What Hadoop takes for a pattern in a path."""
_HIVE = re.compile(r"[A-Za-z0-9_]+(\.[A-Za-z0-9_]+)?")


class Folders:
    """Writes micro-batches for foreachBatch. It, and `deliver`, raise ConfigError."""

    def __init__(self, spark: Any, options: Mapping[str, str], sink: str) -> None:
        unknown = [key for key in options if key not in OPTIONS]
        if unknown or not options.get("path"):
            raise ConfigError(
                f"the sink {sink} of format 'table' wants path, and at will hive = 'database.table'"
                + (f", not {unknown[0]}" if unknown else "")
            )
        self._path, self._hive = options["path"].rstrip("/"), options.get("hive", "")
        self._newest: int | None = None
        """The last micro-batch that is there, once that was looked for."""
        if self._hive and not _HIVE.fullmatch(self._hive):
            raise ConfigError(
                f"the sink {sink}: hive is {self._hive!r}; it is database.table, of letters, digits, and _"
            )
        if self._hive and spark.conf.get("spark.sql.catalogImplementation", "in-memory") != "hive":
            raise ConfigError(
                'Hive wants a session with a metastore: put "spark.sql.catalogImplementation" = "hive", and where '
                "that is, into [spark.conf]"
            )

    def deliver(self, rows: Any, batch: int) -> None:
        if any(name.lower() == BATCH for name in rows.columns):
            raise ConfigError(
                f"a table of folders has no column {BATCH!r}, which is the folders' own: call it otherwise"
            )
        spark = rows.sparkSession
        query = spark.sparkContext.getLocalProperty("sql.streaming.queryId")
        name = f"{batch:010d}-{query[:8]}"
        ready, target = f"{self._path}/_staging/{name}", f"{self._path}/batch={name}"
        path = spark._jvm.org.apache.hadoop.fs.Path
        files = path(self._path).getFileSystem(spark._jsc.hadoopConfiguration())
        self._refuse_older(files, path, batch, query[:8])
        if self._hive:
            _table(spark, self._hive, files.makeQualified(path(self._path)).toString(), rows.schema)
        if not files.exists(path(target)):
            rows.write.mode("overwrite").parquet(ready)
            _sync(files.makeQualified(path(self._path)).toString())
            if not files.rename(path(ready), path(target)):
                raise OSError(f"{ready} cannot be renamed to {target}")
        _sync(files.makeQualified(path(self._path)).toString())  # Spark writes behind this that the micro-batch is done
        if self._hive:
            spark.sql(f"ALTER TABLE {_quoted(self._hive)} ADD IF NOT EXISTS PARTITION (`batch`='{name}')")

    def _refuse_older(self, files: Any, path: Any, batch: int, query: str) -> None:
        """Raises ConfigError where a later micro-batch of the query is there. Looks once, as only a start goes back."""
        if self._newest is None:
            folder = _PATTERN.sub(r"\\\1", self._path)
            found = files.globStatus(path(f"{folder}/batch=*-{query}"))
            newest = found[len(found) - 1].getPath().getName() if found else ""  # they are sorted
            self._newest = int(newest[len("batch=") :].partition("-")[0]) if newest else -1
        if self._newest > batch:
            raise ConfigError(older(f"the table at {self._path}", batch, self._newest))
        self._newest = batch


def _sync(url: str) -> None:
    """A folder of this machine's own file systems; another one keeps what it was given."""
    from heliograph.spark.lake.landing import (
        sync,
    )  # the command line imports this module also where Spark is not installed

    scheme, _, rest = url.partition(":")
    if scheme == "file":
        sync(Path("/" + rest.lstrip("/")))


def into(rows: Any, kind: str, options: Mapping[str, str], mode: str, sink: str) -> Any:
    """A writer of a stream's rows: of a format of Spark's or ours, or of a table. Raises ConfigError."""
    if kind != FORMAT:
        return rows.writeStream.format(kind).options(**options)
    if mode != "append":
        raise ConfigError(
            f"the sink {sink} of format 'table' gets rows once, in mode 'append': what {mode!r} gives anew it would "
            "hold twice"
        )
    return rows.writeStream.foreachBatch(Folders(rows.sparkSession, options, sink).deliver)


def _table(spark: Any, hive: str, path: str, schema: Any) -> None:
    """Made, or with columns that are new. Raises ConfigError where one would change its type, before a file comes."""
    table = _quoted(hive)
    if "." in hive:
        spark.sql(f"CREATE DATABASE IF NOT EXISTS {table.partition('.')[0]}")
    columns = {field.name: f"{identifier(field.name)} {field.dataType.simpleString()}" for field in schema.fields}
    columned, place = ", ".join(columns.values()), path.replace("\\", "\\\\").replace("'", "\\'")
    spark.sql(
        f"CREATE EXTERNAL TABLE IF NOT EXISTS {table} ({columned}) PARTITIONED BY (`batch` string) STORED AS PARQUET "
        f"LOCATION '{place}'"
    )
    known = {field.name.lower(): field.dataType for field in spark.table(table).schema.fields}
    changed = [field.name for field in schema.fields if known.get(field.name.lower(), field.dataType) != field.dataType]
    if changed:
        raise ConfigError(
            f"the table {hive} has a column {changed[0]} of type {known[changed[0].lower()].simpleString()}: cast it "
            "back, or take another name"
        )
    if new := [text for name, text in columns.items() if name.lower() not in known]:
        spark.sql(f"ALTER TABLE {table} ADD COLUMNS ({', '.join(new)})")


def _quoted(hive: str) -> str:
    return ".".join(map(identifier, hive.split(".")))
