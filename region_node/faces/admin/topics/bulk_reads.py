"""Many topics in one request, for readers of local copies: what they hold, their entries as blocks, and subscriptions
that hold what is not read.

Is: what a Spark job over thousands of topics asks. Isn't: anything a Pulsar client needs, or a topic by itself
(`extensions`).
Invariants: each topic is answered by its owner; the others are named with theirs. Each topic's rights are checked: the
route itself is open to any role. Every range of an answer of blocks ends with a mark, so that what is cut off is seen.
Source: docs/protocols/admin.md, "Reading".
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, Any

from aiohttp import web
from msgspec import Meta

from heliograph.model.errors import EntriesLost, HeliographError, NotAllowed, NotFound
from heliograph.model.ledger_metadata import OffloadState
from heliograph.model.positions import BEFORE_ALL, Position
from heliograph.model.topic_names import TopicName
from heliograph.runtime.throttle import RowPace
from region_node.faces.admin.brokers.extensions import snapshot_of, streamed, vector_rows, write_blocks
from region_node.faces.admin.calls.admin_context import Admin, OwnedElsewhere
from region_node.faces.admin.calls.auth_middleware import PRINCIPAL, goes_on
from region_node.faces.admin.calls.call_bodies import Given
from region_node.faces.admin.calls.call_rights import CallAccess, Route
from region_node.faces.admin.calls.existing import existing
from region_node.security.authorization.authorization_service import Action

log = logging.getLogger("region_node.admin.reading")

_AT_ONCE = 32
_TOPICS_MAX = 1000
_PLACES_MAX = 1000
"""Ranges of one topic whose places are asked for at once: each is a look at the metadata, a permit, or a signature."""
PLACES_MAX = 10_000
"""The same of all topics of a request."""
_END, _MOVED, _GONE, _LOST = b"\0\0", b"\0\1", b"\0\2", b"\0\3"
"""Marks at a range's end: version 0, then: all of it was sent; owned by another broker, whose URL follows; not there, a
sentence follows; what comes next of it is lost, "ledger first last" follow.
"""

Names = Annotated[list[str], Meta(max_length=_TOPICS_MAX)]
Number = Annotated[int, Meta(ge=0)]
At = Annotated[str, Meta(pattern=r"^-?\d{1,19}:-?\d{1,19}$", description="ledger:entry")]
PlacesOfOne = Annotated[list[tuple[Number, Number, Number]], Meta(max_length=_PLACES_MAX)]
ByTopic = Annotated[dict[str, At], Meta(max_length=_TOPICS_MAX)]


class Topics(Given):
    """topics: many of them, by their full names."""

    topics: Names


class HeldTopics(Given):
    topics: Names
    subscription: Annotated[str, Meta(min_length=1)]


class Positions(Given):
    """positions: ledger:entry of each topic, by its full name."""

    positions: ByTopic


class HeldPositions(Given):
    positions: ByTopic
    subscription: Annotated[str, Meta(min_length=1)]


class Places(Given):
    """ranges: by topic, each of ledger, first entry, and last entry. bookies: whether the reader reads from them, too;
    None: it does not say.
    """

    ranges: Annotated[dict[str, PlacesOfOne], Meta(min_length=1, max_length=_TOPICS_MAX)]
    bookies: bool | None = None


class Ranges(Given):
    """ranges: each of topic, ledger, first entry, and last entry."""

    ranges: Annotated[list[tuple[str, Number, Number, Number]], Meta(max_length=_TOPICS_MAX)]


One = Callable[[str, Any], Awaitable[Any]]


async def snapshots(admin: Admin, request: web.Request, given: Topics) -> dict[str, Any]:
    """Shows snapshots of many topics at once."""

    async def one(topic: str, _: Any) -> Any:
        name = TopicName.parse(topic)
        return snapshot_of(await admin.log(name), (await admin.loaded(name)).readable)

    answer = await _each(admin, request, dict.fromkeys(given.topics), one)
    return {**answer, "regions": {str(region.number): region.name for region in admin.view.regions()}}


async def vectors(admin: Admin, request: web.Request, given: Positions) -> Any:
    """Shows, of each position, by origin the last coordinate at or below it."""

    async def one(topic: str, at: Position) -> Any:
        return await vector_rows(await admin.log(TopicName.parse(topic)), at)

    return await _each(admin, request, _parsed(given.positions), one)


async def hold(admin: Admin, request: web.Request, given: HeldPositions) -> Any:
    """`positions`: the first that is not read. Never deletes, never goes back; may be repeated, and come late."""
    name = given.subscription

    async def one(topic: str, at: Position) -> None:
        loaded = await admin.topics.get(topic, create=False)
        before = (at[0], at[1] - 1)
        if name not in loaded.subscriptions:
            await admin.topics.create_subscription(topic, name, at=before)
        if (
            loaded.subscriptions[name].cursor.mark_delete < before
        ):  # where it stands further on, a reader must see that somebody moved it
            await admin.topics.reset_subscription(topic, name, at=before)
        loaded.subscriptions[name].unused_since = 0.0  # it never has consumers: who says where it stands uses it
        loaded.subscriptions[name].cursor.read_at(
            asyncio.get_running_loop().time()
        )  # and reads what comes next, from the cache

    return await _each(admin, request, _parsed(given.positions), one, name)


async def held(admin: Admin, request: web.Request, given: HeldTopics) -> Any:
    """Shows, of each topic that has the subscription, the first position behind everything that is acknowledged."""
    name = given.subscription

    async def one(topic: str, _: Any) -> Any:
        subscriptions = (await admin.topics.get(topic, create=False)).subscriptions
        found = existing(subscriptions.get(name), NotFound(f"{topic} has no subscription {name}"))
        at = found.cursor.mark_delete
        return [at[0], at[1] + 1] if at > BEFORE_ALL else [-1, -1]

    return await _each(admin, request, dict.fromkeys(given.topics), one, name)


async def objects(admin: Admin, request: web.Request, given: Places) -> Any:
    """Shows where each range lies for who reads it there; null: it is to be read from here. A reader that does not say
    whether it reads from bookies would give what transactions took back: it gets null where there are some.
    """
    if (count := sum(map(len, given.ranges.values()))) > PLACES_MAX:
        raise NotAllowed(f"the places of {count:,} ranges: ask for {PLACES_MAX:,} at most in a request")
    bookies, pace = admin.places if given.bookies else None, RowPace()

    async def one(topic: str, wanted: list[tuple[int, int, int]]) -> list[dict[str, Any] | None]:
        name = TopicName.parse(topic)
        ledger = (await admin.log(name)).ledger
        if given.bookies is None and (await admin.loaded(name)).readable is not ledger:
            return [None for _ in wanted]
        infos = {info.ledger: info for info in ledger.ledgers()}
        open_ones = bookies if admin.sealing is None or not admin.sealing.wanted(topic) else None
        found: list[dict[str, Any] | None] = []
        for number, first, last in wanted:
            await pace.row()
            info, place = infos.get(number), None
            if info is not None and first <= last:
                if admin.tier is not None and info.offload is not None and info.offload.state != OffloadState.BEGUN:
                    url, at, start, stop = await admin.tier.reader.place(topic, number, info.offload, first, last)
                    place = {"url": url, "first": at, "start": start, "stop": stop} if url else None
                if place is None and open_ones is not None:
                    place = await open_ones.place(ledger, info, first, last)
            found.append(place)
        return found

    answer = await _each(admin, request, given.ranges, one)
    return answer if bookies is None else {**answer, "region": admin.region, "authority": bookies.authority()}


async def blocks(admin: Admin, request: web.Request, given: Ranges) -> Any:
    """Entries of ranges. What was trimmed is left out; errors abort it."""
    names = [TopicName.parse(row[0]) for row in given.ranges]
    for name in names:
        _allowed(admin, request, name, "")
    async with streamed(request, log, "admin.reading_broken") as answer:
        for name, (_, number, first, last) in zip(names, given.ranges, strict=True):
            try:
                ledger = (await admin.loaded(name)).readable
                check = goes_on(admin.security, request, name, admin.clock.wall_ms)
                await write_blocks(answer, ledger, (number, first), min((number, last), ledger.last_confirmed), check)
            except OwnedElsewhere as where:
                await answer.write(_mark(_MOVED, where.record.admin_url_by(request.secure)))
            except NotFound as error:
                await answer.write(_mark(_GONE, str(error)))
            except EntriesLost as lost:
                await answer.write(_mark(_LOST, f"{lost.ledger} {lost.first} {lost.last}"))
            else:
                await answer.write(_mark(_END, ""))
    return answer


def _mark(kind: bytes, text: str) -> bytes:
    encoded = text.encode()
    return kind + b"\0\0" + len(encoded).to_bytes(4, "big") + encoded


async def _each(
    admin: Admin, request: web.Request, wanted: Mapping[str, Any], one: One, subscription: str = ""
) -> dict[str, Any]:
    """found: by topic that is owned here, what `one` says. elsewhere: admin URL -> topics. missing, refused, later:
    topic -> why.

    Raises Unauthorized by the first topic that the role may not read.
    """
    found: dict[str, Any] = {}
    elsewhere: dict[str, list[str]] = {}
    missing: dict[str, str] = {}
    refused: dict[str, str] = {}
    later: dict[str, str] = {}
    names = {topic: TopicName.parse(topic) for topic in wanted}
    for name in names.values():
        _allowed(admin, request, name, subscription)
    left = iter(wanted)

    async def work() -> None:
        for topic in left:
            try:
                await admin.here(names[topic])
                found[topic] = await one(topic, wanted[topic])
            except OwnedElsewhere as where:
                url = where.record.admin_url_by(request.secure).rstrip("/")
                elsewhere.setdefault(url, []).append(topic)
            except NotFound as error:
                missing[topic] = str(error)
            except NotAllowed as error:
                refused[topic] = str(error)
            except HeliographError as error:
                later[topic] = str(error)

    async with asyncio.TaskGroup() as group:
        for _ in range(min(_AT_ONCE, len(wanted))):
            group.create_task(work())
    return {"found": found, "elsewhere": elsewhere, "missing": missing, "refused": refused, "later": later}


def _allowed(admin: Admin, request: web.Request, name: TopicName, subscription: str) -> None:
    rights, principal = admin.security.rights, request[PRINCIPAL]
    may = (
        rights.may_subscribe(principal, name, subscription)
        if subscription
        else rights.may(principal, Action.CONSUME, name)
    )
    if not may:
        raise web.HTTPForbidden(reason=f"the role {principal.role!r} may not consume {name}")


def _parsed(positions: dict[str, str]) -> dict[str, Position]:
    parts = {topic: at.split(":") for topic, at in positions.items()}
    return {topic: (int(ledger), int(entry)) for topic, (ledger, entry) in parts.items()}


_PATH = "/heliograph/v1/reading"
ROUTES: tuple[Route, ...] = (
    Route("POST", f"{_PATH}/snapshots", CallAccess.EACH, snapshots),
    Route("POST", f"{_PATH}/vectors", CallAccess.EACH, vectors),
    Route("POST", f"{_PATH}/hold", CallAccess.EACH, hold),
    Route("POST", f"{_PATH}/held", CallAccess.EACH, held),
    Route("POST", f"{_PATH}/objects", CallAccess.EACH, objects),
    Route("POST", f"{_PATH}/blocks", CallAccess.EACH, blocks),
)
