"""The log of a process: an event becomes one line with fields, a limit by event, and no secret."""

from __future__ import annotations

import contextvars
import io
import json
import logging
import urllib.error
import urllib.request
from typing import Any

import pulsar
import pytest

from heliograph.model.errors import ConfigError
from region_node.runtime import redaction, request_ids
from region_node.runtime.logs import LEFT_OUT, EventFormatter, EventHandler, EventLimit, JsonFormatter, LogSettings
from tests.region_node.region_processes import Region

JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJib2IifQ.c2lnbmF0dXJlLXBsYW50ZWQ"
SECRETS = ("hunter2-planted", JWT, "MIIEvplantedkey", "AKIAABCDEFGHIJKLMNOP", "planted words")
WRITTEN: tuple[tuple[str, tuple[Any, ...], dict[str, Any]], ...] = (
    ("connection.refused", (), {"error": f"bad Bearer {JWT}"}),
    ("connection.refused", (), {"authorization": "hunter2-planted"}),
    ("connection.refused", (), {"error": f"no key fits {JWT}"}),
    ("link.ended", (), {"topic": "t", "cause": "AUTH", "text": "password=hunter2-planted"}),
    ("sign-in with Authorization: Digest hunter2-planted failed", (), {}),
    ("admin.change", (), {"change": json.dumps({"after": {"clientSecret": "planted words"}})}),
    ("tier.failed", (), {"url": "s3://user:hunter2-planted@host/b", "why": "key AKIAABCDEFGHIJKLMNOP"}),
    ("tls.failed", (), {"pem": "-----BEGIN PRIVATE KEY-----\nMIIEvplantedkey\n-----END PRIVATE KEY-----"}),
    ("settings.seen", (), {"settings": {"credentials": {"id": "hunter2-planted"}, "pass": [f"token:{JWT}"]}}),
    ("query.seen", (), {"url": "/admin/v2/x?token=hunter2-planted&force=true"}),
)


def record(
    written: str, arguments: tuple[Any, ...] = (), extra: dict[str, Any] | None = None, name: str = "region_node.x"
) -> logging.LogRecord:
    made = logging.getLogger(name).makeRecord(name, logging.INFO, "f", 1, written, arguments, None, extra=extra)
    made.created = 1_800_000_000.25
    return made


def as_json(*what: Any) -> Any:
    line = JsonFormatter("eu", "eu-broker-0").format(record(*what))
    assert "\n" not in line
    return json.loads(line)


def test_an_event_is_a_name_and_fields() -> None:
    written = as_json(
        "link.ended", (), {"topic": "persistent://a/b/c", "text": "went away = bad\nlink.opened", "count": 3}
    )
    assert written == {
        "time": "2027-01-15T08:00:00.250Z",
        "level": "INFO",
        "event": "link.ended",
        "logger": "region_node.x",
        "region": "eu",
        "node": "eu-broker-0",
        "fields": {"topic": "persistent://a/b/c", "text": "went away = bad\nlink.opened", "count": 3},
    }


def test_what_is_no_json_and_what_is_no_event_become_valid_lines() -> None:
    odd = as_json(
        "x.y", (), {"at": (1, 2), "rate": float("nan"), "who": ValueError("k"), "region": "other", "level": "own"}
    )
    assert (
        odd["fields"] == {"at": [1, 2], "rate": "nan", "who": "k", "region": "other", "level": "own"}
        and odd["region"] == "eu"
    )
    assert as_json("Task was destroyed but it is pending", (), None)["text"] == "Task was destroyed but it is pending"
    said = as_json("link.ended topic=%s", ("t",), None)
    assert (said["event"], said["text"]) == ("other", "link.ended topic=t"), "an event is a name, and no sentence"


def test_a_field_is_as_long_and_as_deep_as_a_line_may_be_and_no_more() -> None:
    deep: Any = "end"
    for _ in range(5000):
        deep = {"in": [deep]}
    line = as_json("settings.seen", (), {"deep": deep, "wide": list(range(100_000)), "topic": "persistent://a/b/c"})
    assert line["fields"]["topic"] == "persistent://a/b/c", "one field takes nothing from another"
    assert redaction.MORE in json.dumps(line["fields"]["deep"], ensure_ascii=False)
    assert line["fields"]["wide"][:3] == [0, 1, 2] and line["fields"]["wide"][-1] == redaction.MORE
    assert len(json.dumps(line)) < 20_000


def test_a_trace_is_a_field_of_json_without_its_secrets() -> None:
    try:
        raise ValueError("password=hunter2-planted")
    except ValueError as error:
        made = record("task.failed")
        made.exc_info = (type(error), error, error.__traceback__)
    line = json.loads(JsonFormatter().format(made))
    assert "ValueError" in line["exception"] and "hunter2" not in line["exception"]


def test_the_console_puts_one_event_on_a_line() -> None:
    line = EventFormatter().format(
        record("topic.loaded", (), {"topic": "persistent://a/b/c", "by": "a b\n2026 INFO topic.deleted", "n": 3})
    )
    assert line.endswith(r'INFO topic.loaded topic=persistent://a/b/c by="a b\n2026 INFO topic.deleted" n=3')


@pytest.mark.parametrize("formatter", [JsonFormatter(), EventFormatter()], ids=["json", "console"])
@pytest.mark.parametrize("what", WRITTEN, ids=[w[0].split()[0] + f"-{i}" for i, w in enumerate(WRITTEN)])
def test_no_secret_gets_into_a_line(
    formatter: logging.Formatter, what: tuple[str, tuple[Any, ...], dict[str, Any]]
) -> None:
    line = formatter.format(record(*what))
    assert redaction.HIDDEN in line and not [secret for secret in SECRETS if secret in line], line


def test_where_secrets_lie_is_no_secret() -> None:
    given = {
        "tokens": [{"algorithms": ["HS256"], "secret_file": "/etc/key", "jwks_url": "https://a/b"}],
        "token_max_s": 60,
        "authorization": True,
        "key": "/x",
    }
    assert redaction.Beginning(given, 1000).value == given
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
    assert [line["fields"] for line in lines if line["event"] == LEFT_OUT] == [
        {"of": "connection.refused", "lines": 3, "window_s": 10}
    ]
    for _ in range(4):
        emit("connection.refused", 111)
    handler.say_left_out()
    assert json.loads(stream.getvalue().splitlines()[-1])["fields"] == {
        "of": "connection.refused",
        "lines": 2,
        "window_s": 10,
    }


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


def test_a_link_has_one_id_in_both_of_its_regions() -> None:
    out = record("link.ended", (), {"topic": "persistent://a/b/c", "target": "us", "cause": "CUT"})
    into = record("link.refused", (), {"topic": "persistent://a/b/c", "source": "eu", "error": "no"})
    lines = [JsonFormatter("eu").format(out), JsonFormatter("us").format(into)]
    assert {json.loads(line)["fields"]["link"] for line in lines} == {"eu>us/persistent://a/b/c"}
    assert " link=eu>us/persistent://a/b/c topic=" in EventFormatter("eu").format(out)
    assert "link" not in as_json("topic.loaded", (), {"topic": "t", "target": "us"})["fields"]


def test_a_requests_id_is_in_its_lines_and_in_no_later_one() -> None:
    with request_ids.handling("abc"):
        assert as_json("topic.loaded", (), {"n": 1})["fields"] == {"n": 1, "request": "abc"}
        assert "request" not in as_json(LEFT_OUT)["fields"], "it is said behind any line, and is none of this request's"
        behind = contextvars.copy_context()
    assert "request" not in as_json("topic.loaded")["fields"]
    assert behind.run(request_ids.current) == "", "what it has begun goes on without its name"
    made = [request_ids.accepted(given) for given in ("", "a b", "x\ny", "x" * 129, "\u00e4")]
    assert len(set(made)) == len(made) and all(len(name) == 16 for name in made)
    assert request_ids.accepted("trace-1/2:3") == "trace-1/2:3"


@pytest.mark.parametrize("word", ["token", "-eyJ", "a.token", "token ", "authorization:", "-----BEGIN ", 'token="'])
def test_long_words_of_a_client_hold_nobody_up_and_are_cut(word: str) -> None:
    """Looked at from each of its words on, such a text would take hours."""
    long = word * (1_000_000 // len(word))
    assert redaction.text(long + ' x_token="abc"') != ""
    for line in (
        EventFormatter("eu").format(record("request.refused", (), {"topic": long})),
        json.dumps(as_json(f"said: {long}")),
    ):
        assert len(line) < 20_000


def test_a_token_is_found_wherever_a_word_begins() -> None:
    said = "x-eyJhbGci.eyJzdWI.sig --my_token=abc url=https://x?token=abc&b=1 token_file=/x 'private-key': 'abc'"
    assert redaction.text(said) == "x-*** --my_token=*** url=https://x?token=***&b=1 token_file=/x 'private-key': '***'"
    shown = as_json("request.refused", (), {"topic": "x" * 9000})["fields"]["topic"]
    assert shown.strip("x") == "… (9000 characters)" and len(shown) < 8_192 + 20


def asked(url: str, method: str = "GET", **headers: str) -> tuple[int, str]:
    """(status, X-Request-Id of the answer)"""
    try:
        with urllib.request.urlopen(urllib.request.Request(url, method=method, headers=headers), timeout=30) as answer:
            return answer.status, answer.headers["X-Request-Id"]
    except urllib.error.HTTPError as error:
        return error.code, error.headers["X-Request-Id"]


def test_a_real_broker_writes_lines_of_json(tmp_path: Any) -> None:
    with Region(tmp_path) as region:
        region.common = {"log": {"format": "json"}}
        region.start(bookies=2, brokers=1)
        web = region.admin_url()
        assert asked(f"{web}/admin/v2/clusters", **{"X-Request-Id": "mine"}) == (200, "mine")
        status, ours = asked(f"{web}/admin/v2/tenants/nobody")
        assert status == 404 and ours and ours != asked(f"{web}/admin/v2/clusters")[1]
        assert asked(f"{web}/admin/v2/namespaces/nobody/none", "PUT", **{"X-Request-Id": "put-1"}) == (404, "put-1")
        client = pulsar.Client(
            region.service_url(), logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error), operation_timeout_seconds=5
        )
        with pytest.raises(pulsar.PulsarException):
            client.create_producer("persistent://nobody/none/t")
        client.close()
        assert region.processes["us-broker-0"].terminate() == 0
    lines = [json.loads(line) for line in (tmp_path / "us-broker-0.log").read_text().splitlines()]
    assert {"process.starting", "process.ready", "process.ended"} <= {line["event"] for line in lines}
    assert {(line["region"], line["node"]) for line in lines if line["event"] == "process.ready"} == {
        ("us", "us-broker-0")
    }
    refused = {line["fields"]["request"]: line["fields"] for line in lines if line["event"] == "admin.refused"}
    assert (
        set(refused) == {ours, "put-1"}
        and refused[ours]["path"] == "/admin/v2/tenants/nobody"
        and refused[ours]["error"]
    )
    changes = [json.loads(line["fields"]["change"]) for line in lines if line["event"] == "admin.change"]
    assert [change["request"] for change in changes] == ["put-1"]
    commands = [line["fields"] for line in lines if line["event"] == "request.refused"]
    assert commands and all(
        {"connection", "address", "request", "code", "error"} <= set(fields) for fields in commands
    ), commands
