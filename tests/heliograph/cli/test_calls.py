"""A command that is one call asks what its row says, and the broker has the same row."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Annotated, Any

import pytest
import typer
from typer.testing import CliRunner

from heliograph.cli.calls import Call, call_of
from heliograph.cli.groups import add
from heliograph.cli.main import app
from heliograph.cli.rest import Rest
from heliograph.model.admin_paths import OWN_TOPIC, PARAMETER, SUBSCRIPTION
from region_node.commands import entry
from region_node.faces.admin.server.admin_server import ROUTES

Topic = Annotated[str, typer.Argument(help="Its name.")]


@Call("PUT", SUBSCRIPTION, ("force",), said="{subscription} of {topic} is made: {answer[kind]}")
def made(topic: Topic, subscription: str, at: int = 0, force: bool = False) -> dict[str, int]:
    """Make it."""
    return {"at": at}


@Call("GET", f"{OWN_TOPIC}/links")
def links(topic: Topic) -> None:
    """Show them."""


@Call("POST", f"{OWN_TOPIC}/trim", said="{topic} is trimmed", as_json=True)
def trim(topic: Topic) -> None:
    """Trim it."""


@Call("GET", f"{OWN_TOPIC}/stats", ("count",))
def stats(topic: Topic, answer: dict[str, Any], count: int = 1) -> None:
    """Print them."""
    typer.echo(f"{topic} {count} is {answer['kind']}")


@Call("POST", f"{OWN_TOPIC}/repair", said="{topic} is repaired")
def repair(rest: Rest, topic: Topic) -> dict[str, Any]:
    """Repair it."""
    return {"seen": rest.get("/seen")["kind"]}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    found: list[Any] = []

    def ask(rest: Rest, method: str, path: str, body: Any = None, query: Any = None) -> Any:
        found.append((method, path, body, query))
        return {"kind": "durable"}

    monkeypatch.setattr(Rest, "ask", ask)
    return found


def run(*words: str) -> str:
    made_of = typer.Typer()
    add(made_of, made=made, links=links, trim=trim, stats=stats, repair=repair)
    result = CliRunner().invoke(made_of, list(words))
    assert result.exit_code == 0, result.output
    return result.output


def test_a_command_asks_what_its_row_says(asked: list[Any]) -> None:
    assert run("made", "a/b/x y", "s/1", "--at", "3", "--force") == "s/1 of a/b/x y is made: durable\n"
    assert asked == [("PUT", "/admin/v2/persistent/a/b/x%20y/subscription/s%2F1", {"at": 3}, {"force": True})]
    assert json.loads(run("links", "t", "--json")) == {"kind": "durable"}
    assert asked[1] == ("GET", "/heliograph/v1/topics/public/default/t/links", None, {})
    assert run("trim", "t") == "t is trimmed\n" and json.loads(run("trim", "t", "--json")) == {"kind": "durable"}
    assert run("stats", "t") == "t 1 is durable\n" and json.loads(run("stats", "t", "--json")) == {"kind": "durable"}
    assert asked[-1] == ("GET", "/heliograph/v1/topics/public/default/t/stats", None, {"count": 1})
    assert run("repair", "t") == "t is repaired\n"
    repaired = ("POST", "/heliograph/v1/topics/public/default/t/repair", {"seen": "durable"}, {})
    assert asked[-2:] == [("GET", "/seen", None, {}), repaired]
    assert "answer" not in run("stats", "--help")
    assert "--json" not in run("made", "--help") and "Make it." in run("made", "--help")


def _calls(of: typer.Typer, words: str = "") -> Iterator[tuple[str, Call]]:
    for command in of.registered_commands:
        row = call_of(command.callback) if command.callback is not None else None
        if row is not None:
            yield f"{words} {command.name}", row
    for group in of.registered_groups:
        if group.typer_instance is not None:
            yield from _calls(group.typer_instance, f"{words} {group.name}")


def test_the_broker_has_the_row_of_each_command() -> None:
    servers = typer.Typer()
    entry.register(servers)
    rows = {(row.method, PARAMETER.sub(r"{}", row.path)) for row in ROUTES}
    found = dict([*_calls(app), *_calls(servers)])
    strange = [f"{name}: {row.method} {row.path}" for name, row in found.items() if _plain(row) not in rows]
    assert not strange, f"no broker answers these: write the method and path of a Route: {strange}"
    assert len(found) >= 20, "rows are found at all"


def _plain(row: Call) -> tuple[str, str]:
    """Names of parameters may differ: a command's are its own."""
    return row.method, PARAMETER.sub(r"{}", row.path)
