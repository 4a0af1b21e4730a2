"""The commands `region join` and `region leave` of a running instance on this machine; `region backup` and `region
restore` are `heliograph.cli.regions.region_backup`.

Is: options, and what a person sees. Isn't: the steps (`region_node.instance.plan.region_growth`, and the supervisor,
which is asked).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from heliograph.cli.groups import add
from heliograph.cli.regions import region_backup
from region_node.instance.control import STARTED_S, call

Data = Annotated[Path, typer.Option("--data", help="The data folder of the instance.", show_default=True)]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Say what would be done, or why it would be refused, and do nothing.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
Name = Annotated[str, typer.Argument(help="The region's name.")]
_DEFAULT_DATA = Path(".heliograph")


def register(app: typer.Typer) -> None:
    region = typer.Typer(
        help="Let a region join a running instance, or leave it; back a whole region up, and restore it.",
        no_args_is_help=True,
    )
    region.command()(join)
    region.command()(leave)
    add(region, backup=region_backup.backup, restore=region_backup.restore)
    app.add_typer(region, name="region")


def join(
    name: Name,
    data: Data = _DEFAULT_DATA,
    brokers: Annotated[int, typer.Option(help="Broker processes.", min=1, max=16)] = 1,
    bookies: Annotated[int, typer.Option(help="Bookie processes.", min=2, max=16)] = 3,
    learner: Annotated[
        bool,
        typer.Option(
            "--learner", help="It gets the configuration without a vote: for more regions than three or five."
        ),
    ] = False,
    dry_run: DryRun = False,
    json_output: Json = False,
) -> None:
    """Start a region and make it one of the instance: its configuration node becomes a voter, the others link to it.

    Nothing is replicated to it until a namespace names it. An interrupted join is given again.
    """
    answer = _ask(
        data,
        f"{name} joins",
        json_output,
        "join",
        region=name,
        brokers=brokers,
        bookies=bookies,
        voter=not learner,
        dry_run=dry_run,
    )
    if json_output:
        typer.echo(json.dumps(answer))
    elif dry_run:
        typer.echo(
            f"would start {', '.join(answer['would_start'])}"
            if answer["would_start"]
            else f"{name} is there: what is missing would be done"
        )
    else:
        typer.echo(f"{name} has joined: service {answer['service_url']}  admin {answer['admin_url']}")


def leave(name: Name, data: Data = _DEFAULT_DATA, dry_run: DryRun = False, json_output: Json = False) -> None:
    """Take a region out of the instance and stop its processes; its data stays in its folder.

    Refused while a tenant or namespace is in it, and where the regions that are left would have no quorum.
    """
    answer = _ask(data, f"{name} leaves", json_output, "leave", region=name, dry_run=dry_run)
    if json_output:
        typer.echo(json.dumps(answer))
    elif dry_run:
        typer.echo(
            f"would stop {', '.join(answer['would_stop'])}" if answer["would_stop"] else f"{name} has left already"
        )
    else:
        typer.echo(f"{name} has left; its data lies in {answer['data']}: delete it when nobody needs it")


def _ask(data: Path, text: str, quiet: bool, verb: str, **fields: Any) -> dict[str, Any]:
    with Console(stderr=True, quiet=quiet).status(text):
        return call(data.resolve(), verb, timeout_s=STARTED_S, **fields)
