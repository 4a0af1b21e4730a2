"""`transactions`: coordinators, what has been open for long, one transaction with all that takes part in it; and aborting it."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from heliograph.cli.groups import add, group
from heliograph.cli.rest import ADMIN, AdminOption, JsonOption, Rest, TokenOption
from heliograph.cli.show import table
from heliograph.model.errors import ConfigError

_PATH = "/admin/v3/transactions"
IdArgument = Annotated[str, typer.Argument(help="COORDINATOR:NUMBER, as `slow` shows it.")]


def register(app: typer.Typer) -> None:
    made = group(app, "transactions", "Transactions: coordinators, what is open for long, and aborting it.")
    add(made, coordinators=coordinators, slow=slow, show=show, abort=abort)


def _path(txn: str) -> str:
    """Raises ConfigError."""
    coordinator, _, number = txn.strip("()").replace(",", ":").partition(":")
    if not coordinator.isdigit() or not number.isdigit():
        raise ConfigError(f"{txn!r} is no transaction: expected COORDINATOR:NUMBER, such as 3:1017")
    return f"{coordinator}/{number}"


def coordinators(admin: AdminOption = ADMIN, token: TokenOption = "", json_output: JsonOption = False) -> None:
    """Each coordinator of the region: where it is, how many transactions are open."""
    rest = Rest(admin, token)
    where, stats = rest.get(f"{_PATH}/coordinators"), rest.get(f"{_PATH}/coordinatorStats")
    rows = [{**row, **stats[str(row["id"])]} for row in where]
    if json_output:
        typer.echo(json.dumps(rows))
        return
    table(("coordinator", "broker", "open", "low watermark", "epoch"), [_row(row) for row in rows])


def _row(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["id"], row["brokerServiceUrl"], row["ongoingTxnSize"], row["lowWaterMark"], row["epoch"]


def slow(
    older_s: Annotated[float, typer.Option("--older", help="Open for so many seconds, or longer.", min=0)] = 60,
    admin: AdminOption = ADMIN,
    token: TokenOption = "",
    json_output: JsonOption = False,
) -> None:
    """What has been open for long: readers, and links to other regions, wait for it."""
    found = Rest(admin, token).get(f"{_PATH}/slowTransactions/{int(older_s * 1000)}")
    if json_output:
        typer.echo(json.dumps(found))
        return
    rows = [
        (name.strip("()").replace(",", ":"), one["status"], one["owner"], len(one["producedPartitions"]), len(one["ackedPartitions"]))
        for name, one in found.items()
    ]
    table(("transaction", "state", "owner", "topics", "topics with acks"), rows)


def show(txn: IdArgument, admin: AdminOption = ADMIN, token: TokenOption = "") -> None:
    """One transaction, as JSON: its state, its time, and what each topic and subscription says of it."""
    typer.echo(json.dumps(Rest(admin, token).get(f"{_PATH}/transactionMetadata/{_path(txn)}"), indent=2))


def abort(txn: IdArgument, admin: AdminOption = ADMIN, token: TokenOption = "") -> None:
    """End a transaction: nothing of it is ever seen. Returns once that is durable everywhere."""
    Rest(admin, token).post(f"{_PATH}/abortTransaction/{_path(txn)}")
    typer.echo(f"{txn} is aborted")
