"""The command `chaos run`: a scenario of faults against a running instance, and a verdict.

Is: options, files, what a person sees, and the exit code. Isn't: the run (`region_node.chaos`).
"""

from __future__ import annotations

import json
import signal
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from heliograph.cli import groups
from heliograph.cli.messaging.produce_consume import official
from heliograph.cli.rest import TokenOption
from heliograph.cli.show import Output
from heliograph.model.errors import ConfigError, reason_of
from region_node.chaos.conductor import ChaosRun
from region_node.chaos.faults import StepFaults
from region_node.chaos.page import page
from region_node.chaos.regions import AdminRegions
from region_node.chaos.report import ChaosReport, lines
from region_node.chaos.scenario import EXAMPLE, Scenario, scenario_of
from region_node.commands.instance_options import DEFAULT_DATA, Data
from region_node.instance.control import call

Admins = Annotated[
    str,
    typer.Option(
        "--admin",
        envvar="HELIOGRAPH_ADMIN",
        help="The admin URL of a broker of each region, comma separated. Left out: all of the instance in --data.",
    ),
]
ScenarioFile = Annotated[
    Path | None, typer.Option("--scenario", help="What is published and what is broken: a TOML file; see --example.")
]
ReportPath = Annotated[
    Path | None, typer.Option("--report", help="PATH.json and PATH.html say what was done and found, with plots.")
]
Example = Annotated[bool, typer.Option("--example", help="Print a scenario with comments, and do nothing.")]
Seed = Annotated[int | None, typer.Option("--seed", help="In place of the scenario's.")]


def register(app: typer.Typer) -> None:
    chaos = groups.group(app, "chaos", "Break a running instance on purpose, under load, and judge what it keeps.")
    groups.add(chaos, run=run)


def run(
    output: Output,
    admin: Admins = "",
    scenario: ScenarioFile = None,
    report: ReportPath = None,
    seed: Seed = None,
    example: Example = False,
    token: TokenOption = "",
    data: Data = DEFAULT_DATA,
) -> None:
    """Publish and read numbered messages in every region, break what the scenario says, and check the whole history.

    Kept is: each acknowledged message is in every region's copy, and came to a subscription there, once and in order
    (of its key, or its producer); what regions say is at risk while they are cut off is so; behind each fault all is
    whole again by itself, within the patience. Faults of processes and of the paths between regions are made by the
    supervisor and the proxies of `heliograph up`, whose folder --data names; a step with fault = "command" runs yours.

    Exit code 0: every promise was kept. 1: one was broken, and is named. 2: it could not be run, and why.

    heliograph chaos run --example > scenario.toml

    heliograph chaos run --scenario scenario.toml --report chaos
    """
    if example:
        typer.echo(EXAMPLE, nl=False)
        return
    if scenario is None:
        raise ConfigError("give a file with --scenario; `heliograph chaos run --example` prints one")
    try:
        wanted = scenario_of(scenario.read_text(), str(scenario))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--scenario {scenario} cannot be read: {reason_of(error)}") from error
    if seed is not None:
        wanted = replace(wanted, seed=seed)
    found = _ran(wanted, _admins(admin, data.resolve()), token, data.resolve())
    if report is not None:
        _write(found, report)
    output.told(found.as_json(), lines(found))
    raise typer.Exit(0 if found.kept else 1)


def _admins(admin: str, data: Path) -> list[str]:
    given = [url.strip() for url in admin.split(",") if url.strip()]
    return given or [str(region["admin_url"]) for region in call(data, "status")["regions"].values()]


def _ran(scenario: Scenario, admins: list[str], token: str, data: Path) -> ChaosReport:
    regions = AdminRegions(admins, token)
    try:
        names = list(scenario.load.regions) or regions.names
        if unknown := sorted(set(names) - set(regions.names)):
            raise ConfigError(
                f"[load] regions names {unknown[0]}, and no URL of --admin is of it: there are "
                f"{', '.join(regions.names)}"
            )
        faults = StepFaults(scenario, regions, names, data)
        faults.check()
        signal.signal(signal.SIGTERM, _as_interrupt)
        try:
            run = ChaosRun(scenario, regions, names, faults, f"{int(time.time()):x}", partial(typer.echo, err=True))
            return run.run()
        except official().PulsarException as error:
            raise ConfigError(
                f"the official client was refused: {str(error).removeprefix('Pulsar error: ')}"
            ) from error
    finally:
        regions.close()


def _write(found: ChaosReport, path: Path) -> None:
    """PATH.json for programs, and PATH.html for people."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Path(f"{path}.json").write_text(json.dumps(found.as_json(), indent=1) + "\n")
    Path(f"{path}.html").write_text(page(found))


def _as_interrupt(*_: object) -> None:
    """Whoever ends it has its faults ended, too."""
    raise KeyboardInterrupt
