"""`conflicts`: edits of policies that a region made while it was cut off, and what could not be merged afterwards."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import quote

import typer

from heliograph.cli.calls import Call
from heliograph.cli.groups import add, group
from heliograph.cli.rest import Rest
from heliograph.cli.show import cells, done, table, when
from heliograph.model.errors import ConfigError

_PATH = "/heliograph/v1/conflicts"
_VALUES = ("before", "mine", "theirs")


def register(app: typer.Typer) -> None:
    conflicts = group(
        app, "conflicts", "Policies that were changed in two regions while they were cut off from each other."
    )
    add(conflicts, list=listed, resolve=resolve)


@Call("GET", _PATH)
def listed(answer: dict[str, Any]) -> None:
    """List edits that this region has not merged yet, and the conflicts of all regions."""
    lines = [
        ("waits", f"{answer['region']}/{edit['id']}", edit["key"], path[0], _shown(before), _shown(after), "", edit)
        for edit in answer["pending"]
        for path, before, after in edit["changes"]
    ]
    lines += [
        ("conflict", *cells(row, "name", "key"), "/".join(row["path"]), *map(_shown, cells(row, *_VALUES)), row)
        for row in answer["conflicts"]
    ]
    table(
        ("state", "name", "of", "policy", "was", "wanted", "is", "made", "by"),
        [(*line, when(edit["made_ms"]), edit["by"]) for *line, edit in lines],
    )


def resolve(
    rest: Rest,
    name: Annotated[str, typer.Argument(help="As the list shows it: region/number.")],
    take: Annotated[
        str, typer.Option("--take", help="mine: what that region wanted; theirs: what the configuration has.")
    ],
) -> None:
    """End a conflict: set what the region wanted after all, or leave it as it is."""
    region, separator, conflict = name.partition("/")
    if not separator:
        raise ConfigError(
            f"{name!r} is no conflict: `heliograph conflicts list` shows their names, as eu/00000000000000000001.0"
        )
    found = rest.post(f"{_PATH}/{quote(region, safe='')}/{quote(conflict, safe='')}", {"take": take})
    done(f"{'/'.join(found['path'])} of {found['key']} is {_shown(found['mine' if take == 'mine' else 'theirs'])}")


def _shown(value: list[Any]) -> str:
    return str(value[0]) if value else "not set"
