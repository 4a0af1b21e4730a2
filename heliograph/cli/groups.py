"""Groups of commands that several packages add to: `topics` has commands of this package and of the servers'.

Is: finding a group by its name, or making it. Isn't: any command.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import typer


def group(app: typer.Typer, name: str, text: str) -> typer.Typer:
    """text: its help; whoever is first says it."""
    for info in app.registered_groups:
        if info.name == name and info.typer_instance is not None:
            return info.typer_instance
    made = typer.Typer(help=text, no_args_is_help=True)
    app.add_typer(made, name=name)
    return made


def add(to: typer.Typer, **commands: Callable[..., Any]) -> None:
    """commands: by name, an underscore stands for a hyphen."""
    for name, command in commands.items():
        to.command(name.strip("_").replace("_", "-"))(command)
