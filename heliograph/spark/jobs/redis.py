"""Rows of topics into Redis: a hash a key, whose fields are the columns of the newest row.

    [[query]]
    job = "redis"      # docs/spark.md, "Rows into Redis", has all options

Is: the options, and which row of a micro-batch is a key's newest. Isn't: how a hash is written
(`heliograph.spark.stores.redis`), or aggregates (`wide`).
Invariants: what a micro-batch writes are absolute values, the same however often it runs, and one that is there is not
written again; rows of one topic count in its order, those of several by publish time. A row with a null in its key is
left out.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from pyspark.sql import functions as sf

from heliograph.model.errors import ConfigError
from heliograph.spark.job_files.job_options import refuse_unknown, source_of, started, text_of
from heliograph.spark.jobs.sql_expressions import all_named, declared, query_of
from heliograph.spark.stores.choice import store_of
from heliograph.spark.stores.rows import Upsert

_STORE = ("url", "prefix", "expire_s")
KNOWN = (
    "topics",
    "namespace",
    "topics_pattern",
    "subscription",
    "source",
    "checkpoint",
    "trigger",
    "schema",
    "table",
    "keys",
    "columns",
    "delete",
    *_STORE,
)
_PLACE = ("_topic", "_publish_time", "_ledger", "_entry", "_batch_index")


def start(spark: Any, defaults: dict[str, str], name: str, options: dict[str, Any]) -> list[Any]:
    """One streaming query. Raises ConfigError with one sentence."""
    where = f"[[query]] {name}"
    refuse_unknown(options, KNOWN, where)
    keys, columns = _expressions(options, "keys", where), _expressions(options, "columns", where)
    if twice := [column for column in columns if column in keys]:
        raise ConfigError(f"{where}: {twice[0]} is a key, and no column")
    table, gone = text_of(options, "table", where, ""), text_of(options, "delete", where, "false")
    if not table:
        raise ConfigError(f"{where} wants table: the beginning of the hashes' names")
    schema = declared(options, [*keys.values(), *columns.values(), gone, *_PLACE], where)
    source = {"mode": "PERMISSIVE"} | source_of(options, defaults, where)
    store = store_of({"store": "redis", **{key: options[key] for key in _STORE if key in options}}, where, spark)

    def deliver(rows: Any, batch: int) -> None:
        made: pa.Table = newest(rows, keys, columns, gone).toArrow()
        if made.num_rows:
            store.upsert(Upsert(table, tuple(keys), made, name, query_of(rows), batch))

    rows = spark.readStream.format("heliograph").schema(schema).options(**source).load()
    return [started(rows.writeStream.foreachBatch(deliver), options, name, where)]


def newest(rows: Any, keys: dict[str, str], columns: dict[str, str], gone: str) -> Any:
    """One row a key. gone: an expression, where it is true of the newest row, all columns are null, which removes the
    hash.
    """
    made = [sf.expr(expression).alias(key) for key, expression in keys.items()]
    values = [
        sf.when(~sf.coalesce(sf.expr(gone), sf.lit(False)), sf.expr(expression)).alias(column)
        for column, expression in columns.items()
    ]
    rows = rows.select(*made, sf.struct(*values).alias("_row"), *_PLACE).dropna(subset=list(keys))
    rows = rows.groupBy(*keys, "_topic").agg(
        sf.max_by(
            sf.struct("_row", "_publish_time"), sf.struct("_ledger", "_entry", sf.coalesce("_batch_index", sf.lit(-1)))
        ).alias("_last")
    )
    rows = rows.groupBy(*keys).agg(sf.max_by("_last._row", sf.struct("_last._publish_time", "_topic")).alias("_row"))
    return rows.select(*keys, "_row.*")


def _expressions(options: dict[str, Any], key: str, where: str) -> dict[str, str]:
    given = options.get(key, [])
    if not isinstance(given, list) or not given or not all(isinstance(each, str) for each in given):
        raise ConfigError(
            f"{where} wants {key}: a list of columns, or of expressions with a name, such as ['user', 'lower(country) "
            "as country']"
        )
    return all_named(given, f"{where} {key}")
