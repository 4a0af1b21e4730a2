"""The commands `witness join`, `leave`, `restart`: a third vote beside two regions of an instance on this machine.

Is: options, and what a person sees. Isn't: the steps (`region_node.instance.nodes.witness`, and the supervisor, which
is asked).
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from heliograph.cli.groups import add, group
from heliograph.cli.show import Output
from heliograph.model.errors import ConfigError
from region_node.commands.instance_options import DEFAULT_DATA, Data
from region_node.instance.control import STARTED_S, call

DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Say what would be done, or why it would be refused, and do nothing.")
]


def register(app: typer.Typer) -> None:
    witness = group(
        app,
        "witness",
        "A third voter of the global configuration beside two regions, without brokers or bookies: with it, one region "
        "may be lost, and namespaces fail over.",
    )
    add(witness, join=join, leave=leave, restart=restart)


def join(
    output: Output,
    name: Annotated[str, typer.Argument(help="The witness's name: no region's.")],
    data: Data = DEFAULT_DATA,
    dry_run: DryRun = False,
) -> None:
    """Start a witness and make it a voter. An interrupted join is given again."""
    answer = _ask(data, f"{name} joins", output, "witness join", witness=name, dry_run=dry_run)
    if not dry_run:
        output.told(answer, f"{name} votes: {answer['process']}, process {answer['pid']}")
    elif started := ", ".join(answer["would_start"]):
        output.told(answer, f"would start {started}")
    else:
        output.told(answer, f"{name} is there: what is missing would be done")


def leave(output: Output, data: Data = DEFAULT_DATA, dry_run: DryRun = False) -> None:
    """Take the witness out of the voters and stop its process; its data stays in its folder.

    Refused where the regions that are left would have no quorum. Its name is not used again.
    """
    answer = _ask(data, "the witness leaves", output, "witness leave", dry_run=dry_run)
    if dry_run:
        output.told(answer, f"would stop {', '.join(answer['would_stop'])}")
    else:
        output.told(answer, f"{answer['process']} has left; its data lies in {answer['data']}: delete it when you like")


def restart(
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
    answer = _ask(data, "the witness starts again", output, "restart", process=row["name"], python=other)
    output.told(answer, f"{row['name']} is up, process {answer['pid']}")


def _ask(data: Path, text: str, output: Output, verb: str, **fields: Any) -> dict[str, Any]:
    with Console(stderr=True, quiet=output.json).status(text):
        return call(data.resolve(), verb, timeout_s=STARTED_S, **fields)
