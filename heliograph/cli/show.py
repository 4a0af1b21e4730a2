"""What commands print: JSON for programs, tables and a few words for people."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import typer
from rich.console import Console
from rich.table import Table

from heliograph.model.errors import ConfigError


class Output:
    """What a command prints: JSON where `--json` was given (`json`), else text for people."""

    def __init__(self, json: bool = False) -> None:
        self.json = json

    def show(self, value: Any) -> None:
        """JSON as it is; for a person: a list line by line, an object as two columns, nothing as nothing."""
        if self.json:
            typer.echo(json.dumps(value))
        elif isinstance(value, dict):
            table(("", ""), value.items())
        elif value is not None:
            for item in value if isinstance(value, list) else [value]:
                typer.echo(item if isinstance(item, str) else json.dumps(item))

    def rows(self, columns: Sequence[str], found: Iterable[Sequence[Any]], value: Any) -> None:
        """`value` for programs, `found` as a table for people; numbers stand to the right."""
        if self.json:
            self.show(value)
        else:
            table(columns, found)

    def told(self, value: Any, text: str) -> None:
        """`value` for programs, a sentence for people."""
        typer.echo(json.dumps(value) if self.json else text)


def table(columns: Sequence[str], found: Iterable[Sequence[Any]]) -> None:
    made = Table(show_header=any(columns), box=None if not any(columns) else Table().box)
    lines = [[_cell(cell) for cell in row] for row in found]
    for index, column in enumerate(columns):
        numbers = bool(lines) and all(_number(line[index]) for line in lines)
        made.add_column(column, justify="right" if numbers else "left", overflow="fold")
    for line in lines:
        made.add_row(*line)
    Console(soft_wrap=False).print(made)


def cells(row: Mapping[str, Any], *names: str) -> tuple[Any, ...]:
    """Those fields of a row, for a table; one that is not there is shown as "-"."""
    return tuple(row.get(name) for name in names)


def when(ms: int) -> str:
    """A time as tables show it, in UTC; 0: "-"."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(ms / 1000)) if ms else "-"


def iso_time(ms: int) -> str:
    """A time with its offset, as programs read it too."""
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="seconds")


def done(text: str) -> None:
    typer.echo(text)


def confirm(question: str) -> None:
    """Raises ConfigError where a person says no, or there is none to ask."""
    if not sys.stdin.isatty() or not typer.confirm(question):
        raise ConfigError("nothing was done: say --yes, or answer with y")


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.1f}"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return json.dumps(value) if isinstance(value, dict | list) else str(value)


def _number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return text == "-"
    return True
