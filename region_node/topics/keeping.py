"""Keeper: what policies want done as time goes by, on the broker's tick.

Is: time to live, backlog quotas, compaction, subscriptions and topics that nobody uses. Isn't: retention (the managed ledger does that), or a timer of its
own.
Invariants: a topic without such a policy costs nothing; one look at a topic at a time, and a bounded number of them in the whole broker; cursors
of links are never moved from here; a topic that other regions hold too is never deleted by its inactivity.
Source: docs/protocols/admin.md, "Policies".
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from heliograph.model.errors import HeliographError
from heliograph.runtime.clock import Clock
from region_node.subscriptions.ready import BoundedReads

if TYPE_CHECKING:
    from region_node.subscriptions.subscription import Subscription
    from region_node.topics.topic import Topic

log = logging.getLogger("region_node.topics")

_EVICT_TO = 0.9
"""Eviction goes on until the backlog is this part of its quota, as Pulsar's does."""


def is_kept(topic: Topic) -> bool:
    """Whether any policy of the topic wants a look on each tick."""
    policies = topic.policies
    quotas = policies.quota("destination_storage") or policies.quota("message_age")
    return bool(
        policies.limit("messageTTL")
        or quotas
        or policies.part("inactiveTopics", "deleteWhileInactive")
        or policies.limit("subscriptionExpiration")
        or policies.limit("compactionThreshold")
        or snapshot_interval_s(topic)
    )


def snapshot_interval_s(topic: Topic) -> int:
    """How often what deduplication knows is written; 0: by the number of entries alone."""
    return topic.policies.values.get("deduplicationSnapshotInterval") or 0 if topic.policies.deduplication else 0


class Keeper:
    """`delete`: removes a topic for good."""

    def __init__(self, reads: BoundedReads, clock: Clock, delete: Callable[[Topic], Awaitable[None]], replicated: Callable[[Topic], bool]) -> None:
        self._reads, self._clock, self._delete, self._replicated = reads, clock, delete, replicated
        self._topics: dict[Topic, None] = {}
        self._looking: dict[Topic, None] = {}
        self._snapshots: dict[Topic, float] = {}
        """Of topics whose policy says how often: when the last one was asked for."""

    def follow(self, topic: Topic) -> None:
        """Its policies are known, or have changed."""
        if is_kept(topic):
            self._topics[topic] = None
        else:
            self._topics.pop(topic, None)
            topic.over_quota = ""
        if not snapshot_interval_s(topic):
            self._snapshots.pop(topic, None)

    def tick(self) -> None:
        for topic in list(self._topics):
            if topic.closed:
                del self._topics[topic]
                self._snapshots.pop(topic, None)
            elif topic not in self._looking:
                self._looking[topic] = None
                self._reads.start(lambda topic=topic: self._look(topic))  # type: ignore[misc]

    async def _look(self, topic: Topic) -> None:
        try:
            if not topic.volatile:
                await self._expire(topic)
                await self._keep_quota(topic)
                await topic.compact_if_due()
                self._snapshot(topic)
            await self._drop_unused(topic)
        except HeliographError as error:  # the next tick tries again
            log.warning("topic.keeping_failed", extra={"topic": topic.text, "error": str(error)})
        finally:
            self._looking.pop(topic, None)

    def _snapshot(self, topic: Topic) -> None:
        interval_s, now = snapshot_interval_s(topic), self._clock.monotonic()
        if interval_s and now - self._snapshots.setdefault(topic, now) >= interval_s:
            self._snapshots[topic] = now
            topic.ledger.checkpoint()

    # -- time to live -------------------------------------------------------------------------------------------------

    async def _expire(self, topic: Topic) -> None:
        ttl_s = topic.policies.limit("messageTTL")
        if not ttl_s:
            return
        before_ms = self._clock.wall_ms() - ttl_s * 1000
        names = [s.name for s in topic.subscriptions.values() if s.durable and s.cursor.backlog_entries and 0 < await topic.oldest_ms(s) <= before_ms]
        if names:
            await topic.expire_before(before_ms, names)

    # -- backlog quotas -----------------------------------------------------------------------------------------------

    async def _keep_quota(self, topic: Topic) -> None:
        size, age = topic.policies.quota("destination_storage"), topic.policies.quota("message_age")
        over = ""
        subscriptions = [s for s in topic.subscriptions.values() if s.durable]
        if size is not None and (above := [s for s in subscriptions if s.cursor.backlog_bytes > size[0]]):
            over = size[1]
            if over == "consumer_backlog_eviction":
                await topic.evict(int(size[0] * _EVICT_TO), [s.name for s in above])
                over = ""
        if age is not None and not over:
            before_ms = self._clock.wall_ms() - age[0] * 1000
            old = [s for s in subscriptions if s.cursor.backlog_entries and 0 < await topic.oldest_ms(s) <= before_ms]
            if old:
                over = age[1]
                if over == "consumer_backlog_eviction":
                    await topic.expire_before(before_ms, [s.name for s in old])
                    over = ""
        if over and not topic.over_quota:
            log.warning("topic.over_quota", extra={"topic": topic.text, "policy": over, "producers": len(topic.producers.producers)})
            topic.over_quota = over
            topic.close_producers()
        elif over != topic.over_quota:
            log.info("topic.within_quota", extra={"topic": topic.text})
            topic.over_quota = over

    # -- what nobody uses -----------------------------------------------------------------------------------------------

    async def _drop_unused(self, topic: Topic) -> None:
        now = self._clock.monotonic()
        minutes = topic.policies.limit("subscriptionExpiration")
        for subscription in list(topic.subscriptions.values()):
            if not _unused(subscription, now):
                continue
            if minutes and now - subscription.unused_since >= minutes * 60:
                log.info("subscription.expired", extra={"topic": topic.text, "subscription": subscription.name, "minutes": minutes})
                await topic.delete_subscription(subscription.name)
        if self._inactive(topic, now):
            log.info("topic.inactive", extra={"topic": topic.text})
            await self._delete(topic)

    def _inactive(self, topic: Topic, now: float) -> bool:
        policies, producers = topic.policies, topic.producers
        idle = not producers.producers and not producers.waiting and not any(s.consumers for s in topic.subscriptions.values())
        if policies.part("inactiveTopics", "inactiveTopicDeleteMode") == "delete_when_no_subscriptions":
            idle = idle and not topic.subscriptions
        else:
            idle = idle and not any(s.cursor.backlog_entries for s in topic.subscriptions.values())
        if not idle or not policies.part("inactiveTopics", "deleteWhileInactive") or self._replicated(topic):
            topic.inactive_since = 0.0
            return False
        topic.inactive_since = topic.inactive_since or now
        minutes = policies.retention[0]
        if topic.ledger.size_bytes and minutes:  # what it holds is to be kept
            published_s = (self._clock.wall_ms() - max(topic.last_publish_ms, topic.created_ms)) / 1000
            if minutes < 0 or published_s < minutes * 60:
                return False
        return now - topic.inactive_since >= float(policies.part("inactiveTopics", "maxInactiveDurationSeconds"))


def _unused(subscription: Subscription, now: float) -> bool:
    """Of a durable one: remembers since when it has had no consumers."""
    if not subscription.durable or subscription.consumers:
        subscription.unused_since = 0.0
        return False
    subscription.unused_since = subscription.unused_since or now
    return True
