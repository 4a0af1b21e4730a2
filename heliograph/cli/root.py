"""The root of the command line: what every command stands below, and how errors are shown.

Is: the program without its commands. Isn't: a command but `version` (`heliograph.cli.main` brings them all, and
`heliograph.cli.entry` says when one area is enough).
An error that a person can mend is one sentence on stderr and exit code 2; Ctrl-C is exit code 130.
"""

from __future__ import annotations

import sys

import typer

import heliograph
from heliograph.model.errors import HeliographError

app = typer.Typer(
    name="heliograph",
    help="Geo-replicated messaging, wire-compatible with Apache Pulsar.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def root() -> None:
    """Geo-replicated messaging, wire-compatible with Apache Pulsar. Start with `heliograph standalone`."""


@app.command()
def version() -> None:
    """Print the version of this program."""
    typer.echo(heliograph.__version__)


def run() -> None:
    """Does what the command line says, with the commands that are registered by now."""
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(130)
    except HeliographError as error:
        typer.echo(f"heliograph: {error}", err=True)
        sys.exit(2)
