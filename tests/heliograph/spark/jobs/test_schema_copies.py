"""Schemas of topics that become those of another one, as a replay does; against registries that number them as brokers
do.
"""

from __future__ import annotations

import json
import pickle
from typing import Any

import pytest

pytest.importorskip("pyspark")

from heliograph.model.errors import ConfigError, HeliographError, NotAllowed
from heliograph.spark.jobs.schema_copies import SchemaCopies, definition
from heliograph.spark.scan.source_options import RegionAccess

TO = "persistent://a/b/to"


class Registry:
    """Of a region: by topic, the versions of its schema. `refused`: definitions that `to` does not take."""

    def __init__(self) -> None:
        self.topics: dict[str, list[dict[str, Any]]] = {}
        self.refused: set[str] = set()
        self.asked: list[str] = []

    def add(self, topic: str, version: int, data: str, at: int) -> None:
        self.topics.setdefault(topic, []).append(
            {"version": version, "type": "AVRO", "data": data, "properties": {"p": "q"}, "timestamp": at}
        )

    def schemas(self, topic: str) -> list[dict[str, Any]]:
        self.asked.append(topic)
        return self.topics.get(topic, [])

    def json(self, method: str, path: str, body: dict[str, Any]) -> Any:
        assert (
            (method, path) == ("POST", "/admin/v2/schemas/a/b/to/schema")
            and body["type"] == "AVRO"
            and body["properties"] == {"p": "q"}
        )
        if body["schema"] in self.refused:
            raise HeliographError("409 it does not fit")
        rows = self.topics.setdefault(TO, [])
        known = [row["version"] for row in rows if row["data"] == body["schema"]]
        if not known:
            self.add(TO, len(rows), body["schema"], 99)
            known = [len(rows) - 1]
        return {"version": {"version": known[0]}}

    def close(self) -> None: ...


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Registry:
    made = Registry()
    monkeypatch.setattr(RegionAccess, "reader", lambda _: made)
    monkeypatch.setattr("heliograph.spark.jobs.schema_copies.Http", lambda *_, **__: made)
    return made


def carried() -> SchemaCopies:
    return SchemaCopies({"admin_url": "http://us"}, {"admin_url": "http://us"}, TO)


def data(registry: Registry) -> list[str]:
    return [row["data"] for row in registry.topics.get(TO, [])]


def test_versions_of_several_topics_come_by_the_time_they_were_registered(registry: Registry) -> None:
    one, two = "persistent://a/b/one", "persistent://a/b/two"
    registry.add(TO, 0, "x", 1)
    registry.add(one, 0, "v1", 5)
    registry.add(one, 1, "v3", 9)
    registry.add(two, 1 << 40, "v2", 7)
    registry.add(two, 3, "x", 8)
    made = carried()
    made.learn([f"{one}-partition-{number}" for number in range(3)] + [two])
    assert data(registry) == ["x", "v1", "v2", "v3"]
    assert [made.of(f"{one}-partition-2", 0), made.of(one, 1), made.of(two, 1 << 40), made.of(two, 3)] == [1, 3, 2, 0]
    assert registry.asked == [one, two], "once a topic, not once a partition"
    again = carried()
    again.learn([two, one])
    assert data(registry) == ["x", "v1", "v2", "v3"] and again.of(one, 1) == 3, "a driver that starts anew"


def test_what_was_registered_since_is_learned_by_the_task_that_meets_it(registry: Registry) -> None:
    topic = "persistent://a/b/one-partition-0"
    registry.add("persistent://a/b/one", 0, "v1", 5)
    made = carried()
    made.learn([topic])
    task = pickle.loads(pickle.dumps(made))
    registry.add("persistent://a/b/one", 1, "v2", 6)
    assert task.of(topic, 1) == 1 and task.of("persistent://a/b/one-partition-4", 0) == 0
    assert task.of("persistent://a/b/one-partition-4", 1) == 1 and len(registry.asked) == 2
    with pytest.raises(
        NotAllowed, match=r"one-partition-0 has messages of version 7 of its schema, which is no longer registered"
    ):
        task.of(topic, 7)


def test_what_cannot_follow_is_refused_before_anything_is_read(registry: Registry) -> None:
    registry.add("persistent://a/b/one", 0, "v1", 5)
    registry.refused.add("v1")
    with pytest.raises(
        NotAllowed,
        match=r"version 0 of the schema of persistent://a/b/one cannot be registered at "
        r"persistent://a/b/to.*409.*schemas = false",
    ):
        carried().learn(["persistent://a/b/one"])


@pytest.mark.parametrize(
    ("kind", "shown", "given"),
    [
        ("AVRO", '{ "type":"int"}', '{ "type":"int"}'),
        ("STRING", "", ""),
        (
            "KEY_VALUE",
            '{"key": "", "value": {"type": "a", "n": "\u00e9"}}',
            json.dumps({"key": "", "value": '{"type":"a","n":"\u00e9"}'}),
        ),
    ],
)
def test_a_definition_stays_as_it_was_written(kind: str, shown: str, given: str) -> None:
    assert definition({"type": kind, "data": shown}) == given


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({}, "wants to"),
        ({"to": "tcp://x", "rate": 1, "topics": ["t"]}, "to is 'tcp://x'"),
        ({"to": TO, "rate": 0, "topics": ["t"]}, "wants rate"),
        ({"to": TO, "rate": 1, "topics": ["t"], "schemas": "no"}, "schemas is 'no'"),
        ({"to": TO, "rate": 1, "topics": ["t"], "ending": "yesterday"}, "ending is 'yesterday'; it may be"),
        ({"to": TO, "rate": 1, "topics": ["t"], "ending": "latest"}, "ending is a time"),
        ({"to": TO, "rate": 1, "topics": ["t"], "ending": "2026-01-31", "follow": True}, "none with follow"),
        ({"to": TO, "rate": 1, "topics": ["persistent://a/b/to-partition-3"]}, "would read what it writes"),
        ({"to": "a/b/to", "rate": 1, "namespace": "a/b"}, "would read what it writes"),
        ({"to": TO, "rate": 1, "namespace": "a/b", "topics_pattern": "t.*"}, "would read what it writes"),
    ],
)
def test_what_is_wrong_with_a_replay_is_said(options: dict[str, Any], what: str) -> None:
    from heliograph.spark.jobs.replay import start

    with pytest.raises(ConfigError, match=what):
        start(None, {"admin_url": "http://us"}, "again", options)
