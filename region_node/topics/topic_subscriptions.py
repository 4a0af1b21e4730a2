"""SubscribingTopic: the subscriptions of a loaded topic.

Is: making, finding, and deleting them, what policies want of them, moving them to a position, giving up what they will
not acknowledge any more.
Isn't: what one has delivered (`region_node.subscriptions`), or when anything expires
(`region_node.topics.policies.policy_maintenance`).
Invariants: a subscription that is durable has a cursor of its name, and the other way round.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from heliograph.model.configuration.policy_table import Applied
from heliograph.model.errors import ConsumerBusy, NotAllowed, SubscriptionNotFound, TopicClosed
from heliograph.model.positions import AFTER_ALL, BEFORE_ALL, Position
from heliograph.model.topic_names import TopicName
from heliograph.runtime.clock import Clock
from heliograph.runtime.task_set import TaskSet
from region_node.compaction.compacted_view import CURSOR as COMPACTION_CURSOR
from region_node.runtime.ready_queue import BoundedReads, ReadyQueue
from region_node.runtime.topic_ports import LeadershipOf, LogPort, ManagedLedgerPort, ReadablePort
from region_node.subscriptions.consumer import Traced
from region_node.subscriptions.delayed_delivery import DelayWheel
from region_node.subscriptions.filter_plugins import Chosen
from region_node.subscriptions.rate_limits import NO_LIMIT
from region_node.subscriptions.subscription import Rules, Subscription, check_given
from region_node.topics.limits.topic_limits import SubscribeRate, check_new_subscription
from region_node.topics.limits.topic_rates import TopicRates
from region_node.topics.positions import before_publish_time
from replicator.subscriptions.subscription_state import BEGAN, began

log = logging.getLogger("region_node.topics")

INTERNAL_CURSORS = "pulsar."
"""Cursors of this prefix are no subscriptions (links, deduplication)."""


def is_internal(cursor: str) -> bool:
    """Whether a cursor of that name is no subscription."""
    return cursor.startswith(INTERNAL_CURSORS) or cursor == COMPACTION_CURSOR


class SubscribingTopic(ABC):
    """What `Topic` does with them."""

    __slots__ = (
        "_clock",
        "_moving",
        "_oldest",
        "_rates",
        "_reads",
        "_ready",
        "_subscribe_rate",
        "_tasks",
        "_wheel",
        "closed",
        "filters",
        "inactive_since",
        "leadership_of",
        "ledger",
        "log",
        "name",
        "policies",
        "subscriptions",
        "terminated",
        "text",
        "volatile",
    )

    name: TopicName
    text: str
    log: LogPort
    ledger: ManagedLedgerPort
    subscriptions: dict[str, Subscription]
    policies: Applied
    filters: Chosen
    leadership_of: LeadershipOf | None
    closed: bool
    terminated: bool
    volatile: bool
    inactive_since: float
    _clock: Clock
    _ready: ReadyQueue
    _reads: BoundedReads
    _tasks: TaskSet
    _wheel: DelayWheel | None
    _rates: TopicRates | None
    _subscribe_rate: SubscribeRate | None
    _oldest: dict[str, tuple[Position, int]] | None
    _moving: tuple[tuple[str, asyncio.Future[None]], ...]
    """Subscriptions on their way to another position."""

    @property
    @abstractmethod
    def readable(self) -> ReadablePort:
        """What clients read: the log, or the log without what open and aborted transactions have written."""

    @abstractmethod
    def touch(self) -> None:
        """Something has changed that the next tick is to see."""

    def _rules(self, subscription: str, *, durable: bool) -> Rules:
        return Rules(
            unacked_max=self.policies.limit("maxUnackedPerSubscription") or NO_LIMIT,
            unacked_consumer_max=self.policies.limit("maxUnackedPerConsumer") or NO_LIMIT,
            delaying=bool(self.policies.part("delayedDelivery", "active")),
            throttle=self._rates.throttle(subscription) if self._rates is not None else None,
            consistent=self.policies.on("keySharedConsistentHashing"),
            pausing=self.policies.on("dispatcherPauseOnAckStatePersistent"),
            filters=self.filters,
            topic=self.text,
            skips_lost=self.policies.on("autoSkipNonRecoverableData"),
            leadership=None
            if self.leadership_of is None or not durable
            else self.leadership_of(self.name, subscription, self.policies.on("oneRegionSubscriptions")),
        )

    def obey_leadership(self, subscription: Subscription) -> None:
        """Another region may lead it."""
        subscription.obey(self._rules(subscription.name, durable=subscription.durable))

    def check_subscribe_rate(self, client: str) -> None:
        """client: what tells one consumer of one client from another. Raises NotAllowed."""
        if self.policies.part("subscribeRate", "subscribeThrottlingRatePerConsumer") > 0:
            if self._subscribe_rate is None:
                self._subscribe_rate = SubscribeRate()
            self._subscribe_rate.check(self.policies, client, self._clock.monotonic())

    def _subscription(
        self, name: str, cursor: Any, *, durable: bool, properties: Mapping[str, str] | None = None
    ) -> Subscription:
        made = Subscription(
            name,
            self.readable,
            cursor,
            self._ready,
            self._reads,
            durable=durable,
            partition=self.name.partition,
            on_end=lambda: self.terminated,
            properties=cursor.properties if properties is None else properties,
            wheel=None if self.volatile or self._wheel is None else self._wheel.of(self.name.tenant),
            volatile=self.volatile,
            touched=self.touch,
        )
        made.traced = self._traced(name)
        made.obey(self._rules(name, durable=durable))
        return made

    def _traced(self, subscription: str) -> Traced | None:
        log: Any = self.log
        tracing = getattr(log, "tracing", None)  # nothing of a non-persistent topic is traced
        if tracing is None:
            return None
        return lambda ledger, first, run: tracing.dispatched(self.text, subscription, log.origin, ledger, first, run)

    async def subscription(
        self,
        name: str,
        *,
        initial: Position,
        durable: bool = True,
        create: bool = True,
        properties: dict[str, str] | None = None,
    ) -> Subscription:
        """The subscription of that name, made where it is not there. `initial`: its mark-delete position then.

        Raises NotFound (not there and not `create`), NotAllowed (a name or a property that is not to be had),
        TopicClosed.
        """
        if not name or is_internal(name) or "/" in name:
            raise NotAllowed(f"subscription name {name!r} is not available")
        self.inactive_since = 0.0
        found = self.subscriptions.get(name)
        if found is not None and not found.closed:
            if found.durable != durable:
                raise NotAllowed(f"subscription {name!r} is {'durable' if found.durable else 'a reader'} already")
            return found
        if self.closed:  # whoever waited for something may still have it: it says nothing of what there is
            raise TopicClosed(f"{self.text} is being unloaded")
        if not create:
            raise SubscriptionNotFound(f"subscription {name!r} of {self.text} does not exist")
        check_given(properties)
        check_new_subscription(self.policies, self.text, name, len(self.subscriptions))
        if initial == AFTER_ALL:
            initial = self.ledger.last_confirmed
        stored = properties
        if durable and self.log.linked:  # it may be replicated later
            stored = {**(properties or {}), BEGAN: began(initial)}
        cursor = await self.ledger.open_cursor(name, initial, durable=durable, properties=stored)
        if self.closed:
            raise TopicClosed(f"{self.text} is being unloaded")
        self.touch()
        found = self.subscriptions.get(name)
        if found is None or found.closed:  # two may have asked at once: the ledger gave both the same cursor
            found = self.subscriptions[name] = self._subscription(name, cursor, durable=durable, properties=properties)
        return found

    async def delete_subscription(self, name: str, *, force: bool = False) -> None:
        """Raises SubscriptionNotFound; ConsumerBusy while consumers are connected, unless `force`."""
        found = self.subscriptions.get(name)
        if found is None:
            raise SubscriptionNotFound(f"subscription {name!r} of {self.text} does not exist")
        if found.consumers and not force:
            raise ConsumerBusy(f"subscription {name!r} has {len(found.consumers)} consumer(s)")
        found.closed = True
        found.disconnect()
        del self.subscriptions[name]
        self.touch()
        if self._oldest is not None:
            self._oldest.pop(name, None)
        await self.ledger.delete_cursor(name)
        if found.rules.leadership is not None:
            found.rules.leadership.deleted()

    def drop_reader(self, subscription: Subscription) -> None:
        """A non-durable subscription without consumers is gone, at once; its cursor goes in the background."""
        if subscription.durable or subscription.consumers or subscription.closed:
            return
        subscription.closed = True
        if self.subscriptions.get(subscription.name) is subscription:
            del self.subscriptions[subscription.name]
        if not self.closed:
            self._tasks.spawn(self.ledger.delete_cursor(subscription.name))

    async def before_time(self, publish_ms: int) -> Position:
        """The position before the first entry published at `publish_ms` or later."""
        return await before_publish_time(self.ledger, publish_ms)

    async def seek(self, subscription: Subscription, mark_delete: Position) -> None:
        """The consumers are closed, then the cursor moves; until that is durable, nobody joins (`moved`)."""
        if mark_delete == AFTER_ALL:
            mark_delete = self.ledger.last_confirmed
        move = (subscription.name, asyncio.get_running_loop().create_future())
        self._moving = (*self._moving, move)
        sync = self.log.syncing  # asked before it moves: it is to know from where
        try:
            subscription.reset(max(mark_delete, BEFORE_ALL))
            if sync is not None:
                sync.moved(subscription.name)
            await subscription.cursor.flushed()
        finally:
            self._moving = tuple(other for other in self._moving if other is not move)
            if not move[1].done():
                move[1].set_result(None)

    async def moved(self, name: str) -> None:
        """Returns once no subscription of that name is being moved. Who asks for a move drops what it has when it is
        answered: also what it got before, had it come back so early.
        """
        while moves := [move for other, move in self._moving if other == name]:
            await asyncio.wait(moves)

    async def skip_all(self, name: str) -> None:
        """Clears the backlog of a subscription. Raises NotFound."""
        found = self.subscriptions.get(name)
        if found is None:
            raise SubscriptionNotFound(f"subscription {name!r} of {self.text} does not exist")
        await self.seek(found, self.ledger.last_confirmed)

    async def oldest_ms(self, subscription: Subscription) -> int:
        """When the first message of its backlog was stored here; 0: there is none. Read once for each mark-delete
        position.
        """
        if self._oldest is None:
            self._oldest = {}
        known, at = self._oldest.get(subscription.name), subscription.cursor.mark_delete
        if known is None or known[0] != at or not known[1]:
            known = self._oldest[subscription.name] = at, await self.ledger.oldest_unacked_ms(subscription.name)
        return known[1]

    async def expire_before(self, time_ms: int, names: list[str]) -> None:
        """What is older counts as acknowledged by these subscriptions."""
        self._dropped(await self.ledger.expire_before(time_ms, names), "expired")

    async def evict(self, size_bytes: int, names: list[str]) -> None:
        """The oldest of their backlog counts as acknowledged, until so much is left."""
        self._dropped(await self.ledger.drop_to(size_bytes, names), "evicted")

    def _dropped(self, counts: dict[str, int], why: str) -> None:
        for name, count in counts.items():
            found = self.subscriptions.get(name)
            if found is not None:
                found.expired += count
                found.last_expired_ms = self._clock.wall_ms()
                found.passed()
            log.info("backlog.dropped", extra={"topic": self.text, "subscription": name, "entries": count, "why": why})
