"""One operation: each step is told once, and somebody may stop between two of them."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest

from heliograph.cli.regions.dr_operations import NotDone, StepProgress, Stopped, carried_out
from heliograph.cli.show import Output

STEPS = ("check", "drain", "flip")


def operation(done: int, waiting: str = "") -> dict[str, Any]:
    steps = [{"step": name, "found": "well"} for name in STEPS[:done]]
    state, step = ("running", STEPS[done]) if done < len(STEPS) else ("done", "")
    return {"id": 1, "steps": steps, "state": state, "step": step, "waiting": waiting, "target": "eu"}


def rest(*answers: dict[str, Any]) -> Any:
    left = list(answers)
    return SimpleNamespace(pause_s=0.0, post=lambda *_, **__: left.pop(0))


def test_what_one_step_waits_for_is_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    answers = [operation(0), operation(1, "a broker"), operation(1, "a broker"), operation(2), operation(3)]
    found = carried_out(rest(*answers), "t/n", "switchover", "eu", 60.0, StepProgress(Output()))
    assert found["state"] == "done"
    said = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert said == ["check: well", "drain waits: a broker", "drain: well", "flip: well"]


def test_it_stops_between_two_steps_and_gives_up_what_waits_for_long() -> None:
    stop = threading.Event()
    stop.set()
    with pytest.raises(Stopped) as stopped:
        carried_out(rest(operation(1)), "t/n", "switchover", "eu", 60.0, StepProgress(Output(True), stop))
    assert stopped.value.operation["step"] == "drain"
    with pytest.raises(NotDone, match="waits at drain: a broker"):
        carried_out(
            rest(operation(1, "a broker")), "t/n", "switchover", "eu", -1.0, cast(Any, StepProgress(Output(True)))
        )
