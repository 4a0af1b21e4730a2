"""One operation: each step is told once, and somebody may stop between two of them."""

from __future__ import annotations

import threading
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from heliograph.cli.regions.dr_operations import NotDone, OperationRequest, StepProgress, Stopped, carried_out
from heliograph.cli.show import Output
from heliograph.model.errors import ConfigError

STEPS = ("check", "drain", "flip")
MOVE = OperationRequest(kind="switchover", namespace="t/n", to="eu")


def operation(done: int, waiting: str = "") -> dict[str, Any]:
    steps = [{"step": name, "found": "well"} for name in STEPS[:done]]
    state, step = ("running", STEPS[done]) if done < len(STEPS) else ("done", "")
    return {"id": 1, "steps": steps, "state": state, "step": step, "waiting": waiting, "target": "eu"}


def rest(*answers: dict[str, Any]) -> Any:
    left = list(answers)
    return SimpleNamespace(pause_s=0.0, post=lambda *_, **__: left.pop(0))


def test_what_one_step_waits_for_is_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    answers = [operation(0), operation(1, "a broker"), operation(1, "a broker"), operation(2), operation(3)]
    found = carried_out(rest(*answers), MOVE, StepProgress(Output()))
    assert found["state"] == "done"
    said = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert said == ["check: well", "drain waits: a broker", "drain: well", "flip: well"]


def test_it_stops_between_two_steps_and_gives_up_what_waits_for_long() -> None:
    stop = threading.Event()
    stop.set()
    with pytest.raises(Stopped) as stopped:
        carried_out(rest(operation(1)), MOVE, StepProgress(Output(True), stop))
    assert stopped.value.operation["step"] == "drain"
    with pytest.raises(NotDone, match="waits at drain: a broker"):
        carried_out(rest(operation(1, "a broker")), replace(MOVE, wait_s=-1.0), StepProgress(Output(True)))


@pytest.mark.parametrize(
    ("given", "why"),
    (
        ({}, "say which namespace"),
        ({"namespace": "t/n", "region": "us", "to": "eu"}, "not both"),
        ({"region": "us"}, "--to eu"),
        ({"everything": True, "tenant": "t", "to": "eu"}, "--all"),
    ),
)
def test_which_namespaces_are_meant_is_clear(given: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        assert OperationRequest(kind="switchover", **given).several
    assert not OperationRequest(kind="switchover", namespace="t/n").several
