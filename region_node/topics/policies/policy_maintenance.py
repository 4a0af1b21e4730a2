"""PolicyMaintenance: what policies want done as time goes by, on the broker's tick.

Is: time to live, backlog quotas, compaction, subscriptions and topics that nobody uses. Isn't: retention (the managed
ledger does that), or a timer of its own.
Invariants: a topic without such a policy costs nothing, and one with it nothing between two events: it is looked at
when something has happened on it, and when the time comes that the last look has named; one look at a topic at a time,
and a bounded number of them in the whole broker; cursors of links are never moved from here; a topic that other regions
hold too is never deleted by its inactivity. What fails, or cannot be read, keeps nothing else from being done.
Source: docs/protocols/admin.md, "Policies".
"""

from __future__ import annotations

import heapq
import logging
import math
from collections.abc import Awaitable, Callable, Iterable
from itertools import count
from typing import TYPE_CHECKING

from heliograph.model.errors import HeliographError
from heliograph.model.positions import Position
from heliograph.runtime.clock import Clock
from region_node.runtime.ready_queue import BoundedReads

if TYPE_CHECKING:
    from region_node.subscriptions.subscription import Subscription
    from region_node.topics.topic import Topic

log = logging.getLogger("region_node.topics")

NEVER = math.inf
KAFKA_CURSOR = "pulsar.kafka"
"""Keeps what Kafka's retention wants kept. A topic that has it is used by Kafka's clients, which come and go without a
session: it is never inactive.
"""
LOOK_AGAIN_S = 600.0
"""Who waits for a time is looked at as often as that at least: clocks on the wall are set anew."""
_DUE_MIN = 1000
"""Beyond that, and two a topic, what waits for a time that is no topic's any more is thrown away: a topic that is busy
names another one each second.
"""
_UNREAD_MAX = 100
"""Where so many backlogs could not be read, a look tries no others."""
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


class _Ages:
    """How old backlogs are, in one look at a topic. `failed`: why one of them could not be read."""

    def __init__(self, topic: Topic) -> None:
        self._topic = topic
        self._unread: set[Position] = set()
        """Mark-delete positions behind which nothing could be read."""
        self.failed: HeliographError | None = None

    async def oldest_ms(self, subscription: Subscription) -> int:
        """When the first message of its backlog was stored here; 0: there is none, or it cannot be read now."""
        at = subscription.cursor.mark_delete
        if not subscription.cursor.backlog_entries or at in self._unread or len(self._unread) >= _UNREAD_MAX:
            return 0
        try:
            return await self._topic.oldest_ms(subscription)
        except HeliographError as error:
            self.failed = error
            self._unread.add(at)
            return 0


async def _compact(topic: Topic, _ages: _Ages) -> None:
    await topic.compact_if_due()


class PolicyMaintenance:
    """`delete`: removes a topic for good."""

    def __init__(
        self,
        reads: BoundedReads,
        clock: Clock,
        delete: Callable[[Topic], Awaitable[None]],
        replicated: Callable[[Topic], bool],
    ) -> None:
        self._reads, self._clock, self._delete, self._replicated = reads, clock, delete, replicated
        self._topics: dict[Topic, float] = {}
        """Each with the time of its next look, on the monotonic clock; NEVER: not before something happens on it."""
        self._due: list[tuple[float, int, Topic]] = []
        """A heap of those that wait for a time: what is not the topic's time any more is passed over."""
        self._numbers = count()
        self._looking: dict[Topic, bool] = {}
        """Whether something has happened meanwhile."""
        self._snapshots: dict[Topic, float] = {}
        """Of topics whose policy says how often, and that something happened on since the last one: when the next is
        due.
        """

    def follow(self, topic: Topic) -> None:
        """Its policies are known, or have changed."""
        if is_kept(topic):
            self._look_at(topic, self._clock.monotonic())
        else:
            self._topics.pop(topic, None)
            topic.over_quota, topic.inactive_since = "", 0.0
        if not snapshot_interval_s(topic):
            self._snapshots.pop(topic, None)

    def look_at_all(self) -> None:
        """Begins a look at every topic it follows, whatever time each waits for."""
        for topic in list(self._topics):
            self._begin(topic)

    def tick(self, now: float, touched: Iterable[Topic]) -> None:
        """touched: topics on which something has happened."""
        for topic in touched:
            if topic in self._topics:
                self._begin(topic)
        while self._due and self._due[0][0] <= now:
            at, _, topic = heapq.heappop(self._due)
            if self._topics.get(topic) == at:
                self._begin(topic)

    def _look_at(self, topic: Topic, at: float) -> None:
        if self._topics.get(topic) != at:
            self._topics[topic] = at
            if at < NEVER:
                if len(self._due) > _DUE_MIN + 2 * len(self._topics):
                    self._due = [
                        entry for entry in self._due if self._topics.get(entry[2]) == entry[0] and entry[2] is not topic
                    ]
                    heapq.heapify(self._due)
                heapq.heappush(self._due, (at, next(self._numbers), topic))

    def _begin(self, topic: Topic) -> None:
        if topic.closed:
            del self._topics[topic]
            self._snapshots.pop(topic, None)
        elif topic in self._looking:
            self._looking[topic] = True
        else:
            self._looking[topic] = False
            self._topics[topic] = NEVER
            self._reads.start(lambda: self._look(topic))

    async def _look(self, topic: Topic) -> None:
        at = now = self._clock.monotonic()  # the next tick: so it stays where anything fails
        ages, failed = _Ages(topic), None
        steps = (self._expire, self._keep_quota, _compact, self._snapshot, self._drop_unused)
        try:
            for step in steps[-1:] if topic.volatile else steps:
                if topic.closed:
                    return
                try:
                    await step(topic, ages)
                except HeliographError as error:
                    failed = error
            wait_s = await self._wait_s(topic, ages, now)
            if failed := failed or ages.failed:  # the next tick tries again
                log.warning("topic.keeping_failed", extra={"topic": topic.text, "error": str(failed)})
            else:
                at = min(now + LOOK_AGAIN_S, now + wait_s) if wait_s < NEVER else NEVER
        finally:
            happened = self._looking.pop(topic)
            if topic in self._topics and not topic.closed:
                self._look_at(topic, now if happened else min(at, self._topics[topic]))
            else:
                self._topics.pop(topic, None)
                self._snapshots.pop(topic, None)

    async def _wait_s(self, topic: Topic, ages: _Ages, now: float) -> float:
        """After a look: until the topic is to be looked at again if nothing happens on it; NEVER: it need not be."""
        waits = [NEVER]
        if topic.compacted is not None and topic.compacted.status == "RUNNING":  # more may be due when it ends
            waits.append(0.0)
        if topic in self._snapshots and self._snapshots[topic] > now:
            waits.append(self._snapshots[topic] - now)
        age, ttl_s = topic.policies.quota("message_age"), topic.policies.limit("messageTTL")
        if (age is not None or ttl_s) and not topic.volatile:
            lives_s = min(ttl_s or NEVER, age[0] if age is not None and not topic.over_quota else NEVER)
            subscriptions = list(topic.subscriptions.values())
            oldest = [ms for s in subscriptions if s.durable and (ms := await ages.oldest_ms(s))]
            if oldest and lives_s < NEVER:
                waits.append(lives_s + (min(oldest) - self._clock.wall_ms()) / 1000)
        if minutes := topic.policies.limit("subscriptionExpiration"):
            waits += [s.unused_since + minutes * 60 - now for s in topic.subscriptions.values() if s.unused_since]
        if topic.inactive_since:
            waits.append(self._deletion_s(topic, now))
        return max(0.0, min(waits))

    async def _snapshot(self, topic: Topic, _ages: _Ages) -> None:
        """Once each interval, as long as things happen on the topic, and once after that."""
        interval_s, now = snapshot_interval_s(topic), self._clock.monotonic()
        if not interval_s:
            return
        if topic not in self._snapshots:
            self._snapshots[topic] = now + interval_s
        elif now >= self._snapshots[topic]:
            del self._snapshots[topic]
            topic.ledger.checkpoint()

    # -- time to live -------------------------------------------------------------------------------------------------

    async def _expire(self, topic: Topic, ages: _Ages) -> None:
        ttl_s = topic.policies.limit("messageTTL")
        if not ttl_s:
            return
        before_ms = self._clock.wall_ms() - ttl_s * 1000
        subscriptions = list(topic.subscriptions.values())  # some may come and go while a time is read
        names = [s.name for s in subscriptions if s.durable and 0 < await ages.oldest_ms(s) <= before_ms]
        if names:
            await topic.expire_before(before_ms, names)

    # -- backlog quotas -----------------------------------------------------------------------------------------------

    async def _keep_quota(self, topic: Topic, ages: _Ages) -> None:
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
            old = [s for s in subscriptions if 0 < await ages.oldest_ms(s) <= before_ms]
            if old:
                over = age[1]
                if over == "consumer_backlog_eviction":
                    await topic.expire_before(before_ms, [s.name for s in old])
                    over = ""
            elif ages.failed is not None:
                over = topic.over_quota  # nobody knows just now
        if over and not topic.over_quota:
            log.warning(
                "topic.over_quota",
                extra={"topic": topic.text, "policy": over, "producers": len(topic.producers.producers)},
            )
            topic.over_quota = over
            topic.close_producers()
        elif over != topic.over_quota:
            log.info("topic.within_quota", extra={"topic": topic.text})
            topic.over_quota = over

    # -- what nobody uses ---------------------------------------------------------------------------------------------

    async def _drop_unused(self, topic: Topic, _ages: _Ages) -> None:
        now = self._clock.monotonic()
        minutes = topic.policies.limit("subscriptionExpiration")
        for subscription in list(topic.subscriptions.values()):
            if not _unused(subscription, now):
                continue
            if minutes and now - subscription.unused_since >= minutes * 60:
                log.info(
                    "subscription.expired",
                    extra={"topic": topic.text, "subscription": subscription.name, "minutes": minutes},
                )
                await topic.delete_subscription(subscription.name)
        if self._inactive(topic, now):
            log.info("topic.inactive", extra={"topic": topic.text})
            await self._delete(topic)

    def _inactive(self, topic: Topic, now: float) -> bool:
        policies, producers = topic.policies, topic.producers
        idle = (
            not producers.producers
            and not producers.waiting
            and not any(s.consumers for s in topic.subscriptions.values())
        )
        idle = idle and KAFKA_CURSOR not in topic.ledger.cursors
        if policies.part("inactiveTopics", "inactiveTopicDeleteMode") == "delete_when_no_subscriptions":
            idle = idle and not topic.subscriptions
        else:
            idle = idle and not any(s.cursor.backlog_entries for s in topic.subscriptions.values())
        if not idle or not policies.part("inactiveTopics", "deleteWhileInactive") or self._replicated(topic):
            topic.inactive_since = 0.0
            return False
        topic.inactive_since = topic.inactive_since or now
        return self._deletion_s(topic, now) <= 0

    def _deletion_s(self, topic: Topic, now: float) -> float:
        """Until a topic that is inactive is deleted; NEVER: it is not."""
        policies, kept_s = topic.policies, 0.0
        minutes = policies.retention[0]
        if topic.ledger.size_bytes and minutes:  # what it holds is to be kept
            published_s = (
                self._clock.wall_ms() - max(topic.last_publish_ms, topic.ledger.published_ms, topic.created_ms)
            ) / 1000
            kept_s = NEVER if minutes < 0 else minutes * 60 - published_s
        return max(
            kept_s, topic.inactive_since + float(policies.part("inactiveTopics", "maxInactiveDurationSeconds")) - now
        )


def _unused(subscription: Subscription, now: float) -> bool:
    """Whether a durable subscription has no consumers; remembers since when. One that is replicated may have them in
    another region, and would not come back.
    """
    if not subscription.durable or subscription.consumers or subscription.replicated:
        subscription.unused_since = 0.0
        return False
    subscription.unused_since = subscription.unused_since or now
    return True
