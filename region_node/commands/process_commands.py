"""The commands `process add`, `remove`, `kill`, `start`: single processes of a running instance on this machine.

Is: options, and what a person sees. Isn't: the steps (`region_node.instance.nodes.resize`, and the supervisor, which is
asked).
"""

from __future__ import annotations

import time
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.status import Status

from heliograph.cli import groups
from heliograph.cli.show import Output
from region_node.commands.instance_options import DEFAULT_DATA, Data, Region, asked, region_of
from region_node.instance.control import STARTED_S, call

DryRun = Annotated[bool, typer.Option("--dry-run", help="Say whether it can go, or why not, and do nothing.")]
Name = Annotated[str, typer.Argument(help="Its name in `heliograph status`.")]
_POLL_S = 0.5


class ProcessRole(StrEnum):
    BROKER = "broker"
    BOOKIE = "bookie"


def register(app: typer.Typer) -> None:
    process = groups.group(
        app,
        "process",
        "Add and remove brokers and bookies of a running instance; kill and start its processes, to rehearse.",
    )
    groups.add(process, add=add, remove=remove, kill=kill, start=start)


def add(output: Output, role: ProcessRole, region: Region = "", data: Data = DEFAULT_DATA) -> None:
    """Start one more broker or bookie in a region, for good: `down` and `up` have it again.

    Nothing is copied. A bookie gets new ledgers at once; a broker gets bundles by the load, or by `heliograph
    namespaces unload --to`. A broker that was alone is started again once, since the port that clients know is shared
    from then on. While one is being added the same command waits for that one.
    """
    data = data.resolve()
    region, _ = region_of(data, region)
    answer = asked(data, f"a {role} is added to {region}", output, "add", region=region, role=str(role))
    name = answer["process"]
    by_load = (
        f"bundles come to it by the load; by hand: `heliograph namespaces unload NAMESPACE --bundle BUNDLE --to {name}`"
    )
    use = "new ledgers are put on it from now on" if role == ProcessRole.BOOKIE else by_load
    here = f"{name} is registered, process {answer['pid']}; {region} has {answer['count']} {role}s now"
    output.told(answer, f"{here}\n{use}")


def remove(output: Output, name: Name, data: Data = DEFAULT_DATA, dry_run: DryRun = False) -> None:
    """Take a broker or a bookie out of its region, for good, without a loss: its folder stays.

    A broker hands its bundles over first. A bookie is emptied first: its copies move to others, and it gets nothing
    new; refused where too few others would take writes. Interrupted, the emptying goes on: the same command waits for
    it again, `heliograph bookies recommission NAME` takes it back.
    """
    data = data.resolve()
    with Console(stderr=True, quiet=output.json).status(f"{name} is being drained") as spinner:
        answer = _removed(data, name, dry_run, spinner)
    if dry_run:
        output.told(answer, f"{name} is removed already" if answer["done"] else f"{name} can be removed")
        return
    left = f"; nothing is read from {answer['data']} any more: delete it when you like" if answer["data"] else ""
    output.told(answer, f"{name} is removed{left}")


def _removed(data: Path, name: str, dry_run: bool, spinner: Status) -> dict[str, Any]:
    """Asks until it is done, and shows how far that is; a line where no terminal is."""
    shown = ""
    while True:
        answer = call(data, "remove", timeout_s=STARTED_S, process=name, dry_run=dry_run)
        if answer["done"] or dry_run:
            return answer
        waiting = (
            f", {answer['open_ledgers_left']} of them wait for their writer" if answer["open_ledgers_left"] else ""
        )
        text = (
            f"{name} is being emptied: {answer['ledgers_left']} ledgers are left, {answer['bytes_left'] / 1e6:.1f} "
            f"MB{waiting}"
        )
        spinner.update(text)
        if text != shown and not spinner.console.is_terminal:
            spinner.console.print(text, soft_wrap=True)
        shown = text
        time.sleep(_POLL_S)


def kill(name: Name, data: Data = DEFAULT_DATA) -> None:
    """Kill a process (SIGKILL) by its name in `heliograph status`, and keep it down."""
    typer.echo(f"killed {name}, process {call(data.resolve(), 'kill', process=name)['pid']}")


def start(name: Name, data: Data = DEFAULT_DATA) -> None:
    """Start a process that was killed."""
    typer.echo(f"{name} is up, process {call(data.resolve(), 'start', timeout_s=STARTED_S, process=name)['pid']}")
