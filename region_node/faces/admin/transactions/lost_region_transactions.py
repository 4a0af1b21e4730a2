"""Verdicts: the end of a transaction here whose own region is lost, as an operator decides it, topic by topic.

Is: which open transactions of other regions a topic holds, the check that their region does not answer, and writing the
end. Isn't: what an end does (`replicator.log.transaction_buffer`).
Invariants: nothing is decided while the region answers: then its own coordinator ends the transaction; what is decided
is durable before it is answered, and holds in this region only.
Source: docs/protocols/transactions.md, "A region that is lost".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, cast

from aiohttp import ClientConnectorError, ClientError, ClientSession, ClientSSLError, ClientTimeout, web
from msgspec import Meta

from heliograph.model.admin_paths import OWN_TOPIC
from heliograph.model.errors import NotAllowed, NotFound
from heliograph.model.positions import position_text
from heliograph.wire.run import Origin
from region_node.faces.admin.calls.admin_context import Admin
from region_node.faces.admin.calls.call_bodies import Given
from region_node.faces.admin.calls.call_parameters import Loaded
from region_node.faces.admin.calls.call_rights import CallAccess, Route
from region_node.topics.topic import Topic
from replicator.log.transaction_buffer import Open

if TYPE_CHECKING:
    from replicator.log.replicated_log import ReplicatedLog

_ASK = ClientTimeout(total=5.0)


def _region(admin: Admin, origin: Origin) -> str:
    """Its name; "#NUMBER" of one that is no part of the instance any more."""
    return next((info.name for info in admin.view.regions() if info.number == origin[0]), f"#{origin[0]}")


def _foreign(topic: Topic) -> list[tuple[Origin, int, int, Open]]:
    buffer = topic.transactions.buffer if topic.transactional else None
    opened = {} if buffer is None else buffer.open
    return [
        (origin, coordinator, number, found)
        for (origin, coordinator, number), found in opened.items()
        if origin is not None
    ]


def _shown(admin: Admin, origin: Origin, coordinator: int, number: int, found: Open) -> dict[str, Any]:
    return {
        "region": _region(admin, origin),
        "transaction": f"{coordinator}:{number}",
        "entries": found.entries,
        "messages": found.messages,
        "from": position_text(found.first),
    }


async def listed(admin: Admin, topic: Loaded) -> list[dict[str, Any]]:
    """Open transactions of other regions in a topic: readers, and links, stand before the first of them until its end
    comes.

    `waits_for`, where it is committed: the topics whose part has not come; readers stand before it until it has, or too
    long a time has gone by.
    """
    rows = [{**_shown(admin, *one), "waits_for": []} for one in _foreign(topic)]
    buffer = topic.transactions.buffer if topic.transactional else None
    for (origin, coordinator, number), held in ({} if buffer is None else buffer.held).items():
        if origin is not None:
            opened = Open(held.first, held.first, 0, 0)
            rows.append({**_shown(admin, origin, coordinator, number, opened), "waits_for": list(held.waits)})
    return rows


class TransactionVerdict(Given):
    """transaction: COORDINATOR:NUMBER; commit: what is here of it is shown, or nothing of it ever is."""

    region: str
    transaction: Annotated[str, Meta(pattern=r"^\d+:\d+$")]
    commit: bool


async def verdict(admin: Admin, request: web.Request, topic: Loaded, given: TransactionVerdict) -> list[dict[str, Any]]:
    """Ends a transaction of a region that is lost."""
    region, txn, commit = given.region, given.transaction, given.commit
    coordinator, number = (int(part) for part in txn.split(":"))
    found = [
        one
        for one in _foreign(topic)
        if one[1:3] == (coordinator, number) and region in (_region(admin, one[0]), f"#{one[0][0]}")
    ]
    if not found:
        raise NotFound(f"transaction {txn} of region {region} is not open in {topic.text}")
    for one in found:
        if (reason := await _answers(admin, topic, one[0])) is not None:
            raise NotAllowed(
                f"{reason}: its own coordinator ends transaction {txn}; `heliograph transactions abort` there does so "
                "at once"
            )
    for origin, _, _, _ in found:
        await topic.transactions.decide(origin, (coordinator, number), commit=commit)
    rows = [_shown(admin, *one) for one in found]
    admin.changed(request, rows, "COMMITTED" if commit else "ABORTED")
    return rows


async def _answers(admin: Admin, topic: Topic, origin: Origin) -> str | None:
    """Why an origin's region is not lost; None: it is, or that part of its life is over for good."""
    name = _region(admin, origin)
    info = admin.view.region(name)
    if info is None or info.epoch != origin[1]:  # removed, or built anew: whoever began the transaction is no more
        return None
    link = cast("ReplicatedLog", topic.log).incoming.get(name)
    if link is not None and link.connected:
        return f"region {name} is connected to {topic.text}"
    if not info.admin_url:
        return None
    try:
        admin.urls.check(info.admin_url, ("http", "https"))
    except NotAllowed:
        return None  # an address that nothing here may call: no link goes there either
    url = f"{info.admin_url.rstrip('/')}/admin/v2/brokers/ready"
    try:
        async with ClientSession(timeout=_ASK) as session, session.get(url) as answer:
            return f"region {name} answers at {info.admin_url} ({answer.status})"
    except ClientSSLError:
        return f"region {name} answers at {info.admin_url}, with a certificate that is not trusted here"
    except (ClientConnectorError, ClientError, TimeoutError, OSError):
        return None


ROUTES: tuple[Route, ...] = (
    Route("GET", f"{OWN_TOPIC}/transactions/foreign", CallAccess.CONSUME, listed),
    Route("POST", f"{OWN_TOPIC}/transactions/verdict", CallAccess.SUPER, verdict),
)
