"""The commands for tiered storage: `tier list`, `tier restore`, `tier offload`, `tier status`, `tier collect`.

Is: options, one request, and what a person sees. Isn't: an offload or a restore: those are a broker's. `tier list`
alone asks the store itself, so that it works where no region is left.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from heliograph.cli.groups import add, group
from heliograph.cli.rest import Rest
from heliograph.cli.show import Output, iso_time
from heliograph.model.admin_paths import topic_path
from heliograph.model.errors import ConfigError
from heliograph.model.topic_names import TopicName

Topic = Annotated[str, typer.Argument(help="persistent://tenant/namespace/topic, or one partition of it.")]
_TIMEOUT_S = 600.0
_SAYS = {"NOT_RUN": "not run since this broker loaded the topic", "RUNNING": "running", "SUCCESS": "done"}


def register(app: typer.Typer) -> None:
    tier = group(app, "tier", "Topics in an object store: offload, look, restore.")
    add(tier, list=list_store, restore=restore, offload=offload, status=status, collect=collect)


def list_store(
    output: Output,
    store: Annotated[
        str, typer.Option("--store", help="s3://bucket/prefix, gs://, az://, cos://, oss://, or file:///folder.")
    ],
    option: Annotated[
        list[str] | None,
        typer.Option("--option", help="NAME=VALUE of the store, such as endpoint=https://...; may be repeated."),
    ] = None,
    timeout: Annotated[float, typer.Option(help="Seconds that one request may take.", min=1)] = 30.0,
) -> None:
    """What topics an object store holds, of which region, and how old their manifests are. Credentials come from the
    environment or --option.
    """
    if store.startswith("file://") and not Path(store.removeprefix("file://")).is_dir():
        raise ConfigError(f"--store {store}: there is no such folder")
    rows = asyncio.run(_listed(store, _options(option or []), timeout))
    if output.json:
        output.show(rows)
        return
    table = Table("topic", "holder", "ledgers", "bytes", "entries to restore", "manifest of")
    for row in rows:
        made = iso_time(row["manifest_ms"]) if row["manifest_ms"] else row["trouble"]
        table.add_row(row["topic"], row["holder"], str(row["ledgers"]), str(row["bytes"]), str(row["entries"]), made)
    Console().print(table)


def _options(given: list[str]) -> dict[str, str]:
    pairs = [one.partition("=") for one in given]
    for name, separator, _ in pairs:
        if not name or not separator:
            raise ConfigError(f"--option {name}: expected NAME=VALUE")
    return {name: value for name, _, value in pairs}


async def _listed(url: str, options: dict[str, str], timeout_s: float) -> list[dict[str, Any]]:
    from heliograph.model.errors import CorruptData
    from heliograph.runtime.system_disk import SystemDisk
    from storage.tiered.objects.builtin_stores import maker
    from storage.tiered.objects.object_names import LEDGER, key
    from storage.tiered.offload.offload_plan import stored_prefix
    from storage.tiered.reading.topic_restore import newest_manifest, objects

    store = maker(lambda path: SystemDisk(Path(path)))(url, options, timeout_s)
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    manifests: dict[tuple[str, str], list[Any]] = {}
    async for name, size in objects(store):
        row = rows.setdefault(
            (name.topic, name.holder), {"topic": name.topic, "holder": name.holder, "ledgers": 0, "bytes": 0}
        )
        row["bytes"] += size
        if name.kind == LEDGER:
            row["ledgers"] += 1
        else:
            manifests.setdefault((name.topic, name.holder), []).append((name, key(name), size))
    for place, row in rows.items():
        row |= {"entries": 0, "manifest_ms": 0, "trouble": "no manifest"}
        if place in manifests:
            try:
                found, _ = await newest_manifest(store, sorted(manifests[place]))
            except CorruptData as error:
                row["trouble"] = str(error)
                continue
            row |= {
                "entries": sum(i.entries for i in stored_prefix(found.metadata.ledgers)),
                "manifest_ms": found.made_ms,
                "trouble": "",
            }
    return [rows[place] for place in sorted(rows)]


def restore(
    rest: Rest,
    output: Output,
    topic: Annotated[
        str,
        typer.Option(
            "--topic", help="persistent://tenant/namespace/topic; of a partitioned one, every partition is restored."
        ),
    ],
    store: Annotated[
        str, typer.Option("--store", help="Where it lies; without it, the store that the broker is set to.")
    ] = "",
    holder: Annotated[
        str, typer.Option("--holder", help="Whose copy, where several regions have stored the topic: see `tier list`.")
    ] = "",
) -> None:
    """Bring a topic back from an object store alone: entries under their positions, cursors, state, and what is missing
    of its policies.
    """
    TopicName.parse(topic)
    given = {"topic": topic, "store": store, "holder": holder}
    rest.timeout_s = _TIMEOUT_S
    answer = rest.post("/heliograph/v1/tier/restore", {name: value for name, value in given.items() if value})
    if output.json:
        output.show(answer)
        return
    for one in answer:
        cursors = f", {len(one['cursors'])} subscriptions" if one["cursors"] else ""
        typer.echo(
            f"restored {one['topic']}: {one['entries']} entries in {one['ledgers']} ledgers through "
            f"{one['last']}{cursors}"
        )
        typer.echo(f"subscriptions and policies are as of {iso_time(one['manifest_ms'])}, from {one['holder']}")
        for note in one["notes"]:
            typer.echo(f"note: {note}")


def offload(
    rest: Rest,
    topic: Topic,
    before: Annotated[
        str,
        typer.Option(
            "--before",
            metavar="POSITION",
            help="ledger:entry; only ledgers that end before it. Without: every closed one.",
        ),
    ] = "",
    now: Annotated[
        bool, typer.Option("--now", help="Close the open ledger first: then the store holds all that is there now.")
    ] = False,
) -> None:
    """Copy closed ledgers of a topic to the object store, in the background; `heliograph tier status` says how far it
    is.
    """
    body = None
    if before:
        ledger, _, entry = before.partition(":")
        if not ledger.isdecimal() or not entry.isdecimal():
            raise ConfigError(f"--before {before}: expected ledger:entry, such as 12:0")
        body = {"ledgerId": int(ledger), "entryId": int(entry), "partitionIndex": -1}
    rest.timeout_s = _TIMEOUT_S
    rest.put(f"{topic_path(topic)}/offload", body, rollOver=now)
    typer.echo("begun")


def status(rest: Rest, output: Output, topic: Topic) -> None:
    """Whether the last offload of a topic is done, and the first message that only bookies have; exit code 1 where it
    failed.
    """
    rest.timeout_s = _TIMEOUT_S
    answer = rest.get(f"{topic_path(topic)}/offload")
    if output.json:
        output.show(answer)
    else:
        typer.echo(_SAYS.get(answer["status"], "failed"))
        if answer["lastError"]:
            typer.echo(answer["lastError"])
        if first := answer["firstUnoffloadedMessage"]:
            typer.echo(f"first message that only bookies have: {first['ledgerId']}:{first['entryId']}")
        else:
            typer.echo("the object store has every message")
    raise typer.Exit(1 if answer["status"] == "ERROR" else 0)


def collect(rest: Rest, yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False) -> None:
    """Delete objects that no topic names, as brokers do by themselves; where they refuse that, because the region's
    metadata went back to an earlier state, say why, and ask.
    """
    rest.timeout_s = _TIMEOUT_S
    found = rest.post("/heliograph/v1/tier/collect")
    if not found["refusal"]:
        typer.echo(f"deleted {found['deleted']} objects; there is nothing to confirm")
        return
    typer.echo(found["refusal"])
    if not yes and not typer.confirm("Objects that the metadata does not name will be deleted. Go on?"):
        raise typer.Exit(1)
    rest.post("/heliograph/v1/tier/confirm")
    typer.echo("confirmed: what no topic names is deleted by the brokers' next sweeps (broker.tiered.collect_s)")
