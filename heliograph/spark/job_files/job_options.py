"""What the shipped jobs' options have in common, checked, in one sentence where it is wrong."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from heliograph.model.errors import ConfigError
from heliograph.spark.scan.source_options import KNOWN, Options

_TRIGGER = re.compile(
    r"(interval\s+)?(\+?\d+(\.\d+)?\s+(microsecond|millisecond|second|minute|hour|day|week)s?\s*)+", re.IGNORECASE
)
_ACCESS = ("admin_url", "service_url", "token", "token_file", "tls_ca", "tls_certificate", "tls_key", "patience_s")


def refuse_unknown(options: Mapping[str, Any], known: Sequence[str], where: str) -> None:
    for key in options:
        if key not in known:
            raise ConfigError(f"{where} has no option {key!r}; there are {', '.join(sorted(known))}")


def text_of(options: Mapping[str, Any], key: str, where: str, default: str) -> str:
    value = options.get(key, default)
    if not isinstance(value, str):
        raise ConfigError(f"{where}: {key} is {value!r}; it is a text")
    return value


def trigger_of(options: Mapping[str, Any], where: str, default: str = "10 seconds") -> str:
    """An interval, as Spark reads it, or `available now`. Raises ConfigError: Spark's own error would be tried again
    and again.
    """
    value = text_of(options, "trigger", where, default)
    if value != "available now" and _TRIGGER.fullmatch(value.strip()) is None:
        raise ConfigError(f"{where}: trigger is {value!r}; it is an interval, such as '10 seconds', or 'available now'")
    return value


def folder_of(options: Mapping[str, Any], key: str, where: str) -> str:
    """An absolute path. Raises ConfigError where it is missing."""
    value = text_of(options, key, where, "")
    if not value or "://" in value:
        raise ConfigError(f"{where} wants {key}, a folder that driver and workers share")
    return str(Path(value).absolute())


def checkpoint_of(options: Mapping[str, Any], where: str) -> str:
    """A folder, or the URL of one that Spark knows: hdfs://, s3a://. Raises ConfigError where it is missing."""
    value = text_of(options, "checkpoint", where, "")
    return value if "://" in value else folder_of(options, "checkpoint", where)


def access_of(given: Mapping[str, str]) -> dict[str, str]:
    """Picks from [heliograph], or from a source's options, what says which region, and as whom."""
    return {key: given[key] for key in _ACCESS if key in given}


def source_of(options: Mapping[str, Any], defaults: Mapping[str, str], where: str) -> dict[str, str]:
    """The source's options: the file's, the job's own `topics` (a list), `namespace`, `topics_pattern`, `subscription`,
    and [query.options.source].
    """
    topics, more = options.get("topics", []), options.get("source", {})
    if not isinstance(topics, list) or not all(isinstance(topic, str) for topic in topics):
        raise ConfigError(f"{where}: topics is a list of names")
    if not isinstance(more, dict):
        raise ConfigError(f"{where}: source is a table of the source's options")
    own = {
        key: text_of(options, key, where, "")
        for key in ("namespace", "topics_pattern", "subscription")
        if options.get(key)
    }
    found = {**defaults, **own, **({"topics": ",".join(topics)} if topics else {})}
    found |= {key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in more.items()}
    Options({key: value for key, value in found.items() if key in KNOWN} | {key: found[key] for key in more})
    return found


def started(writer: Any, options: Mapping[str, Any], name: str, where: str, trigger: str = "10 seconds") -> Any:
    """The streaming query, with `checkpoint` and `trigger` of its options."""
    asked = trigger_of(options, where, trigger)
    writer = writer.queryName(name).option("checkpointLocation", checkpoint_of(options, where))
    return (
        writer.trigger(availableNow=True) if asked == "available now" else writer.trigger(processingTime=asked)
    ).start()
