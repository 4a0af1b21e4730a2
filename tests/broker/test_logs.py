"""The log of a process: every way of writing an event becomes one line with fields, a limit by event, and no secret."""

from __future__ import annotations

import io
import json
import logging
from typing import Any

import pytest

from heliograph.model.errors import ConfigError
from region_node import redaction
from region_node.logs import LEFT_OUT, EventFormatter, EventHandler, EventLimit, JsonFormatter, LogSettings
from tests.broker.processes import Region

JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJib2IifQ.c2lnbmF0dXJlLXBsYW50ZWQ"
SECRETS = ("hunter2-planted", JWT, "MIIEvplantedkey", "AKIAABCDEFGHIJKLMNOP", "planted words")
WRITTEN: tuple[tuple[str, tuple[Any, ...], dict[str, Any]], ...] = (
    ("connection.refused", (), {"error": f"bad Bearer {JWT}"}),
    ("connection.refused", (), {"authorization": "hunter2-planted"}),
    ("connection.refused", (), {"error": f"no key fits {JWT}"}),
    ("link.ended topic=%s cause=%s text=%s", ("t", "AUTH", "password=hunter2-planted"), {}),
    ("sign-in with Authorization: Digest hunter2-planted failed", (), {}),
    ("admin.change", (), {"change": json.dumps({"after": {"clientSecret": "planted words"}})}),
    ("tier.failed", (), {"url": "s3://user:hunter2-planted@host/b", "why": "key AKIAABCDEFGHIJKLMNOP"}),
    ("tls.failed", (), {"pem": "-----BEGIN PRIVATE KEY-----\nMIIEvplantedkey\n-----END PRIVATE KEY-----"}),
    ("settings.seen", (), {"settings": {"credentials": {"id": "hunter2-planted"}, "pass": [f"token:{JWT}"]}}),
    ("query.seen", (), {"url": "/admin/v2/x?token=hunter2-planted&force=true"}),
)


def record(written: str, arguments: tuple[Any, ...] = (), extra: dict[str, Any] | None = None, name: str = "region_node.x") -> logging.LogRecord:
    made = logging.getLogger(name).makeRecord(name, logging.INFO, "f", 1, written, arguments, None, extra=extra)
    made.created = 1_800_000_000.25
    return made


def as_json(*what: Any) -> Any:
    line = JsonFormatter("eu", "eu-broker-0").format(record(*what))
    assert "\n" not in line
    return json.loads(line)


def test_both_ways_of_writing_an_event_have_the_same_fields() -> None:
    by_extra = as_json("link.ended", (), {"topic": "persistent://a/b/c", "text": "went away = bad\nlink.opened", "count": 3})
    by_words = as_json("link.ended topic=%s text=%s count=%s", ("persistent://a/b/c", "went away = bad\nlink.opened", 3))
    assert by_extra == by_words
    assert by_extra == {
        "time": "2027-01-15T08:00:00.250Z",
        "level": "INFO",
        "event": "link.ended",
        "logger": "region_node.x",
        "region": "eu",
        "node": "eu-broker-0",
        "fields": {"topic": "persistent://a/b/c", "text": "went away = bad\nlink.opened", "count": 3},
    }


def test_what_is_no_json_and_what_is_no_event_become_valid_lines() -> None:
    odd = as_json("x.y", (), {"at": (1, 2), "rate": float("nan"), "who": ValueError("k"), "region": "other", "level": "own"})
    assert odd["fields"] == {"at": [1, 2], "rate": "nan", "who": "k", "region": "other", "level": "own"} and odd["region"] == "eu"
    assert as_json("Task was destroyed but it is pending", (), None)["text"] == "Task was destroyed but it is pending"
    assert as_json("audit.finding topic=%s %s", ("t", "kind=gap repaired=no, not yet"))["fields"] == {"topic": "t", "kind": "gap", "repaired": "no, not yet"}


def test_a_trace_is_a_field_of_json_without_its_secrets() -> None:
    try:
        raise ValueError("password=hunter2-planted")
    except ValueError as error:
        made = record("task.failed")
        made.exc_info = (type(error), error, error.__traceback__)
    line = json.loads(JsonFormatter().format(made))
    assert "ValueError" in line["exception"] and "hunter2" not in line["exception"]


def test_the_console_puts_one_event_on_a_line() -> None:
    line = EventFormatter().format(record("topic.loaded", (), {"topic": "persistent://a/b/c", "by": "a b\n2026 INFO topic.deleted", "n": 3}))
    assert line.endswith(r'INFO topic.loaded topic=persistent://a/b/c by="a b\n2026 INFO topic.deleted" n=3')


@pytest.mark.parametrize("formatter", [JsonFormatter(), EventFormatter()], ids=["json", "console"])
@pytest.mark.parametrize("what", WRITTEN, ids=[w[0].split()[0] + f"-{i}" for i, w in enumerate(WRITTEN)])
def test_no_secret_gets_into_a_line(formatter: logging.Formatter, what: tuple[str, tuple[Any, ...], dict[str, Any]]) -> None:
    line = formatter.format(record(*what))
    assert redaction.HIDDEN in line and not [secret for secret in SECRETS if secret in line], line


def test_where_secrets_lie_is_no_secret() -> None:
    given = {"tokens": [{"algorithms": ["HS256"], "secret_file": "/etc/key", "jwks_url": "https://a/b"}], "token_max_s": 60, "authorization": True, "key": "/x"}
    assert redaction.without_secrets(given) == given
    harmless = "topic persistent://a/b/c at pulsar://h:6650 by token_file=/etc/key"
    assert redaction.text(harmless) == harmless


def test_the_limit_is_by_event_and_says_what_it_left_out() -> None:
    stream = io.StringIO()
    handler = EventHandler(stream, LogSettings(format="json", per_event_max=2, window_s=10), node="n")

    def emit(name: str, at: float) -> None:
        made = record(name)
        made.created = at
        handler.emit(made)

    for second in range(5):
        emit("connection.refused", 100 + second)
        emit("admin.change", 100 + second)
    emit("topic.loaded", 104)
    emit("topic.loaded", 110.5)
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [line["event"] for line in lines].count("connection.refused") == 2
    assert [line["event"] for line in lines].count("admin.change") == 5, "the record of changes is never left out"
    assert [line["fields"] for line in lines if line["event"] == LEFT_OUT] == [{"of": "connection.refused", "lines": 3, "window_s": 10}]
    for _ in range(4):
        emit("connection.refused", 111)
    handler.say_left_out()
    assert json.loads(stream.getvalue().splitlines()[-1])["fields"] == {"of": "connection.refused", "lines": 2, "window_s": 10}


def test_the_limit_survives_a_clock_that_goes_back_and_many_names() -> None:
    limit = EventLimit(1, 10)
    assert limit.admits("a", 100) and not limit.admits("a", 101)
    assert list(limit.ended(50)) == [("a", 1)] and limit.admits("a", 50)
    admitted = sum(limit.admits(f"name-{i}", 51) for i in range(5000))
    assert admitted <= 1001


@pytest.mark.parametrize("wrong", [{"format": "xml"}, {"per_event_max": -1}, {"window_s": 0.0}])
def test_settings_are_checked(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"log.{next(iter(wrong))}"):
        LogSettings(**wrong)


def test_a_real_broker_writes_lines_of_json(tmp_path: Any) -> None:
    with Region(tmp_path) as region:
        region.common = {"log": {"format": "json"}}
        region.start(bookies=2, brokers=1)
        assert region.processes["us-broker-0"].terminate() == 0
    lines = [json.loads(line) for line in (tmp_path / "us-broker-0.log").read_text().splitlines()]
    assert {"process.starting", "process.ready", "process.ended"} <= {line["event"] for line in lines}
    assert {(line["region"], line["node"]) for line in lines if line["event"] == "process.ready"} == {("us", "us-broker-0")}
