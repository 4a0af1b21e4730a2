"""`heliograph`: one program for users and operators.

Is: the root of the command line, and how errors are shown. Isn't: the servers' commands; `heliograph-server` brings
those.
An error that a person can mend is one sentence on stderr and exit code 2; Ctrl-C is exit code 130.
"""

from __future__ import annotations

import sys
from importlib.metadata import entry_points

import typer

import heliograph
from heliograph.cli import sign_in_commands
from heliograph.cli.messaging import perf, produce_consume
from heliograph.cli.regions import copy_audit, disaster_recovery, policy_conflicts, revocations
from heliograph.cli.resources import provisioning, topics, transactions, usage
from heliograph.cli.servers import brokers_and_bookies
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


for area in (
    sign_in_commands,
    provisioning,
    topics,
    brokers_and_bookies,
    produce_consume,
    perf,
    copy_audit,
    disaster_recovery,
    policy_conflicts,
    revocations,
    transactions,
    usage,
):
    area.register(app)


def main() -> None:
    for point in entry_points(group="heliograph.commands"):
        point.load()(app)
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(130)
    except HeliographError as error:
        typer.echo(f"heliograph: {error}", err=True)
        sys.exit(2)


if __name__ == "__main__":
    main()
