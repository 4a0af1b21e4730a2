"""A pipeline as SQL text: declare topics as tables, work on them, insert into a sink.

    CREATE STREAM TABLE clicks (id bigint, country string, at timestamp)
      WITH (topic = 'persistent://public/default/clicks', subscription = 'etl');
    CREATE TEMPORARY VIEW known AS SELECT * FROM clicks WHERE country IS NOT NULL;
    CREATE SINK out WITH (format = 'parquet', path = '/data/clicks',
      checkpoint = '/data/clicks.state', trigger = '10 seconds');
    INSERT INTO out SELECT id, country, at FROM known;
    SELECT count(*) FROM STREAM clicks WITH (starting = 'latest');

Is: the statements that Spark has no words for (CREATE STREAM TABLE and CREATE TABLE ... WITH over topics, CREATE SINK,
INSERT INTO a sink, STREAM of such a table with options), and the cutting of a text into statements. Isn't: a dialect:
every other statement goes to Spark as it is.
Source: docs/spark.md, "As SQL".
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from heliograph.model.errors import ConfigError
from heliograph.spark.lake.parquet_sink import FORMAT, into
from heliograph.spark.portable import portable, tasks_of
from heliograph.spark.scan.source_options import Options

_NAME = r"(?P<name>[A-Za-z_][A-Za-z0-9_]*)"
_OPTIONS = r"\((?P<options>(?:'[^']*'|[^'()])*)\)"
"""A quote within a text is two: to this, the end of one text and the beginning of the next."""
_TABLE = re.compile(
    rf"CREATE\s+(?P<stream>STREAM\s+)?TABLE\s+{_NAME}\s*(?P<columns>\(.*\)\s*)?WITH\s*{_OPTIONS}",
    re.IGNORECASE | re.DOTALL,
)
_SINK = re.compile(rf"CREATE\s+SINK\s+{_NAME}\s+WITH\s*{_OPTIONS}", re.IGNORECASE | re.DOTALL)
_STREAM = re.compile(rf"\bSTREAM\s+{_NAME}(?:\s+WITH\s*{_OPTIONS})?", re.IGNORECASE)
_INTO = rf"INSERT\s+(?:INTO|OVERWRITE)\s+(?:TABLE\s+)?`?{_NAME}`?(?:\s+|(?=\())"
_INSERT = re.compile(rf"{_INTO}(?P<query>(?:\(\s*)*(SELECT|WITH|FROM|TABLE|VALUES)\b.*)", re.IGNORECASE | re.DOTALL)
_ANY_INSERT = re.compile(_INTO, re.IGNORECASE)
_OPTION = re.compile(r"\s*(?P<key>'(?:[^']|'')*'|[A-Za-z_][A-Za-z0-9_.]*)\s*=\s*'(?P<value>(?:[^']|'')*)'\s*(?:,|$)")
_TOKENS = re.compile(
    r"--[^\n]*|/\*.*?\*/|'(?:[^'\\]|\\.|'')*'|\"(?:[^\"\\]|\\.)*\"|`(?:[^`]|``)*`|;|[^;'\"`/-]+|.", re.DOTALL
)
_APPEND = re.compile(r"INSERT\s+INTO\b", re.IGNORECASE)
_VIEW = re.compile(r"SubqueryAlias (?:\S+\.)?`?(\w+)`?")
_TWICE = (
    "a text of a job file runs again when one of its queries fails, or the driver starts anew, and this would write "
    "its rows again:"
)
_TOPICS = ("subscription", "topic", "topics", "namespace", "topics_pattern")
_OURS = ("format", "checkpoint", "trigger", "mode", "name")


class SqlSink(NamedTuple):
    format: str
    options: dict[str, str]
    checkpoint: str
    trigger: str
    mode: str
    name: str
    title: str
    """What the text calls it."""


class Pipeline:
    """Statements of one session. `queries`: the streams that they started, in order."""

    def __init__(self, spark: Any, *, defaults: Mapping[str, str] | None = None, repeated: bool = False) -> None:
        """defaults: options of every topic table and heliograph sink, such as admin_url and token. repeated: texts may
        run again as a whole, by a driver.
        """
        self._spark, self._defaults, self._repeated = spark, dict(defaults or {}), repeated
        self._sinks: dict[str, SqlSink] = {}
        self._tables: dict[str, tuple[str, dict[str, str]]] = {}
        """By name: columns, and options, so that STREAM name WITH (...) can read it otherwise."""
        self._read: dict[str, tuple[str, ...]] = {}
        """By view of a stream that has a subscription, that, and its topics."""
        self._taken: set[tuple[str, ...]] = set()
        """Holds those of the subscriptions and topics in `_read` that an INSERT has."""
        self._made = 0
        self.queries: list[Any] = []

    def run(self, text: str) -> Any:
        """Runs every statement in order. Returns what the last one gave: a DataFrame, or the query that it started.
        Raises ConfigError with the statement.
        """
        last = None
        for statement in statements(text):
            last = self._run(statement)
        return last

    def _run(self, statement: str) -> Any:
        if found := _TABLE.fullmatch(statement):
            return self._table(found)
        statement = self._streams(statement)
        if found := _SINK.fullmatch(statement):
            self._sinks[found["name"].lower()] = _sink(found["name"], options_of(found["options"], statement))
            return None
        if (found := _ANY_INSERT.match(statement)) and (sink := self._sinks.get(found["name"].lower())) is not None:
            if not (found := _INSERT.fullmatch(statement)):
                raise ConfigError(
                    f"rows go into the sink {sink.title} by INSERT INTO {sink.title} SELECT ..., without a list of "
                    f"columns: {_short(statement)}"
                )
            if not _APPEND.match(statement):
                raise ConfigError(
                    f"rows go into the sink {sink.title} by INSERT INTO; its mode = 'overwrite' replaces what is "
                    f"there: {_short(statement)}"
                )
            return self._insert(sink, found["query"])
        if re.match(r"CREATE\s+(STREAM|SINK)\b", statement, re.IGNORECASE):
            wanted = "CREATE STREAM TABLE name (columns) WITH (key = 'value', ...), or CREATE SINK name WITH (...)"
            raise ConfigError(f"expected {wanted}, not: {_short(statement)}")
        if self._repeated and _APPEND.match(statement):
            raise ConfigError(f"{_TWICE} say INSERT OVERWRITE, or use a sink: {_short(statement)}")
        return self._spark.sql(statement)

    def _table(self, found: re.Match[str]) -> Any:
        columns, options = (found["columns"] or "").strip()[1:-1].strip(), options_of(found["options"], found[0])
        self._tables[found["name"].lower()] = columns, options
        return self._view(
            self._spark.readStream if found["stream"] else self._spark.read, found["name"], columns, options
        )

    def _view(self, reader: Any, name: str, columns: str, options: Mapping[str, str]) -> Any:
        options = {**self._defaults, **options}
        tasks = options.pop("portable_tasks", "")
        Options(options)  # what is wrong with them is said here, and not by a Python process of Spark's
        reader = reader.format("heliograph").options(**options)
        rows = (reader.schema(columns) if columns else reader).load()
        rows = portable(rows, tasks_of(tasks)) if tasks else rows
        rows.createOrReplaceTempView(name)
        self._read.pop(name.lower(), None)
        if rows.isStreaming and options.get("subscription"):
            self._read[name.lower()] = tuple(options.get(key, "") for key in _TOPICS)
        return rows

    def _check_alone(self, rows: Any) -> None:
        """Raises ConfigError where another INSERT reads by the same subscription: that holds what one query has not
        read.
        """
        named = (
            {name.lower() for name in _VIEW.findall(rows._jdf.queryExecution().analyzed().toString())}
            if self._read
            else set()
        )
        for name in sorted(named & self._read.keys()):
            if self._read[name] in self._taken:
                name = re.sub(r"_stream_\d+$", "", name)
                raise ConfigError(
                    f"two INSERTs read {name} with one subscription, which holds what one query has not read: give "
                    "this one another, by"
                    f" STREAM {name} WITH (subscription = '...')"
                )
        self._taken |= {self._read[name] for name in named & self._read.keys()}

    def _streams(self, statement: str) -> str:
        """STREAM name WITH (key = 'value') of a table of topics becomes a view of its own, with these options over the
        table's.
        """
        quoted, at = set[int](), 0
        for token in _TOKENS.findall(statement):
            quoted.update(range(at, at + len(token)) if token[0] in "'\"`" else ())
            at += len(token)

        def view(found: re.Match[str]) -> str:
            known = self._tables.get(found["name"].lower())
            if known is None or found.start() in quoted:
                return found[0]
            self._made += 1
            name = f"{found['name']}_stream_{self._made}"
            self._view(
                self._spark.readStream, name, known[0], {**known[1], **options_of(found["options"] or "", found[0])}
            )
            return name

        return _STREAM.sub(view, statement)

    def _insert(self, sink: SqlSink, query: str) -> Any:
        rows = self._spark.sql(query)
        options = {**(self._defaults if sink.format == "heliograph" else {}), **sink.options}
        if not rows.isStreaming:
            if sink.format == FORMAT:
                raise ConfigError(
                    f"{sink.title} takes the rows of a stream, a folder a micro-batch: write these by format = "
                    "'parquet', or INSERT INTO a table"
                )
            if self._repeated:
                _check_repeatable(sink)
            if sink.format == "heliograph" and sink.name:
                options["name"] = sink.name
            elif sink.format != "heliograph":
                options.pop("exactly_once", None)
            rows.write.format(sink.format).options(**options).mode(sink.mode).save()
            return None
        if not sink.checkpoint:
            raise ConfigError(
                "a stream is inserted only into a sink with a checkpoint folder: CREATE SINK ... WITH (..., "
                "checkpoint = '/folder')"
            )
        self._check_alone(rows)
        writer = into(rows, sink.format, options, sink.mode, sink.title)
        writer = writer.option("checkpointLocation", sink.checkpoint).outputMode(sink.mode)
        if sink.name:
            writer = writer.queryName(sink.name)
        started = (
            writer.trigger(availableNow=True)
            if sink.trigger == "available now"
            else writer.trigger(processingTime=sink.trigger)
        ).start()
        self.queries.append(started)
        return started


def statements(text: str) -> list[str]:
    """Cut at semicolons outside of quotes and comments; comments and empty ones are left out."""
    found, current = [], list[str]()
    for token in _TOKENS.findall(text):
        if token == ";":
            found.append("".join(current).strip())
            current = []
        elif token.startswith(("--", "/*")) and len(token) > 1 and not token.startswith("/*+"):  # which is a hint
            current.append(" ")
        else:
            current.append(token)
    return [statement for statement in [*found, "".join(current).strip()] if statement]


def check(text: str, defaults: Mapping[str, str]) -> None:
    """What can be told without a session. Raises ConfigError."""
    for statement in statements(text):
        if found := _TABLE.fullmatch(statement):
            options = {**defaults, **options_of(found["options"], statement)}
            tasks_of(options.pop("portable_tasks", "1"))
            Options(options)
        elif found := _SINK.fullmatch(statement):
            _sink(found["name"], options_of(found["options"], statement))


def options_of(text: str, statement: str) -> dict[str, str]:
    """key = 'value', ...; a quote within is written twice. Raises ConfigError."""
    found: dict[str, str] = {}
    at = 0
    while at < len(text) and text[at:].strip():
        match = _OPTION.match(text, at)
        if match is None:
            raise ConfigError(f"expected key = 'value' at {_short(text[at:].strip())!r} in: {_short(statement)}")
        key = match["key"]
        found[key[1:-1].replace("''", "'") if key.startswith("'") else key] = match["value"].replace("''", "'")
        at = match.end()
    return found


def _sink(name: str, options: dict[str, str]) -> SqlSink:
    if "format" not in options:
        raise ConfigError(f"the sink {name} wants a format: heliograph, parquet, json, or any that Spark knows")
    own = {key: options.get(key, "") for key in _OURS}
    rest = {key: value for key, value in options.items() if key not in _OURS}
    return SqlSink(
        own["format"],
        rest,
        own["checkpoint"],
        own["trigger"] or "0 seconds",
        own["mode"] or "append",
        own["name"],
        name,
    )


def _check_repeatable(sink: SqlSink) -> None:
    """Raises ConfigError where rows that are no stream would be in the sink twice once they are written again."""
    if sink.options.get("exactly_once", "true").lower() == "false":
        return
    if sink.format == "heliograph" and not sink.name:
        raise ConfigError(
            f"{_TWICE} give the sink a name, of this one output, and read what stays the same (ending = ...); or say "
            "exactly_once = 'false'"
        )
    if sink.format != "heliograph" and sink.mode.lower() == "append":
        raise ConfigError(
            f"{_TWICE} give the sink {sink.format} mode = 'overwrite' or 'ignore', or say exactly_once = 'false'"
        )


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= 120 else text[:117] + "..."
