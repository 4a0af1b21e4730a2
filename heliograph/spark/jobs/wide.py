"""Wide tables: rows by period and key with columns from many topics and offline tables, in any of the table stores.

    [[query]]
    job = "wide"       # docs/spark.md, "Wide tables", has all options

Is: the options, one pass of Spark over one source, its aggregates handed to the stores. Isn't: how a store keeps them
(`heliograph.spark.stores`).
How: a topic's column is an aggregate with a FILTER on the topic's name, so all topics are one union that is read once,
and nothing is joined; each row counts in one period of each table (hour, day); the sums so far are Spark's state, so
what a micro-batch hands over are whole values, not increments. An offline table's columns are made the same way in a
batch and written into the same rows: the store puts both beside each other by key.
Invariants: what a store gets of a micro-batch is the same however often it runs; rows without a time or with a null in
the key are in no table.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import functions as sf

from heliograph.model.errors import ConfigError, HeliographError
from heliograph.spark.job_files.job_options import checkpoint_of, refuse_unknown, source_of, started, text_of
from heliograph.spark.jobs.sql_expressions import NAME, all_named, declared, query_of
from heliograph.spark.stores.choice import store_of
from heliograph.spark.stores.parquet import BUCKET
from heliograph.spark.stores.rows import PERIOD, RowStore, Upsert

_STREAM = (
    "topics",
    "namespace",
    "topics_pattern",
    "subscription",
    "schema",
    "source",
    "checkpoint",
    "trigger",
    "lateness",
    "ahead",
    "state_tasks",
)
KNOWN = (*_STREAM, "offline", "time", "keys", "columns", "table", "target")
_TABLE, _TIME, _BEGIN, _ORIGIN = "_table", "_time", "_begin", "_origin_time"
_PLAN = "wide.json"
"""In the checkpoint: what its sums are of."""
_PART, _LAST = "_part", "regexp_replace(substring_index(_topic, '/', -1), '-partition-[0-9]+$', '')"
"""The last part of a topic's name, of each of its partitions too."""
_SPAN = re.compile(r"(\d+) (minute|hour|day)s?")
_QUOTED = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|`[^`]*`""")
_MINUTES = {"minute": 1, "hour": 60, "day": 1440}


@dataclass(frozen=True, slots=True)
class Plan:
    """keys, columns: name and SQL expression; periods: by table, minutes; time: an expression, a timestamp."""

    keys: Mapping[str, str]
    columns: Mapping[str, str]
    periods: Mapping[str, int]
    time: str


def start(spark: Any, defaults: dict[str, str], name: str, options: dict[str, Any]) -> list[Any]:
    """One streaming query; none with `offline`, whose columns are in the tables when this returns. Raises ConfigError
    with one sentence.
    """
    where = f"[[query]] {name}"
    refuse_unknown(options, KNOWN, where)
    offline = options.get("offline")
    plan = plan_of(options, where)
    targets = options.get("target", [])
    if not isinstance(targets, list) or not targets or not all(isinstance(each, dict) for each in targets):
        raise ConfigError(f"{where} has no [[query.options.target]]: each is a store that gets the tables")
    if BUCKET in (*plan.keys, *plan.columns) and any(each.get("store") in ("parquet", "hive") for each in targets):
        raise ConfigError(
            f"{where}: {BUCKET} is the column of the folders of parquet and hive tables: give yours another name, "
            f"such as {BUCKET}_ = '...'"
        )
    stores = [store_of(each, f"{where} target {number}", spark) for number, each in enumerate(targets, 1)]
    if offline is not None:
        if useless := [key for key in _STREAM if key in options]:
            raise ConfigError(
                f"{where} reads an offline table, once: {', '.join(useless)} belong to a query over topics"
            )
        rows = by_key(_offline(spark, offline, where), plan)
        try:
            _deliver(rows.toArrow(), plan, stores, name, name, None)
        except (
            ConfigError
        ) as error:  # the options were read: what a store refuses now is this query's failure, and none of the file's
            raise HeliographError(str(error)) from error
        finally:
            for store in stores:
                store.close()
        return []
    schema = declared(options, [plan.time, *plan.keys.values(), *plan.columns.values(), _ORIGIN, _LAST], where)
    source = {"mode": "PERMISSIVE"} | source_of(options, defaults, where)
    late = text_of(options, "lateness", where, "1 hour")
    lateness, ahead = (
        max(plan.periods.values()) + _span(late, "lateness", where),
        _span(text_of(options, "ahead", where, late), "ahead", where),
    )
    tasks = options.get("state_tasks", 4)
    if isinstance(tasks, bool) or not isinstance(tasks, int) or not 1 <= tasks <= 10_000:
        raise ConfigError(
            f"{where}: state_tasks is {tasks!r}; it is a number of tasks, and stays what it was at the first start"
        )
    _refuse_another_plan(spark, checkpoint_of(options, where), plan, where)
    rows = spark.readStream.format("heliograph").schema(schema).options(**source).load()
    made = by_key(rows.withColumn(_PART, sf.expr(_LAST)), plan, lateness_minutes=lateness, ahead_minutes=ahead)

    def deliver(rows: Any, batch: int) -> None:
        _deliver(rows.toArrow(), plan, stores, name, query_of(rows), batch)

    before = spark.conf.get("spark.sql.shuffle.partitions")
    spark.conf.set("spark.sql.shuffle.partitions", str(tasks))  # a query takes its session's settings when it starts
    try:
        return [started(made.writeStream.outputMode("update").foreachBatch(deliver), options, name, where)]
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", before)


def _refuse_another_plan(spark: Any, checkpoint: str, plan: Plan, where: str) -> None:
    """Spark looks whether its state has columns of the same types in the same order, and not what they are sums of.
    Raises ConfigError.
    """
    path = spark._jvm.org.apache.hadoop.fs.Path
    place, new = path(f"{checkpoint}/{_PLAN}"), path(f"{checkpoint}/{_PLAN}.new")
    files = place.getFileSystem(spark._jsc.hadoopConfiguration())
    text = json.dumps(
        {
            "table": sorted(plan.periods.items()),
            "time": plan.time,
            "keys": [*plan.keys.items()],
            "columns": [*plan.columns.items()],
        }
    )
    begun = path(f"{checkpoint}/offsets")
    if (
        not files.exists(place) or not files.exists(begun) or not len(files.listStatus(begun))
    ):  # an earlier version's, or nothing was summed yet
        file = files.create(new, True)
        file.write(bytearray(text.encode()))
        file.close()
        files.delete(place, False)
        files.rename(new, place)
        return
    file = files.open(place)
    known, asked = json.loads(bytes(file.readAllBytes())), json.loads(text)
    file.close()
    if changed := [what for what in asked if asked[what] != known.get(what)]:
        raise ConfigError(
            f"{where}: {', '.join(changed)}: not as it was when the sums in the checkpoint began, and they would be "
            "mixed with others (order counts, too): take"
            f" a new checkpoint, as docs/spark.md says of wide tables; or remove {_PLAN} in this one, where what is "
            "new shall hold for new rows alone"
        )


def plan_of(options: Mapping[str, Any], where: str) -> Plan:
    """Reads and checks the options of a wide job. Raises ConfigError."""
    stream = "offline" not in options
    given, tables, columns = options.get("keys", []), options.get("table", []), options.get("columns", {})
    if not isinstance(given, list) or not given or not all(isinstance(each, str) for each in given):
        raise ConfigError(
            f"{where} wants keys: a list of columns, or of expressions with a name, such as ['user', 'lower(country) "
            "as country']"
        )
    keys = all_named(given, f"{where} key", taken=PERIOD)
    if not isinstance(tables, list) or not tables or not all(isinstance(each, dict) for each in tables):
        raise ConfigError(
            f"{where} has no [[query.options.table]]: each is a name and a period, such as 1 hour or 1 day"
        )
    periods = {}
    for number, each in enumerate(tables, 1):
        refuse_unknown(each, ("name", "period"), f"{where} table {number}")
        table = text_of(each, "name", where, "")
        if NAME.fullmatch(table) is None or table in periods:
            raise ConfigError(
                f"{where} table {number}: name is {table!r}; it is of letters, digits, and _, and no other table's"
            )
        periods[table] = _span(text_of(each, "period", where, "1 hour"), f"table {number}: period", where)
    if not isinstance(columns, dict) or not columns:
        raise ConfigError(
            f"{where} has no columns: each is a name and an aggregate, such as clicks = {{ topics = 'clicks', value = "
            f"'count(*)' }}"
        )
    made = {}
    for column, each in columns.items():
        each = {"value": each} if isinstance(each, str) else each
        if not isinstance(each, dict):
            raise ConfigError(f"{where}: column {column} is an aggregate, or a table of topics and value")
        refuse_unknown(each, ("topics", "value") if stream else ("value",), f"{where} column {column}")
        if NAME.fullmatch(column) is None or column in (*keys, PERIOD):
            raise ConfigError(f"{where}: column {column!r} is of letters, digits, and _, and no key")
        made[column] = _aggregate(
            text_of(each, "value", where, ""), text_of(each, "topics", where, ".*"), f"{where} column {column}"
        )
    return Plan(keys, made, periods, text_of(options, "time", where, "_publish_time" if stream else ""))


def by_key(rows: Any, plan: Plan, *, lateness_minutes: int | None = None, ahead_minutes: int = 0) -> Any:
    """One row a table, period, and key. lateness_minutes: of a stream, how far behind the newest period's end a row may
    begin and still count.

    ahead_minutes: of a stream, how far its time may be ahead of the moment when its origin stored it: one wrong clock
    would make all other rows late.
    """
    if not plan.time:
        raise ConfigError("an offline table wants time: an expression that says to which period a row belongs")
    rows = rows.withColumn(_TIME, sf.expr(plan.time).cast("timestamp")).where(sf.col(_TIME).isNotNull())
    spans = [
        sf.struct(
            sf.lit(table).alias(_TABLE),
            begins.alias(_BEGIN),
            (begins + sf.expr(f"interval {minutes} minutes")).alias("_end"),
        )
        for table, minutes in plan.periods.items()
        for begins in [sf.timestamp_seconds(sf.floor(sf.unix_seconds(_TIME) / (minutes * 60)) * (minutes * 60))]
    ]
    names = [sf.expr(expression).alias(f"_key_{key}") for key, expression in plan.keys.items()]
    rows = rows.select("*", *names, sf.explode(sf.array(*spans)).alias("_span")).select("*", "_span.*")
    for key in plan.keys:
        rows = rows.where(sf.col(f"_key_{key}").isNotNull())
        if rows.schema[f"_key_{key}"].dataType.typeName() in ("float", "double"):
            rows = rows.where(~sf.isnan(f"_key_{key}"))  # stores disagree on whether it is the same as another one
    if lateness_minutes is not None:
        stored = sf.coalesce(sf.col(_ORIGIN), sf.col(_TIME))  # of brokers that did not write it down: nobody knows
        rows = rows.where(sf.col(_TIME) <= stored + sf.expr(f"interval {ahead_minutes} minutes"))
        rows = rows.withWatermark("_end", f"{lateness_minutes} minutes")
    keys = [sf.col(f"_key_{key}").alias(key) for key in plan.keys]
    values = [sf.expr(expression).alias(column) for column, expression in plan.columns.items()]
    return rows.groupBy(sf.col(_TABLE), sf.col("_end"), sf.col(_BEGIN).alias(PERIOD), *keys).agg(*values)


def _deliver(rows: pa.Table, plan: Plan, stores: list[RowStore], writer: str, query: str, batch: int | None) -> None:
    """To each store, table by table: one that has the batch leaves it, so a death in between is completed when the
    batch comes again.
    """
    import pyarrow.compute as pc

    wanted = [PERIOD, *plan.keys, *plan.columns]
    for table in plan.periods:
        part = rows.filter(pc.equal(rows[_TABLE], table)).select(wanted)
        part = part.set_column(0, PERIOD, part[PERIOD].cast(pa.timestamp("us", "UTC"))).replace_schema_metadata(None)
        if part.num_rows:
            for store in stores:
                store.upsert(Upsert(table, (PERIOD, *plan.keys), part, writer, query, batch))


def _offline(spark: Any, given: Any, where: str) -> Any:
    if not isinstance(given, dict) or ("sql" in given) == ("format" in given):
        raise ConfigError(
            f"{where}: offline is a table with sql, a SELECT, or with format and the options of that, such as path"
        )
    options = {key: str(value) for key, value in given.items() if key not in ("sql", "format", "path")}
    if "sql" in given:
        refuse_unknown(given, ("sql",), f"{where} offline")
        return spark.sql(given["sql"])
    return spark.read.format(given["format"]).options(**options).load(given.get("path"))


def _aggregate(value: str, topics: str, where: str) -> str:
    if not value:
        raise ConfigError(f"{where} wants value: one call of an aggregate, such as count(*) or sum(amount)")
    try:
        re.compile(topics)
    except re.error as error:
        raise ConfigError(f"{where}: topics is {topics!r}, and no regular expression: {error}") from error
    if topics == ".*":
        return value
    if not _is_call(value):
        raise ConfigError(
            f"{where}: value is {value!r}, and with topics it is one call of an aggregate, such as sum(price * "
            "amount): what is reckoned with several goes"
            " where the table is read"
        )
    quoted = topics.replace("\\", "\\\\").replace("'", "\\'")
    test = f"= '{quoted}'" if re.fullmatch(r"[\w-]+", topics) else f"rlike '^(?:{quoted})$'"
    return f"{value} FILTER (WHERE {_PART} {test})"


def _is_call(value: str) -> bool:
    """FILTER would belong to the last one of several alone, and the others would count every topic."""
    left, inner = _QUOTED.sub("", value).strip(), 1
    while inner:
        left, inner = re.subn(r"\([^()]*\)", "", left)
    return re.fullmatch(r"[\w.]+(\s+within\s+group\s*)?", left.strip(), re.IGNORECASE) is not None


def _span(given: str, what: str, where: str) -> int:
    found = _SPAN.fullmatch(given.strip())
    if found is None or not int(found[1]):
        raise ConfigError(f"{where} {what} is {given!r}; it is a number of minutes, hours, or days, such as 1 hour")
    return int(found[1]) * _MINUTES[found[2]]
