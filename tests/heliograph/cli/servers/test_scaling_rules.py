"""Rules of autoscaling: read, judged over time, and carried out by real commands and calls."""

from __future__ import annotations

import http.server
import json
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from heliograph.cli.servers.autoscale import _fire, _samples
from heliograph.cli.servers.scaling_rules import Scaler, ScalingRule, rules_of
from heliograph.model.errors import ConfigError

RULES = """
[[rule]]
name = "more"
tier = "brokers"
measure = "broker.load"
above = 0.7
for_s = 60
rest_s = 300
run = ["true"]

[[rule]]
name = "fewer"
tier = "brokers"
measure = "broker.load"
take = "max"
below = 0.3
for_s = 60
call = "http://127.0.0.1:1/"

[[rule]]
name = "space"
tier = "bookies"
measure = "bookie.free_bytes"
take = "sum"
below = 1000
for_s = 0
run = ["true"]
"""


def fired(scaler: Scaler, now: float, **measures: list[float]) -> list[str]:
    return [
        rule.name
        for rule, _ in scaler.look({name.replace("_", ".", 1): values for name, values in measures.items()}, now)
    ]


def test_a_rule_fires_once_its_condition_has_held_and_then_rests() -> None:
    scaler = Scaler(rules_of(RULES))
    assert fired(scaler, 0, broker_load=[0.9, 0.8]) == []
    assert fired(scaler, 59, broker_load=[0.9, 0.8]) == []
    assert fired(scaler, 60, broker_load=[0.9, 0.8]) == ["more"]
    assert fired(scaler, 200, broker_load=[0.9, 0.8]) == []
    assert fired(scaler, 359, broker_load=[0.9, 0.8]) == []
    assert fired(scaler, 361, broker_load=[0.9, 0.8]) == ["more"]


def test_a_break_begins_the_time_anew_and_so_does_a_measure_that_is_missing() -> None:
    scaler = Scaler(rules_of(RULES))
    for breaking in ({"broker_load": [0.5]}, {}, {"broker_load": []}):
        assert fired(scaler, 0, broker_load=[0.9]) == []
        assert fired(scaler, 50, **breaking) == []  # type: ignore[arg-type]
        assert fired(scaler, 60, broker_load=[0.9]) == []
        assert fired(scaler, 70, broker_load=[0.1]) == []


def test_what_was_added_is_not_taken_away_before_it_counts() -> None:
    scaler = Scaler(rules_of(RULES))
    fired(scaler, 0, broker_load=[0.9])
    assert fired(scaler, 60, broker_load=[0.9]) == ["more"]
    assert fired(scaler, 61, broker_load=[0.1]) == []
    assert fired(scaler, 359, broker_load=[0.1]) == []
    assert fired(scaler, 360, broker_load=[0.1]) == ["fewer"]


def test_tiers_rest_each_on_its_own() -> None:
    scaler = Scaler(rules_of(RULES))
    fired(scaler, 0, broker_load=[0.9])
    assert fired(scaler, 60, broker_load=[0.9], bookie_free_bytes=[400, 500]) == ["more", "space"]


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("measure = 'nothing'", "measure must be one of"),
        ("measure = 'metric:'", "measure must be one of"),
        ("take = 'median'", "take must be one of"),
        ("tier = ''", "must name the tier"),
        ("above = 'x'", "above must be a number"),
        ("for_s = -1", "for_s must be a number"),
        ("below = 0.1", "either above or below"),
        ("call = 'http://x/'", "either run"),
        ("run = 'rm'", "run must be a list"),
        ("colour = 1", "no field 'colour'"),
    ],
)
def test_a_wrong_rule_is_refused_by_its_name(line: str, what: str) -> None:
    fields = {"name": "'mine'", "tier": "'brokers'", "measure": "'broker.load'", "above": "0.5", "run": "['true']"}
    key, _, value = line.partition(" = ")
    text = "[[rule]]\n" + "\n".join(f"{k} = {v}" for k, v in (fields | {key: value}).items())
    with pytest.raises(ConfigError, match="mine") as refused:
        rules_of(text)
    assert what in str(refused.value)


@pytest.mark.parametrize(
    ("text", "what"),
    [("x", "no TOML"), ("", "there is none"), ("rule = 3", "there is none"), (RULES + RULES, "two rules are named")],
)
def test_a_wrong_file_is_refused(text: str, what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        rules_of(text)


def test_metrics_are_read_by_their_names() -> None:
    text = '# TYPE a gauge\na 1\na_b 2\na{x="y z"} 3\nb 4\n'
    assert _samples(text, {"a"}) == [("a", 1.0), ("a", 3.0)]


def rule(**fields: Any) -> ScalingRule:
    return ScalingRule(name="mine", tier="brokers", measure="broker.load", above=0.5, **fields)


def test_a_command_finds_what_it_is_for_in_its_environment(tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    code = (
        f"import os; open({str(seen)!r}, 'w').write(' '.join(os.environ['HELIOGRAPH_' + n] for n in ('RULE', 'TIER', "
        "'VALUE')))"
    )
    assert _fire(rule(run=(sys.executable, "-c", code)), 0.75) == "done"
    assert seen.read_text() == "mine brokers 0.75"
    assert (
        _fire(rule(run=(sys.executable, "-c", "import sys; sys.exit('no machine left')")), 1.0)
        == "the command ended with 1: no machine left"
    )
    assert "could not be reached" in _fire(rule(run=(str(tmp_path / "absent"),)), 1.0)


METRICS = b'heliograph_metadata_member_lag_entries{member="m2"} 12\nother 3\n'


class Region(http.server.BaseHTTPRequestHandler):
    """Answers as a broker's admin interface, and takes the call of a rule."""

    called: list[Any]

    def do_GET(self) -> None:
        here = f"http://127.0.0.1:{self.server.server_address[1]}"
        bookies = [
            {"registered": True, "free_bytes": 100, "writable": True},
            {"registered": True, "free_bytes": 50, "writable": False},
            {"registered": False, "free_bytes": 0, "writable": False},
        ]
        answers = {
            "/heliograph/v1/balance": {"brokers": [{"load": 0.9, "bundles": 3}]},
            "/heliograph/v1/bookies": bookies,
            "/heliograph/v1/status": {"brokers": [{"admin_url": here}]},
        }
        self._answer(METRICS if self.path == "/metrics" else json.dumps(answers[self.path]).encode())

    def do_POST(self) -> None:
        self.called.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self._answer(b"")

    def _answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        return


@pytest.mark.parametrize(
    ("tier", "condition", "value"),
    [
        ("brokers", "measure = 'broker.load'\nabove = 0.5", 0.9),
        ("bookies", "measure = 'bookie.free_bytes'\ntake = 'sum'\nbelow = 200", 150.0),
        ("bookies", "measure = 'bookie.writable'\ntake = 'sum'\nbelow = 2", 1.0),
        ("metadata", "measure = 'metric:heliograph_metadata_member_lag_entries'\ntake = 'max'\nabove = 10", 12.0),
    ],
)
def test_the_command_watches_each_tier_and_calls_what_it_was_given(
    tier: str, condition: str, value: float, tmp_path: Path
) -> None:
    import typer

    from heliograph.cli.servers import autoscale

    app = typer.Typer()
    autoscale.register(app)
    app.command()(lambda: None)
    Region.called = []
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Region) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        here = f"http://127.0.0.1:{server.server_port}"
        path = tmp_path / "rules.toml"
        path.write_text(f"[[rule]]\nname = 'more'\ntier = '{tier}'\n{condition}\nfor_s = 0\ncall = '{here}/hook'\n")
        arguments = ["autoscale", str(path), "--admin", here, "--looks", "2", "--every", "0.1"]
        dry = CliRunner().invoke(app, [*arguments, "--dry-run"])
        assert dry.exit_code == 0 and Region.called == [] and json.loads(dry.output)["outcome"] == "dry run"
        done = CliRunner().invoke(app, arguments)
        server.shutdown()
    assert done.exit_code == 0, done.output
    assert json.loads(done.output) == {"rule": "more", "tier": tier, "value": value, "outcome": "done"}
    assert Region.called == [{"rule": "more", "tier": tier, "value": value}]
