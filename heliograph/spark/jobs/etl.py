"""ETL: many topics, each by columns of its own, into one table each, in one streaming query.

    [[query]]
    job = "etl"        # docs/spark.md, "ETL", has all options

Is: the options, and the query. Isn't: what becomes of rows (`tables`), or of files (`landing`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pyspark.sql.types import StructType

from heliograph.model.errors import ConfigError
from heliograph.spark.declared import ABOUT
from heliograph.spark.jobs.options import access_of, folder_of, refuse_unknown, source_of, started, text_of
from heliograph.spark.jobs.tables import POISON, RAW, Rule, TablesSink
from heliograph.spark.reading import SCHEMA

_KNOWN = ("topics", "namespace", "topics_pattern", "subscription", "path", "format", "checkpoint", "trigger", "quarantine", "table", "source")


def start(spark: Any, defaults: dict[str, str], name: str, options: dict[str, Any]) -> list[Any]:
    """One streaming query. Raises ConfigError with one sentence."""
    where = f"[[query]] {name}"
    refuse_unknown(options, _KNOWN, where)
    format_ = text_of(options, "format", where, "parquet")
    if format_ not in ("parquet", "delta"):
        raise ConfigError(f"{where}: format is {format_!r}; it may be parquet or delta")
    if format_ == "delta":
        try:
            import deltalake  # type: ignore[import-not-found, unused-ignore]  # noqa: F401
        except ImportError as error:
            raise ConfigError(f"{where}: format delta wants the package deltalake; run: pip install 'heliograph[delta]'") from error
    rules = rules_of(options, where)
    source = {"columns": "raw", "mode": "PERMISSIVE"} | source_of(options, defaults, where)
    quarantine = text_of(options, "quarantine", where, "_quarantine")
    if not quarantine or "/" in quarantine or quarantine.startswith("."):
        raise ConfigError(f"{where}: quarantine is {quarantine!r}; a table is a folder, without / and not beginning with a dot")
    root = folder_of(options, "path", where)
    plan = {
        "path": root,
        "format": format_,
        "quarantine": quarantine,
        "rules": [{"topics": rule.topics, "schema": rule.schema, "name": rule.name} for rule in rules],
        "access": access_of(defaults),
    }
    Path(root).mkdir(parents=True, exist_ok=True)
    spark.dataSource.register(TablesSink)
    rows = spark.readStream.format("heliograph").schema(wanted(rules)).options(**source).load()
    writer = rows.writeStream.format("heliograph_tables").option("plan", json.dumps(plan))
    return [started(writer, options, name, where)]


def rules_of(options: Mapping[str, Any], where: str) -> list[Rule]:
    """Of [[query.options.table]]. Raises ConfigError. Wants a Spark session: DDL is Spark's."""
    given = options.get("table", [])
    if not isinstance(given, list) or not given:
        raise ConfigError(f"{where} has no [[query.options.table]]: each says for which topics it is, and their columns")
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
        except (re.error, KeyError, IndexError, ValueError) as error:
            raise ConfigError(f"{at}: topics is a regular expression, and name a text with {{tenant}}, {{namespace}}, {{topic}} at will: {error}") from error
        if not made or made.startswith((".", "_")) or "/" in made:
            raise ConfigError(f"{at}: name is {table!r}; a table is a folder, without / and not beginning with . or _")
        if not schema:
            raise ConfigError(f"{at} wants a schema: columns ('id bigint, country string'), registered, or raw")
        rules.append(Rule(topics, schema if schema in ("raw", "registered") else _columns(schema, at), table))
    namespaces = {topic.rpartition("/")[0] for topic in options.get("topics", [])}
    if len(namespaces) > 1 and any("{topic}" in rule.name and "{namespace}" not in rule.name for rule in rules):
        raise ConfigError(f"{where} reads topics of several namespaces: put {{tenant}}.{{namespace}}. before {{topic}} in the tables' names")
    return rules


def _columns(schema: str, at: str) -> str:
    try:
        return StructType.fromDDL(schema).json()
    except Exception as error:  # py4j's error of Spark's parser
        raise ConfigError(f"{at}: schema {schema!r} is none that Spark reads: {str(error).strip().splitlines()[0]}") from error


def wanted(rules: list[Rule]) -> str:
    """The source's columns that any table or the quarantine needs, as DDL: what is not declared is not read."""
    names = {"topic", "value", *POISON}
    for rule in rules:
        if rule.schema == "raw":
            names |= set(RAW)
        elif rule.schema == "registered":
            names.add("schema_version")
        else:
            names |= {each["name"][1:] for each in json.loads(rule.schema)["fields"] if each["name"] in ABOUT}
    return ", ".join(column for column in SCHEMA.split(", ") if column.split()[0] in names)
