"""`topics repair` ends with the exit code that says whether anything is missing."""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import repeat
from types import SimpleNamespace
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from heliograph.cli.regions import copy_audit
from region_node.commands import topic_commands

TOPIC = "persistent://public/default/t"
LOST = {"fetched_entries": 0, "copied_entries": 0, "missing": [[0, 9]]}
REPAIRED = {"topic": TOPIC, "ledgers": {"7": LOST}, "missing_entries": 10, "asked_other_regions": True, "do": "wait"}


def run(
    monkeypatch: pytest.MonkeyPatch, answers: dict[str, list[Any]], *options: str, times: Iterable[float] = repeat(0.0)
) -> tuple[int, str]:
    """answers: by the last part of the path, in turn. times: what a clock says that is never waited for."""

    def ask(_rest: Any, _topic: str, path: str, *_: Any, **__: Any) -> Any:
        return answers[path].pop(0)

    monkeypatch.setattr(topic_commands, "_ask", ask)
    said = iter(times)
    monkeypatch.setattr(copy_audit, "time", SimpleNamespace(monotonic=lambda: next(said), sleep=lambda _: None))
    app = typer.Typer()
    topic_commands.register(app)
    done = CliRunner().invoke(app, ["topics", "repair", TOPIC, *options])
    assert not any(answers.values()), "all of it was asked for"
    return done.exit_code, done.stdout


def looked(*ranges: list[int]) -> dict[str, Any]:
    return {"topic": TOPIC, "ledgers": 1, "damaged": {"7": list(ranges)} if ranges else {}}


def test_it_waits_for_the_other_regions_and_tells_what_came_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    audits = [{"running": True}, {"running": True}, {"running": False}]
    code, said = run(monkeypatch, {"repair": [dict(REPAIRED)], "audit": audits, "damage": [looked()]})
    assert code == 0 and "every entry is there" in said


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_what_no_region_has_ends_it_with_an_error(monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...]) -> None:
    answers: dict[str, list[Any]] = {
        "repair": [dict(REPAIRED)],
        "audit": [{"running": False}],
        "damage": [looked([2, 4], [9, 9])],
    }
    code, said = run(monkeypatch, answers, *options)
    assert code == 1 and "heliograph topics seek" in said
    if options:
        found = json.loads(said)
        assert (found["missing_entries"], found["damaged"]) == (4, {"7": [[2, 4], [9, 9]]})
    else:
        assert "entries 2 to 4 are on no bookie" in said and "entries 9 to 9" in said


def test_an_audit_that_takes_too_long_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    answers: dict[str, list[Any]] = {
        "repair": [dict(REPAIRED)],
        "audit": [{"running": True}] * 2,
        "damage": [looked([0, 9])],
    }
    code, said = run(monkeypatch, answers, "--wait", "10", times=(0.0, 0.0, 100.0))
    assert code == 1 and "are still being asked" in said


def test_what_nobody_can_be_asked_for_ends_it_with_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = {**REPAIRED, "asked_other_regions": False, "do": "no other region can be asked"}
    code, said = run(monkeypatch, {"repair": [alone]})
    assert code == 1 and "0 to 9 are still missing" in said and "no other region can be asked" in said


def test_nothing_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = {"topic": TOPIC, "ledgers": {}, "missing_entries": 0, "asked_other_regions": False, "do": ""}
    assert run(monkeypatch, {"repair": [whole]}) == (0, "nothing is damaged\n")
