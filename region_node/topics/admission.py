"""Admission: whom a loaded topic lets in, by its policies and as it is now.

Is: checks before a producer or a consumer is taken, in Pulsar's words and with its codes. Isn't: what policies alone
decide (`region_node.topics.limits.topic_limits`), or who has the right (`region_node.security`).
Invariants: a limit that is lowered throws nobody out; it holds for whoever comes next.
"""

from __future__ import annotations

from heliograph.model.errors import (
    BacklogQuotaExceeded,
    BacklogQuotaHold,
    ConsumerBusy,
    EncryptionRequired,
    NotAllowed,
    ProducerBusy,
)
from region_node.subscriptions.consumer import SubscriptionType
from region_node.topics.limits.topic_limits import check_name
from region_node.topics.topic import Topic


def check_producer(topic: Topic, name: str, *, encrypted: bool) -> None:
    """Raises NotAllowed (a shadow, a name that is too long), EncryptionRequired, ProducerBusy (too many),
    BacklogQuotaHold, BacklogQuotaExceeded.
    """
    check_source(topic)
    check_name("producer", name)
    if topic.policies.on("encryptionRequired") and not encrypted:
        raise EncryptionRequired(f"Encryption is required in {topic.text}: give the producer encryption keys")
    most, there = topic.policies.limit("maxProducers"), topic.producers
    if most and name not in there.producers and len(there.producers) + len(there.waiting) >= most:
        raise ProducerBusy(f"Topic '{topic.text}' reached max producers limit {most}")
    check_backlog(topic)


def check_source(topic: Topic) -> None:
    """Raises NotAllowed: it is a shadow."""
    if topic.shadow_of:
        raise NotAllowed(f"Cannot send messages to a shadow topic: publish to {topic.shadow_of}")


def check_backlog(topic: Topic) -> None:
    """Raises BacklogQuotaExceeded (also where the tenant's storage is full), BacklogQuotaHold (the producer waits)."""
    if topic.policies.on("storageFull"):
        raise BacklogQuotaExceeded(
            f"tenant {topic.name.tenant} stores as much as it may in this region: delete topics, or keep less "
            "(retention, time to live), "
            "or ask an operator for a larger quota"
        )
    if topic.over_quota == "producer_request_hold":
        raise BacklogQuotaHold(
            f"Cannot create producer on topic {topic.text} with backlog quota exceeded: it waits until consumers have "
            "caught up"
        )
    if topic.over_quota == "producer_exception":
        raise BacklogQuotaExceeded(f"Cannot create producer on topic {topic.text} with backlog quota exceeded")


def check_region(topic: Topic) -> None:
    """Raises RegionPassive where another region publishes to the namespace, or this one may not confirm now."""
    if topic.gate is not None and (refused := topic.gate.refusal()) is not None:
        raise refused


def check_type(topic: Topic, kind: SubscriptionType) -> None:
    """Raises NotAllowed where the topic does not have subscriptions of this type."""
    types = topic.policies.values["subscriptionTypes"]
    if types and kind.label not in types:
        raise NotAllowed(f"Topic[{topic.text}] doesn't support {kind.label} sub type!")


def check_consumers(topic: Topic, subscription: str) -> None:
    """Raises ConsumerBusy where the topic or the subscription has as many consumers as it may have."""
    most = topic.policies.limit("maxConsumers")
    if most and sum(len(s.consumers) for s in topic.subscriptions.values()) >= most:
        raise ConsumerBusy(f"Topic reached max consumers limit {most}")
    most, found = topic.policies.limit("maxConsumersPerSubscription"), topic.subscriptions.get(subscription)
    if most and found is not None and len(found.consumers) >= most:
        raise ConsumerBusy(f"Subscription reached max consumers limit {most}")
