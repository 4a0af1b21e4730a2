"""Offload: by command, what became of it, what an object store holds of a namespace, and a restore from one.

Is: Pulsar's two paths of a topic and one of a namespace, and our own for restoring. Isn't: policies
(`region_node.faces.admin.tenancy.policy_routes`), or a step of an offload. Source: docs/protocols/tiered.md; Pulsar's
OffloadProcessStatus and MessageIdImpl.
"""

from __future__ import annotations

from typing import Annotated, Any

from aiohttp import web

from heliograph.model.admin_paths import NAMESPACE
from heliograph.model.errors import NotAllowed
from heliograph.model.positions import AFTER_ALL, position_text
from heliograph.model.topic_names import TopicName
from region_node.faces.admin.calls.admin_context import Admin
from region_node.faces.admin.calls.call_bodies import MessageId, OnlyGiven
from region_node.faces.admin.calls.call_parameters import ExistingNamespace, Read
from region_node.faces.admin.calls.call_rights import CallAccess, Route
from region_node.faces.admin.calls.existing import collector_of, tier_of
from storage.tiered.objects.object_names import LEDGER
from storage.tiered.reading.topic_restore import objects


async def offload(admin: Admin, name: PlainTopic, given: MessageId | None, *, rollOver: bool = False) -> None:
    """Whole ledgers that end before the message id of the body; without a body, every closed one; with `rollOver=true`,
    the open one is closed first.
    """
    before = AFTER_ALL if given is None else given.position
    tier_of(admin).tiering.offload(await admin.ledger(name), before, roll_over=rollOver)


async def status(admin: Admin, name: PlainTopic) -> dict[str, Any]:
    tier, ledger = tier_of(admin), await admin.ledger(name)
    found, first = tier.tiering.status(str(name)), tier.first_unstored(ledger.ledgers())
    position = None if first is None else {"ledgerId": first[0], "entryId": first[1], "partitionIndex": name.partition}
    return {"status": found.state, "lastError": found.error, "firstUnoffloadedMessage": position}


async def scan(admin: Admin, namespace: ExistingNamespace) -> dict[str, Any]:
    """What the store holds of the namespace, in every holder's folder."""
    tier, rows = tier_of(admin), []
    async for name, size in objects(tier.stores.get()):
        if name.kind == LEDGER and TopicName.parse(name.topic).namespace == namespace:
            rows.append(
                {
                    "topic": name.topic,
                    "ledger": name.number,
                    "holder": name.holder,
                    "attempt": name.attempt,
                    "size": size,
                }
            )
    return {"objects": len(rows), "totalSize": sum(row["size"] for row in rows), "ledgers": rows}


async def about(admin: Admin) -> dict[str, Any]:
    """Where this region's topics go, and under whose name. store: "" where none is set."""
    tier = tier_of(admin)
    return {"region": admin.region, "store": tier.stores.own_url, "holder": tier.tiering.holder}


async def collect(admin: Admin) -> dict[str, Any]:
    """Looks for objects that nobody names, now. refusal: why none is deleted; "" where they are."""
    collector = collector_of(admin)
    deleted = await collector.sweep()
    return {"deleted": len(deleted), "refusal": collector.went_back}


async def confirm(admin: Admin) -> None:
    """The metadata went back, and that was meant: what it does not name goes in the sweeps to come."""
    collector = collector_of(admin)
    await collector.sweep()
    if not collector.went_back:
        raise NotAllowed("there is nothing to confirm: the metadata is what it was")
    await collector.confirm()


class TopicRestore(OnlyGiven):
    """store, holder: where it was offloaded to, and by whom, where that is not this region's own."""

    topic: str
    store: str = ""
    holder: str = ""


async def restore(admin: Admin, given: TopicRestore) -> list[Any]:
    name = TopicName.parse(given.topic)
    if not name.persistent:
        raise NotAllowed(f"{name} is not persistent: nothing of it was ever stored")
    restored = await tier_of(admin).restore(name, url=given.store, holder=given.holder)
    return [
        {
            "topic": one.topic,
            "holder": one.holder,
            "ledgers": one.ledgers,
            "entries": one.entries,
            "size": one.size_bytes,
            "last": position_text(one.last),
            "cursors": list(one.cursors),
            "manifest_ms": one.made_ms,
            "notes": list(one.notes),
        }
        for one in restored
    ]


def _one(admin: Admin, request: web.Request) -> TopicName:
    name = admin.topic(request)
    if admin.view.partitions(str(name)):
        raise NotAllowed(f"{name} is partitioned: name one of its partitions, such as {name.with_partition(0)}")
    return name


PlainTopic = Annotated[TopicName, Read(_one)]
_TOPIC = "/admin/v2/persistent/{tenant}/{namespace}/{topic}"
ROUTES: tuple[Route, ...] = (
    Route("PUT", f"{_TOPIC}/offload", CallAccess.TENANT, offload),
    Route("GET", f"{_TOPIC}/offload", CallAccess.TENANT, status),
    Route("GET", f"{NAMESPACE}/scanOffloadedLedgers", CallAccess.TENANT, scan),
    Route("GET", "/heliograph/v1/tier", CallAccess.SUPER, about),
    Route("POST", "/heliograph/v1/tier/restore", CallAccess.SUPER, restore),
    Route("POST", "/heliograph/v1/tier/collect", CallAccess.SUPER, collect),
    Route("POST", "/heliograph/v1/tier/confirm", CallAccess.SUPER, confirm),
)
