"""A job file: which queries a driver keeps running, and how. `heliograph spark example` prints one.

Is: TOML to values, with a sentence for everything that is wrong. Isn't: Spark, or processes.
Each [[query]] is one of: `sql` or `sql_file` (a pipeline, docs/spark.md "As SQL"), `source` and `sink`, `job` (one that
ships), `start` ("module:function").
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from heliograph.model.errors import ConfigError
from heliograph.spark.job_files.job_options import trigger_of

EXAMPLE = """\
[heliograph]                      # options of every topic table, source, and sink of this file
admin_url = "http://127.0.0.1:8080"

[spark]
name = "clicks"
master = "local[2,4]"             # two cores, four tries a task
[spark.conf]
"spark.sql.shuffle.partitions" = "4"

[supervise]                       # all of these may be left out
progress_s = 10                   # a line of progress each so many seconds
pause_max_s = 60                  # between restarts: 1 s, 2 s, 4 s, ... up to this
stop_s = 60                       # how long a stop may take before it is a kill

[[query]]                         # many topics, each into a table of its own: docs/spark.md, "ETL"
name = "lake"
job = "etl"
[query.options]
namespace = "public/default"
topics_pattern = ".*"             # of the topic's last part; new topics are picked up
subscription = "lake"             # holds in the topics what is not in the tables yet
path = "/tmp/heliograph/lake"     # a folder a table; name your own
checkpoint = "/tmp/heliograph/lake.state"
trigger = "10 seconds"            # or "available now": ends when all is read
format = "parquet"                # or delta, iceberg, hive
[[query.options.table]]           # the first rule that fits a topic says its columns
topics = "clicks"
schema = "id bigint, country string, at timestamp"
[[query.options.table]]
schema = "raw"                    # every other topic: payloads as they are

[[query]]                         # SQL: everything that heliograph.spark.Pipeline reads
name = "french"
sql = '''
CREATE STREAM TABLE clicks (id bigint, country string)
  WITH (namespace = 'public/default', topics_pattern = 'clicks', subscription = 'french');
CREATE SINK out WITH (format = 'table', path = '/tmp/heliograph/french',
  checkpoint = '/tmp/heliograph/french.state', trigger = '10 seconds');
INSERT INTO out SELECT id FROM clicks WHERE country = 'fr';
'''

# [[query]]                       # or without SQL
# name = "copy"
# checkpoint = "/tmp/heliograph/copy.state"
# trigger = "60 seconds"
# select = ["topic", "cast(value as string) as body"]     # may be left out
# source = { topic = "persistent://public/default/orders", subscription = "copy" }
# sink = { format = "table", path = "/tmp/heliograph/copy" }
"""
_KINDS = ("sql", "sql_file", "source", "job", "start")
_QUERY = {*_KINDS, "name", "sink", "select", "where", "schema", "checkpoint", "trigger", "options"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """One [[query]]. `kind`: which of its forms; the other fields as the file has them."""

    name: str
    kind: str
    sql: str = ""
    source: Mapping[str, str] = field(default_factory=dict)
    sink: Mapping[str, str] = field(default_factory=dict)
    select: tuple[str, ...] = ()
    where: str = ""
    schema: str = ""
    checkpoint: str = ""
    trigger: str = "0 seconds"
    start: str = ""
    """Names a function of the user that starts the query, as `module:function`."""
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A whole file. `defaults`: options of every source and sink of ours."""

    name: str
    master: str
    conf: Mapping[str, str]
    defaults: Mapping[str, str]
    queries: tuple[Query, ...]
    progress_s: float = 10.0
    pause_max_s: float = 60.0
    stop_s: float = 60.0


def read_job(path: Path) -> Job:
    """Reads and checks a job file. Raises ConfigError with one sentence."""
    try:
        given = tomllib.loads(path.read_text())
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is no TOML: {error}") from error
    return job_of(given, path.parent)


def job_of(given: Mapping[str, Any], folder: Path) -> Job:
    """folder: what file names are relative to. Raises ConfigError."""
    _only(given, {"heliograph", "spark", "supervise", "query"}, "the job file")
    spark = _table(given.get("spark", {}), "[spark]")
    _only(spark, {"name", "master", "conf"}, "[spark]")
    supervise = _table(given.get("supervise", {}), "[supervise]")
    _only(supervise, {"progress_s", "pause_max_s", "stop_s"}, "[supervise]")
    queries = given.get("query", [])
    if not isinstance(queries, list) or not queries:
        raise ConfigError("the job file has no [[query]]; `heliograph spark example` prints a file with two")
    made = tuple(_query(_table(each, f"[[query]] {number}"), number, folder) for number, each in enumerate(queries, 1))
    names = [query.name for query in made]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ConfigError(f"two queries are named {twice!r}: a name says which one is meant")
    places = [place for query in made if (place := query.checkpoint or str(query.options.get("checkpoint", "")))]
    twice = next((place for place in places if places.count(place) > 1), None)
    if twice is not None:
        raise ConfigError(f"two queries have the checkpoint {twice}: each wants a folder of its own")
    return Job(
        name=_text(spark, "name", "[spark]", made[0].name),
        master=_text(spark, "master", "[spark]", "local[2,4]"),
        conf=_texts(spark.get("conf", {}), "[spark.conf]"),
        defaults=_texts(given.get("heliograph", {}), "[heliograph]"),
        queries=made,
        **{name: _seconds(supervise[name], f"[supervise] {name}") for name in supervise},
    )


def _query(given: Mapping[str, Any], number: int, folder: Path) -> Query:
    where = f"[[query]] {given.get('name', number)}"
    _only(given, _QUERY, where)
    kinds = [kind for kind in _KINDS if kind in given]
    if len(kinds) != 1:
        raise ConfigError(
            f"{where} has {' and '.join(kinds) or 'nothing to do'}; give one of sql, sql_file, source (with sink), "
            "job, start"
        )
    (kind,) = kinds
    name = _text(given, "name", where, "")
    if not name:
        raise ConfigError(f"{where} has no name: it is what lines of progress and errors call it")
    common: dict[str, Any] = {"name": name, "kind": "sql" if kind == "sql_file" else "start" if kind == "job" else kind}
    if kind in ("sql", "sql_file"):
        _only(given, {kind, "name"}, f"{where}: beside {kind}, which says all of it itself, it")
        return Query(
            **common,
            sql=_text(given, "sql", where, "")
            if kind == "sql"
            else _file(folder / _text(given, "sql_file", where, ""), where),
        )
    if kind in ("job", "start"):
        _only(given, {kind, "name", "options"}, f"{where}: beside {kind}, it")
        target = _text(given, kind, where, "")
        if kind == "start" and target.count(":") != 1:
            raise ConfigError(f"{where}: start is {target!r}; it is module:function")
        return Query(
            **common,
            start=f"heliograph.spark.jobs.{target}:start" if kind == "job" else target,
            options=_table(given.get("options", {}), where),
        )
    sink = _texts(given.get("sink", {}), f"{where} sink")
    if "format" not in sink:
        raise ConfigError(f"{where}: sink wants a format: heliograph, parquet, json, or any that Spark knows")
    checkpoint = _text(given, "checkpoint", where, "")
    if not checkpoint:
        raise ConfigError(f"{where} wants a checkpoint folder: where it stands is kept there")
    select = given.get("select", [])
    if not isinstance(select, list) or not all(isinstance(each, str) for each in select):
        raise ConfigError(f"{where}: select is a list of texts, such as ['topic', 'cast(value as string) as body']")
    return Query(
        **common,
        source=_texts(given["source"], f"{where} source"),
        sink=sink,
        select=tuple(select),
        where=_text(given, "where", where, ""),
        schema=_text(given, "schema", where, ""),
        checkpoint=checkpoint,
        trigger=trigger_of(given, where, "0 seconds"),
    )


def _only(given: Mapping[str, Any], known: set[str], where: str) -> None:
    for key in given:
        if key not in known:
            raise ConfigError(f"{where} has no {key!r}; there are {', '.join(sorted(known))}")


def _table(given: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(given, dict):
        raise ConfigError(f"{where} is a table of keys and values")
    return given


def _text(given: Mapping[str, Any], key: str, where: str, default: str) -> str:
    value = given.get(key, default)
    if not isinstance(value, str):
        raise ConfigError(f"{where}: {key} is {value!r}; it is a text")
    return value


def _texts(given: Any, where: str) -> dict[str, str]:
    """Numbers and switches may be written as such."""
    found = {}
    for key, value in _table(given, where).items():
        if not isinstance(value, str | int | float | bool):
            raise ConfigError(f"{where}: {key} is {value!r}; it is a text, a number, or true or false")
        found[key] = str(value).lower() if isinstance(value, bool) else str(value)
    return found


def _seconds(value: Any, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 86_400:
        raise ConfigError(f"{where} is {value!r}; it is a number of seconds")
    return float(value)


def _file(path: Path, where: str) -> str:
    try:
        return path.read_text()
    except OSError as error:
        raise ConfigError(f"{where}: {path} cannot be read: {error.strerror}") from error
