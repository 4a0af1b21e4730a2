"""Units and options of `heliograph wan`, and what it shows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from heliograph.model.errors import ConfigError
from region_node.commands import wan_commands
from region_node.commands.wan_commands import kilobytes, lines, milliseconds


@pytest.mark.parametrize(
    ("text", "ms"), [("", None), ("120ms", 120), ("0ms", 0), ("1.5s", 1500), ("5m", 300_000), ("1h", 3_600_000)]
)
def test_times(text: str, ms: int | None) -> None:
    assert milliseconds("--for", text, 0, 3_600_000) == ms


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("120", "--latency 120: expected a number and one of ms, s, m, h, such as 120ms or 5m"),
        ("ms", "expected a number"),
        ("-3ms", "expected a number"),
        ("3 weeks", "expected a number"),
        ("99ms", r"--latency 99ms: it must be 100ms to 10m"),
        ("11m", "it must be 100ms to 10m"),
    ],
)
def test_what_is_no_time_says_what_is(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        milliseconds("--latency", text, 100, 600_000)


@pytest.mark.parametrize(
    ("text", "kb"), [("", None), ("50mbit", 6250), ("8kbit", 1), ("0.8Mbit", 100), ("1gbit", 125_000), ("81kbit", 10)]
)
def test_rates_are_bits_a_second(text: str, kb: int | None) -> None:
    assert kilobytes("--bandwidth", text) == kb


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("50", "--bandwidth 50: expected a number and one of kbit, mbit, gbit"),
        ("6mb", "expected a number and one of kbit"),
        ("7kbit", "it must be 8kbit to 100gbit"),
        ("101gbit", "it must be 8kbit to 100gbit"),
        ("12kbit", "whole kilobytes a second: give 8kbit, or 16kbit"),
    ],
)
def test_what_is_no_rate_says_what_is(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        kilobytes("--bandwidth", text)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("set us eu", "not said what is to be wrong: give --latency"),
        (
            "set us eu --loss 1% --latency 5ms",
            "nothing was set.*TCP sends again.*--jitter and --bandwidth.*netem loss 1%",
        ),
        ("set us eu --latency 1ms --for 1", "--for 1: expected"),
        ("set us eu --reset-after 5ms", "--reset-after 5ms: it must be 100ms to 24h"),
        ("set us eu --latency 1ms", "nothing runs on the data folder"),
        ("cut us eu --for 0ms", "--for 0ms: it must be 100ms"),
        ("heal us", "a way has two ends: give both, or none to heal all"),
        ("heal --one-way", "a way has two ends"),
    ],
)
def test_what_cannot_be_done_says_why(words: str, said: str, tmp_path: Path) -> None:
    """Before anybody is asked, but where nobody is there."""
    app = typer.Typer()
    wan_commands.register(app)
    app.command()(lambda: None)
    result = CliRunner().invoke(app, ["wan", *words.split(), "--data", str(tmp_path)])
    assert isinstance(result.exception, ConfigError), result.output
    with pytest.raises(ConfigError, match=said):
        raise result.exception


def side(source: str, target: str, **like: Any) -> dict[str, Any]:
    usual = {"one_way_ms": 40, "jitter_ms": 2, "bandwidth_kbit": None, "reset_after_ms": None, "cut": False}
    told = {"from": source, "to": target, "opened_by": source, "other": [], "usual": True, "ends_in_s": None}
    return {**told, **usual, **like}


def test_sides_that_are_alike_are_one_line() -> None:
    slow = {"one_way_ms": 60, "bandwidth_kbit": 50_000, "reset_after_ms": 1500, "usual": False, "ends_in_s": 4.5}
    sides = [side("us", "eu"), side("us", "eu"), side("eu", "us", **slow), side("eu", "us", cut=True, usual=False)]
    hole = side("us", "ap", other=["hole_upstream"], usual=False)
    inside = [side("clients", "us"), side("us", "clients", opened_by="clients"), side("brokers", "us-bookie-0")]
    slow_inside = side("clients", "us", cut=True, usual=False)
    assert lines([*sides, hole, *inside, slow_inside]) == [
        ["us", "eu", 40, 2, None, None, "as begun", None, 2],
        ["eu", "us", 60, 2, 50_000, 1.5, "set", 4.5, 1],
        ["eu", "us", 40, 2, None, None, "cut", None, 1],
        ["us", "ap", 40, 2, None, None, "hole_upstream", None, 1],
        ["clients", "us", 40, 2, None, None, "cut", None, 1],
    ]
