"""What each command asks of a broker, and what a person reads then: a command that is one call has its case in
main_asks.txt.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
import typer
from typer.testing import CliRunner

from heliograph.cli.calls import call_of
from heliograph.cli.main import app
from heliograph.cli.rest import Rest

CASES = Path(__file__).with_name("main_asks.txt").read_text(encoding="utf-8").strip().split("\n\n")
"""Each: `$ words`, `> METHOD PATH BODY` of each request, `< ANSWER` where it has one, and what is said, on one line."""
FRAME = re.compile("[\u2500-\u257f]")
"""Lines around the cells of a table."""


def _commands(of: typer.Typer, words: str = "") -> Iterator[tuple[str, Any]]:
    for command in of.registered_commands:
        yield f"{words}{command.name} ", command.callback
    for group in of.registered_groups:
        if group.typer_instance is not None:
            yield from _commands(group.typer_instance, f"{words}{group.name} ")


COMMANDS = dict(_commands(app))


def _query(query: dict[str, Any]) -> str:
    given = {
        name: "true" if one is True else one for name, one in query.items() if one is not None and one is not False
    }
    return f"?{urlencode(given)}" if given else ""


@pytest.mark.parametrize("case", CASES, ids=[case.partition("\n")[0][2:] for case in CASES])
def test_a_command_asks_and_says(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    first, *rest, said = case.split("\n")
    words, asked = f"{first[2:]} ", list[str]()
    answers = {
        line: after[2:].encode() for line, after in zip(rest, [*rest[1:], ""], strict=True) if after.startswith("<")
    }

    def raw(_: Rest, method: str, path: str, body: Any = None, query: Any = None) -> tuple[bytes, Any]:
        text = "" if body is None else f" {json.dumps(body)}"
        asked.append(f"> {method} {path}{_query(query or {})}{text}")
        return answers.get(asked[-1], b""), {}

    monkeypatch.setattr(Rest, "raw", raw)
    name = max((name for name in COMMANDS if words.startswith(name)), key=len)
    alone = typer.Typer()
    alone.command()(COMMANDS[name])
    result = CliRunner().invoke(alone, words.removeprefix(name).split(), env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.exception
    assert asked == [line for line in rest if line.startswith(">")]
    assert " ".join(FRAME.sub(" ", result.output).split()) == said


def test_a_command_that_is_a_row_has_its_case() -> None:
    rows = {name for name, command in COMMANDS.items() if command is not None and call_of(command) is not None}
    known = {name for name in rows if any(case.startswith((f"$ {name}", f"$ {name.strip()}\n")) for case in CASES)}
    assert rows == known, f"write into main_asks.txt what these ask, and what they say: {rows - known}"
