"""Replay: what topics hold, or a part of it by time, published again into a topic, at a chosen rate, each message once.

    [[query]]
    job = "replay"     # docs/spark.md, "Replay", has all options

Is: one streaming query of one task a micro-batch, into our own sink with its option `rate`. Isn't: reading: offloaded ledgers come as in any query.
Invariants: the checkpoint says what was read, and the sink's sequence ids what of an unfinished micro-batch is stored already; a topic's order is kept.
"""

from __future__ import annotations

from typing import Any

from heliograph.model.errors import ConfigError
from heliograph.spark.jobs.options import access_of, refuse_unknown, source_of, started, text_of

_KNOWN = ("topics", "namespace", "topics_pattern", "starting", "ending", "to", "rate", "compression", "checkpoint", "follow", "skip_sealed", "source")
_BATCH_S = 10
_SCHEMA = "key string, value binary, properties map<string,string>, publish_time timestamp, event_time timestamp, topic string, sealed string"
_REFUSED = (
    "raise_error(concat(topic, ' has a message that cannot be published anew, as it is ', if(sealed = 'piece', 'a piece of a chunked one', sealed),"
    " ': say skip_sealed = true to leave such out'))"
)
_ONE_TASK = {"tasks_min": "1", "task_bytes": str(1 << 50)}


def start(spark: Any, defaults: dict[str, str], name: str, options: dict[str, Any]) -> list[Any]:
    """One streaming query, which ends by itself unless it follows. Raises ConfigError with one sentence."""
    where = f"[[query]] {name}"
    refuse_unknown(options, _KNOWN, where)
    target, ending, rate, follow = text_of(options, "to", where, ""), options.get("ending"), options.get("rate"), options.get("follow", False)
    if not target:
        raise ConfigError(f"{where} wants to: the full name of the topic that gets the messages")
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 < rate <= 1e7:
        raise ConfigError(f"{where} wants rate: messages a second; it is {rate!r}")
    if not isinstance(follow, bool):
        raise ConfigError(f"{where}: follow is {follow!r}; it is true or false")
    skip = options.get("skip_sealed", False)
    if not isinstance(skip, bool):
        raise ConfigError(f"{where}: skip_sealed is {skip!r}; it is true or false")
    source = source_of(options, defaults, where) | _ONE_TASK | {"max_rows_per_trigger": str(max(1, int(rate * _BATCH_S)))}
    if options.get("starting"):
        source["starting"] = text_of(options, "starting", where, "")
    if target in source.get("topics", "").split(","):
        raise ConfigError(f"{where} would read what it writes: {target} is one of its topics")
    rows = spark.readStream.format("heliograph").schema(_SCHEMA).options(**source).load()
    if ending is not None:
        rows = rows.where(f"publish_time < timestamp '{text_of(options, 'ending', where, '')}'")
    rows = rows.where("value is not null" + (" and sealed is null" if skip else ""))
    rows = rows.selectExpr("key", f"case when sealed is null then value else cast({_REFUSED} as binary) end as value", "properties", "event_time")
    sink = access_of(defaults) | {"topic": target, "rate": str(rate), "compression": text_of(options, "compression", where, "none")}
    options = {**options, "trigger": "0 seconds" if follow else "available now"}
    return [started(rows.writeStream.format("heliograph").options(**sink), options, name, where)]
