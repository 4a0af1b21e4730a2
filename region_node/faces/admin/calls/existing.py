"""What a path names, once it is sure that it is there: a tenant, a namespace, a topic, a subscription; and what each
partition of a topic, or each other broker, answers.

Is: looking, and Pulsar's words where there is nothing. Isn't: what a handler does then.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any, TypeVar

from aiohttp import web

from heliograph.model.errors import (
    AlreadyExists,
    MetadataUnavailable,
    NotAllowed,
    NotFound,
    StoreRefused,
    SubscriptionNotFound,
)
from heliograph.model.topic_names import TopicName
from region_node.faces.admin.calls.admin_context import Admin
from region_node.placement.ownership.broker_records import BrokerRecord
from region_node.subscriptions.subscription import Subscription
from region_node.topics.topic import Topic

V = TypeVar("V")


def existing(found: V | None, error: Exception) -> V:
    """What was looked for. Raises the error where nothing was found."""
    if found is None:
        raise error
    return found


def part(look: Callable[[Admin], V | None], error: type[Exception], why: str) -> Callable[[Admin], V]:
    """How a part of the broker is got at that not every broker has; the error is raised where this one has none."""
    return lambda admin: existing(look(admin), error(why))


def existing_tenant(admin: Admin, request: web.Request) -> str:
    """Raises NotFound where there is no such tenant."""
    tenant = admin.tenant(request)
    existing(admin.view.tenant(tenant), NotFound(f"Tenant {tenant} does not exist"))
    return tenant


def existing_namespace(admin: Admin, request: web.Request) -> str:
    """Raises NotFound where there is no such namespace."""
    namespace = admin.namespace(request)
    admin.policies(namespace)
    return namespace


def topic_of(admin: Admin, request: web.Request) -> TopicName:
    """Raises NotFound where there is no such namespace; the topic may be yet to come."""
    name = admin.topic(request)
    admin.policies(name.namespace)
    return name


def check_not_deleted(admin: Admin, name: TopicName) -> None:
    """Raises NotFound where the topic was deleted, and its data is still there."""
    if deleted := admin.topics.tombstone_of(name):
        raise NotFound(deleted)


def check_name_free(admin: Admin, name: TopicName) -> None:
    """Raises AlreadyExists where what had the name was deleted, and is not gone yet."""
    if taken := admin.topics.name_taken(name):
        raise AlreadyExists(taken)


def goes_everywhere(admin: Admin, name: TopicName) -> bool:
    """Whether the topic is deleted in every region, where nothing else is said."""
    return admin.topics.everywhere is not None and admin.topics.everywhere.holds(name)


def asked_by_broker(request: web.Request) -> bool:
    """Whether another broker of the region asks, of what it owns itself no part: clients are sent to the owner, and
    ask there in their own name. Where nobody is asked who they are, nobody is known to be a broker.
    """
    return getattr(request.get("principal"), "internal", False)


async def existing_topic(admin: Admin, name: TopicName) -> TopicName:
    """Raises NotFound where there is no such topic in this region, plain or partitioned."""
    admin.policies(name.namespace)
    check_not_deleted(admin, name)
    if not await admin.exists(name):
        raise NotFound(f"Topic {name} not found")
    return name


def subscription_of(topic: Topic, name: str) -> Subscription:
    """Raises SubscriptionNotFound where the topic has none of that name."""
    error = SubscriptionNotFound(f"Subscription {name} does not exist on {topic.text}")
    return existing(topic.subscriptions.get(name), error)


_NOT_STARTED = "this broker does not balance: it is not started yet"
leases_of = part(lambda admin: admin.leases, NotAllowed, "this broker takes no part in disaster recovery")
balancer_of = part(lambda admin: admin.balancer, MetadataUnavailable, _NOT_STARTED)
quotas_of = part(lambda admin: balancer_of(admin).quotas, MetadataUnavailable, _NOT_STARTED)
divider_of = part(lambda admin: balancer_of(admin).divider, MetadataUnavailable, _NOT_STARTED)
recovery_of = part(lambda admin: admin.recovery, NotAllowed, "this broker takes no part in auto-recovery")
deferred_of = part(lambda admin: admin.deferred, NotFound, "this broker keeps no edits of the configuration")
_NO_DELETIONS = "this broker takes no part in deletions"
tombstones_of = part(lambda admin: admin.tombstones, NotAllowed, _NO_DELETIONS)
deletion_of = part(lambda admin: admin.topics.everywhere, NotAllowed, _NO_DELETIONS)
leadership_of = part(
    lambda admin: admin.subscription_leadership,
    NotFound,
    "this broker has no subscriptions that are active in one region",
)
tier_of = part(lambda admin: admin.tier, StoreRefused, "this broker has no tiered storage")
collector_of = part(
    lambda admin: tier_of(admin).tiering.collector,
    StoreRefused,
    "this broker is set to no object store: set broker.tiered.store",
)
sign_in_of = part(
    lambda admin: admin.sign_in,
    NotFound,
    "no source in security.tokens has a console_client_id: nobody signs in at an issuer here",
)


def role_of(request: web.Request) -> str:
    """Who asks, as records name somebody."""
    return getattr(request.get("principal"), "role", "") or "anonymous"


def check_in_region(admin: Admin, namespace: str, region: str) -> tuple[str, ...]:
    """Returns the namespace's regions. Raises NotAllowed where it is not in that one, NotFound where it is nowhere."""
    regions = admin.policies(namespace).regions
    if region not in regions:
        raise NotAllowed(f"{namespace} is not in region {region}; it is in {', '.join(regions)}")
    return regions


def partitions_of(admin: Admin, name: TopicName) -> list[TopicName]:
    """Raises NotFound where the topic is not partitioned, or was deleted."""
    admin.policies(name.namespace)
    check_not_deleted(admin, name)
    found = partitions(admin, name)
    if not found:
        raise NotFound(f"Partitioned topic {name} does not exist")
    return found


def partitions(admin: Admin, name: TopicName) -> list[TopicName]:
    """None for a plain topic."""
    return [name.with_partition(index) for index in range(admin.view.partitions(str(name)))]


async def at_owners(
    admin: Admin, parts: list[TopicName], method: str, path: str, here: Callable[[TopicName], Awaitable[Any]]
) -> dict[TopicName, Any]:
    """What each of the topics answers where it is owned, by `here`, or by `path` behind its own; without those that
    were never used.
    """
    found = {part: await admin.at_owner(part, method, path, lambda _, part=part: here(part)) for part in parts}  # type: ignore[misc]
    return {part: answer for part, answer in found.items() if answer is not None}


def everywhere(act: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """A handler that does it to a plain topic, or to every partition where that is owned. act: it is called with the
    Admin, the request, the topic's name, and whatever else it takes.
    """

    @wraps(act)
    async def handle(admin: Admin, request: web.Request, name: TopicName, **more: Any) -> Any:
        if not await admin.for_each_partition(request, lambda part: act(admin, request, part, **more)):
            return await act(admin, request, name, **more)
        return None

    return handle


def other_brokers(admin: Admin) -> list[BrokerRecord]:
    """All of this region but this one itself."""
    return [record for record in admin.ownership.brokers() if record.broker != admin.ownership.record.broker]


async def of_other_brokers(admin: Admin, method: str, path: str) -> list[Any]:
    """What each other broker of the region answers. Raises what a call to one raises."""
    return [await admin.call(record, method, path) for record in other_brokers(admin)]
