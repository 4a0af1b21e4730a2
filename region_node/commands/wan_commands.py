"""The commands `wan install`, `cut`, `heal`: Toxiproxy, and what it does to links of a running instance.

Is: options, and what a person sees. Isn't: the links (`region_node.instance.nodes.wide_area`, by the supervisor), or
Toxiproxy's build (`region_node.instance.toxiproxy_program`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from heliograph.cli import groups
from heliograph.cli.show import Output
from heliograph.model.errors import ConfigError
from region_node.commands.instance_options import DEFAULT_DATA, Data
from region_node.instance import toxiproxy_program
from region_node.instance.control import call

OneWay = Annotated[bool, typer.Option("--one-way", help="Only connections that SOURCE opens to TARGET.")]


def register(app: typer.Typer) -> None:
    wan = groups.group(app, "wan", "Cut and heal the wide-area links of a running instance.")
    groups.add(wan, install=install, cut=cut, heal=heal)


def cut(source: str, target: str, data: Data = DEFAULT_DATA, one_way: OneWay = False) -> None:
    """Cut all links between two regions, until `heliograph wan heal`."""
    names = call(data.resolve(), "cut", source=source, target=target, both=not one_way)["proxies"]
    typer.echo(f"cut: {', '.join(names)}")


def heal(source: str, target: str, data: Data = DEFAULT_DATA, one_way: OneWay = False) -> None:
    """Heal what `wan cut` cut."""
    names = call(data.resolve(), "heal", source=source, target=target, both=not one_way)["proxies"]
    typer.echo(f"healed: {', '.join(names)}")


def install(
    output: Output,
    to: Annotated[
        Path | None,
        typer.Option(
            help="The program's file; else a folder of this user, where every instance finds it.", show_default=False
        ),
    ] = None,
) -> None:
    """Find Toxiproxy's server, by which ways are made worse, or build it by this machine's Go.

    Its modules are fetched from GOPROXY, and held against the sums that come with Heliograph. An instance looks for the
    program at HELIOGRAPH_TOXIPROXY, where this command puts it, and in PATH.
    """
    there = toxiproxy_program.found() if to is None else None
    if there is not None and not there.exists():
        raise ConfigError(f"{toxiproxy_program.VARIABLE} names {there}, and no file is there: mend it, or unset it")
    if there is not None:
        output.told({"ok": True, "program": str(there), "built": False}, f"Toxiproxy is there: {there}")
        return
    target = toxiproxy_program.place() if to is None else to.resolve()
    with Console(stderr=True, quiet=output.json).status("building Toxiproxy's server"):
        toxiproxy_program.install(target)
    output.told({"ok": True, "program": str(target), "built": True}, f"Toxiproxy was built: {target}")
