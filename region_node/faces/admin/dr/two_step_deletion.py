"""Deleting a topic, or a namespace, in two steps: what it would take away, the tombstone, bringing it back.

Is: paths of our own, below /heliograph/v1/dr. Isn't: Pulsar's own DELETE, which comes to the same where other regions
have it too (`region_node.topics.serving.deletion_everywhere`).
Invariants: a preview changes nothing; a tombstone is the whole of the first step, and takes effect in every region that
hears of it.
Source: docs/operating/disaster-recovery.md, "Deleting".
"""

from __future__ import annotations

from typing import Annotated, Any

from aiohttp import web
from msgspec import Meta

from heliograph.model.admin_paths import DR
from heliograph.model.configuration.policy_table import DELETION_GRACE_S_MAX
from heliograph.model.configuration.tombstones import Tombstone, tombstone
from heliograph.model.errors import MetadataUnavailable, NotAllowed, NotFound, VersionConflict
from heliograph.model.topic_names import TopicName
from region_node.faces.admin.calls.admin_context import Admin
from region_node.faces.admin.calls.call_bodies import Given
from region_node.faces.admin.calls.call_parameters import ExistingNamespace, Namespace
from region_node.faces.admin.calls.call_rights import CallAccess, Route
from region_node.faces.admin.calls.existing import deletion_of, existing, leases_of, role_of, tombstones_of
from region_node.faces.admin.calls.region_facts import facts_here
from region_node.topics.serving.named_topics import under


async def listed(admin: Admin, namespace: Namespace) -> list[Tombstone]:
    """Topics of the namespace that were deleted, and can be brought back or are being purged."""
    return [
        found
        for _, (found, _) in sorted(tombstones_of(admin).known.items())
        if namespace in (found.topic, _namespace(found))
    ]


def _namespace(found: Tombstone) -> str:
    return found.topic if found.whole else TopicName.parse(found.topic).namespace


async def preview(admin: Admin, name: TopicName) -> dict[str, Any]:
    """What deleting the topic would take away in this region. `heliograph dr delete` asks every region."""
    topics = (await facts_here(admin, name.namespace))["topics"]
    found = {text: topics[text] for text in map(str, under(name, topics))}
    if not found:
        raise NotFound(f"{name} does not exist in region {admin.region}")
    return _sum(admin, str(name), found)


async def preview_namespace(admin: Admin, namespace: ExistingNamespace) -> dict[str, Any]:
    """What deleting the whole namespace would take away in this region."""
    facts = await facts_here(admin, namespace)
    return {**_sum(admin, namespace, facts["topics"]), "not_loaded": facts["missing"]}


def _sum(admin: Admin, name: str, found: dict[str, Any]) -> dict[str, Any]:
    return {
        "region": admin.region,
        "topic": name,
        "topics": len(found),
        "entries": sum(topic["entries"] for topic in found.values()),
        "bytes": sum(topic["bytes"] for topic in found.values()),
        "producers": sum(topic["producers"] for topic in found.values()),
        "consumers": sum(topic["consumers"] for topic in found.values()),
        "backlog": _added(found),
        "not_elsewhere": sum(link["messages"] for topic in found.values() for link in topic["links"].values()),
    }


class Deletion(Given):
    """grace_s: how long it can be brought back; left out: as the policy `deletionGrace` of its namespace says."""

    grace_s: Annotated[float, Meta(ge=0, le=DELETION_GRACE_S_MAX)] | None = None


async def bury(admin: Admin, request: web.Request, name: TopicName, given: Deletion | None) -> Tombstone:
    """From now on nobody can use it, in any region; its data goes when the grace period has
    ended. Where a tombstone asks, this is the answer that it is to go; where one stands, its grace period ends earlier.
    """
    topics = admin.topics
    if not (admin.view.partitions(str(name)) or await topics.exists(str(name)) or await topics.stored_of(name)):
        raise NotFound(f"{name} does not exist in region {admin.region}")
    made = await deletion_of(admin).topic(name, by=role_of(request), grace_s=(given or Deletion()).grace_s)
    admin.changed(request, None, made)
    return made


async def bury_namespace(admin: Admin, request: web.Request, namespace: Namespace, given: Deletion | None) -> Tombstone:
    """The same of a namespace: every topic in it, its policies, and its name go when the
    grace period has ended.
    """
    made = await deletion_of(admin).namespace(namespace, by=role_of(request), grace_s=(given or Deletion()).grace_s)
    admin.changed(request, None, made)
    return made


async def bring_back(admin: Admin, request: web.Request, name: TopicName) -> None:
    """It is as it was, with its data and its subscriptions. Refused once a region has begun to purge, unless the
    tombstone asks: then what is there stays, as nothing was hidden; and while its namespace is deleted, with which it
    would go.
    """
    if (whole := await leases_of(admin).store.get(tombstone(name.namespace))) is not None:
        outer = Tombstone.decode(whole[0])
        if not outer.asks:
            raise NotAllowed(f"{name} goes with its namespace: {outer.reason}")
    await _bring_back(admin, request, str(name))


async def bring_back_namespace(admin: Admin, request: web.Request, namespace: Namespace) -> None:
    """The same of a namespace."""
    await _bring_back(admin, request, namespace)


async def _bring_back(admin: Admin, request: web.Request, name: str) -> None:
    store = leases_of(admin).store
    found = existing(await store.get(tombstone(name)), NotFound(f"{name} is not deleted, or its data has gone"))
    buried = Tombstone.decode(found[0])
    if buried.purging and not buried.asks:
        raise NotAllowed(f"{name} is being purged in {', '.join(buried.purging)}: it is too late")
    try:
        await store.delete(tombstone(name), expected=found[1])
    except VersionConflict:
        raise MetadataUnavailable("a region began to purge it at this moment: look again") from None
    admin.changed(request, buried, None)


def _added(found: dict[str, Any]) -> dict[str, int]:
    out: dict[str, int] = {}
    for topic in found.values():
        for subscription, count in topic["backlog"].items():
            out[subscription] = out.get(subscription, 0) + count
    return out


_DELETIONS = f"{DR}/deletions"
_DELETION = f"{DR}/deletion"
ROUTES: tuple[Route, ...] = (
    Route("GET", _DELETION, CallAccess.TENANT, preview_namespace),
    Route("PUT", _DELETION, CallAccess.TENANT, bury_namespace),
    Route("DELETE", _DELETION, CallAccess.TENANT, bring_back_namespace),
    Route("GET", _DELETIONS, CallAccess.TENANT, listed),
    Route("GET", f"{_DELETIONS}/{{topic}}", CallAccess.TENANT, preview),
    Route("PUT", f"{_DELETIONS}/{{topic}}", CallAccess.TENANT, bury),
    Route("DELETE", f"{_DELETIONS}/{{topic}}", CallAccess.TENANT, bring_back),
)
