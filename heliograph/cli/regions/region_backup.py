"""The commands `region backup` and `region restore`: every topic of a region, with its messages, by way of an object
store.

Is: which topics there are, asking brokers to offload and to restore each, and the file that says what belongs together.
Isn't: an offload or a restore of one topic (`storage.tiered`), or a region's metadata and the global configuration as
they are (`region_node.commands.storage.backup_commands`).
Invariants: the file is written last, and only where every topic is in the store whole; a restore touches no topic that
is there, so it can be given again. The file, JSON: format 1, made_ms, region, store, holder, tenants and namespaces (as
the admin interface tells them), partitioned: topic -> partitions,
stored: topics that the store holds, empty: topics without a message -> their subscriptions.
Source: docs/operating.md, "A whole region"; docs/protocols/tiered.md.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from heliograph.cli.rest import Rest, RestRefused
from heliograph.cli.show import Output
from heliograph.model.admin_paths import SUBSCRIPTION, namespace_path, path_of, topic_path
from heliograph.model.errors import ConfigError
from heliograph.model.topic_names import TopicName

FORMAT = 1
_TENANT = "/admin/v2/tenants/{tenant}"
_INTERNAL = "pulsar"
"""The tenant of what brokers keep for themselves: made anew by them."""
_AT_ONCE = 16
_POLL_S = 0.1
_REQUEST_S = 600.0
_SHOWN = 10
_CONFLICT = 409
_NOT_FOUND = 404


def backup(
    rest: Rest,
    output: Output,
    out: Annotated[
        Path,
        typer.Option(
            "--out", help="The file to write; it must not be there yet. Keep it beside the store: a restore wants both."
        ),
    ],
    wait_s: Annotated[float, typer.Option("--wait", help="Seconds that one topic may take.", min=1)] = 3600.0,
) -> None:
    """Back up a whole region while it works: messages, subscriptions, schemas, and policies of every topic go to the
    brokers' object store.

    Of each topic it holds what was acknowledged before the command came to it. What the store has already is not sent
    again. With the global configuration (`heliograph backup --config`) everything that an instance knows is kept.
    """
    if out.exists():
        raise ConfigError(f"{out} is there already: give a new file with --out, so that no older backup is lost")
    rest.timeout_s = _REQUEST_S
    tier = rest.get("/heliograph/v1/tier")
    if not tier["store"]:
        raise ConfigError("these brokers are set to no object store: set broker.tiered.store, and start them again")
    found = _found(rest)
    with _bar("backing up", output.json) as bar:
        failed = _each(found["topics"], lambda topic: _offload(rest, topic, wait_s), bar)
    if failed:
        raise ConfigError(
            f"nothing was written: {_some(failed)}; what is in the store stays there, and the command can be given "
            "again"
        )
    held: dict[str, list[int]] = {}
    for namespace in found["namespaces"]:
        for row in rest.get(f"{namespace_path(namespace)}/scanOffloadedLedgers")["ledgers"]:
            if row["holder"] == tier["holder"]:
                held.setdefault(row["topic"], []).append(row["size"])
    topics = found.pop("topics")
    made = {
        "format": FORMAT,
        "made_ms": time.time_ns() // 1_000_000,
        "region": tier["region"],
        **{key: tier[key] for key in ("store", "holder")},
        **found,
        "stored": [topic for topic in topics if topic in held],
        "empty": {topic: rest.get(f"{topic_path(topic)}/subscriptions") for topic in topics if topic not in held},
    }
    _write(out, made)
    told = {
        "file": str(out),
        "topics": len(topics),
        "stored": len(made["stored"]),
        "bytes": sum(map(sum, held.values())),
        "store": tier["store"],
    }
    output.told(
        told,
        f"{out}: {len(topics)} topics of {tier['region']}, {told['stored']} of them with messages, "
        f"{told['bytes']} bytes in {tier['store']}",
    )


def restore(
    rest: Rest,
    output: Output,
    file: Annotated[Path, typer.Argument(help="What `region backup` wrote.", exists=True, dir_okay=False)],
    store: Annotated[
        str, typer.Option("--store", help="Where the store is now, if it is somewhere else than it was.")
    ] = "",
) -> None:
    """Bring every topic of a backup back into a running region: entries under their positions, subscriptions, schemas,
    policies.

    A topic that is there is left alone. An interrupted restore is given again, and goes on.
    """
    made, bases = _read(file)
    rest.timeout_s = _REQUEST_S
    region, there, rows = rest.get("/heliograph/v1/tier")["region"], list[str](), list[dict[str, Any]]()
    stored = {"store": store or made["store"], "holder": made["holder"]}

    def one(topic: str) -> None:
        try:
            rows.extend(rest.post("/heliograph/v1/tier/restore", {"topic": topic, **stored}))
        except RestRefused as error:
            if error.code != _CONFLICT:
                raise
            there.append(topic)

    with _bar("restoring", output.json) as bar:
        failed = _each(bases, one, bar)
    if failed:
        raise ConfigError(
            f"{len(bases) - len(failed)} of {len(bases)} topics are restored; not: {_some(failed)}. The command can "
            "be given again, and goes on"
        )
    _provision(rest, output, made, region)
    notes = sorted({note for row in rows for note in row["notes"]})
    told = {
        "topics": len(bases),
        "already_there": len(there),
        "empty": len(made["empty"]),
        "entries": sum(row["entries"] for row in rows),
        "notes": notes,
    }
    text = (
        f"{region}: {len(bases) - len(there)} topics restored with {told['entries']} entries, {len(there)} were "
        f"there, {told['empty']} are empty"
    )
    output.told(told, "\n".join([text, *(f"note: {note}" for note in notes)]))


def _read(file: Path) -> tuple[dict[str, Any], list[str]]:
    """A backup, and the topics that it stored, partitioned ones once. Raises ConfigError where it is none."""
    try:
        made = json.loads(file.read_text())
        if made["format"] != FORMAT:
            raise ConfigError(
                f"{file} has format {made['format']}, this program reads {FORMAT}: use the version that wrote it, or "
                "a newer one"
            )
        return made, list(dict.fromkeys(str(TopicName.parse(topic).partitioned) for topic in made["stored"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{file} cannot be restored: it is not what `heliograph region backup` writes ({error})"
        ) from error


def _provision(rest: Rest, output: Output, made: dict[str, Any], region: str) -> None:
    """Tenants, namespaces, partitioned topics, and topics without a message, where they are not there."""
    for tenant, info in made["tenants"].items():
        _put_unless_there(rest, path_of(_TENANT, tenant=tenant), {**info, "allowedClusters": [region]})
    for namespace, policies in made["namespaces"].items():
        _put_unless_there(rest, namespace_path(namespace), {**policies, "replication_clusters": [region]})
    for topic, partitions in made["partitioned"].items():
        _put_unless_there(rest, f"{topic_path(topic)}/partitions", partitions)
    with _bar("empty topics", output.json) as bar:
        if failed := _each(made["empty"], lambda topic: _make(rest, topic, made["empty"][topic]), bar):
            raise ConfigError(
                f"topics without messages that were not made: {_some(failed)}. The command can be given again, and "
                "goes on"
            )


def _found(rest: Rest) -> dict[str, Any]:
    """Tenants, namespaces, partitioned topics, and every persistent topic, partitions one by one."""
    wanted = [name for name in rest.get("/admin/v2/tenants") if name != _INTERNAL]
    tenants = {name: rest.get(path_of(_TENANT, tenant=name)) for name in wanted}
    listed_of = "/admin/v2/namespaces/{tenant}"
    names = [namespace for tenant in tenants for namespace in rest.get(path_of(listed_of, tenant=tenant))]
    namespaces, partitioned, topics = {}, {}, list[str]()
    for namespace in names:
        namespaces[namespace] = rest.get(namespace_path(namespace))
        listed = f"/admin/v2/persistent/{namespace}"
        topics += rest.get(listed)
        for topic in rest.get(f"{listed}/partitioned"):
            partitioned[topic] = rest.get(f"{topic_path(topic)}/partitions")["partitions"]
    return {"tenants": tenants, "namespaces": namespaces, "partitioned": partitioned, "topics": sorted(topics)}


def _offload(rest: Rest, topic: str, wait_s: float) -> None:
    path, pause, deadline = f"{topic_path(topic)}/offload", threading.Event(), time.monotonic() + wait_s
    try:
        rest.put(path, rollOver=True)
        while (found := rest.get(path))["status"] == "RUNNING":
            if time.monotonic() > deadline:
                raise ConfigError(f"it is not in the store after {wait_s:g} s: `heliograph tier status {topic}`")
            pause.wait(_POLL_S)
    except RestRefused as error:
        if error.code == _NOT_FOUND:  # deleted since it was listed
            return
        raise
    if found["status"] == "ERROR":
        raise ConfigError(found["lastError"])


def _make(rest: Rest, topic: str, subscriptions: Iterable[str]) -> None:
    if TopicName.parse(topic).partition < 0:
        _put_unless_there(rest, topic_path(topic))
    for name in subscriptions:
        _put_unless_there(rest, path_of(SUBSCRIPTION, topic=topic, subscription=name))


def _put_unless_there(rest: Rest, path: str, body: Any = None) -> None:
    try:
        rest.put(path, body)
    except RestRefused as error:
        if error.code != _CONFLICT:
            raise


def _each(topics: Iterable[str], work: Callable[[str], None], bar: Progress) -> dict[str, str]:
    """Topic -> why it failed. So many at once; one that fails does not end the others, only what has not begun."""
    names = list(topics)
    task, failed = bar.add_task("", total=len(names)), dict[str, str]()

    def one(topic: str) -> None:
        if len(failed) < _SHOWN:
            try:
                work(topic)
            except ConfigError as error:
                failed[topic] = str(error)
        bar.advance(task)

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        list(pool.map(one, names))
    return failed


def _write(out: Path, made: dict[str, Any]) -> None:
    fresh = out.with_name(f"{out.name}.new")
    with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
        json.dump(made, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    fresh.rename(out)


def _bar(text: str, quiet: bool) -> Progress:
    return Progress(
        TextColumn(text), BarColumn(), MofNCompleteColumn(), console=Console(stderr=True, quiet=quiet), transient=True
    )


def _some(failed: dict[str, str]) -> str:
    return "; ".join(f"{topic}: {why}" for topic, why in list(failed.items())[:3]) + (
        f"; and {len(failed) - 3} more" if len(failed) > 3 else ""
    )
