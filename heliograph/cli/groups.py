"""Groups of commands that several packages add to: `topics` has commands of this package and of the servers'.

Is: finding a group by its name, or making it; and the options that all commands have which ask a broker: `--admin` and
`--token` of one whose parameter is a Rest, `--json` of one whose parameter is an Output. Isn't: any command.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from inspect import Parameter, Signature, signature
from typing import Any, get_type_hints

import typer

from heliograph.cli.calls import ANSWER, call_of
from heliograph.cli.rest import ADMIN, AdminOption, JsonOption, Rest, TokenOption
from heliograph.cli.show import Output


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
        to.command(name.strip("_").replace("_", "-"))(with_options(command))


_OPTIONS: dict[type, tuple[tuple[str, Any, Any], ...]] = {
    Rest: (("admin", AdminOption, ADMIN), ("token", TokenOption, "")),
    Output: (("json_output", JsonOption, False),),
}


def with_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The command as typer takes it: options in the place of its Rest and its Output, and a call made where it is
    one.
    """
    hints, row = get_type_hints(command, include_extras=True), call_of(command)
    made = row.ports if row is not None else {name: kind for name, kind in hints.items() if kind in _OPTIONS}
    act = partial(row.make, command) if row is not None else command
    options = [option for kind in made.values() for option in _OPTIONS[kind]]
    own = [
        one.replace(annotation=hints[name], kind=Parameter.KEYWORD_ONLY)
        for name, one in signature(command).parameters.items()
        if name not in (*made, ANSWER)
    ]
    added = [
        Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=kind) for name, kind, default in options
    ]

    def run(**given: Any) -> Any:
        for name, kind in made.items():
            given[name] = kind(*(given.pop(option) for option, _, _ in _OPTIONS[kind]))
        return act(**given)

    run.__name__, run.__doc__ = command.__name__, command.__doc__
    run.__annotations__ = {one.name: one.annotation for one in (*own, *added)}
    run.__signature__ = Signature([*own, *added])  # type: ignore[attr-defined]
    return run if row is None else row(run)
