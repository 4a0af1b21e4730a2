"""Groups of commands that several packages add to: `topics` has commands of this package and of the servers'.

Is: finding a group by its name, or making it; and the options that all commands have which ask a broker: `--admin` and
`--token` of one whose parameter is a Rest, `--json` of one whose parameter is an Output; and those that several
commands share as one value, a dataclass whose annotated fields are options. Isn't: any command.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import is_dataclass, replace
from functools import partial
from inspect import Parameter, Signature, signature
from typing import Annotated, Any, get_origin, get_type_hints

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
    """The command as typer takes it: options in the place of its Rest and its Output, and of each value of options that
    it has as a default; a call made where it is one.
    """
    hints, row = get_type_hints(command, include_extras=True), call_of(command)
    made = row.ports if row is not None else {name: kind for name, kind in hints.items() if kind in _OPTIONS}
    act = partial(row.make, command) if row is not None else command
    own, values = list[Parameter](), dict[str, Any]()
    for name, one in signature(command).parameters.items():
        if is_dataclass(one.default):
            values[name] = one.default
            own += [_option(field, getattr(one.default, field), kind) for field, kind in _said(one.default).items()]
        elif name not in (*made, ANSWER):
            own.append(_option(name, one.default, hints[name]))
    added = [_option(name, default, kind) for port in made.values() for name, kind, default in _OPTIONS[port]]

    def run(**given: Any) -> Any:
        for name, value in values.items():
            given[name] = replace(value, **{field: given.pop(field) for field in _said(value)})
        for name, kind in made.items():
            given[name] = kind(*(given.pop(option) for option, _, _ in _OPTIONS[kind]))
        return act(**given)

    run.__name__, run.__doc__ = command.__name__, command.__doc__
    run.__annotations__ = {one.name: one.annotation for one in (*own, *added)}
    run.__signature__ = Signature([*own, *added])  # type: ignore[attr-defined]
    return run if row is None else row(run)


def _option(name: str, default: Any, annotation: Any) -> Parameter:
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _said(value: Any) -> dict[str, Any]:
    """Those fields of a value of options that the command line says: its annotated ones, each with its annotation."""
    hints = get_type_hints(type(value), include_extras=True)
    return {name: kind for name, kind in hints.items() if get_origin(kind) is Annotated}
