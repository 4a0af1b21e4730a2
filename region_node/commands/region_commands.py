"""The commands for who belongs to a running instance on this machine: `region join`, `leave`, and `witness join`,
`leave`, `restart` (a third vote beside two regions).

Is: options, and what a person sees. Isn't: the steps (`region_node.instance.plan.region_growth`,
`region_node.instance.nodes.witness`, and the supervisor, which is asked); `region backup` and `region restore`
(`heliograph.cli.regions.region_backup`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from heliograph.cli.groups import add, group
from heliograph.cli.regions import region_backup
from heliograph.cli.show import Output
from heliograph.model.errors import ConfigError
from region_node.commands.instance_options import DEFAULT_DATA, Data, asked
from region_node.instance.control import call

DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Say what would be done, or why it would be refused, and do nothing.")
]
Name = Annotated[str, typer.Argument(help="The region's name.")]


def register(app: typer.Typer) -> None:
    region = group(
        app, "region", "Let a region join a running instance, or leave it; back a whole region up, and restore it."
    )
    add(region, join=join, leave=leave, backup=region_backup.backup, restore=region_backup.restore)
    witness = group(
        app,
        "witness",
        "A third voter of the global configuration beside two regions, without brokers or bookies: with it, one region "
        "may be lost, and namespaces fail over.",
    )
    add(witness, join=witness_join, leave=witness_leave, restart=witness_restart)


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
    answer = asked(data, f"{name} joins", output, "join", region=name, dry_run=dry_run, **size)
    _tell(output, answer, dry_run, name, "{name} has joined: service {service_url}  admin {admin_url}")


def leave(output: Output, name: Name, data: Data = DEFAULT_DATA, dry_run: DryRun = False) -> None:
    """Take a region out of the instance and stop its processes; its data stays in its folder.

    Refused while a tenant or namespace is in it, and where the regions that are left would have no quorum.
    """
    answer = asked(data, f"{name} leaves", output, "leave", region=name, dry_run=dry_run)
    _tell(output, answer, dry_run, name, "{name} has left; its data lies in {data}: delete it when nobody needs it")


def witness_join(
    output: Output,
    name: Annotated[str, typer.Argument(help="The witness's name: no region's.")],
    data: Data = DEFAULT_DATA,
    dry_run: DryRun = False,
) -> None:
    """Start a witness and make it a voter. An interrupted join is given again."""
    answer = asked(data, f"{name} joins", output, "witness join", witness=name, dry_run=dry_run)
    _tell(output, answer, dry_run, name, "{name} votes: {process}, process {pid}")


def witness_leave(output: Output, data: Data = DEFAULT_DATA, dry_run: DryRun = False) -> None:
    """Take the witness out of the voters and stop its process; its data stays in its folder.

    Refused where the regions that are left would have no quorum. Its name is not used again.
    """
    answer = asked(data, "the witness leaves", output, "witness leave", dry_run=dry_run)
    _tell(output, answer, dry_run, "it", "{process} has left; its data lies in {data}: delete it when you like")


def witness_restart(
    output: Output,
    data: Data = DEFAULT_DATA,
    python: Annotated[
        Path | None,
        typer.Option("--python", help="The interpreter of an environment with another version.", exists=True),
    ] = None,
) -> None:
    """Start the witness again, also with another version; where that does not start, with the one from before."""
    row = call(data.resolve(), "status").get("witness")
    if row is None:
        raise ConfigError("this instance has no witness: `heliograph witness join NAME` adds one")
    other = "" if python is None else str(python.absolute())
    answer = asked(data, "the witness starts again", output, "restart", process=row["name"], python=other)
    output.told(answer, f"{row['name']} is up, process {answer['pid']}")


def _tell(output: Output, answer: dict[str, Any], dry_run: bool, name: str, done: str) -> None:
    """Says what was done, or would be. done: with {name}, and {names} of what is answered."""
    if not dry_run:
        text = done.format_map({**answer, "name": name})
    elif "would_start" in answer:
        started = ", ".join(answer["would_start"])
        text = f"would start {started}" if started else f"{name} is there: what is missing would be done"
    else:
        stopped = ", ".join(answer["would_stop"])
        text = f"would stop {stopped}" if stopped else f"{name} has left already"
    output.told(answer, text)
