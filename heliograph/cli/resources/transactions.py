"""`transactions`: coordinators, what has been open for long, one transaction with all that takes part in it; aborting
it; and those of a region that is lost.
"""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from heliograph.cli.groups import add, group
from heliograph.cli.rest import Rest
from heliograph.cli.show import Output, cells
from heliograph.model.admin_paths import OWN_TOPIC, namespace_path, path_of
from heliograph.model.errors import ConfigError
from heliograph.model.topic_names import TopicName

_PATH = "/admin/v3/transactions"
IdArgument = Annotated[str, typer.Argument(help="COORDINATOR:NUMBER, as `slow` shows it.")]


def register(app: typer.Typer) -> None:
    made = group(app, "transactions", "Transactions: coordinators, what is open for long, and aborting it.")
    add(made, coordinators=coordinators, slow=slow, show=show, abort=abort, foreign=foreign, settle=settle)


def _path(txn: str) -> str:
    coordinator, _, number = txn.strip("()").replace(",", ":").partition(":")
    if not coordinator.isdigit() or not number.isdigit():
        raise ConfigError(f"{txn!r} is no transaction: expected COORDINATOR:NUMBER, such as 3:1017")
    return f"{coordinator}/{number}"


def coordinators(rest: Rest, output: Output) -> None:
    """Each coordinator of the region: where it is, how many transactions are open."""
    where, stats = rest.get(f"{_PATH}/coordinators"), rest.get(f"{_PATH}/coordinatorStats")
    rows = [{**row, **stats[str(row["id"])]} for row in where]
    lines = [cells(row, "id", "brokerServiceUrl", "ongoingTxnSize", "lowWaterMark", "epoch") for row in rows]
    output.rows(("coordinator", "broker", "open", "low watermark", "epoch"), lines, rows)


def slow(
    rest: Rest,
    output: Output,
    older_s: Annotated[float, typer.Option("--older", help="Open for so many seconds, or longer.", min=0)] = 60,
) -> None:
    """What has been open for long: readers, and links to other regions, wait for it."""
    found = rest.get(f"{_PATH}/slowTransactions/{int(older_s * 1000)}")
    lines = [
        (
            name.strip("()").replace(",", ":"),
            *cells(one, "status", "owner"),
            len(one["producedPartitions"]),
            len(one["ackedPartitions"]),
        )
        for name, one in found.items()
    ]
    output.rows(("transaction", "state", "owner", "topics", "topics with acks"), lines, found)


def show(rest: Rest, txn: IdArgument) -> None:
    """One transaction, as JSON: its state, its time, and what each topic and subscription says of it."""
    typer.echo(json.dumps(rest.get(f"{_PATH}/transactionMetadata/{_path(txn)}"), indent=2))


def abort(rest: Rest, txn: IdArgument) -> None:
    """End a transaction: nothing of it is ever seen. Returns once that is durable everywhere."""
    rest.post(f"{_PATH}/abortTransaction/{_path(txn)}")
    typer.echo(f"{txn} is aborted")


# -- of a region that is lost ------------------------------------------------------------------------------------------

NamespaceOption = Annotated[str, typer.Option("--namespace", help="TENANT/NAMESPACE: in all of its topics.")]
TopicOption = Annotated[str, typer.Option("--topic", help="In this topic only.")]


def _foreign(rest: Rest, topic: str, namespace: str) -> list[dict[str, Any]]:
    """Open transactions of other regions, each with its `topic`. Raises ConfigError."""
    if bool(topic) == bool(namespace):
        raise ConfigError("say where: either --topic or --namespace")
    names = [str(TopicName.parse(topic))] if topic else rest.get(f"{namespace_path(namespace)}/topics")
    persistent = [name for name in names if name.startswith("persistent://")]
    return [
        {"topic": name, **row}
        for name in persistent
        for row in rest.get(path_of(f"{OWN_TOPIC}/transactions/foreign", topic=name))
    ]


def foreign(rest: Rest, output: Output, topic: TopicOption = "", namespace: NamespaceOption = "") -> None:
    """Transactions of other regions that are open in topics here: readers stand before them until their end comes."""
    rows = _foreign(rest, topic, namespace)
    names = ("topic", "region", "transaction", "messages", "from")
    lines = [(*cells(row, *names), " ".join(row.get("waits_for", [])) or "its end") for row in rows]
    output.rows((*names, "waits for"), lines, rows)


def settle(
    rest: Rest,
    region: Annotated[str, typer.Option("--from", help="The region that is lost; #NUMBER of one that was removed.")],
    commit: Annotated[bool, typer.Option("--commit/--abort", help="Show what is here of them, or never show it.")],
    txn: Annotated[str, typer.Option("--transaction", help="COORDINATOR:NUMBER; without it, all of that region.")] = "",
    topic: TopicOption = "",
    namespace: NamespaceOption = "",
) -> None:
    """End transactions of a region that is lost, in topics of this region. Refused while that region answers; what it
    may say later changes nothing.
    """
    wanted = _path(txn).replace("/", ":") if txn else ""
    rows = [
        row
        for row in _foreign(rest, topic, namespace)
        if row["region"] == region and wanted in ("", row["transaction"]) and not row.get("waits_for")
    ]
    if not rows:
        raise ConfigError(
            f"no transaction of region {region} is open there: `heliograph transactions foreign` shows those that are"
        )
    for row in rows:
        body = {"region": region, "transaction": row["transaction"], "commit": commit}
        rest.post(path_of(f"{OWN_TOPIC}/transactions/verdict", topic=row["topic"]), body)
        typer.echo(
            f"{row['transaction']} of {region} is {'committed' if commit else 'aborted'} in {row['topic']}: "
            f"{row['messages']} message(s)"
        )
