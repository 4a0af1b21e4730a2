"""SchemaCopies: the registered schemas of topics, registered at another topic too, and which version there each of
their versions is.

Is: reading one registry and adding to another, on the driver and, for what comes later, in tasks. Isn't: payloads,
which stay as they are.
Rule: all versions of all the topics that are read become versions of the one topic, in the order in which they were
registered; what that topic has already keeps the number that it has there. What may follow what is that topic's
strategy to say.
Invariants: the same version of the same topic is always the same version there, so a task that runs again writes what
it wrote.
Source: docs/spark.md, "Replay".
"""

from __future__ import annotations

import json
import urllib.parse
from collections.abc import Iterable
from typing import Any

from heliograph.client.admin_http import Http
from heliograph.model.errors import HeliographError, MetadataUnavailable, NotAllowed
from heliograph.model.topic_names import TopicName
from heliograph.spark.scan.source_options import RegionAccess

_OPT_OUT = "or say schemas = false: payloads are then written without their versions"


class SchemaCopies:
    """Goes to the workers with what it knows. source, sink: the options that say which region, and as whom; to: the
    topic that gets the schemas.
    """

    def __init__(self, source: dict[str, str], sink: dict[str, str], to: str) -> None:
        self._source, self._sink, self._to = source, sink, to
        self._known: dict[str, dict[int, int]] = {}
        """By topic, of all its partitions, and its version: the version at `to`."""
        self._bases: dict[str, str] = {}
        """By topic as it is read, the one that has the schemas."""

    def learn(self, topics: Iterable[str]) -> None:
        """Registers what they have. Raises NotAllowed where `to` cannot take it, MetadataUnavailable."""
        found: list[tuple[int, str, dict[str, Any]]] = []
        reader = RegionAccess(self._source, "source").reader()
        try:
            for topic in dict.fromkeys(map(self._base, topics)):
                found += [(row["timestamp"], topic, row) for row in reader.schemas(topic)]
        finally:
            reader.close()
        if not found:
            return
        access = RegionAccess(self._sink, "sink")
        http = Http(access.admin_url, token=access.current_token(), tls=access.tls())
        try:
            for _, topic, row in sorted(found, key=lambda each: each[0]):
                known = self._known.setdefault(topic, {})
                if row["version"] not in known:
                    known[row["version"]] = self._register(http, topic, row)
        finally:
            http.close()

    def of(self, topic: str, version: int) -> int:
        """The version at `to`. Raises NotAllowed where there is none, MetadataUnavailable."""
        base = self._base(topic)
        found = self._known.get(base, {}).get(version)
        if found is None:
            self.learn([base])  # it was registered since the query began
            found = self._known.get(base, {}).get(version)
        if found is None:
            raise NotAllowed(
                f"{topic} has messages of version {version} of its schema, which is no longer registered there: "
                f"register it at {self._to}, {_OPT_OUT}"
            )
        return found

    def _base(self, topic: str) -> str:
        base = self._bases.get(topic)
        if base is None:
            base = self._bases[topic] = str(TopicName.parse(topic).partitioned)
        return base

    def _register(self, http: Http, topic: str, row: dict[str, Any]) -> int:
        name = TopicName.parse(self._to).partitioned
        path = (
            f"/admin/v2/schemas/{name.tenant}/{name.namespace_local}/{urllib.parse.quote(name.local, safe='')}/schema"
        )
        try:
            answer = http.json(
                "POST", path, {"type": row["type"], "schema": definition(row), "properties": row["properties"]}
            )
        except MetadataUnavailable:
            raise
        except HeliographError as error:
            raise NotAllowed(
                f"version {row['version']} of the schema of {topic} cannot be registered at {self._to}, so its "
                f"messages are not written there either: {error}."
                f" Name another topic in `to`, or set schemaCompatibilityStrategy of {name.namespace} to "
                f"ALWAYS_COMPATIBLE, {_OPT_OUT}"
            ) from error
        return int(answer["version"]["version"])


def definition(row: dict[str, Any]) -> str:
    """As the registry takes it. The halves of a KEY_VALUE are shown as objects: they are written as Java's clients
    write them.
    """
    text = str(row["data"])
    if row["type"] != "KEY_VALUE":
        return text
    halves = {
        half: each if isinstance(each, str) else json.dumps(each, separators=(",", ":"), ensure_ascii=False)
        for half, each in json.loads(text).items()
    }
    return json.dumps(halves)
