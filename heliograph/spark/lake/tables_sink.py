"""The sink of the ETL: rows of many topics into one table each, every topic by columns of its own.

Is: which table a topic goes to, its payloads into columns, files of a task. Isn't: how files come into tables
(`landing`), or JSON and registries (`declared_columns`, `registered_columns`).
Invariants: every message is a row of its topic's table or of the quarantine, never of both, whatever is in it; memory
is bounded, not by a micro-batch's size.
Source: docs/spark.md, "ETL".
"""

from __future__ import annotations

import json
import re
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark import TaskContext
from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from heliograph.client.block_reader import BlockReader
from heliograph.model.errors import ConfigError
from heliograph.model.topic_names import TopicName
from heliograph.spark.columns.declared_columns import Declared
from heliograph.spark.columns.registered_columns import Registered, keys_of, registered_columns
from heliograph.spark.lake.landing import Landing, Staged
from heliograph.spark.scan.source_options import RegionAccess

_TOPIC_BYTES, _TASK_BYTES = 32 << 20, 128 << 20
RAW = ("topic", "key", "value", "properties", "publish_time", "event_time", "origin_region", "coordinate")
"""Columns of a table whose rule says `raw`."""
POISON = ("topic", "coordinate", "publish_time", "value")
"""What the quarantine keeps of a message, beside `reason`."""
_UNFIT, _UNKNOWN = "the payload does not fit the columns", "no rule names a table for this topic"
_TAKEN = "its table would be the quarantine: say `name` in the rule of its topic"


@dataclass(frozen=True, slots=True)
class TableRule:
    """`topics`: a regular expression for the last part of a topic's name; `schema`: raw, registered, or a Spark schema
    as JSON; `name`: of the table.
    """

    topics: str
    schema: str
    name: str

    def table(self, topic: TopicName) -> str:
        return self.name.format(tenant=topic.tenant, namespace=topic.namespace_local, topic=topic.partitioned.local)


def rule_of(rules: list[TableRule], topic: str) -> tuple[TableRule, str] | None:
    """The first that fits, and the table."""
    name = TopicName.parse(topic)
    found = next((rule for rule in rules if re.fullmatch(rule.topics, name.partitioned.local)), None)
    return None if found is None else (found, found.table(name))


@dataclass(slots=True)
class _Waiting:
    """Rows of one topic that are not written yet."""

    batches: list[pa.RecordBatch] = field(default_factory=list)
    size_bytes: int = 0


class Parser:
    """Rows of one topic to (table's rows, poison). reader: where registered schemas are asked for."""

    def __init__(self, topic: str, rule: TableRule, reader: BlockReader) -> None:
        self._topic, self._raw = topic, rule.schema == "raw"
        self._registered: Registered | None = None
        if self._raw:
            return
        columns = (
            registered_columns(reader, [topic])
            if rule.schema == "registered"
            else StructType.fromJson(json.loads(rule.schema))
        )
        if rule.schema == "registered":
            columns = StructType([each for each in columns.fields if each.name not in ("_topic", "_corrupt_record")])
        self._declared = Declared(to_arrow_schema(columns, timezone="UTC"), "PERMISSIVE")
        if rule.schema == "registered":
            self._registered = Registered(self._declared)
            self._registered.learn(reader)

    def split(self, rows: pa.Table) -> tuple[pa.Table, pa.Table]:
        if self._raw:
            return rows.select([name for name in RAW if name in rows.column_names]), rows.slice(0, 0)
        values = rows["value"].to_pylist()
        wrong: dict[int, None] = {}
        if self._registered is None:
            columns = self._declared.columns([b"{}" if value is None else value for value in values], 0, wrong)
        else:
            keys = keys_of(rows["key"], rows["base64_key"]) if self._registered.keyed else None
            columns = self._registered.columns(
                _spans(self._topic, rows["schema_version"].to_pylist()), values, wrong, keys
            )
            wrong |= dict.fromkeys(
                pc.indices_nonzero(_no_payloads(rows)).to_pylist()
            )  # any bytes are a record to some decoder
        about = {name: rows[name[1:]] for name in self._declared.about}
        made = dict(zip([each.name for each in self._declared.fields], columns, strict=True)) | about
        table = pa.table([made[name] for name in self._declared.schema.names], schema=self._declared.schema)
        if not wrong:
            return table, rows.slice(0, 0)
        good = pa.array([row not in wrong for row in range(len(values))])
        return table.filter(good), rows.filter(pc.invert(good))


def _no_payloads(rows: pa.Table) -> pa.ChunkedArray:
    """Which are encrypted, pieces of chunked messages, or entries that cannot be taken apart, of which nothing is known
    but where they lie.
    """
    unknown = pc.and_(pc.is_null(rows["publish_time"]), pc.is_null(rows["schema_version"]))
    return pc.or_(pc.is_valid(rows["sealed"]), unknown)


def _spans(topic: str, versions: list[int | None]) -> Iterator[tuple[str, int | None, int, int]]:
    at = 0
    for version, group in groupby(versions):
        stop = at + sum(1 for _ in group)
        yield topic, version, at, stop
        at = stop


class Files:
    """What one task writes. query, batch, task: they and a name that no other attempt has make a file's name."""

    def __init__(
        self,
        landing: Landing,
        rules: list[TableRule],
        quarantine: str,
        reader: BlockReader,
        query: str,
        batch: int,
        task: int,
        *,
        topic_bytes: int = _TOPIC_BYTES,
    ) -> None:
        """topic_bytes: so much of one topic, or of poison, is gathered before it becomes a file."""
        self._topic_bytes = topic_bytes
        self._landing, self._rules, self._quarantine, self._reader = landing, rules, landing.table(quarantine), reader
        self._query, self._batch, self._name = query, batch, f"{task:05d}-{uuid.uuid4().hex[:12]}"
        self._waiting: dict[str, _Waiting] = {}
        self._parsers: dict[str, tuple[Parser | str, str, str]] = {}
        self._counts: dict[str, int] = {}
        self._size_bytes = 0
        self._poison: list[pa.Table] = []
        self._poison_bytes = 0
        self._refused: dict[str, str] = {}
        self.staged: list[Staged] = []
        self.parked: Counter[tuple[str, str]] = Counter()
        """By topic and reason, how many rows are in the quarantine."""

    def add(self, rows: pa.RecordBatch) -> None:
        topics = rows.column(rows.schema.names.index("topic"))
        runs, start = pc.run_end_encode(topics), 0
        for topic, stop in zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True):
            waiting, piece = self._waiting.setdefault(topic, _Waiting()), rows.slice(start, stop - start)
            waiting.batches.append(piece)
            waiting.size_bytes += piece.nbytes
            self._size_bytes += piece.nbytes
            start = stop
            if waiting.size_bytes >= self._topic_bytes:
                self._flush(topic)
        while self._size_bytes >= _TASK_BYTES:
            self._flush(max(self._waiting, key=lambda each: self._waiting[each].size_bytes))

    def close(self) -> list[Staged]:
        for topic in list(self._waiting):
            self._flush(topic)
        self._flush_poison()
        if self.staged:
            self._landing.sync_staged()
        return self.staged

    def _flush(self, topic: str) -> None:
        waiting = self._waiting.pop(topic)
        self._size_bytes -= waiting.size_bytes
        rows = pa.Table.from_batches(waiting.batches)
        parser, table, named = self._parser(topic)
        if isinstance(parser, str):
            self._park(topic, rows, parser)
            return
        try:
            good, poison = parser.split(rows)
            if topic not in self._refused:
                self._refused[topic] = (
                    _TAKEN if table == self._quarantine else self._landing.refused(table, good.schema, named)
                )
            if reason := self._refused[topic]:
                self._park(topic, rows, reason)
                return
            if good.num_rows:
                self._write(table, good, named)
        except (
            pa.ArrowInvalid,
            pa.ArrowTypeError,
            pa.ArrowNotImplementedError,
        ) as error:  # columns that no file can hold: the other topics go on
            self._park(topic, rows, f"its rows cannot be written: {error}")
            return
        if poison.num_rows:
            self._park(topic, poison, _UNFIT)

    def _park(self, topic: str, rows: pa.Table, reason: str) -> None:
        self.parked[topic, reason] += rows.num_rows
        kept = rows.select(list(POISON))
        self._poison.append(kept.append_column("reason", pa.array([reason] * kept.num_rows, pa.string())))
        self._poison_bytes += kept.nbytes
        if self._poison_bytes >= self._topic_bytes:
            self._flush_poison()

    def _flush_poison(self) -> None:
        if self._poison:
            self._write(self._quarantine, pa.concat_tables(self._poison))
        self._poison, self._poison_bytes = [], 0

    def _parser(self, topic: str) -> tuple[Parser | str, str, str]:
        """Or why there is none; its table, and what its rule calls that."""
        found = self._parsers.get(topic)
        if found is None:
            matched = rule_of(self._rules, topic)
            if matched is None:
                found = _UNKNOWN, "", ""
            elif other := self._owner(*matched):
                reason = (
                    f"its table {matched[1]} is that of the rule for {other.topics!r}, with other columns: say "
                    "another `name` in the rule of its topic"
                )
                found = reason, "", ""
            else:
                try:
                    found = Parser(topic, matched[0], self._reader), self._landing.table(matched[1]), matched[1]
                except ConfigError as error:  # no schema in the registry: the other topics go on
                    found = str(error), "", ""
            self._parsers[topic] = found
        return found

    def _owner(self, rule: TableRule, table: str) -> TableRule | None:
        """Another rule that names that table, to which a topic's own name has come by chance: half the rows would be
        null to every reader.
        """
        chance = rule.name != table
        return next(
            (each for each in self._rules if chance and each.name == table and each.schema != rule.schema), None
        )

    def _write(self, table: str, rows: pa.Table, named: str = "") -> None:
        number = self._counts[table] = self._counts.get(table, -1) + 1
        name = f"part-{self._name}-{number:03d}.parquet"
        pq.write_table(rows, self._landing.staging(self._query, self._batch, table) / name)
        self.staged.append(Staged(table, name, rows.num_rows, rows.schema, named))


class Wrote(WriterCommitMessage):
    """What one task staged, and how much of it is in the quarantine, by topic and reason."""

    def __init__(self, query: str, staged: list[Staged], parked: Counter[tuple[str, str]]) -> None:
        self.query, self.staged, self.parked = query, staged, parked


class TablesWriter(DataSourceStreamArrowWriter):
    """Spark makes it anew for each step of each micro-batch."""

    def __init__(self, options: Mapping[str, str]) -> None:
        plan: dict[str, Any] = json.loads(options["plan"])
        self._landing = Landing(
            Path(plan["path"]), plan["format"], label=plan["label"], database=plan["database"], catalog=plan["catalog"]
        )
        self._rules, self._quarantine = [TableRule(**rule) for rule in plan["rules"]], plan["quarantine"]
        self._access: dict[str, str] = plan["access"]

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Wrote:
        task = TaskContext.get()
        assert task is not None
        query, batch = task.getLocalProperty("sql.streaming.queryId"), task.getLocalProperty("streaming.sql.batchId")
        if not query or not batch:
            raise ConfigError(
                "this task does not know its query and micro-batch: the ETL's sink runs by writeStream only"
            )
        reader = RegionAccess(self._access, "ETL").reader()
        try:
            files = Files(self._landing, self._rules, self._quarantine, reader, query, int(batch), task.partitionId())
            for rows in iterator:
                if rows.num_rows:
                    files.add(rows)
            return Wrote(query, files.close(), files.parked)
        finally:
            reader.close()

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        wrote = [each for each in messages if isinstance(each, Wrote)]
        if wrote:
            self._landing.land(wrote[0].query, batchId, [staged for each in wrote for staged in each.staged])
            if parked := sum((each.parked for each in wrote), Counter[tuple[str, str]]()):
                self._landing.note_parked(wrote[0].query, batchId, parked)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """What is staged is removed when the batch lands, with whatever other attempts left."""


class TablesSink(DataSource):
    """Offers the ETL's tables to Spark as `format("heliograph_tables")`; only the job `etl` writes to it."""

    @classmethod
    def name(cls) -> str:
        return "heliograph_tables"

    def streamWriter(self, schema: StructType, overwrite: bool) -> TablesWriter:
        return TablesWriter(dict(self.options))
