"""SQL expressions in the options of the shipped jobs: names for them, and the columns that they want."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from pyspark.sql.types import StructType

from heliograph.model.errors import ConfigError
from heliograph.spark.columns.declared_columns import ABOUT
from heliograph.spark.job_files.job_options import text_of

NAME = re.compile(r"[A-Za-z][0-9A-Za-z_]*")
_KINDS = {
    **dict.fromkeys(("_topic", "_key", "_origin_region"), "string"),
    **dict.fromkeys(("_publish_time", "_event_time", "_stored_time", "_origin_time"), "timestamp"),
    **dict.fromkeys(("_ledger", "_entry"), "long"),
    "_batch_index": "integer",
}
"""Columns of the message that need not be declared to be named, with their types as Spark's JSON has them."""


def named(given: str, where: str, *, taken: str = "") -> tuple[str, str]:
    """(name, expression) of a column, or of 'expression as name'. taken: a name that it may not have."""
    expression, _, name = given.rpartition(" as ")
    name = name.strip()
    if NAME.fullmatch(name) is None or name == taken:
        but = f", and not {taken}" if taken else ""
        raise ConfigError(
            f"{where}: {given!r} is a column, or 'expression as name'; its name is of letters, digits, and _{but}"
        )
    return name, expression or name


def all_named(given: Iterable[str], where: str, *, taken: str = "") -> dict[str, str]:
    """Expressions by name. Raises ConfigError where two have the same one, to Spark."""
    found: dict[str, str] = {}
    for each in given:
        name, expression = named(each, where, taken=taken)
        if name.lower() in map(str.lower, found):
            raise ConfigError(f"{where}: two are named {name!r}")
        found[name] = expression
    return found


def declared(options: Mapping[str, Any], expressions: Iterable[str], where: str) -> StructType:
    """The user's columns, with those of the message that expressions name. Raises ConfigError."""
    given = text_of(options, "schema", where, "")
    if not given:
        raise ConfigError(
            f"{where} wants schema: the columns of all topics together, such as 'user string, amount double'"
        )
    try:
        schema = StructType.fromDDL(given)
    except Exception as error:  # py4j's error of Spark's parser
        raise ConfigError(
            f"{where}: schema {given!r} is none that Spark reads: {str(error).strip().splitlines()[0]}"
        ) from error
    if not isinstance(schema, StructType):
        raise ConfigError(f"{where}: schema {given!r} is a type; it is columns with their types")
    wanted = set(re.findall(r"\b_\w+", " ".join(expressions)))
    for column in ABOUT:
        if column in wanted and column not in schema.names:
            if column not in _KINDS:
                raise ConfigError(f"{where}: put {column}, with its type, into schema")
            schema = schema.add(column, _KINDS[column])
    return schema


def query_of(rows: Any) -> str:
    """The id of the query whose micro-batch that is, in foreachBatch."""
    query: str = rows.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
    if not query:
        raise ConfigError(
            "Spark does not say which query this is, so that a micro-batch that comes again would not be known: run "
            "it by writeStream"
        )
    return query
