"""`heliograph topics links`: each link with how old is what is told of its target."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any, cast

import pytest

from heliograph.cli.regions import links
from heliograph.cli.show import Output

TOPIC = "persistent://t/n/x"


def link(target: str, **changed: Any) -> dict[str, Any]:
    told = {"state": "open", "cause": "", "cause_text": "", "backlog_messages": 7, "parked": None}
    return {"topic": TOPIC, "target": target, **told, **changed}


def said(capsys: pytest.CaptureFixture[str], *found: dict[str, Any], as_json: bool = False) -> str:
    rest = SimpleNamespace(get=lambda path: {"partitions": 0} if path.endswith("/partitions") else {"links": [*found]})
    links.links(cast(Any, rest), Output(json=as_json), TOPIC)
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("silent_s", "told"),
    [({}, "-"), (None, "-"), (0.4, "-"), (2.0, "-"), (2.1, "2.1"), (40.04, "40.0")],
)
def test_above_two_seconds_the_silence_of_a_target_stands_beside_its_numbers(
    silent_s: Any, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """An earlier version tells none ({}), and a Pulsar cluster without a connection has none."""
    text = said(capsys, link("eu", **({} if silent_s == {} else {"silent_s": silent_s})))
    head, row = (line for line in text.splitlines() if "silent s" in line or " eu " in line)
    cells = dict(zip(split(head), split(row), strict=True))
    assert (cells["silent s"], cells["messages behind"]) == (told, "7")


def split(line: str) -> list[str]:
    return [cell.strip() for cell in line.replace("┃", "│").strip("│").split("│")]


def test_programs_get_the_silence_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    (found,) = json.loads(said(capsys, link("eu", silent_s=0.25), as_json=True))
    assert found["links"][0]["silent_s"] == 0.25
