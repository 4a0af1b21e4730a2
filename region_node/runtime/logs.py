"""The log of a process: one event a line, as JSON or for a console, limited by event, without secrets.

Is: what turns a record of `logging` into an event with fields (`log.info("link.ended", extra={...})`, or a sentence of
a library), and the handler that writes it. Isn't: what is logged; each part decides that.
Invariants: a line of JSON is one object, whatever the fields hold; nothing a client sent begins a line of its own; what
the limit leaves out is counted and said; `admin.change`, the lasting record of what was changed, and the events of
`process` are never left out.
JSON: {"time", "level", "event", "logger", "region", "node", "fields": {...}, "exception"}; `text` in the place of
fields for what is no event of ours.
Source: docs/operating/logs.md; docs/decisions/0096-logs-and-support-files.md.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TextIO

from heliograph.model.configuration.setting import check_bounds, setting
from region_node.runtime import redaction
from region_node.runtime.request_ids import current

FORMATS = ("console", "json")
LEFT_OUT = "log.left_out"
_OWN = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}
_EVENT = re.compile(r"[a-z][a-z0-9_]*(?:\.[a-z0-9_]+)+\Z")
_ALWAYS = ("admin.change", "process.", LEFT_OUT)
_TEXT_MAX = 8192
"""Characters of one field: a client's words may be as long as a message, and nested as deep."""
_NAMES_MAX = 1000
"""Event names that are counted apart; those of libraries are bounded by nothing else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    """`format`: console or json. Of one event name at most `per_event_max` lines in `window_s` seconds are written; 0:
    no limit.
    """

    format: str = setting("console", one_of=FORMATS)
    """How lines are written: `console` or `json`; `--log-format` replaces it."""
    per_event_max: int = setting(100, "lines", least=0, most=1_000_000, means="no limit")
    """So many lines of one event name are written in `window_s`; what is left out is counted and said."""
    window_s: float = setting(10.0, "s", least=0.1, most=3600)
    """The time in which lines of one event name are counted."""

    def __post_init__(self) -> None:
        check_bounds(self, "log")


# -- a record as an event ---------------------------------------------------------------------------------------------


def event_of(record: logging.LogRecord) -> tuple[str, dict[str, Any], str]:
    """(event, fields, text). What is no event of ours is `other`, with its sentence as text."""
    extra = {name: value for name, value in record.__dict__.items() if name not in _OWN}
    if isinstance(record.msg, str) and not record.args and _EVENT.match(record.msg):
        return record.msg, extra, ""
    return "other", extra, record.getMessage()


def _named(region: str, event: str, fields: dict[str, Any]) -> dict[str, Any]:
    """With the id of the link (the same in both of its regions), and of the request to the admin interface that is
    being handled.
    """
    source, target = fields.get("source", region), fields.get("target", region)
    if event.startswith("link.") and region and "topic" in fields and source != target:
        fields = {"link": f"{source}>{target}/{fields['topic']}", **fields}
    return (
        {**fields, "request": name} if (name := current()) and "request" not in fields and event != LEFT_OUT else fields
    )


def _cut(text: str) -> str:
    return redaction.cut(text, _TEXT_MAX)


def _shown(fields: dict[str, Any]) -> dict[str, Any]:
    shown: dict[str, Any] = {}
    for name, value in fields.items():
        shown |= redaction.Beginning({name: value}, _TEXT_MAX).value
    return shown


class EventFormatter(logging.Formatter):
    """For people: `2026-11-22 10:00:00,000 INFO topic.loaded topic=persistent://…`. A value with spaces or quotes
    stands in quotes, as JSON has them.
    """

    def __init__(self, region: str = "") -> None:
        super().__init__()
        self.region = region

    def format(self, record: logging.LogRecord) -> str:
        event, fields, said = event_of(record)
        fields = _named(self.region, event, fields)
        words = [self.formatTime(record), record.levelname]
        words += [event] if event != "other" else []
        words += [redaction.text(_cut(said)).replace("\n", "\\n")] if said else []
        line = " ".join([*words, *(f"{name}={_word(value)}" for name, value in _shown(fields).items())])
        return f"{line}\n{redaction.text(self.formatException(record.exc_info))}" if record.exc_info else line


def _word(value: Any) -> str:
    if isinstance(value, str) and value.isprintable() and not set(value) & {" ", '"'}:
        return value
    return json.dumps(value, ensure_ascii=False)


class JsonFormatter(logging.Formatter):
    """For programs. `region`, `node`: of this process; a field of the same name lies in `fields` and hides neither."""

    def __init__(self, region: str = "", node: str = "") -> None:
        super().__init__()
        self.region, self.node = region, node

    def format(self, record: logging.LogRecord) -> str:
        event, fields, said = event_of(record)
        when = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        line: dict[str, Any] = {
            "time": when,
            "level": record.levelname,
            "event": event,
            "logger": record.name,
            "region": self.region,
            "node": self.node,
        }
        if said:
            line["text"] = redaction.text(_cut(said))
        line["fields"] = _shown(_named(self.region, event, fields))
        if record.exc_info:
            line["exception"] = redaction.text(self.formatException(record.exc_info))
        return json.dumps(line, ensure_ascii=False)


# -- the limit --------------------------------------------------------------------------------------------------------


class EventLimit:
    """Lines of each name in a window. A core: time comes in, in seconds; where it goes back, a window begins anew."""

    def __init__(self, most: int, window_s: float) -> None:
        self._most, self._window_s = most, window_s
        self._windows: dict[str, list[float]] = {}
        """Name -> [when the window began, lines, of these left out]."""

    def admits(self, name: str, now: float) -> bool:
        if not self._most:
            return True
        if name not in self._windows and len(self._windows) >= _NAMES_MAX:
            name = "other"
        window = self._windows.setdefault(name, [now, 0, 0])
        window[1] += 1
        if window[1] <= self._most:
            return True
        window[2] += 1
        return False

    def ended(self, now: float | None) -> Iterator[tuple[str, int]]:
        """(name, lines left out) of the windows that are over (None: of all), which begin anew; only those where
        something was left out.
        """
        for name, (began, _, left_out) in list(self._windows.items()):
            if now is None or not began <= now < began + self._window_s:
                del self._windows[name]
                if left_out:
                    yield name, int(left_out)


class EventHandler(logging.StreamHandler[TextIO]):
    """Writes what the limit admits, and says what it left out: with the first line after a window, by `say_left_out`,
    and at the end of the process.
    """

    def __init__(self, stream: TextIO, settings: LogSettings, *, region: str = "", node: str = "") -> None:
        super().__init__(stream)
        self._window_s, self._limit = settings.window_s, EventLimit(settings.per_event_max, settings.window_s)
        self.setFormatter(JsonFormatter(region, node) if settings.format == "json" else EventFormatter(region))

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self.say_left_out(record.created)
            event = event_of(record)[0]
            name = f"{record.name}: {record.msg}" if event == "other" else event
            if event.startswith(_ALWAYS) or self._limit.admits(name, record.created):
                super().emit(record)
        except Exception:  # as every handler of `logging` does: a line that cannot be written ends nobody
            self.handleError(record)

    def say_left_out(self, now: float | None = None) -> None:
        """now: wall clock, in seconds; None: the process ends, and no window waits for its end."""
        for name, count in self._limit.ended(now):
            record = logging.makeLogRecord(
                {"name": __name__, "levelno": logging.WARNING, "levelname": "WARNING", "msg": LEFT_OUT}
            )
            record.__dict__.update(of=name, lines=count, window_s=self._window_s)
            super().emit(record)


def install(
    settings: LogSettings, level: str, *, region: str = "", node: str = "", stream: TextIO | None = None
) -> EventHandler:
    """The one handler of this process, in the place of any before."""
    handler = EventHandler(stream or sys.stderr, settings, region=region, node=node)
    logging.basicConfig(level=level, handlers=[handler], force=True)
    return handler
