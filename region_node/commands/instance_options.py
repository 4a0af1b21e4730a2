"""What the commands for a running instance on this machine have in common: its folder, which region is meant,
and asking its supervisor.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from heliograph.cli.show import Output
from heliograph.model.errors import ConfigError
from region_node.instance.control import STARTED_S, call

Data = Annotated[Path, typer.Option("--data", help="The data folder of the instance.", show_default=True)]
Region = Annotated[str, typer.Option("--region", help="The region's name; it may be left out where there is one only.")]
DEFAULT_DATA = Path(".heliograph")


def region_of(data: Path, region: str) -> tuple[str, dict[str, Any]]:
    """The region's name and what the instance says of it; none named: the only one. Raises ConfigError."""
    regions = call(data, "status")["regions"]
    if not region and len(regions) == 1:
        region = next(iter(regions))
    if region not in regions:
        wrong = f"there is no region {region!r}" if region else "it is not said which region"
        raise ConfigError(f"{wrong}: give one of {', '.join(regions)} by --region")
    return region, regions[region]


def asked(data: Path, text: str, output: Output, verb: str, **fields: Any) -> dict[str, Any]:
    """What the supervisor answers, once it is done. text: what a person reads meanwhile. Raises ConfigError."""
    with Console(stderr=True, quiet=output.json).status(text):
        return call(data.resolve(), verb, timeout_s=STARTED_S, **fields)
