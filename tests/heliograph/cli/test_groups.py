"""Commands that ask a broker have the same options, and get what those are for."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Annotated

import typer
from typer.testing import CliRunner

from heliograph.cli.groups import add
from heliograph.cli.rest import Rest
from heliograph.cli.show import Output


def asks(rest: Rest, output: Output, topic: Annotated[str, typer.Argument(help="Its name.")], count: int = 1) -> None:
    """Say what was asked."""
    output.told({"at": rest._base, "token": rest._token}, f"{topic} {count} at {rest._base}")


def quiet(rest: Rest) -> None:
    """Say nothing."""


def test_a_command_has_the_options_of_what_it_is_given() -> None:
    app = typer.Typer()
    add(app, asks=asks, be_quiet=quiet)
    run = CliRunner()
    said = run.invoke(app, ["asks", "t", "--count", "3", "--admin", "http://b:1/", "--token", "x"])
    assert said.output == "t 3 at http://b:1\n", said.output
    said = run.invoke(app, ["asks", "t", "--json"], env={"HELIOGRAPH_ADMIN": "http://c:2", "HELIOGRAPH_TOKEN": "y"})
    assert json.loads(said.output) == {"at": "http://c:2", "token": "y"}
    shown = run.invoke(app, ["asks", "--help"]).output
    assert "Say what was asked." in shown and "Its name." in shown and "output" not in shown
    assert run.invoke(app, ["be-quiet", "--json"]).exit_code == 2, "it prints nothing that a program reads"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    kind: str
    wait_s: Annotated[float, typer.Option("--wait", help="Seconds.")] = 1.0


def moves(
    output: Output,
    wanted: Wanted = Wanted(kind="drill", wait_s=9.0),
    count: int = 1,
) -> None:
    """Say what is wanted."""
    output.told(None, f"{wanted.kind} for {wanted.wait_s:g} s, {count} times")


def test_a_value_of_options_has_the_defaults_of_its_command() -> None:
    app, run = typer.Typer(), CliRunner()
    add(app, moves=moves, quiet=quiet)
    assert run.invoke(app, ["moves"]).output == "drill for 9 s, 1 times\n"
    assert run.invoke(app, ["moves", "--wait", "3", "--count", "2"]).output == "drill for 3 s, 2 times\n"
    shown = run.invoke(app, ["moves", "--help"]).output
    assert "Seconds." in shown and "--kind" not in shown and "--wanted" not in shown
