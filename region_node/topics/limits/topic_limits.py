"""Limits: whom a topic lets in, and what it refuses to store, by its policies.

Is: checks before a producer, a consumer, a subscription, or a run is taken, in Pulsar's words and with its codes.
Isn't: rates of messages (`region_node.subscriptions.rate_limits`), or what is done on a tick
(`region_node.topics.policies.policy_maintenance`). A limit that is lowered throws nobody out; it holds for whoever
comes next.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from heliograph.model.errors import (
    BacklogQuotaExceeded,
    BacklogQuotaHold,
    ConsumerBusy,
    CorruptData,
    EncryptionRequired,
    HeliographError,
    NotAllowed,
    ProducerBusy,
)
from heliograph.wire.pulsar.entry_metadata import entry_metadata
from heliograph.wire.run import Run
from region_node.subscriptions.consumer import SubscriptionType
from region_node.subscriptions.delayed_delivery import delayed_entries

if TYPE_CHECKING:
    from region_node.topics.topic import Topic
    from region_node.topics.topic_subscriptions import SubscribingTopic

_CLIENTS_MAX = 10_000
NAME_BYTES_MAX = 1000
"""Names of producers and subscriptions are not longer: both are parts of what the metadata holds, key or value."""


def check_producer(topic: Topic, name: str, *, encrypted: bool) -> None:
    """Raises NotAllowed (a shadow, a name that is too long), EncryptionRequired, ProducerBusy (too many),
    BacklogQuotaHold, BacklogQuotaExceeded.
    """
    check_source(topic)
    _check_name("producer", name)
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


def check_new_subscription(topic: SubscribingTopic, name: str) -> None:
    """Raises NotAllowed: the name is too long, or the topic has as many as it may have."""
    _check_name("subscription", name)
    most = topic.policies.limit("maxSubscriptions")
    if most and len(topic.subscriptions) >= most:
        raise NotAllowed(
            f"Exceed the maximum number of subscriptions of the topic: {topic.text}, subscription: {name}, limit {most}"
        )


def _check_name(what: str, name: str) -> None:
    size = len(name) if name.isascii() else len(name.encode())
    if size > NAME_BYTES_MAX:
        raise NotAllowed(f"the name of the {what} has {size} bytes: at most {NAME_BYTES_MAX} are allowed")


def check_consumers(topic: Topic, subscription: str) -> None:
    """Raises ConsumerBusy where the topic or the subscription has as many consumers as it may have."""
    most = topic.policies.limit("maxConsumers")
    if most and sum(len(s.consumers) for s in topic.subscriptions.values()) >= most:
        raise ConsumerBusy(f"Topic reached max consumers limit {most}")
    most, found = topic.policies.limit("maxConsumersPerSubscription"), topic.subscriptions.get(subscription)
    if most and found is not None and len(found.consumers) >= most:
        raise ConsumerBusy(f"Subscription reached max consumers limit {most}")


class SubscribeRate:
    """How often each client may subscribe to one topic: counted by period."""

    __slots__ = ("_counts", "_until")

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._until = 0.0

    def check(self, topic: SubscribingTopic, client: str, now: float) -> None:
        """client: what tells one consumer of one client from another. Raises NotAllowed."""
        most = topic.policies.part("subscribeRate", "subscribeThrottlingRatePerConsumer")
        if most is None or most <= 0:
            return
        if now >= self._until or len(self._counts) >= _CLIENTS_MAX:
            self._counts, self._until = {}, now + topic.policies.part("subscribeRate", "ratePeriodInSecond")
        if self._counts.get(client, 0) >= most:
            raise NotAllowed("Subscribe limited by subscribe rate limit per consumer.")
        self._counts[client] = self._counts.get(client, 0) + 1


def is_strict(topic: Topic) -> bool:
    """Whether any entry may be refused: else nobody looks at it."""
    policies = topic.policies
    delay = policies.part("delayedDelivery", "maxDeliveryDelayInMillis")
    return bool(policies.limit("maxMessageSize") or policies.on("encryptionRequired") or delay)


def refusals(topic: Topic, run: Run, now_ms: int) -> list[tuple[int, HeliographError]]:
    """(index, why) of the entries of a run that are not stored, in order."""
    policies, found = topic.policies, dict[int, HeliographError]()
    if policies.on("encryptionRequired"):
        found.update(
            (index, EncryptionRequired("Messages must be encrypted"))
            for index, part in enumerate(run.parts)
            if not _encrypted(part)
        )
    delay_max = policies.part("delayedDelivery", "maxDeliveryDelayInMillis")
    if delay_max:
        for index, _ in delayed_entries(run, now_ms + delay_max):
            found[index] = NotAllowed(f"Exceeds max allowed delivery delay of {delay_max} milliseconds")
    size_max = policies.limit("maxMessageSize")
    if size_max and max(run.lengths) > size_max:
        for index, size in enumerate(run.lengths):
            if size > size_max:
                found[index] = NotAllowed(
                    f"Exceed maximum message size: {size} bytes, at most {size_max} in {topic.text}"
                )
    return sorted(found.items())


def _encrypted(part: bytes | bytearray | memoryview) -> bool:
    try:
        return bool(entry_metadata(part)[0].encryption_keys)
    except CorruptData:
        return False
