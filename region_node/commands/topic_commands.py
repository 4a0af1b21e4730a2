"""The commands for one topic's copies: `topics position`, `topics coordinate`, `topics vector`, `topics seek`.

Is: options, one request to a broker's admin interface, and what a person sees. Isn't: an answer of its own.
"""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import quote

import typer
from rich.console import Console
from rich.table import Table

from heliograph.cli.calls import Call
from heliograph.cli.groups import add, group
from heliograph.cli.regions.copy_audit import audit_ended
from heliograph.cli.rest import Rest
from heliograph.cli.show import Output
from heliograph.model.admin_paths import OWN_TOPIC, path_of
from region_node.commands.storage import tier_commands

Topic = Annotated[str, typer.Argument(help="persistent://tenant/namespace/topic, or one partition of it.")]
Coordinate = Annotated[
    str, typer.Argument(help="region.epoch.incarnation:ledger:entry, as `topics coordinate` prints it.")
]
_REPAIR_S = 3600.0
_RANGES_SHOWN = 3
_ASKED = (
    "what is missing no region that can be asked now has: heliograph audit TOPIC says which did not answer; repair "
    "again once they do. What none of them has is lost: heliograph topics seek moves a subscription over it"
)
_ASKING = "the other regions are still being asked: look again with --check, or at heliograph audit TOPIC"
_SAYS = {
    "awaited": "has not arrived in this region yet, or was not published yet",
    "trimmed": "is gone: retention has taken it, here or before it came here, or what was left in its place",
    "deleted": "is gone: an admin deleted it, here or where it was published, before it was everywhere",
    "lost": "will never come: a SKIP says that it is lost",
    "filtered": "is not meant for this region",
    "hidden": "holds no message",
    "unknown": "was never published, as far as this region knows",
}


def register(app: typer.Typer) -> None:
    topics = group(
        app, "topics", "Where messages of a topic lie in each region, by the coordinate of their first publish."
    )
    add(topics, position=position, coordinate=coordinate, vector=vector, seek=seek, repair=repair)
    add(topics, offload=tier_commands.offload, offload_status=tier_commands.status)


def position(rest: Rest, output: Output, topic: Topic, coordinate: Coordinate) -> None:
    """The position here of what was first published under a coordinate; exit code 1 where it is not here."""
    _tell(output, _ask(rest, topic, f"positions/{quote(coordinate)}"), "position")


def coordinate(
    rest: Rest,
    output: Output,
    topic: Topic,
    at: Annotated[str, typer.Argument(metavar="POSITION", help="ledger:entry in this region, as message ids show it.")],
) -> None:
    """The coordinate of the entry at a position of this region; exit code 1 where there is none."""
    _tell(output, _ask(rest, topic, f"coordinates/{quote(at)}"), "coordinate")


@Call("GET", f"{OWN_TOPIC}/vectors")
def vector(topic: Topic, answer: dict[str, Any]) -> None:
    """What each region holds of each origin, as the asked region has last heard."""
    table = Table("region", "holds of", "through", "missing", "heard")
    for region, told in answer["regions"].items():
        for row in told["origins"]:
            name = answer["numbers"].get(str(row["region"]), row["region"])
            age = "now" if not told["age_s"] else f"{told['age_s']:.0f} s ago"
            table.add_row(region, f"{name} ({row['origin']})", ":".join(map(str, row["through"])), _missing(row), age)
    Console().print(table)


def _missing(row: dict[str, Any]) -> str:
    """The newest ranges, each with why nothing of it came."""
    lines = [
        f"{_behind(*one['after'])} to {one['through'][0]}:{one['through'][1]} {one['reason'] or ''}".rstrip()
        for one in row.get("reasons", ())
    ]
    older = [f"and {len(lines) - _RANGES_SHOWN} before them: --json"] if len(lines) > _RANGES_SHOWN else []
    return "\n".join(lines[-_RANGES_SHOWN:] + older) or str(len(row["missing"]) or "")


def _behind(ledger: int, entry: int) -> str:
    return "the beginning" if ledger < 0 else f"behind {ledger}:{entry}"


@Call(
    "POST",
    f"{OWN_TOPIC}/subscriptions/{{subscription}}/seek",
    said="{subscription} goes on behind {answer[mark_delete][0]}:{answer[mark_delete][1]}",
    as_json=True,
)
def seek(
    topic: Topic,
    subscription: Annotated[str, typer.Argument(help="Its consumers are closed and come back.")],
    coordinate: Coordinate,
) -> dict[str, str]:
    """Lets a subscription of the asked region go on with the message of a coordinate."""
    return {"coordinate": coordinate}


def repair(
    rest: Rest,
    output: Output,
    topic: Topic,
    ledger: Annotated[int | None, typer.Option(help="Only this ledger.", min=0)] = None,
    check: Annotated[bool, typer.Option("--check", help="Only look: exit code 1 where something is damaged.")] = False,
    wait_s: Annotated[
        float, typer.Option("--wait", help="How long to wait for the other regions, in seconds.", min=0)
    ] = 600,
) -> None:
    """What of the topic no bookie of the region has any more comes back under the same message ids: from the object
    store, or from other regions. Exit code 1 where something is missing after that.
    """
    patient = rest.at(timeout_s=_REPAIR_S)
    if check:
        answer = _ask(patient, topic, "damage", ledger=ledger)
        lines = _damage(answer) or [f"{answer['ledgers']} ledgers were read, and every entry is there"]
        missing = bool(answer["damaged"])
    else:
        answer = _ask(patient, topic, "repair", {} if ledger is None else {"ledger": ledger})
        lines = [
            f"ledger {number}: {row['fetched_entries']} entries were fetched"
            + "".join(f"; {a} to {b} are still missing" for a, b in row["missing"])
            for number, row in answer["ledgers"].items()
        ] or ["nothing is damaged"]
        missing = any(row["missing"] for row in answer["ledgers"].values())
        if answer["asked_other_regions"]:
            ended = audit_ended(lambda: bool(_ask(rest, topic, "audit")["running"]), wait_s)
            found = _ask(patient, topic, "damage", ledger=ledger)
            missing = bool(found["damaged"])
            answer |= {"missing_entries": _entries(found), "damaged": found["damaged"], "do": ""}
            if missing:
                answer["do"] = _ASKED if ended else _ASKING
            lines += ["the other regions were asked:", *(_damage(found) or ["every entry is there"])]
        if missing:
            lines.append(answer.get("do", _ASKING))
    output.told(answer, "\n".join(lines))
    if missing:
        raise typer.Exit(1)


def _damage(answer: dict[str, Any]) -> list[str]:
    return [
        f"ledger {number}: entries {first} to {last} are on no bookie"
        for number, ranges in answer["damaged"].items()
        for first, last in ranges
    ]


def _entries(answer: dict[str, Any]) -> int:
    return sum(last - first + 1 for ranges in answer["damaged"].values() for first, last in ranges)


def _tell(output: Output, answer: dict[str, Any], wanted: str) -> None:
    here = answer["status"] == "here"
    if output.json:
        output.show(answer)
    elif here:
        found = answer[wanted]
        region = f"  (first published in {answer['region']})" if "region" in answer else ""
        typer.echo((found if isinstance(found, str) else ":".join(map(str, found))) + region)
    else:
        typer.echo(f"{answer['status']}: it {_SAYS.get(answer['status'], 'is not here')}")
    raise typer.Exit(0 if here else 1)


def _ask(rest: Rest, topic: str, path: str, given: Any = None, **query: Any) -> dict[str, Any]:
    """given: what is posted; None: it is a GET. Raises ConfigError with what the broker says."""
    place = path_of(OWN_TOPIC, topic=topic)
    found: dict[str, Any] = rest.ask("GET" if given is None else "POST", f"{place}/{path}", given, query)
    return found
