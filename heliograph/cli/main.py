"""`heliograph`: one program for users and operators.

Is: all commands, below the root. Isn't: the servers' commands; `heliograph-server` brings those.
"""

from __future__ import annotations

from importlib.metadata import entry_points

from heliograph.cli import sign_in_commands
from heliograph.cli.messaging import perf, produce_consume
from heliograph.cli.regions import copy_audit, disaster_recovery, policy_conflicts, revocations
from heliograph.cli.resources import provisioning, topics, transactions, usage
from heliograph.cli.root import app as app
from heliograph.cli.root import run
from heliograph.cli.servers import brokers_and_bookies

AREAS = (
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
)
for area in AREAS:
    area.register(app)


def main() -> None:
    for point in entry_points(group="heliograph.commands"):
        point.load()(app)
    run()


if __name__ == "__main__":
    main()
