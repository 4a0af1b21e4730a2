"""ETL: many topics, each by columns of its own, into one table each, in one streaming query.

    [[query]]
    job = "etl"        # docs/spark.md, "ETL", has all options

Is: the options, and the query. Isn't: what becomes of rows (`tables_sink`), or of files (`landing`).
"""

from __future__ import annotations

import importlib.util
import json
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from heliograph.model.errors import ConfigError
from heliograph.spark.columns.declared_columns import ABOUT, Declared
from heliograph.spark.job_files.job_options import (
    access_of,
    checkpoint_of,
    folder_of,
    refuse_unknown,
    source_of,
    started,
    text_of,
    trigger_of,
)
from heliograph.spark.job_files.running_queries import Fixed, Queries, say
from heliograph.spark.jobs.tier_generations import TIERS, Folder, GenerationGroup
from heliograph.spark.jobs.tiered_queries import Tiered
from heliograph.spark.jobs.tiers import TRIGGERS, TierLimits, loads
from heliograph.spark.lake.landing import FORMATS, PARTITION, Landing, reserved
from heliograph.spark.lake.metastore import InMetastore
from heliograph.spark.lake.quarantine import QuarantinedQueries
from heliograph.spark.lake.tables_sink import POISON, RAW, TableRule, TablesSink
from heliograph.spark.scan.source_options import KNOWN as OF_SOURCE
from heliograph.spark.scan.task_reading import SCHEMA, STORED
from heliograph.spark.stores.hive import HiveTables

KNOWN = (
    *(
        "topics",
        "namespace",
        "topics_pattern",
        "subscription",
        "path",
        "format",
        "checkpoint",
        "trigger",
        "quarantine",
        "table",
        "source",
    ),
    *("tiers", "database", "catalog"),
)
_TIERS = ("rebalance_s", "light_bytes_s", "heavy_bytes_s", "middle_bytes_s", "queries_max")
_PACKAGES = {"delta": "deltalake", "iceberg": "pyiceberg"}
_INSTALLED = {"delta": "deltalake>=1.6,<2", "iceberg": "pyiceberg[sql-sqlite]<1"}


def start(spark: Any, defaults: dict[str, str], name: str, options: dict[str, Any]) -> Queries:
    """One streaming query, or with `tiers` one a group of topics. Raises ConfigError with one sentence."""
    where = f"[[query]] {name}"
    rules, source, plan = _read(options, defaults, where, _columns)
    root, checkpoint = Path(plan["path"]), checkpoint_of(options, where)
    hive = HiveTables(spark, root, plan["database"], "batch") if plan["format"] == "hive" else None
    root.mkdir(parents=True, exist_ok=True)
    spark.dataSource.register(TablesSink)

    def begin(label: str, folder: str, trigger: str, more: Mapping[str, str]) -> Any:
        rows = spark.readStream.format("heliograph").schema(wanted(rules)).options(**source, **more).load()
        writer = rows.writeStream.format("heliograph_tables").option("plan", json.dumps({**plan, "label": label}))
        return started(writer, {"checkpoint": folder, "trigger": trigger}, f"{name} {label}".strip(), where)

    queries: Queries
    if "tiers" in options:
        queries = _tiered(
            options,
            source,
            Path(folder_of(options, "checkpoint", where)),
            begin,
            lambda label: Landing(root, label=label).retire(),
            where,
        )
    elif "://" not in checkpoint and (Path(checkpoint) / TIERS).exists():
        raise ConfigError(
            f"{where} ran with tiers, which know where its topics stand: keep [query.options.tiers], with queries_max "
            "= 1 for one query"
        )
    else:
        queries = Fixed([begin("", checkpoint, trigger_of(options, where), {})])
    return QuarantinedQueries(queries if hive is None else InMetastore(queries, root, hive), root, name)


def check(defaults: Mapping[str, str], options: Mapping[str, Any], where: str) -> None:
    """What can be told without Spark, which alone reads columns. Raises ConfigError."""
    _read(options, defaults, where, lambda schema, at: "raw")
    checkpoint_of(options, where)
    if "tiers" in options:
        _limits(options, where)


def _read(
    options: Mapping[str, Any], defaults: Mapping[str, str], where: str, columns: Callable[[str, str], str]
) -> tuple[list[TableRule], dict[str, str], dict[str, Any]]:
    """Its rules, the source's options, and what the sink is told. Raises ConfigError."""
    refuse_unknown(options, KNOWN, where)
    rules = rules_of(options, where, columns)
    source = {"columns": "raw", "mode": "PERMISSIVE"} | source_of(options, defaults, where)
    if options.get("trigger"):
        trigger_of(options, where)
    return rules, source, _plan(options, rules, source, where)


def _plan(options: Mapping[str, Any], rules: list[TableRule], source: Mapping[str, str], where: str) -> dict[str, Any]:
    """What the sink is told."""
    kind, quarantine = (
        text_of(options, "format", where, "parquet"),
        text_of(options, "quarantine", where, "_quarantine"),
    )
    if kind not in FORMATS:
        raise ConfigError(f"{where}: format is {kind!r}; it may be {', '.join(FORMATS)}")
    if kind in _PACKAGES and importlib.util.find_spec(_PACKAGES[kind]) is None:
        raise ConfigError(
            f"{where}: format {kind} wants the package {_PACKAGES[kind]}; run: pip install '{_INSTALLED[kind]}'"
        )
    for rule in rules:
        if (
            kind in ("parquet", "hive")
            and rule.schema not in ("raw", "registered")
            and PARTITION in map(str.lower, StructType.fromJson(json.loads(rule.schema)).names)
        ):
            raise ConfigError(f"{where}: {reserved(f'the table {rule.name}')}")
    if not quarantine or "/" in quarantine or quarantine.startswith("."):
        raise ConfigError(
            f"{where}: quarantine is {quarantine!r}; a table is a folder, without / and not beginning with a dot"
        )
    catalog = options.get("catalog", {})
    if not isinstance(catalog, dict) or not all(isinstance(value, str) for value in catalog.values()):
        raise ConfigError(f"{where}: catalog is a table of pyiceberg's properties, all texts: type, uri, ...")
    return {
        "path": folder_of(options, "path", where),
        "format": kind,
        "database": text_of(options, "database", where, "default"),
        "catalog": catalog,
        "quarantine": quarantine,
        "rules": [{"topics": rule.topics, "schema": rule.schema, "name": rule.name} for rule in rules],
        "access": access_of(source),
    }


def _tiered(
    options: Mapping[str, Any],
    source: Mapping[str, str],
    checkpoint: Path,
    begin: Callable[[str, str, str, Mapping[str, str]], Any],
    retired: Callable[[str], None],
    where: str,
) -> Tiered:
    limits, every_s = _limits(options, where)
    trigger = text_of(options, "trigger", where, "")

    def group(member: GenerationGroup, checkpoint: Path, told: Path | None, ending: Path | None) -> Any:
        more = ({} if told is None else {"group_file": str(told)}) | (
            {} if ending is None else {"ending_file": str(ending)}
        )
        when = "available now" if ending is not None else trigger or TRIGGERS[member.tier]
        return begin(member.label if member.since else "", str(checkpoint), when, more)

    asked = {key: value for key, value in source.items() if key in OF_SOURCE}
    return Tiered(
        Folder(checkpoint), group, lambda: loads(asked), limits, every_s, now=time.time, say=say, retired=retired
    )


def _limits(options: Mapping[str, Any], where: str) -> tuple[TierLimits, float]:
    """Reads the option `tiers`, and how often brokers are asked, in seconds. Raises ConfigError."""
    given = options["tiers"]
    if not isinstance(given, dict):
        raise ConfigError(f"{where}: tiers is a table of limits, and may be empty: tiers = {{}}")
    refuse_unknown(given, _TIERS, f"{where} tiers")
    for key, value in given.items():
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or value < 0
            or (key == "queries_max" and not isinstance(value, int))
        ):
            raise ConfigError(f"{where} tiers: {key} is {value!r}; it is a number")
    return TierLimits(**{key: value for key, value in given.items() if key != "rebalance_s"}), float(
        given.get("rebalance_s", 3600)
    )


def rules_of(options: Mapping[str, Any], where: str, columns: Callable[[str, str], str]) -> list[TableRule]:
    """Reads [[query.options.table]]. Raises ConfigError. columns: turns DDL, and where it stands, into a schema as
    JSON.
    """
    given = options.get("table", [])
    if not isinstance(given, list) or not given:
        raise ConfigError(
            f"{where} has no [[query.options.table]]: each says for which topics it is, and their columns"
        )
    rules = []
    for number, each in enumerate(given, 1):
        at = f"{where} table {number}"
        if not isinstance(each, dict):
            raise ConfigError(f"{at} is a table of keys and values")
        refuse_unknown(each, ("topics", "schema", "name"), at)
        topics, schema = text_of(each, "topics", at, ".*"), text_of(each, "schema", at, "")
        table = text_of(each, "name", at, "{topic}")
        try:
            re.compile(topics)
            made = table.format(tenant="a", namespace="b", topic="c")
        except (re.error, KeyError, IndexError, ValueError, AttributeError) as error:
            raise ConfigError(
                f"{at}: topics is a regular expression, and name a text with {{tenant}}, {{namespace}}, {{topic}} at "
                f"will: {error}"
            ) from error
        if not made or made.startswith((".", "_")) or "/" in made:
            raise ConfigError(f"{at}: name is {table!r}; a table is a folder, without / and not beginning with . or _")
        if not schema:
            raise ConfigError(f"{at} wants a schema: columns ('id bigint, country string'), registered, or raw")
        rules.append(TableRule(topics, schema if schema in ("raw", "registered") else columns(schema, at), table))
    namespaces = {topic.rpartition("/")[0] for topic in options.get("topics", [])}
    if len(namespaces) > 1 and any("{topic}" in rule.name and "{namespace}" not in rule.name for rule in rules):
        raise ConfigError(
            f"{where} reads topics of several namespaces: put {{tenant}}.{{namespace}}. before {{topic}} in the "
            "tables' names"
        )
    return rules


def _columns(schema: str, at: str) -> str:
    """Wants a Spark session: DDL is Spark's."""
    try:
        columns = StructType.fromDDL(schema)
    except Exception as error:  # py4j's error of Spark's parser
        raise ConfigError(
            f"{at}: schema {schema!r} is none that Spark reads: {(str(error).strip() or repr(error)).splitlines()[0]}"
        ) from error
    if not isinstance(columns, StructType):
        raise ConfigError(
            f"{at}: schema is {schema!r}, a type without a name; columns are 'id bigint, country string', say"
        )
    return taken(columns, at).json()


def taken(columns: StructType, at: str) -> StructType:
    """Columns that payloads have values for. Raises ConfigError: what a task finds out ends the query, or has all rows
    in the quarantine.
    """
    twice = next((name for name in columns.names if columns.names.count(name) > 1), None)
    if twice is not None:
        raise ConfigError(f"{at}: schema has two columns {twice}")
    try:
        Declared(to_arrow_schema(columns, timezone="UTC"), "PERMISSIVE")
    except Exception as error:  # Spark's own of a type, pyarrow's, or msgspec's of a name: each has its kind
        raise ConfigError(
            f"{at}: schema cannot be read from payloads: {(str(error).strip() or repr(error)).splitlines()[0]}"
        ) from error
    return columns


def wanted(rules: list[TableRule]) -> str:
    """The source's columns that any table or the quarantine needs, as DDL: what is not declared is not read."""
    names = {"topic", "value", *POISON}
    for rule in rules:
        if rule.schema == "raw":
            names |= set(RAW)
        elif rule.schema == "registered":
            names |= {"schema_version", "key", "base64_key", "sealed"}
        else:
            names |= {each["name"][1:] for each in json.loads(rule.schema)["fields"] if each["name"] in ABOUT}
    every = (*SCHEMA.split(", "), *(f"{name} timestamp" for name in STORED), "base64_key boolean", "sealed string")
    return ", ".join(column for column in every if column.split()[0] in names)
