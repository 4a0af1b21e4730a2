"""A topic's links, what is decided about parked ones, and what is given up where entries are lost.

Is: paths of our own, below /heliograph/v1/topics. Isn't: the decision's effect (`replicator.links.parked_links`).
Invariants: a dry run changes nothing; every decision is in the audit log, as each changing call is.
Source: docs/protocols/links.md, "Parked links".
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from heliograph.model.admin_paths import OWN_TOPIC
from heliograph.model.errors import NotAllowed, NotFound
from heliograph.runtime.throttle import pause
from region_node.faces.admin.calls.admin_context import Admin
from region_node.faces.admin.calls.call_bodies import Given
from region_node.faces.admin.calls.call_parameters import Log
from region_node.faces.admin.calls.call_rights import CallAccess, Route
from region_node.schemas.schema_diff import differences
from replicator.links.give_up_lost import give_up
from replicator.links.link import Link
from replicator.links.parked_links import Choice, look_again, resolve
from replicator.pulsar.pulsar_link import PulsarLink


async def links(admin: Admin, log: Log) -> dict[str, Any]:
    """Each link as the status shows it; a parked one with `parked`: since_ms, and what is here and there."""
    return {
        "topic": log.topic,
        "region": admin.region,
        "links": [await _shown(admin, link) for _, link in sorted(admin.links.links(log.topic).items())],
    }


class DryRun(Given):
    dry_run: bool = False


class Decision(Given):
    choice: Choice
    dry_run: bool = False


async def decide(admin: Admin, log: Log, region: str, given: Decision) -> dict[str, Any]:
    """Answers with the link, and the numbers that the choice changes, and where."""
    link = admin.links.links(log.topic).get(region)
    if link is None:
        raise NotFound(f"{log.topic} has no link from {admin.region} to a region {region}")
    choice, dry_run = given.choice, given.dry_run
    before = await _shown(admin, link)
    if not isinstance(link, PulsarLink):
        numbers = await resolve(link, choice, dry_run=dry_run)
    elif choice is Choice.RETRY:
        numbers = look_again(link, dry_run=dry_run)
    else:
        raise NotAllowed(f"{region} is a Pulsar cluster: change what it refuses there, and then retry")
    where = {Choice.THEIRS: admin.region, Choice.OURS: region, Choice.RETRY: ""}[choice]
    return {
        "topic": log.topic,
        "choice": choice,
        "dry_run": dry_run,
        "changes": {"region": where, "numbers": numbers},
        "link": before,
    }


async def lost(admin: Admin, log: Log, region: str, given: DryRun | None) -> dict[str, Any]:
    """Entries that no bookie gives are not waited for any more: the link's target hears that they
    are lost. Answers which.
    """
    link = admin.links.links(log.topic).get(region)
    if not isinstance(link, Link):
        raise NotFound(f"{log.topic} has no link from {admin.region} to a region {region}")
    dry_run = given is not None and given.dry_run
    first, last = await give_up(link, dry_run=dry_run)
    return {"topic": log.topic, "region": region, "dry_run": dry_run, "first": list(first), "last": list(last)}


async def _shown(admin: Admin, link: Any) -> dict[str, Any]:
    found: dict[str, Any] = {**asdict(link.stats()), "parked": None}
    parked = link.parked
    if parked is not None:
        host = admin.links.schemas
        here = dict(await host.dump(link.log.topic)) if host is not None and parked.rows else {}
        rows = []
        for row in differences(here, dict(parked.rows), (admin.region, link.target)):
            rows.append(row)
            await pause()
        found["parked"] = {"since_ms": parked.since_ms, "schemas": rows}
    return found


ROUTES: tuple[Route, ...] = (
    Route("GET", f"{OWN_TOPIC}/links", CallAccess.CONSUME, links, console="links"),
    Route("POST", f"{OWN_TOPIC}/links/{{region}}/resolve", CallAccess.TENANT, decide, console="resolve"),
    Route("POST", f"{OWN_TOPIC}/links/{{region}}/give-up", CallAccess.TENANT, lost),
)
