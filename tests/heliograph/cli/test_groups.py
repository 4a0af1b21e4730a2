"""Commands that ask a broker have the same options, and get what those are for."""

from __future__ import annotations

import json
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
