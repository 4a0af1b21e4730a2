"""Our own paths, below /heliograph/v1: the state of a region and its links, and a topic's local copy for Spark.

Is: what Pulsar's interface has no place for. Isn't: anything a Pulsar client needs.
A snapshot names ledgers, sizes, and the last confirmed position; blocks are `heliograph.wire.block` blocks, cut to the
range, one behind another.
Source: docs/protocols/admin.md, "Extensions"; `heliograph.client.block_reader` reads both.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

from aiohttp import web

from heliograph.model.admin_paths import OWN_TOPIC
from heliograph.model.coordinates import Vector
from heliograph.model.errors import HeliographError, MalformedRequest, NotFound
from heliograph.model.positions import Position
from heliograph.model.topic_names import TopicName, check_name
from heliograph.wire.block import encode_block
from region_node.faces.admin.calls.admin_context import Admin
from region_node.faces.admin.calls.auth_middleware import goes_on
from region_node.faces.admin.calls.call_parameters import Log, Read
from region_node.faces.admin.calls.call_rights import CallAccess, Route
from region_node.faces.admin.calls.existing import of_other_brokers, recovery_of
from region_node.topics.backlog_reading import read_from
from replicator.log.coordinate_lookup import own_before, vector_at
from storage.ledger.repair.autorecovery import Emptying
from storage.ledger.repair.new_lives import NewLife

if TYPE_CHECKING:
    from region_node.runtime.topic_ports import ReadablePort
    from replicator.log.replicated_log import ReplicatedLog

log = logging.getLogger("region_node.admin.extensions")

Bookie = Annotated[str, Read(lambda _, request: check_name("bookie", request.match_info["id"]))]
_READ_ENTRIES_MAX = 2048
_READ_BYTES_MAX = 4 << 20


async def status(admin: Admin, *, all: bool = False) -> dict[str, Any]:
    """This broker's links; with `all=true` those of every broker of the region."""
    links = [asdict(link) for link in admin.links.stats()]
    if all:
        for told in await of_other_brokers(admin, "GET", "/heliograph/v1/status"):
            links += told["links"]
    return {
        "region": admin.region,
        "version": admin.version,
        "level": info.feature_level if (info := admin.view.region(admin.region)) is not None else 1,
        "broker": admin.ownership.record.broker,
        "brokers": [
            {"id": r.broker, "listeners": r.listeners, "admin_url": r.admin_url, "pid": r.pid, "level": r.level}
            for r in admin.ownership.brokers()
        ],
        "bundles": [_bundle(admin, namespace, index) for namespace, index in admin.ownership.owned()],
        "topics": len(admin.topics.loaded),
        "repairs": admin.recovery.repairs if admin.recovery is not None else 0,
        "links": links,
    }


def _bundle(admin: Admin, namespace: str, index: int) -> str:
    table = admin.ownership.bundles(namespace)
    return f"{namespace}/{table.name(index)}" if table is not None and index < table.count else namespace


async def config_status(admin: Admin) -> dict[str, Any]:
    return {"region": admin.region, "stale_s": admin.view.stale_s(), **await admin.config_status()}


async def snapshot(admin: Admin, topic: TopicName) -> dict[str, Any]:
    """The open ledger is counted up to the last entry that clients may read."""
    log = await admin.log(topic)
    found = snapshot_of(log, (await admin.loaded(topic)).readable)
    return {
        **found,
        "topic": log.topic,
        "regions": {str(region.number): region.name for region in admin.view.regions()},
    }


def snapshot_of(log: ReplicatedLog, ledger: ReadablePort) -> dict[str, Any]:
    last = ledger.last_confirmed
    rows = [
        {"ledger": info.ledger, "entries": info.entries, "size_bytes": info.size_bytes}
        for info in ledger.ledgers()
        if info.ledger <= last[0]
    ]
    if rows and rows[-1]["ledger"] == last[0]:
        rows[-1]["entries"] = last[1] + 1
    return {
        "ledgers": [row for row in rows if row["entries"]],
        "last_confirmed": list(last),
        "origin": list(log.origin),
        "past": [[list(origin), list(through)] for origin, through in log.state.past],
        "trimmed": not ledger.ledgers() or ledger.ledgers()[0].first_index > 0,
        "messages": max(0, log.ledger.confirmed_index - ledger.ledgers()[0].first_index) if rows else 0,
    }


async def blocks(admin: Admin, request: web.Request, name: TopicName) -> Any:
    """`first` and `last`, both included; what was trimmed is left out. Ends early only where `last` is not confirmed
    yet, or by a broken answer.
    """
    await admin.log(name)
    topic = await admin.loaded(name)
    ledger = topic.readable
    at, last = _position(request, "first"), _position(request, "last")
    async with streamed(request, log, "admin.blocks_broken", topic=topic.text) as answer:
        check = goes_on(admin.security, request, name, admin.clock.wall_ms)
        await write_blocks(answer, ledger, at, min(last, ledger.last_confirmed), check)
    return answer


@asynccontextmanager
async def streamed(
    request: web.Request, into: logging.Logger, broken: str, **more: str
) -> AsyncIterator[web.StreamResponse]:
    """An answer of octets, to be written within. One that fails is broken off, and logged as `broken`: its status has
    gone out already, and the reader must see that this is not all.
    """
    answer = web.StreamResponse(headers={"Content-Type": "application/octet-stream"})
    await answer.prepare(request)
    try:
        yield answer
    except HeliographError as error:
        into.warning(broken, extra={**more, "error": str(error)})
        if request.transport is not None:
            request.transport.abort()
        return
    await answer.write_eof()


async def write_blocks(
    answer: web.StreamResponse, ledger: ReadablePort, at: Position, last: Position, check: Callable[[], None]
) -> None:
    """check: raises where whoever asked may not read on; asked before each piece, of _READ_BYTES_MAX at most."""
    async for pieces in read_from(ledger, at, last, _READ_ENTRIES_MAX, _READ_BYTES_MAX):
        check()
        for number, first, run in pieces:
            if (number, first) > last:
                return
            kept = run.cut(0, min(run.count, last[1] - first + 1)) if number == last[0] else run
            await answer.write(b"".join(encode_block(kept, number, first)))


async def vector(admin: Admin, request: web.Request, log: Log) -> dict[str, Any]:
    """What is held now; with `at`: by origin, the last coordinate at or below that position."""
    if "at" not in request.query:
        return {"topic": log.topic, "origin": list(log.origin), "vector": _vector(log.vector)}
    at = _position(request, "at")
    return {"topic": log.topic, "origin": list(log.origin), "at": list(at), "vector": await vector_rows(log, at)}


async def vector_rows(log: ReplicatedLog, at: Position) -> list[dict[str, Any]]:
    """By origin, the last coordinate at or below a position."""
    found = await vector_at(log, at)
    for origin, through in found.items():
        if through < log.state.local_prefix(
            origin
        ):  # where an entry of its own can be named, others know whether they have it
            found[origin] = await own_before(log, through) or through
    return [{"origin": list(origin), "prefix": list(found[origin])} for origin in sorted(found)]


def _vector(found: Vector) -> list[dict[str, Any]]:
    """Origin by origin: the durable prefix, and the ranges (after, through] that are missing below it."""
    return [
        {
            "origin": list(o),
            "prefix": list(found.prefix(o)),
            "missing": [[list(a), list(b)] for a, b in found.missing(o)],
        }
        for o in found
    ]


def _position(request: web.Request, name: str) -> Position:
    ledger, _, entry = request.query.get(name, "").partition(":")
    try:
        return int(ledger), int(entry)
    except ValueError as error:
        raise MalformedRequest(f"{name} must be ledger:entry, not {request.query.get(name, '')!r}") from error


async def bookies(admin: Admin) -> Any:
    """Who is registered, and who is being emptied."""
    return recovery_of(admin).bookies()


async def decommission(admin: Admin, bookie: Bookie) -> None:
    """Begins to empty a bookie: it gets nothing new, and its copies move to others. Answers at once; idempotent."""
    recovery = recovery_of(admin)
    if not any(row["id"] == bookie for row in recovery.bookies()):
        raise NotFound(f"Bookie {bookie} is not registered in this region")
    await recovery.decommission(bookie)


async def emptying(admin: Admin, bookie: Bookie) -> Emptying:
    """How far that is: a look at every ledger."""
    return await recovery_of(admin).emptying(bookie)


async def recommission(admin: Admin, bookie: Bookie) -> None:
    """Ends it: the bookie is used again."""
    await recovery_of(admin).recommission(bookie)


async def new_life(admin: Admin, bookie: Bookie) -> NewLife:
    """What the loss of a bookie's directories costs, as far as that is not made good yet: a look at every ledger."""
    return await recovery_of(admin).new_lives.look(bookie)


async def grant_new_life(admin: Admin, bookie: Bookie, *, force: bool = False) -> NewLife:
    """Lets a bookie in limbo begin a new life without its directories; `force=true`: also where it may have had the
    only copy of something. Answers with the price; idempotent.
    """
    return await recovery_of(admin).new_lives.grant(bookie, force=force)


async def audit(admin: Admin, *, count: int = 100, all: bool = False) -> dict[str, Any]:
    """The newest changes by admin at this broker; `all=true`: at every broker of the region."""
    found = admin.audit.newest(count)
    if all:
        for told in await of_other_brokers(admin, "GET", f"/heliograph/v1/audit?count={count}"):
            found += told["changes"]
    return {"broker": admin.ownership.record.broker, "changes": sorted(found, key=lambda change: str(change["time"]))}


ROUTES: tuple[Route, ...] = (
    Route("GET", "/heliograph/v1/status", CallAccess.SUPER, status, console="status"),
    Route("GET", "/heliograph/v1/config/status", CallAccess.SUPER, config_status, console="configStatus"),
    Route("GET", "/heliograph/v1/bookies", CallAccess.SUPER, bookies, console="bookies"),
    Route("POST", "/heliograph/v1/bookies/{id}/decommission", CallAccess.SUPER, decommission),
    Route("GET", "/heliograph/v1/bookies/{id}/decommission", CallAccess.SUPER, emptying, console="emptying"),
    Route("DELETE", "/heliograph/v1/bookies/{id}/decommission", CallAccess.SUPER, recommission),
    Route("GET", "/heliograph/v1/bookies/{id}/new-life", CallAccess.SUPER, new_life),
    Route("POST", "/heliograph/v1/bookies/{id}/new-life", CallAccess.SUPER, grant_new_life),
    Route("GET", "/heliograph/v1/audit", CallAccess.SUPER, audit, console="audit"),
    Route("GET", f"{OWN_TOPIC}/snapshot", CallAccess.CONSUME, snapshot),
    Route("GET", f"{OWN_TOPIC}/blocks", CallAccess.CONSUME, blocks),
    Route("GET", f"{OWN_TOPIC}/vector", CallAccess.CONSUME, vector),
)
