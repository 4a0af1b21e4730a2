"""ReplicatedSubscriptions: this broker's subscriptions, as their replication asks for them.

Is: making one, moving one, how often messages came again. Isn't: a rule
(`replicator.subscriptions.subscription_state`), or who tells that a client or an operator moved one
(`region_node.topics.topic_subscriptions`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from heliograph.model.errors import TopicClosed
from heliograph.model.positions import Position
from region_node.subscriptions.subscription import Subscription
from region_node.topics.serving.loaded_topics import Loaded
from region_node.topics.topic import Topic
from replicator.subscriptions.subscription_sync import SubscriptionSync


def replicate(topic: Topic, subscription: Subscription, *, on: bool = True) -> None:
    """From now on what is acknowledged anywhere counts everywhere, or this region takes no part in that any more.

    Idempotent; readers, topics that are not stored, and names that are not replicated are left alone.
    """
    sync: SubscriptionSync | None = getattr(topic.log, "subscriptions", None)
    if sync is None or not subscription.durable:
        return
    topic.touch()
    if on:
        sync.enable(subscription.name)
    else:
        sync.disable(subscription.name)


def replicate_by_policy(topic: Topic) -> None:
    """Where the namespace or the topic asks for it, and before the first message goes out: what is acknowledged then is
    acknowledged everywhere.
    """
    log: Any = topic.log
    if getattr(log, "replicate_all", False):  # else it is not made: most topics have no replicated subscription
        log.subscriptions.enable_all()


class ReplicatedSubscriptions:
    """Implements `replicator.subscriptions.subscription_sync.SubscriptionHost`."""

    def __init__(self, loaded: Loaded) -> None:
        self._topics = loaded

    async def ensure(self, topic: str, name: str, mark_delete: Position) -> None:
        """Raises TopicClosed where the topic is not loaded (any more)."""
        loaded = self._loaded(topic)
        if loaded is None:
            raise TopicClosed(f"{topic} is being unloaded")
        await loaded.subscription(name, initial=mark_delete)

    def reset(self, topic: str, name: str, mark_delete: Position) -> bool:
        found = self._subscription(topic, name)
        if found is None:
            return False
        found.reset(mark_delete)
        return True

    def begin_earlier(
        self, topic: str, name: str, mark_delete: Position, start: Position, never: Sequence[tuple[int, int, int]]
    ) -> bool:
        found = self._subscription(topic, name)
        if found is None:
            return False
        found.begin_earlier(mark_delete, start, never)
        return True

    def redelivered(self, topic: str, name: str) -> int:
        found = self._subscription(topic, name)
        return (
            0
            if found is None
            else found.messages_redelivered + sum(consumer.messages_redelivered for consumer in found.consumers)
        )

    def redeliveries(self, topic: str, name: str, most: int) -> Mapping[Position, int]:
        found = self._subscription(topic, name)
        return {} if found is None else found.redeliveries(most)

    def count(self, topic: str, name: str, counts: Mapping[Position, int]) -> None:
        if (found := self._subscription(topic, name)) is not None:
            found.count_redeliveries(counts)

    def _subscription(self, topic: str, name: str) -> Subscription | None:
        loaded = self._loaded(topic)
        return None if loaded is None else loaded.subscriptions.get(name)

    def _loaded(self, topic: str) -> Topic | None:
        found = self._topics.get(topic)
        return None if found is None or found.closed else found
