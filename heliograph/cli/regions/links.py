"""`topics links`, `topics unpark`, `topics give-up`: the links of a topic, what parts a parked one from its target, and
what is decided about them.

Is: what these print. Isn't: the decision (`replicator.links.parked_links`), or other commands of topics
(`heliograph.cli.resources.topics`).
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Annotated, Any

import typer

from heliograph.cli.rest import Rest
from heliograph.cli.show import Output, cells
from heliograph.model.admin_paths import OWN_TOPIC, path_of, topic_path
from heliograph.model.errors import ConfigError
from heliograph.model.topic_names import TopicName


class Take(StrEnum):
    THEIRS = "theirs"
    OURS = "ours"
    RETRY = "retry"


_SILENT_S = 2.0
"""A region that lives is heard each second; above this its silence is shown."""

Topic = Annotated[
    str,
    typer.Argument(help="A full name such as persistent://tenant/namespace/topic, or a short one in public/default."),
]


def links(rest: Rest, output: Output, topic: Topic) -> None:
    """Show the links from this region; of parked ones, what is here (+) and there (-)."""
    found = [rest.get(f"{path}/links") for path in _paths(rest, topic)]
    every = [link for one in found for link in one["links"]]
    table = [
        (
            *cells(link, "topic", "target", "state", "cause", "backlog_messages"),
            "-" if (silent_s := link.get("silent_s") or 0.0) <= _SILENT_S else round(silent_s, 1),
            link["cause_text"],
        )
        for link in every
    ]
    output.rows(("topic", "to", "state", "cause", "messages behind", "silent s", ""), table, found)
    if not output.json:
        for link in every:
            _differences(link)


def unpark(
    rest: Rest,
    output: Output,
    topic: Topic,
    region: Annotated[str, typer.Option("--region", help="The link's target.")],
    take: Annotated[
        Take,
        typer.Option(
            "--take",
            help="theirs: this region takes what the target has; ours: the target takes it from here; retry: neither.",
        ),
    ],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would change.")] = False,
) -> None:
    """Decide what a link is parked for, and let it go on."""
    decision = {"choice": str(take), "dry_run": dry_run}
    done = _decide(rest, topic, region, lambda link: link["state"] == "parked", "resolve", decision, "is parked")
    if output.json:
        output.show(done)
        return
    for one in done:
        numbers = ", ".join(map(str, one["changes"]["numbers"]))
        _differences(one["link"])
        what = f"in {one['changes']['region']}, schema versions {numbers}" if numbers else "nothing"
        typer.echo(f"{one['topic']} to {region}: {'would change' if dry_run else 'changes'}: {what}")


def give_up(
    rest: Rest,
    output: Output,
    topic: Topic,
    region: Annotated[str, typer.Option("--region", help="The link's target.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say which entries no bookie gives now.")] = False,
) -> None:
    """Let a link go on behind entries that are lost here (its cause is storage). Look for another copy first:
    `heliograph audit TOPIC --now`.
    """
    stored = {"dry_run": dry_run}
    done = _decide(rest, topic, region, lambda link: link["cause"] == "storage", "give-up", stored, "waits for storage")
    if output.json:
        output.show(done)
        return
    for one in done:
        (ledger, first), (_, last) = one["first"], one["last"]
        what = "would be named as lost" if dry_run else "are named as lost"
        typer.echo(
            f"{one['topic']} to {region}: entries {first} to {last} of ledger {ledger} {what}; no bookie that answers "
            "now has them"
        )


def _decide(
    rest: Rest,
    topic: str,
    region: str,
    wanted: Callable[[dict[str, Any]], bool],
    verb: str,
    body: dict[str, Any],
    state: str,
) -> list[dict[str, Any]]:
    """What each of the topic's links to the region that are wanted answers. Raises ConfigError where none is. state:
    what such a link is, in words.
    """
    done: list[dict[str, Any]] = []
    for path in _paths(rest, topic):
        if any(link["target"] == region and wanted(link) for link in rest.get(f"{path}/links")["links"]):
            done.append(rest.post(f"{path}/links/{region}/{verb}", body))
    if not done:
        raise ConfigError(f"no link of {topic} to {region} {state}: `heliograph topics links {topic}` shows them")
    return done


def _paths(rest: Rest, topic: str) -> list[str]:
    """Returns the path of the topic, or those of all its partitions."""
    count = rest.get(f"{topic_path(topic)}/partitions")["partitions"]
    name = TopicName.parse(topic)
    names = [name.with_partition(index) for index in range(count)] or [name]
    return [path_of(OWN_TOPIC, topic=str(each)) for each in names]


def _differences(link: dict[str, Any]) -> None:
    for row in (link["parked"] or {}).get("schemas", ()):
        typer.echo(f"{link['topic']}, schema version {row['number']}:\n{row['diff']}\n")
