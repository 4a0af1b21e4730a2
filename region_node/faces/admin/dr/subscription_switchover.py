"""Subscriptions that are active in one region at a time: which one, and moving them.

Is: paths of our own, below /heliograph/v1/dr. Isn't: a rule (`region_node.dr.leadership.write_gates.SubscriptionGate`,
`region_node.dr.leadership.leadership_changes`), or taking over from a lost region, which brokers do by themselves
(`region_node.dr.leadership.subscription_leadership`).
Invariants: a move is asked for again and again until it says `done`, by anybody, at any broker: what it has reached
stands in the global configuration; a move that is not forced goes on only once what the old region handed out is
acknowledged, or was taken back, and the new one knows it.
Source: docs/operating/disaster-recovery.md, "Subscriptions in one region".
"""

from __future__ import annotations

from typing import Annotated, Any

from aiohttp import web

from heliograph.model.admin_paths import DR
from heliograph.model.configuration.leadership import (
    DRAINING,
    FENCED,
    OPEN,
    Leadership,
    namespace_of,
    subscription_name,
)
from heliograph.model.errors import HeliographError, NotAllowed
from heliograph.model.topic_names import TopicName
from region_node.dr.leadership.leadership_changes import closing, reopened, unheard_text
from region_node.dr.operations import namespace_facts
from region_node.faces.admin.calls.admin_context import Admin
from region_node.faces.admin.calls.call_bodies import Given
from region_node.faces.admin.calls.call_parameters import ExistingNamespace, Namespace, Read
from region_node.faces.admin.calls.call_rights import CallAccess, Route
from region_node.faces.admin.calls.existing import check_in_region, leadership_of
from region_node.faces.admin.calls.region_facts import facts_of


async def listed(admin: Admin, namespace: ExistingNamespace) -> list[dict[str, Any]]:
    """Lists the namespace's subscriptions that are active in one region: in which, and why consumers here wait."""
    return leadership_of(admin).status(namespace)


class Active(Given):
    """active: the region in which messages are handed out."""

    active: str


async def give(admin: Admin, request: web.Request, name: Named, namespace: Namespace, given: Active) -> Leadership:
    """From now on its messages are handed out in that region alone."""
    check_in_region(admin, namespace, given.active)
    leadership = leadership_of(admin)
    record = await leadership.switching.begin(name, given.active, {})
    admin.changed(request, None, record)
    await admin.seen(lambda: leadership.known(name))
    return record


async def take_away(admin: Admin, request: web.Request, name: Named) -> None:
    """It may be active in every region again."""
    await leadership_of(admin).switching.end(name)
    admin.changed(request, "one region", "every region")


class SubscriptionMove(Given):
    """to: a region. fence: what is not acknowledged is taken back from its consumers, and comes again in the new
    region. force: nor is it waited for what was acknowledged to be known there, or for brokers that may not have heard
    that it is active in one region, and hand it out until they hear.
    """

    to: str
    fence: bool = False
    force: bool = False


async def move(admin: Admin, request: web.Request, name: Named, namespace: Namespace, given: SubscriptionMove) -> Any:
    """Does the next step, as far as it can be done now."""
    check_in_region(admin, namespace, given.to)
    found = await _step(admin, request, name, given.to, fence=given.force or given.fence, force=given.force)
    admin.changed(request, None, {"subscription": name, **found})
    return found


async def cancel(admin: Admin, request: web.Request, name: Named) -> Leadership:
    """Before it has moved: the active region goes on."""
    record, _ = await leadership_of(admin).switching.change(name, lambda old: reopened(old, admin.clock.wall_ms()))
    admin.changed(request, None, record)
    return record


async def _step(admin: Admin, request: web.Request, name: str, to: str, *, fence: bool, force: bool) -> dict[str, Any]:
    switching, now_ms = leadership_of(admin).switching, admin.clock.wall_ms()
    record, _ = await switching.get(name)
    if record.active == to and record.state == OPEN:
        return _reached(record)
    if record.state == OPEN or (fence and record.state != FENCED):
        record, _ = await switching.change(name, lambda old: closing(old, to, FENCED if fence else DRAINING, now_ms))
    if record.to != to:
        raise NotAllowed(f"{name} is being moved to {record.to}: finish that, or cancel it, first")
    if waits := await switching.waiting(name):
        what = "messages that are not acknowledged yet" if record.state == DRAINING else "a lease that has not ended"
        return _stands(record, f"{what} at {', '.join(waits[:5])}")
    regions = () if force else admin.policies(namespace_of(name)).regions
    if left := await switching.settle(name, regions):
        return _stands(
            record,
            f"whoever has not heard that it is active in one region hands it out ({unheard_text(left)}); --force does "
            "not wait for them",
        )
    if not force and (behind := await _out_of_step(admin, request, name, record.active, to)):
        return _stands(record, behind)
    new, waits = await switching.flip(name, to, record.since_ms, regions=regions)  # what was looked at was this closing
    if new is None:
        return _stands(record, f"brokers {', '.join(waits[:5])}")
    return _reached(new)


def _reached(record: Leadership) -> dict[str, Any]:
    return {"done": True, "active": record.active, "epoch": record.epoch, "waiting": ""}


def _stands(record: Leadership, waiting: str) -> dict[str, Any]:
    found = {"done": False, "active": record.active, "epoch": record.epoch, "state": record.state}
    return {**found, "waiting": waiting}


async def _out_of_step(admin: Admin, request: web.Request, name: str, source: str, target: str) -> str:
    topic, _, subscription = name.rpartition("/")
    namespace, ask = TopicName.parse(topic).namespace, facts_of(admin, request)
    sides = []
    for region in (source, target):
        try:
            found = await ask(region, namespace)
        except HeliographError as error:
            return f"{region} does not answer ({error}); --force does not wait for it"
        sides.append(_only(found, topic, subscription))
    left = namespace_facts.out_of_step(sides[0], sides[1], source, target)
    return f"{target} does not know yet what was acknowledged: {', '.join(left[:5])}" if left else ""


def _only(found: dict[str, Any], topic: str, subscription: str) -> dict[str, Any]:
    """The facts of one subscription."""
    wanted, topics = TopicName.parse(topic), {}
    for text, known in found["topics"].items():
        if TopicName.parse(text).partitioned == wanted:
            topics[text] = {
                **known,
                "subscriptions": {
                    name: state for name, state in known["subscriptions"].items() if name == subscription
                },
            }
    return {**found, "topics": topics}


def _name(admin: Admin, request: web.Request) -> str:
    topic = admin.topic(request)
    if topic.partition >= 0:
        raise NotAllowed(
            f"{topic} is a partition: all partitions are active in the same region; name {topic.partitioned}"
        )
    return subscription_name(str(topic), request.match_info["subscription"])


Named = Annotated[str, Read(_name)]


_SUBSCRIPTIONS = f"{DR}/subscriptions"
_ONE = f"{_SUBSCRIPTIONS}/{{topic}}/{{subscription}}"
ROUTES: tuple[Route, ...] = (
    Route("GET", _SUBSCRIPTIONS, CallAccess.TENANT, listed),
    Route("PUT", _ONE, CallAccess.SUPER, give),
    Route("DELETE", _ONE, CallAccess.SUPER, take_away),
    Route("POST", f"{_ONE}/move", CallAccess.SUPER, move),
    Route("POST", f"{_ONE}/cancel", CallAccess.SUPER, cancel),
)
