"""The commands `region join` and `region leave` of a running instance on this machine; `region backup` and `region
restore` are `heliograph.cli.regions.region_backup`.

Is: options, and what a person sees. Isn't: the steps (`region_node.instance.plan.region_growth`, and the supervisor,
which is asked).
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from heliograph.cli.groups import add, group
from heliograph.cli.regions import region_backup
from heliograph.cli.show import Output
from region_node.commands.instance_options import DEFAULT_DATA, Data
from region_node.instance.control import STARTED_S, call

DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Say what would be done, or why it would be refused, and do nothing.")
]
Name = Annotated[str, typer.Argument(help="The region's name.")]


def register(app: typer.Typer) -> None:
    region = group(
        app, "region", "Let a region join a running instance, or leave it; back a whole region up, and restore it."
    )
    add(region, join=join, leave=leave, backup=region_backup.backup, restore=region_backup.restore)


def join(
    output: Output,
    name: Name,
    data: Data = DEFAULT_DATA,
    brokers: Annotated[int, typer.Option(help="Broker processes.", min=1, max=16)] = 1,
    bookies: Annotated[int, typer.Option(help="Bookie processes.", min=2, max=16)] = 3,
    learner: Annotated[
        bool,
        typer.Option(
            "--learner", help="It gets the configuration without a vote: for more regions than three or five."
        ),
    ] = False,
    dry_run: DryRun = False,
) -> None:
    """Start a region and make it one of the instance: its configuration node becomes a voter, the others link to it.

    Nothing is replicated to it until a namespace names it. An interrupted join is given again.
    """
    size = {"brokers": brokers, "bookies": bookies, "voter": not learner}
    answer = _ask(data, f"{name} joins", output, "join", region=name, dry_run=dry_run, **size)
    if not dry_run:
        output.told(answer, f"{name} has joined: service {answer['service_url']}  admin {answer['admin_url']}")
    elif started := ", ".join(answer["would_start"]):
        output.told(answer, f"would start {started}")
    else:
        output.told(answer, f"{name} is there: what is missing would be done")


def leave(output: Output, name: Name, data: Data = DEFAULT_DATA, dry_run: DryRun = False) -> None:
    """Take a region out of the instance and stop its processes; its data stays in its folder.

    Refused while a tenant or namespace is in it, and where the regions that are left would have no quorum.
    """
    answer = _ask(data, f"{name} leaves", output, "leave", region=name, dry_run=dry_run)
    if not dry_run:
        output.told(answer, f"{name} has left; its data lies in {answer['data']}: delete it when nobody needs it")
    elif stopped := ", ".join(answer["would_stop"]):
        output.told(answer, f"would stop {stopped}")
    else:
        output.told(answer, f"{name} has left already")


def _ask(data: Path, text: str, output: Output, verb: str, **fields: Any) -> dict[str, Any]:
    with Console(stderr=True, quiet=output.json).status(text):
        return call(data.resolve(), verb, timeout_s=STARTED_S, **fields)
