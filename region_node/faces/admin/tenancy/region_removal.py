"""Regions that leave a namespace: what that would take out of use, and who may not leave.

Is: a preview of a change of a namespace's regions, and the ties to its leadership. Isn't: the change.
Invariants: nothing is deleted when a region leaves: its copy is not served any more, and served again, with its
subscriptions, when the region comes back to the list, unless it was deleted meanwhile, which the namespace remembers
its regions for; the active region of an active-passive namespace does not leave by an edit of the list.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from heliograph.model.configuration.tombstones import Tombstone
from heliograph.model.errors import NotAllowed
from region_node.dr.leadership.leadership_changes import Switching
from region_node.dr.operations import namespace_facts
from region_node.dr.operations.drill_schedule import schedule
from region_node.dr.operations.messages_at_risk import at_risk
from region_node.dr.operations.operation_steps import forget_operations
from region_node.faces.admin.calls.admin_context import Admin
from region_node.faces.admin.calls.region_facts import facts_here


def check_active_stays(admin: Admin, namespace: str, regions: Sequence[str]) -> None:
    """Raises NotAllowed where the region that takes the messages, or is about to, is not among `regions`."""
    gate = admin.leases.gate(namespace) if admin.leases is not None else None
    if gate is None or (record := gate.record) is None:
        return
    if record.active not in regions:
        raise NotAllowed(
            f"{namespace} is active in {record.active}: `heliograph dr switchover {namespace}` first, or "
            f"`heliograph dr unset {namespace}`"
        )
    if record.to and record.to not in regions:
        raise NotAllowed(
            f"{namespace} is being moved to {record.to}: finish that, or `heliograph dr cancel {namespace}`, first"
        )


async def leaving(admin: Admin, namespace: str, regions: Sequence[str]) -> dict[str, Any]:
    """What the change would do. at_risk: where this region goes, what it published and others lack; by region that
    stays. A number that is not known is None.
    """
    old = admin.policies(namespace).regions
    gone = [region for region in old if region not in regions]
    found: dict[str, Any] = {
        "leave": gone,
        "join": [region for region in regions if region not in old],
        "topics": 0,
        "messages_not_sent": {},
        "at_risk": {},
    }
    if admin.region not in old:
        return found
    here = await facts_here(admin, namespace)
    found["topics"] = len(here["topics"]) if gone else 0
    found["messages_not_sent"] = {region: _not_in(here, region) for region in gone if region != admin.region}
    if admin.region in gone:
        found["at_risk"] = {region: _not_in(here, region) for region in regions if region in old}
    return found


def _not_in(here: Mapping[str, Any], region: str) -> int | None:
    """The messages of this region that are not in that one; None: not known."""
    found: int | None = at_risk(here["region"], region, namespace_facts.not_in(here, region), None)["messages"]
    return found


async def forget_leadership(admin: Admin, namespace: str) -> None:
    """Before the namespace goes, with which its own leadership goes: in another one of its name each subscription
    begins in every region, and nothing of an earlier failover, or a schedule of drills, is held against it.
    """
    if admin.leases is None:
        return
    store = admin.leases.store
    await Switching(store, admin.clock.wall_ms).forget_subscriptions(namespace)
    await forget_operations(store, namespace)
    await store.delete(schedule(namespace))


def is_everywhere(admin: Admin, namespace: str) -> bool:
    """Whether the namespace is deleted in every region, as others may have topics of it."""
    return admin.topics.everywhere is not None and admin.topics.everywhere.holds_namespace(namespace)


def namespace_deleted(admin: Admin, namespace: str) -> Tombstone | None:
    """What deleted the namespace itself, where its data is still there; one that asks has deleted nothing."""
    found = admin.tombstones.known.get(namespace) if admin.tombstones is not None else None
    return found[0] if found is not None and not found[0].asks else None


def buried_in(admin: Admin, namespace: str) -> list[Tombstone]:
    """What was deleted in the namespace, or with it, and is not gone yet, or asks."""
    if admin.tombstones is None:
        return []
    within = f"persistent://{namespace}/"
    known = (found for found, _ in admin.tombstones.known.values())
    return [found for found in known if found.topic == namespace or found.topic.startswith(within)]


def check_nothing_buried(admin: Admin, namespace: str) -> None:
    """What was deleted in two steps can be brought back while its namespace is there, and only then. Raises
    NotAllowed.
    """
    for found in buried_in(admin, namespace):
        raise NotAllowed(
            f"{found.topic} is deleted and its data is still there: wait until it is purged, or `heliograph dr "
            f"undelete {found.topic}`"
        )
