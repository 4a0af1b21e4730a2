"""`chaos run` ends with 2 where it could not be run, and says why; its example is a scenario. (0 and 1 of a real
instance: geo_tests/wan/test_chaos_run.py.)
"""

from __future__ import annotations

from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from heliograph.model.errors import ConfigError
from region_node.chaos.scenario import scenario_of
from region_node.commands import chaos_commands


def run(*options: str) -> tuple[int, str]:
    """Exit code and output; what a person can mend becomes code 2 at the program's root."""
    app = typer.Typer()
    chaos_commands.register(app)
    done = CliRunner().invoke(app, ["chaos", "run", *options])
    if isinstance(done.exception, ConfigError):
        return 2, str(done.exception)
    return done.exit_code, done.output


def test_the_example_is_printed_and_is_a_scenario() -> None:
    code, said = run("--example")
    assert code == 0 and scenario_of(said, "example").steps


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "scenario.toml cannot be read: "),
        ("[[step]]\nfault = 'cuts'\n", "scenario.toml, line 2: fault is 'cuts'"),
        ("[[step]]\nfault = 'cut'\n", "start it with `heliograph up --data"),
    ],
)
def test_what_cannot_be_run_says_why(tmp_path: Path, text: str | None, said: str) -> None:
    path = tmp_path / "scenario.toml"
    if text is not None:
        path.write_text(text)
    code, told = run("--scenario", str(path), "--data", str(tmp_path))
    assert code == 2 and said in told


def test_without_a_scenario_it_says_where_one_comes_from() -> None:
    code, said = run()
    assert code == 2 and "`heliograph chaos run --example` prints one" in said


def test_help_teaches() -> None:
    code, said = run("--help")
    assert code == 0 and all(words in " ".join(said.split()) for words in ("Exit code 0", "--scenario", "--report"))
