"""The commands `hosts` (where an instance on several hosts is described) and `host` (on each of them).

Is: options, and what a person sees. Isn't: the steps (`region_node.hosts`), or a restore of a host's metadata
(`backup_commands`). Terraform's modules give these commands; so can a person, or a script.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Annotated

import typer

from heliograph.cli.groups import add, group
from heliograph.model.errors import ConfigError

Description = Annotated[Path, typer.Argument(help="The description, JSON.", metavar="FILE")]
CaFolder = Annotated[
    Path,
    typer.Option(
        "--ca", help="Folder of the instance's certificate authority; made if missing. Keep it: its key signs."
    ),
]
Prefix = Annotated[
    Path, typer.Option("--prefix", help="Where program and settings lie on this host.", show_default=True)
]
Wait = Annotated[float, typer.Option("--wait", help="Seconds.", min=1, max=86400)]
_PREFIX = Path("/opt/heliograph")


def register(app: typer.Typer) -> None:
    hosts = group(app, "hosts", "Describe an instance on several hosts, and make what each host is given.")
    add(hosts, check=check, render=render, certificates=certificates, targets=targets)
    host = group(app, "host", "On a host of an instance: put to use what was copied to it, wait, leave.")
    add(host, activate=activate, well=well, stop=stop, start=start, provision=provision, leave=leave)


def check(file: Description) -> None:
    """Say what is wrong with a description, or which processes it means."""
    from region_node.hosts.inventory import nodes, parse

    inventory = parse(_read(file))
    for region, host in inventory.hosts():
        typer.echo(f"{region} {host}: {', '.join(node.name for node in nodes(inventory, region, host))}")


def render(
    file: Description,
    ca: CaFolder,
    out: Annotated[Path, typer.Option("--out", help="A folder for each host is made in it.")],
) -> None:
    """Make each host's folder: settings, certificates, units."""
    from region_node.hosts import host_folders as rendering
    from region_node.hosts.inventory import parse

    for folder in rendering.render(parse(_read(file)), ca, out):
        typer.echo(folder)


def certificates(
    region: Annotated[list[str], typer.Option("--region", help="A region; again for each.")],
    ca: CaFolder,
    name: Annotated[
        list[str] | None,
        typer.Option("--name", help="REGION=HOST: a name or address for its certificates; again for each."),
    ] = None,
    kubernetes: Annotated[
        list[str] | None,
        typer.Option(
            "--kubernetes",
            help="REGION=NAMESPACE of its release: the names of the services there too; again for each.",
        ),
    ] = None,
    witness: Annotated[str, typer.Option("--witness", help="The name of a witness, which gets that of a voter.")] = "",
) -> None:
    """Make missing certificates alone: ROLE.REGION.pem and .key beside ca.pem, for a Kubernetes secret say."""
    from region_node.security.certificate_authority import ensure_certificates

    witnesses = [witness] if witness else []
    names: dict[str, list[str]] = {one: [] for one in (*region, *witnesses)}
    for at, host in _of_regions("--name", "HOST", name, names):
        names[at].append(host)
    for at, namespace in _of_regions("--kubernetes", "NAMESPACE", kubernetes, names):
        names[at] += f"*.{namespace}.svc.cluster.local", f"*.{namespace}.svc"
    ensure_certificates(ca, region, names, witnesses=witnesses)
    typer.echo(ca)


def _of_regions(option: str, what: str, given: list[str] | None, regions: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yields (region, value) of each REGION=VALUE. Raises ConfigError."""
    for one in given or []:
        at, _, value = one.partition("=")
        if at not in regions or not value:
            raise ConfigError(f"{option} wants REGION={what} with one of the regions {', '.join(regions)}, not {one!r}")
        yield at, value


def targets(
    file: Description, out: Annotated[Path, typer.Option("--out", help="JSON for Prometheus' file_sd_configs.")]
) -> None:
    """Write where Prometheus finds every broker's and bookie's metrics."""
    from region_node.hosts.inventory import parse
    from region_node.hosts.prometheus_targets import targets_of

    scratch = out.with_name(out.name + ".new")
    scratch.write_text(json.dumps(targets_of(parse(_read(file))), indent=1) + "\n")
    scratch.replace(out)
    typer.echo(out)


def activate(
    release: Annotated[str, typer.Option("--release", help="Name of the environment in releases/.")],
    prefix: Prefix = _PREFIX,
    wait: Wait = 600.0,
) -> None:
    """Put the copied folder and a release to use: start, or, in this host's turn, while all of the region is well,
    change.
    """
    from region_node.hosts import host_steps

    typer.echo(host_steps.activate(prefix.absolute(), release, wait, typer.echo))


def well(prefix: Prefix = _PREFIX, wait: Wait = 300.0) -> None:
    """Wait until all of the region is there, or say what is not."""
    from region_node.hosts import host_steps

    host_steps.well(prefix.absolute(), wait)
    typer.echo("well")


Nodes = Annotated[
    list[str] | None, typer.Argument(help="Processes, by name; none given: all of this host.", metavar="[NAME]...")
]


def stop(node: Nodes = None, prefix: Prefix = _PREFIX) -> None:
    """Stop processes of this host, brokers first. They stay down until `start`, or the host's next boot."""
    from region_node.hosts import host_steps

    host_steps.stop(prefix.absolute(), node or [], typer.echo)


def start(node: Nodes = None, prefix: Prefix = _PREFIX) -> None:
    """Start processes of this host; what runs is left alone."""
    from region_node.hosts import host_steps

    host_steps.start(prefix.absolute(), node or [], typer.echo)


def provision(prefix: Prefix = _PREFIX, wait: Wait = 300.0) -> None:
    """Write the regions, and public/default, into the global configuration; repeating it changes only what differs."""
    from region_node.hosts import host_steps

    host_steps.provision(prefix.absolute(), wait, typer.echo)


def leave(
    prefix: Prefix = _PREFIX,
    wait: Wait = 3600.0,
    whole: Annotated[
        bool,
        typer.Option(
            "--whole-region",
            help="The region ends: nothing is moved to other hosts first. Of a witness: it votes no more.",
        ),
    ] = False,
) -> None:
    """Take this host out of its region, bookies emptied first, and DELETE its data."""
    from region_node.hosts import host_steps

    host_steps.leave(prefix.absolute(), wait, typer.echo, whole=whole)


def _read(file: Path) -> object:
    try:
        return json.loads(file.read_text())
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"{file} is no JSON: {error}") from error
