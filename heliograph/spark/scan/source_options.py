"""What a user said to the source, checked, in one sentence where it is wrong.

Is: names, bounds, defaults of options, and which topics they mean. Isn't: reading, or the sink's options (`sink`).
Source: docs/spark.md; each option is described there.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from re import Pattern
from re import compile as compile_pattern
from re import error as PatternError
from ssl import SSLContext

from heliograph.client.admin_http import admin_urls, tls_context
from heliograph.client.block_reader import PATIENCE_S, BlockReader
from heliograph.model.coordinates import Coordinate, parse_coordinate
from heliograph.model.errors import ConfigError, NotAllowed
from heliograph.model.topic_names import TopicName
from heliograph.spark.scan.topic_groups import TopicSelection, read_told

COLUMNS = ("auto", "raw", "json", "registered", "entries")
KNOWN = frozenset(
    {
        *(
            "admin_url",
            "region",
            "token",
            "token_file",
            "tls_ca",
            "tls_certificate",
            "tls_key",
            "topic",
            "topics",
            "namespace",
            "topics_pattern",
        ),
        *(
            "task_bytes",
            "tasks_min",
            "max_bytes_per_trigger",
            "max_rows_per_trigger",
            "starting",
            "ending",
            "mode",
            "columns",
            "subscription",
        ),
        *(
            "service_url",
            "fail_on_data_loss",
            "discovery_interval_s",
            "patience_s",
            "path",
            "group_file",
            "ending_file",
            "bookies",
        ),
    }
)
INTERNAL = frozenset({"path", "group_file", "ending_file"})
"""What Spark says itself, and what jobs that ship hand to their sources."""
Start = str | int | Coordinate
"""earliest, latest, a time in milliseconds since 1970, or a coordinate."""


class RegionAccess:
    """Which region, and as whom. The sink's, too. Raises ConfigError."""

    def __init__(self, given: dict[str, str], what: str) -> None:
        self._admin_url, self._service_url, self.region = (
            given.get("admin_url", ""),
            given.get("service_url", ""),
            given.get("region", ""),
        )
        if not self._admin_url and not self._service_url:
            raise ConfigError(
                f"the heliograph {what} wants admin_url, such as http://127.0.0.1:8080, or service_url, such as "
                "pulsar://127.0.0.1:6650"
            )
        self.token, self._token_file = given.get("token", ""), given.get("token_file", "")
        if self.token and self._token_file:
            raise ConfigError("give either token or token_file")
        self._patience_s = _seconds(given, "patience_s", PATIENCE_S)
        self._tls = given.get("tls_ca", ""), given.get("tls_certificate", ""), given.get("tls_key", "")
        bookies = given.get("bookies", "auto")
        if bookies not in ("auto", "never"):
            raise ConfigError(f"bookies is {bookies!r}; it may be auto, or never where executors cannot reach them")
        self._bookies = bookies == "auto"

    @property
    def admin_url(self) -> str:
        """As it was given, or as brokers behind the service URL say, asked once. Raises ConfigError,
        MetadataUnavailable.
        """
        if not self._admin_url:
            self._admin_url = admin_urls(self._service_url, self.tls())
        return self._admin_url

    def reader(self) -> BlockReader:
        """Makes a reader with the token as it is now, since a file may be rotated; close it. Raises ConfigError."""
        return BlockReader(
            self.admin_url, self.current_token(), self.tls(), patience_s=self._patience_s, bookies=self._bookies
        )

    def tls(self) -> SSLContext | None:
        return tls_context(*self._tls)

    @property
    def rotated(self) -> bool:
        """Whether the token may be another one by now."""
        return bool(self._token_file)

    def current_token(self) -> str:
        try:
            return Path(self._token_file).read_text().strip() if self._token_file else self.token
        except OSError as error:
            raise ConfigError(
                f"the token file {self._token_file} cannot be read on this machine: {error.strerror}"
            ) from error


class Options(RegionAccess):
    """Checks the source's options. Raises ConfigError with one sentence."""

    def __init__(self, given: dict[str, str]) -> None:
        names = given.get("topics") or given.get("topic") or ""
        self.names = [name.strip() for name in names.split(",") if name.strip()]
        try:
            named = [TopicName.parse(name) for name in self.names]
        except NotAllowed as error:
            raise ConfigError(str(error)) from error
        if any(name.domain != "persistent" for name in named):
            raise ConfigError("a non-persistent topic keeps nothing that could be read: name persistent ones")
        self.full_names = frozenset(map(str, named))
        """As the user named them: a partitioned topic's is none of a partition."""
        self.namespace, pattern = given.get("namespace", ""), given.get("topics_pattern", "")
        self.pattern: Pattern[str] | None = None
        if not (given.get("admin_url") or given.get("service_url")) or bool(self.names) == bool(self.namespace):
            raise ConfigError(
                "the heliograph source wants admin_url (such as http://127.0.0.1:8080), or service_url "
                "(pulsar://127.0.0.1:6650), and either topic"
                " (or topics, comma separated) or namespace (tenant/name, with topics_pattern at will)"
            )
        unknown = sorted(set(map(str.lower, given)) - KNOWN)
        if unknown:
            raise ConfigError(
                f"the heliograph source has no option {unknown[0]!r}; it has {', '.join(sorted(KNOWN - INTERNAL))}"
            )
        super().__init__(given, "source")
        try:
            self.pattern = compile_pattern(pattern) if pattern else None
        except PatternError as error:
            raise ConfigError(f"topics_pattern {pattern!r} is no regular expression: {error}") from error
        self.task_bytes, self.tasks_min = _number(given, "task_bytes", 64 << 20), _number(given, "tasks_min", 2)
        self.batch_bytes = _number(given, "max_bytes_per_trigger", 256 << 20)
        self.batch_rows = _number(given, "max_rows_per_trigger", 0)
        self.discovery_s = _seconds(given, "discovery_interval_s", 5.0)
        self.starting, self.ending = _place(given, "starting", "earliest"), _place(given, "ending", "latest")
        if (isinstance(self.starting, tuple) or isinstance(self.ending, tuple)) and len(self.names) != 1:
            raise ConfigError("a coordinate is one of a single topic: name that one in `topic`, or give a time")
        if self.ending == "earliest":
            raise ConfigError("ending is 'earliest': nothing would be read; give latest, a time, or a coordinate")
        self.mode, self.columns = given.get("mode", "PERMISSIVE").upper(), given.get("columns", "auto")
        if self.columns not in COLUMNS:
            raise ConfigError(f"columns is {self.columns!r}; it may be {', '.join(COLUMNS)}")
        self.keep_bad = self.columns == "raw" and given.get("mode", "").upper() == "PERMISSIVE"
        """Whether an entry that cannot be taken apart is a row of its bytes, and does not end the query; for raw
        columns only.
        """
        self.subscription = given.get("subscription", "")
        self.gaps_allowed = not _switch(given, "fail_on_data_loss", "true")
        self.may_lose = bool(self.subscription) or self.gaps_allowed
        self._group_file, self._ending_file = given.get("group_file", ""), given.get("ending_file", "")

    @property
    def told(self) -> TopicSelection | None:
        """What a query is told that reads a group of the topics: which, and from where on. Only on the driver. Raises
        ConfigError.
        """
        return read_told(Path(self._group_file)) if self._group_file else None

    @property
    def ends_in(self) -> Path | None:
        """A file where the query shall say how far it came; it reads nothing new."""
        return Path(self._ending_file) if self._ending_file else None

    def topics(self, reader: BlockReader) -> list[str]:
        """Full names, each partition by itself, as they are now."""
        told = self.told
        found = self._all(reader)
        return found if told is None else told.of(found)

    def _all(self, reader: BlockReader) -> list[str]:
        if self.namespace:
            return [
                t
                for t in reader.topics(self.namespace)
                if self.pattern is None or self.pattern.fullmatch(TopicName.parse(t).partitioned.local)
            ]
        found = []
        for topic in self.names:
            name = TopicName.parse(topic)
            found += [str(name.with_partition(i)) for i in range(reader.partitions(topic))] or [str(name)]
        return found


def _number(given: dict[str, str], name: str, default: int) -> int:
    text = given.get(name, str(default))
    if not text.isdecimal() or (int(text) < 1 and name in given):
        raise ConfigError(f"{name} is {text!r}; it is a whole number of at least 1")
    return int(text)


def _switch(given: dict[str, str], name: str, default: str) -> bool:
    text = given.get(name, default).lower()
    if text not in ("true", "false"):
        raise ConfigError(f"{name} is {text!r}; it is true or false")
    return text == "true"


def _seconds(given: dict[str, str], name: str, default: float) -> float:
    text = given.get(name, str(default))
    try:
        found = float(text)
    except ValueError:
        found = -1.0
    if not 0 <= found < 1e9:
        raise ConfigError(f"{name} is {text!r}; it is a number of seconds, 0 or more")
    return found


def _place(given: dict[str, str], name: str, default: str) -> Start:
    text = given.get(name, default).strip()
    if text in ("earliest", "latest"):
        return text
    if text.isdecimal():
        return int(text)
    if ":" in text and text.partition(":")[0].count(".") == 2:
        try:
            return parse_coordinate(text)
        except NotAllowed as error:
            raise ConfigError(f"{name}: {error}") from error
    try:
        at = datetime.fromisoformat(text)
    except ValueError as error:
        wanted = (
            "earliest, latest, a time (2026-01-31T12:00:00Z, or milliseconds since 1970), or a coordinate "
            "(region.epoch.incarnation:ledger:entry)"
        )
        raise ConfigError(f"{name} is {text!r}; it may be {wanted}") from error
    return int((at if at.tzinfo is not None else at.replace(tzinfo=UTC)).timestamp() * 1000)
