"""What a topic knows of other regions: where a coordinate lies here, what each region holds, seeking by coordinate,
and how far a replicated subscription is in step.

Is: paths of our own, below /heliograph/v1/topics. Isn't: the lookup (`replicator.log.coordinate_lookup`).
Invariants: what is gone is an answer (`trimmed`, `lost`, ...), never an error; an error means that nothing is known
now.
Source: docs/protocols/links.md, "Where a coordinate lies", "Replicated subscriptions".
"""

from __future__ import annotations

from typing import Any

from heliograph.model.admin_paths import OWN_TOPIC
from heliograph.model.coordinates import Vector, format_coordinate, parse_coordinate
from heliograph.model.errors import MalformedRequest, NotAllowed, NotFound
from heliograph.model.positions import Position
from heliograph.wire.links.link_commands import SkipReason
from region_node.faces.admin.calls.admin_context import Admin
from region_node.faces.admin.calls.call_bodies import Given
from region_node.faces.admin.calls.call_parameters import Loaded, Log
from region_node.faces.admin.calls.call_rights import CallAccess, Route
from region_node.faces.admin.calls.existing import subscription_of
from replicator.coordinates.skip_reasons import HERE
from replicator.log.coordinate_lookup import LookupStatus, came_back, coordinate_of, position_of
from replicator.log.region_durability import RegionWaits
from replicator.log.replicated_log import ReplicatedLog

BACK_MAX = 1000
"""Entries of one question for what came back."""


async def position(admin: Admin, log: Log, coordinate: str) -> dict[str, Any]:
    """Where the entry lies here that was first published under a coordinate."""
    wanted = parse_coordinate(coordinate)
    found = await position_of(log, *wanted)
    return {
        "topic": log.topic,
        "coordinate": format_coordinate(wanted),
        "status": found.status,
        "position": _list(found.position),
        "following": _list(found.following),
        "reason": _name(found.reason),
    }


async def back(admin: Admin, log: Log, ledger: int, *, first: int = -1, last: int = -1) -> dict[str, Any]:
    """Which entries of a ledger that the region's metadata no longer knows are in the topic under their coordinates."""
    if first < 0 or not 0 <= last - first < BACK_MAX:
        raise MalformedRequest(f"first and last must name 1 to {BACK_MAX} entries, not {first} to {last}")
    return {"topic": log.topic, "ledger": ledger, "here": await came_back(log, ledger, first, last)}


async def coordinate(admin: Admin, log: Log, position: str) -> dict[str, Any]:
    """Where the entry at a position here was first published."""
    at = _position(position)
    found = await coordinate_of(log, at)
    origin = None if found.coordinate is None else found.coordinate[0]
    return {
        "topic": log.topic,
        "position": list(at),
        "status": found.status,
        "coordinate": None if found.coordinate is None else format_coordinate(found.coordinate),
        "region": None
        if origin is None
        else next((r.name for r in admin.view.regions() if r.number == origin[0]), f"number {origin[0]}"),
        "published_ms": found.published_ms,
    }


async def vectors(admin: Admin, log: Log) -> dict[str, Any]:
    """What each region holds of each origin, as this one has last heard."""
    regions = {admin.region: {"age_s": 0.0, "origins": _origins(log, HERE, log.vector)}}
    for region, (vector, heard_ms) in sorted(log.known.items()):
        regions[region] = {
            "age_s": max(0.0, (admin.clock.wall_ms() - heard_ms) / 1000),
            "origins": _origins(log, region, vector),
        }
    return {"topic": log.topic, "numbers": {str(r.number): r.name for r in admin.view.regions()}, "regions": regions}


async def risk(admin: Admin, log: Log) -> dict[str, Any]:
    """What would be missing elsewhere if this region were lost now, and here if another one were."""
    now_ms = admin.clock.wall_ms()
    outgoing = {
        link.target: {
            "connected": link.connected,
            "cause": link.cause,
            "remedy": link.remedy,
            "entries": link.backlog_entries,
            "messages": link.backlog_messages,
            "bytes": link.backlog_bytes,
            "age_s": link.age_s,
            "silent_s": link.silent_s,
            "clock_offset_ms": link.clock_offset_ms,
            "rtt_ms": link.rtt_ms,
        }
        for link in admin.links.stats(log.topic)
    }
    incoming = {region: link.status(now_ms) for region, link in sorted(log.incoming.items())}
    return {"topic": log.topic, "region": admin.region, "not_yet_elsewhere": outgoing, "not_yet_here": incoming}


async def durability(admin: Admin, log: Log) -> dict[str, Any]:
    """How many regions a receipt stands for, who lags, and what was confirmed with fewer."""
    told = (log.waits or RegionWaits.past(log)).shown()
    return {"topic": log.topic, "region": admin.region, "origin": format_coordinate((log.origin, (0, 0)))[:-4], **told}


class Seek(Given):
    """coordinate: what comes next, as region.epoch.incarnation:ledger:entry."""

    coordinate: str


async def seek(admin: Admin, topic: Loaded, log: Log, subscription: str, given: Seek) -> dict[str, Any]:
    """The subscription goes on with the entry of that coordinate; where that is gone, with the next one of the same
    origin.
    """
    subscription_of(topic, subscription)
    found = await seek_target(log, given.coordinate)
    await admin.topics.reset_subscription(topic.text, subscription, at=found)
    return {"topic": topic.text, "subscription": subscription, "mark_delete": list(found)}


async def seek_target(log: ReplicatedLog, text: str) -> Position:
    """The mark-delete position with which the entry of that coordinate comes next. Raises NotAllowed, NotFound."""
    found = await position_of(log, *parse_coordinate(text))
    if found.status is LookupStatus.AWAITED:
        raise NotAllowed(f"{text} has not arrived in this region yet: seek once it has, or earlier")
    if found.status is LookupStatus.UNKNOWN and found.following is None:
        raise NotFound(f"nothing was ever published as {text} on {log.topic}, as far as this region knows")
    following = found.position or found.following
    return log.ledger.last_confirmed if following is None else (following[0], following[1] - 1)


async def subscription_status(admin: Admin, topic: Loaded, log: Log, subscription: str) -> dict[str, Any]:
    """When it was last in step, who was told of its newest state, who was heard, and what waits for messages that have
    not arrived.
    """
    subscription_of(topic, subscription)
    status = log.subscriptions.status(subscription, admin.clock.wall_ms())
    return {"topic": topic.text, "subscription": subscription, **status}


def _origins(log: ReplicatedLog, region: str, vector: Vector) -> list[dict[str, Any]]:
    """reasons: of another region only what was named to it from here."""
    return [
        {
            "origin": format_coordinate((origin, (0, 0)))[:-4],
            "region": origin[0],
            "through": _list(vector.prefix(origin)),
            "missing": [[list(after), list(through)] for after, through in vector.missing(origin)],
            "reasons": [
                {"after": list(after), "through": list(through), "reason": _name(reason)}
                for after, through, reason in log.state.reasons.explain(region, origin, vector.missing(origin))
            ],
        }
        for origin in vector
    ]


def _name(reason: SkipReason | None) -> str | None:
    return None if reason is None else reason.name.lower()


def _list(found: Position | None) -> list[int] | None:
    return None if found is None else list(found)


def _position(text: str) -> Position:
    ledger, _, entry = text.partition(":")
    try:
        return int(ledger), int(entry)
    except ValueError as error:
        raise MalformedRequest(f"a position is ledger:entry, not {text!r:.60}") from error


ROUTES: tuple[Route, ...] = (
    Route("GET", f"{OWN_TOPIC}/positions/{{coordinate}}", CallAccess.CONSUME, position, console="position"),
    Route("GET", f"{OWN_TOPIC}/back/{{ledger}}", CallAccess.CONSUME, back),
    Route("GET", f"{OWN_TOPIC}/coordinates/{{position}}", CallAccess.CONSUME, coordinate, console="coordinate"),
    Route("GET", f"{OWN_TOPIC}/vectors", CallAccess.CONSUME, vectors, console="vectors"),
    Route("GET", f"{OWN_TOPIC}/risk", CallAccess.CONSUME, risk, console="risk"),
    Route("GET", f"{OWN_TOPIC}/durability", CallAccess.CONSUME, durability),
    Route("POST", f"{OWN_TOPIC}/subscriptions/{{subscription}}/seek", CallAccess.TENANT, seek),
    Route("GET", f"{OWN_TOPIC}/subscriptions/{{subscription}}/replication", CallAccess.CONSUME, subscription_status),
)
