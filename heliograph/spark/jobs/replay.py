"""Replay: what topics hold, or a part of it by time, published again into a topic, at a chosen rate, each message once.

    [[query]]
    job = "replay"     # docs/spark.md, "Replay", has all options

Is: one streaming query of one task a micro-batch, into our own sink with its option `rate`; schemas are registered
before it begins (`schema_copies`). Isn't:
reading: offloaded ledgers come as in any query.
Invariants: the checkpoint says what was read, and the sink's sequence ids what of an unfinished micro-batch is stored
already; a topic's order is kept.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from pyspark.sql import functions as sf

from heliograph.model.errors import ConfigError, HeliographError
from heliograph.model.topic_names import TopicName
from heliograph.spark.job_files.job_options import access_of, refuse_unknown, source_of, started, text_of
from heliograph.spark.jobs.schema_copies import SchemaCopies
from heliograph.spark.scan.source_options import Options

_SWITCHES = {"follow": False, "skip_sealed": False, "schemas": True}
KNOWN = (
    "topics",
    "namespace",
    "topics_pattern",
    "starting",
    "ending",
    "to",
    "rate",
    "compression",
    "checkpoint",
    "source",
    *_SWITCHES,
)
_BATCH_S = 10
_SCHEMA = (
    "key string, base64_key boolean, value binary, properties map<string,string>, publish_time timestamp, event_time "
    "timestamp, topic string, sealed string,"
    " schema_version bigint"
)
_REFUSED = (
    "raise_error(concat(topic, ' has a message that cannot be published anew, as it is ', if(sealed = 'piece', 'a "
    "piece of a chunked one', sealed),"
    " ': say skip_sealed = true to leave such out'))"
)
_KEY = "if(base64_key, coalesce(try_to_binary(key, 'base64'), cast(key as binary)), cast(key as binary))"
"""The key as bytes: the sink marks what is no text, as clients do."""
_ONE_TASK = {"tasks_min": "1", "task_bytes": str(1 << 50)}


def start(spark: Any, defaults: dict[str, str], name: str, options: dict[str, Any]) -> list[Any]:
    """One streaming query, which ends by itself unless it follows. Raises ConfigError with one sentence."""
    where = f"[[query]] {name}"
    refuse_unknown(options, KNOWN, where)
    target, rate = text_of(options, "to", where, ""), options.get("rate")
    if not target:
        raise ConfigError(f"{where} wants to: the full name of the topic that gets the messages")
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 < rate <= 1e7:
        raise ConfigError(f"{where} wants rate: messages a second; it is {rate!r}")
    switches = {key: options.get(key, default) for key, default in _SWITCHES.items()}
    for key, value in switches.items():
        if not isinstance(value, bool):
            raise ConfigError(f"{where}: {key} is {value!r}; it is true or false")
    source = (
        source_of(options, defaults, where) | _ONE_TASK | {"max_rows_per_trigger": str(max(1, int(rate * _BATCH_S)))}
    )
    if options.get("starting"):
        source["starting"] = text_of(options, "starting", where, "")
    read = Options(source)
    ending = (
        Options({**source, "ending": text_of(options, "ending", where, "")}).ending if "ending" in options else None
    )
    if ending is not None and (not isinstance(ending, int) or switches["follow"]):
        raise ConfigError(f"{where}: ending is a time, as of the source's, and there is none with follow = true")
    try:
        name_of_target = TopicName.parse(target).partitioned
    except HeliographError as error:
        raise ConfigError(f"{where}: to is {target!r}: {error}") from error
    if _means(read, name_of_target):
        raise ConfigError(f"{where} would read what it writes: {target} is one of its topics")
    rows = spark.readStream.format("heliograph").schema(_SCHEMA).options(**source).load()
    if ending is not None:
        rows = rows.where(f"publish_time < timestamp_millis({ending})")
    rows = rows.where("value is not null" + (" and sealed is null" if switches["skip_sealed"] else ""))
    access = access_of(source | defaults)
    value = f"case when sealed is null then value else cast({_REFUSED} as binary) end"
    columns = [sf.expr(_KEY).alias("key"), sf.expr(value).alias("value"), sf.col("properties"), sf.col("event_time")]
    if switches["schemas"]:
        columns.append(_version(SchemaCopies(source, access, target), read).alias("schema_version"))
    sink = access | {"topic": target, "rate": str(rate), "compression": text_of(options, "compression", where, "none")}
    options = {**options, "trigger": "0 seconds" if switches["follow"] else "available now"}
    return [started(rows.select(*columns).writeStream.format("heliograph").options(**sink), options, name, where)]


def _means(read: Options, topic: TopicName) -> bool:
    """Whether it is one of those that are read, be it there by now or not."""
    if read.namespace:
        return read.namespace == topic.namespace and (
            read.pattern is None or read.pattern.fullmatch(topic.local) is not None
        )
    return topic in {TopicName.parse(name).partitioned for name in read.names}


def _version(carried: SchemaCopies, read: Options) -> Any:
    """The column of the versions at `to`, where all schemas are by now that there are. Raises NotAllowed,
    MetadataUnavailable.
    """
    reader = read.reader()
    try:
        carried.learn(read.topics(reader))
    finally:
        reader.close()

    def versions(topics: pa.Array, versions: pa.Array) -> pa.Array:
        pairs = zip(topics.to_pylist(), versions.to_pylist(), strict=True)
        return pa.array(
            [None if version is None else carried.of(topic, version) for topic, version in pairs], pa.int64()
        )

    functions: Any = sf  # its types leave this one out
    return functions.arrow_udf(versions, "bigint")("topic", "schema_version")
