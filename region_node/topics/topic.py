"""Topic: one loaded topic of this broker: its log, its producers, its subscriptions.

Is: publishing, making and finding subscriptions, positions by time, statistics. Isn't: loading and unloading (`service`), storage, or frames.
Invariants: after `close` nothing is accepted; a subscription that is durable has a cursor of its name, and the other way round.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, cast

from heliograph.model.coordinates import Origin
from heliograph.model.errors import ConsumerBusy, HeliographError, NotAllowed, SubscriptionNotFound, TopicClosed, TopicTerminated
from heliograph.model.names import TopicName
from heliograph.model.policy_table import DEFAULTS, Applied
from heliograph.model.positions import AFTER_ALL, BEFORE_ALL, Position
from heliograph.raft.store import MetadataStore
from heliograph.runtime.clock import Clock
from heliograph.wire.run import Run
from region_node.compaction.compacted import CURSOR as COMPACTION_CURSOR
from region_node.compaction.compactor import Compactor, TopicCompaction
from region_node.compaction.entries import last_kept_index
from region_node.subscriptions.consumer import Traced
from region_node.subscriptions.delayed import DelayWheel
from region_node.subscriptions.meter import Meter
from region_node.subscriptions.ready import BoundedReads, ReadyQueue, Tasks
from region_node.subscriptions.subscription import Rules, Subscription
from region_node.subscriptions.throttle import NO_LIMIT, PublishGate, Throttle
from region_node.topics.epochs import TopicEpoch
from region_node.topics.filter_book import Chosen
from region_node.topics.limits import SubscribeRate, check_new_subscription, is_strict, refusal
from region_node.topics.port import GatePort, LogPort, ReadablePort, Segments, TurnOf
from region_node.topics.positions import before_publish_time, last_visible
from region_node.topics.producers import Producer, ProducerRegistry, ProducerSink
from region_node.topics.rates import NO_GROUP, GroupRates, TopicRates, has_rates
from region_node.topics.statistics import topic_stats
from region_node.transactions.participant import TopicTransactions

log = logging.getLogger("region_node.topics")

INTERNAL_CURSORS = "pulsar."
"""Cursors of this prefix are no subscriptions (links, deduplication)."""
_READER_IDLE_S = 60.0


def is_internal(cursor: str) -> bool:
    """Whether a cursor of that name is no subscription."""
    return cursor.startswith(INTERNAL_CURSORS) or cursor == COMPACTION_CURSOR


class Topic:
    """`terminated`: nothing is appended any more."""

    __slots__ = (
        "_busy",
        "_clock",
        "_compaction",
        "_compactor",
        "_epoch",
        "_meta",
        "_offered",
        "_oldest",
        "_rates",
        "_reads",
        "_ready",
        "_shown",
        "_stop_wake",
        "_strict",
        "_subscribe_rate",
        "_tasks",
        "_transactions",
        "_wheel",
        "bytes_in",
        "closed",
        "converted_in",
        "converted_out",
        "created_ms",
        "entries_in",
        "filters",
        "gate",
        "idle_since",
        "inactive_since",
        "last_publish_ms",
        "ledger",
        "log",
        "messages_in",
        "meter",
        "name",
        "next_owner",
        "on_fatal",
        "on_held",
        "over_quota",
        "policies",
        "producers",
        "subscriptions",
        "terminated",
        "text",
        "turn_of",
        "volatile",
    )

    def __init__(
        self,
        name: TopicName,
        log: LogPort,
        *,
        ready: ReadyQueue,
        reads: BoundedReads,
        tasks: Tasks,
        clock: Clock,
        wheel: DelayWheel | None = None,
        meta: MetadataStore | None = None,
        compactor: Compactor | None = None,
        busy: dict[Topic, None] | None = None,
    ) -> None:
        """busy: where it puts itself when the broker's tick is to visit it (`region_node.topics.activity`)."""
        self._wheel = wheel
        self._busy = busy if busy is not None else {}
        self._busy[self] = None
        self.name, self.log, self.ledger = name, log, log.ledger
        self.text: str = getattr(log.ledger, "topic", "") or str(name)
        self.producers = ProducerRegistry()
        self._meta = meta
        self._compactor = compactor
        self._compaction: TopicCompaction | None = None
        self._epoch: TopicEpoch | None = None
        self.subscriptions: dict[str, Subscription] = {}
        self.volatile = not name.persistent
        self.idle_since: float | None = None
        """Of a non-persistent one: when the tick first found nobody connected."""
        self.terminated = getattr(self.ledger, "terminated_at", None) is not None
        self.closed = False
        self.turn_of: TurnOf | None = None
        """(topic, subscription, whether a policy wants it) -> its turn, where it is active in one region at a time."""
        self.gate: GatePort | None = None
        """Of an active-passive namespace: what is published passes it twice."""
        self.next_owner: tuple[str, str] | None = None
        """Where clients find it when it closes here: URLs without and with TLS."""
        self.created_ms = clock.wall_ms()
        self.last_publish_ms = 0
        self.messages_in = self.bytes_in = self.entries_in = 0
        self.converted_in = self.converted_out = 0
        """Messages that went from one protocol's form, or format, to another, since it was loaded."""
        self.on_fatal: Callable[[Topic, HeliographError], None] | None = None
        self.on_held: Callable[[Topic], None] | None = None
        """Called where a committed transaction is held until its other topics have it; None: nothing is held."""
        self.meter = Meter(2)
        self._ready, self._reads, self._tasks, self._clock = ready, reads, tasks, clock
        self._offered = 0
        self.policies = DEFAULTS
        self.filters: Chosen = ()
        self.over_quota = ""
        """What happens to producers, while the backlog is above its quota."""
        self.inactive_since = 0.0
        self._subscribe_rate: SubscribeRate | None = None
        self._strict = False
        self._rates: TopicRates | None = None
        self._oldest: dict[str, tuple[Position, int]] | None = None
        self._shown: tuple[Callable[[], None], ...] = ()
        self._transactions: TopicTransactions | None = None
        state = getattr(log, "state", None)
        if state is not None and state.transactions is not None:
            self._transactions = TopicTransactions(self)
        elif state is not None:
            state.host = self
        self._stop_wake = self.ledger.wake_on_append(self._appended)
        for cursor in list(self.ledger.cursors.values()):
            if not is_internal(cursor.name):
                self.subscriptions[cursor.name] = self._subscription(cursor.name, cursor, durable=True)
        if compactor is not None and COMPACTION_CURSOR in self.ledger.cursors:
            self._compaction = compactor.of(self)

    @property
    def shadow_of(self) -> str:
        """The topic whose entries these are; "": its own."""
        return getattr(self.ledger, "shadow_of", "")

    @property
    def epoch(self) -> TopicEpoch | None:
        """Of its exclusive producers; None where nothing is stored."""
        if self._epoch is None and self._meta is not None and self.name.persistent:
            self._epoch = TopicEpoch(self._meta, self.name, self.producers)
        return self._epoch

    def touch(self) -> None:
        """Something has changed that the next tick is to see."""
        self._busy[self] = None

    # -- publishing

    def publish(self, run: Run, done: Callable[[Segments], None], failed: Callable[[HeliographError], None]) -> None:
        """`done` or `failed` is called once, in the order of the calls."""
        if self.closed:
            failed(TopicClosed(f"{self.text} is being unloaded"))
            return
        if self.terminated:
            failed(TopicTerminated(f"{self.text} is terminated"))
            return
        if self._strict and (error := refusal(self, run, self._clock.wall_ms())) is not None:
            failed(error)
            return
        if run.transaction is not None and (error := self.transactions.refusal(run.transaction)) is not None:
            failed(error)
            return
        if self.gate is not None:
            passed = self.gate.enter(done, failed)
            if isinstance(passed, HeliographError):
                failed(passed)
                return
            done, failed = passed.done, passed.failed
        self._busy[self] = None
        self.entries_in += run.count
        self.messages_in += run.messages
        self.bytes_in += run.size_bytes
        self._offered = run.messages
        self.log.publish(run, done, failed)
        if self._rates is not None and self._rates.gate is not None:
            self._rates.gate.spend(run.messages, run.size_bytes)

    def fatal(self, error: HeliographError) -> None:
        """The log cannot go on here (fenced, closed): whoever loaded the topic unloads it."""
        if not self.closed and self.on_fatal is not None:
            self.on_fatal(self, error)

    def remove_producer(self, producer: Producer) -> None:
        self.touch()
        self.inactive_since = 0.0  # who comes and goes between two ticks has used it too
        chosen = self.producers.remove(producer)
        if chosen is not None:
            self._tasks.spawn(self._ready_when_saved(chosen))

    async def _ready_when_saved(self, chosen: Producer) -> None:
        """It waited for exclusive access, and hears that it has it once its epoch is durable."""
        try:
            if self.epoch is not None:
                await self.epoch.save()
        except HeliographError as error:
            log.warning("producer.epoch_not_saved", extra={"topic": self.text, "error": str(error)})
            chosen.sink.producer_closed(chosen)
            self.remove_producer(chosen)
            return
        if not self.closed:
            chosen.sink.producer_ready(chosen)

    def _appended(self) -> None:
        self._busy[self] = None
        for subscription in list(self.subscriptions.values()):
            dispatcher = subscription.dispatcher
            if self.volatile:
                subscription.offer(self._offered)
            elif dispatcher is not None and not dispatcher.queued:
                dispatcher.run_ready()

    # -- transactions

    @property
    def transactions(self) -> TopicTransactions:
        """Its part in transactions."""
        if self._transactions is None:
            self._transactions = TopicTransactions(self)
        return self._transactions

    @property
    def transactional(self) -> bool:
        """Whether it ever took part in one since it was loaded, or holds one."""
        return self._transactions is not None

    @property
    def readable(self) -> ReadablePort:
        """What clients read: the ledger itself, unless there are transactions in it."""
        found = self._transactions
        return self.ledger if found is None or found.buffer is None else found.view()

    def first_transaction(self) -> None:
        """From now on clients read through the committed view."""
        self.transactions.watch_held()
        for subscription in self.subscriptions.values():
            subscription.read_through(self.transactions.view())

    def origin_at(self, position: Position) -> Origin:
        """Of a stored entry that was first published here."""
        return cast(Origin, cast(Any, self.log).state.origin_at(position))

    def shown_more(self) -> None:
        """Readers may go on: what was held is shown."""
        self._appended()
        for callback in self._shown:
            callback()

    def wake_on_shown(self, callback: Callable[[], None]) -> Callable[[], None]:
        """For who reads without a subscription: calls back when what was held is shown, which appends nothing. Returns "stop"."""
        self._shown = (*self._shown, callback)

        def stop() -> None:
            self._shown = tuple(other for other in self._shown if other is not callback)

        return stop

    # -- policies

    def obey(self, policies: Applied, groups: GroupRates = NO_GROUP, filters: Chosen = ()) -> None:
        """They are known, or have changed: they hold from now on. groups: the rates that the namespace shares with others."""
        self.touch()
        self.policies, self.filters = policies, filters
        self._strict = is_strict(self)
        if self._rates is None and self._wheel is not None and has_rates(policies, groups):
            self._rates = TopicRates(self._clock, self._wheel, self._readers)
        if self._rates is not None:
            self._rates.obey(policies, groups)
        for subscription in self.subscriptions.values():
            subscription.obey(self._rules(subscription.name, durable=subscription.durable))

    @property
    def rate_limited(self) -> int:
        """How often publishers had to wait for the rate, since it was set."""
        return self._rates.gate.closed_times if self._rates is not None and self._rates.gate is not None else 0

    @property
    def publish_gate(self) -> PublishGate | None:
        """Where publishers wait that are none of its producers; None: nobody is slowed."""
        return None if self._rates is None else self._rates.gate

    @property
    def reading_throttle(self) -> Throttle | None:
        """What readers may take that are no subscription; None: everything."""
        return None if self._rates is None else self._rates.readers()

    def _readers(self) -> list[ProducerSink]:
        return list(dict.fromkeys(producer.sink for producer in self.producers.producers.values()))

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
            turn=None if self.turn_of is None or not durable else self.turn_of(self.name, subscription, self.policies.on("oneRegionSubscriptions")),
        )

    def obey_turn(self, subscription: Subscription) -> None:
        """It may be another region's turn."""
        subscription.obey(self._rules(subscription.name, durable=subscription.durable))

    def check_subscribe_rate(self, client: str) -> None:
        """client: what tells one consumer of one client from another. Raises NotAllowed."""
        if self.policies.part("subscribeRate", "subscribeThrottlingRatePerConsumer") > 0:
            if self._subscribe_rate is None:
                self._subscribe_rate = SubscribeRate()
            self._subscribe_rate.check(self, client, self._clock.monotonic())

    def close_producers(self) -> None:
        """They look the topic up again, and are told then why they may not come back."""
        self.touch()
        for producer in [*self.producers.waiting, *self.producers.producers.values()]:
            self.producers.remove(producer)
            producer.sink.producer_closed(producer)

    async def oldest_ms(self, subscription: Subscription) -> int:
        """When the first message of its backlog was stored here; 0: there is none. Read once for each mark-delete position."""
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

    async def truncate(self) -> None:
        """Nothing that was published so far is there any more."""
        if self._compaction is not None and self._compactor is not None:
            await self._compactor.truncate(self)
        self._dropped(await self.ledger.truncate(), "truncated")
        self.touch()

    # -- compaction

    def compaction(self) -> TopicCompaction:
        """How it is compacted, and what a consumer reads that wants it so; made when it is first asked for. Raises NotAllowed."""
        if self._compaction is None:
            if self._compactor is None:
                raise NotAllowed(f"{self.text} cannot be compacted here")
            self._compaction = self._compactor.of(self)
        return self._compaction

    @property
    def compacted(self) -> TopicCompaction | None:
        """The same; None where nobody has asked for it, and nothing is compacted."""
        return self._compaction

    def compact(self) -> None:
        """Begins to, in the background. Raises NotAllowed; AlreadyExists where that is under way."""
        self.compaction()
        assert self._compactor is not None
        self._compactor.start(self)

    async def compact_if_due(self) -> None:
        """Once what is not compacted is larger than the policy says."""
        threshold = self.policies.limit("compactionThreshold")
        if not threshold or self._compactor is None or self.volatile:
            return
        await self._compactor.hold_log(self)
        state = self.compaction()
        horizon = state.view.compacted.horizon if state.view.compacted is not None else BEFORE_ALL
        if state.status != "RUNNING" and self.ledger.bytes_between(horizon, self.ledger.last_confirmed) > threshold:
            self.compact()

    async def forget_compacted(self) -> None:
        """The topic is being deleted."""
        if self._compaction is not None and self._compactor is not None:
            await self._compactor.forget(self)

    def _dropped(self, counts: dict[str, int], why: str) -> None:
        for name, count in counts.items():
            found = self.subscriptions.get(name)
            if found is not None:
                found.expired += count
                found.last_expired_ms = self._clock.wall_ms()
                found.passed()
            log.info("backlog.dropped", extra={"topic": self.text, "subscription": name, "entries": count, "why": why})

    # -- subscriptions

    def _subscription(self, name: str, cursor: Any, *, durable: bool, properties: Mapping[str, str] | None = None) -> Subscription:
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
            wheel=None if self.volatile else self._wheel,
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
        self, name: str, *, initial: Position, durable: bool = True, create: bool = True, properties: dict[str, str] | None = None
    ) -> Subscription:
        """The subscription of that name, made where it is not there. `initial`: its mark-delete position then.

        Raises NotFound (not there and not `create`), NotAllowed (a name that is not available).
        """
        if not name or is_internal(name) or "/" in name:
            raise NotAllowed(f"subscription name {name!r} is not available")
        self.inactive_since = 0.0
        found = self.subscriptions.get(name)
        if found is not None and not found.closed:
            if found.durable != durable:
                raise NotAllowed(f"subscription {name!r} is {'durable' if found.durable else 'a reader'} already")
            return found
        if not create:
            raise SubscriptionNotFound(f"subscription {name!r} of {self.text} does not exist")
        check_new_subscription(self, name)
        if initial == AFTER_ALL:
            initial = self.ledger.last_confirmed
        cursor = await self.ledger.open_cursor(name, initial, durable=durable, properties=properties)
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

    def drop_reader(self, subscription: Subscription) -> None:
        """A non-durable subscription without consumers is gone, at once; its cursor goes in the background."""
        if subscription.durable or subscription.consumers or subscription.closed:
            return
        subscription.closed = True
        if self.subscriptions.get(subscription.name) is subscription:
            del self.subscriptions[subscription.name]
        if not self.closed:
            self._tasks.spawn(self.ledger.delete_cursor(subscription.name))

    # -- positions

    @property
    def unused(self) -> bool:
        """Nobody is connected, and nothing is stored: whoever comes first may say what it is for."""
        connected = self.producers.producers or any(subscription.consumers for subscription in self.subscriptions.values())
        return not connected and not self.ledger.entries

    async def last_message(self) -> tuple[Position, int]:
        """(position of the last entry that clients see, its last batch index or -1); entry -1: nothing is there."""
        return ((0, -1), -1) if self.volatile else await last_visible(self.readable)

    async def last_compacted_message(self) -> tuple[Position, int]:
        """The same, for a consumer that reads it compacted: what was taken away is not there."""
        view = self.compaction().view
        found = await last_visible(self.readable)
        if view.compacted is None or found[0] > view.compacted.horizon:
            return found
        kept = await view.last()
        return ((-1, -1), -1) if kept is None else (kept[0], last_kept_index(kept[1].parts[0]))

    async def before_time(self, publish_ms: int) -> Position:
        """The position before the first entry published at `publish_ms` or later."""
        return await before_publish_time(self.ledger, publish_ms)

    async def before_time_compacted(self, publish_ms: int) -> Position:
        """The same, for a consumer that reads it compacted: also where only the compacted ledger goes back so far."""
        target = await self.before_time(publish_ms)
        found = await self.compaction().view.before_publish_time(publish_ms) if target < self.ledger.first_position() else None
        return target if found is None else min(found, target)

    async def seek(self, subscription: Subscription, mark_delete: Position) -> None:
        """The consumers are closed, then the cursor moves."""
        if mark_delete == AFTER_ALL:
            mark_delete = self.ledger.last_confirmed
        subscription.reset(max(mark_delete, BEFORE_ALL))
        await subscription.cursor.flushed()

    async def skip_all(self, name: str) -> None:
        """Clears the backlog of a subscription. Raises NotFound."""
        found = self.subscriptions.get(name)
        if found is None:
            raise SubscriptionNotFound(f"subscription {name!r} of {self.text} does not exist")
        await self.seek(found, self.ledger.last_confirmed)

    async def terminate(self) -> Position:
        """Nothing is appended any more; returns the last position. Raises NotAllowed of a shadow, and while transactions are open: they could not end."""
        if self.shadow_of:
            raise NotAllowed(f"{self.text} is a shadow of {self.shadow_of}: terminate the source")
        if self._transactions is not None and self._transactions.open:
            raise NotAllowed(f"{self.text}: {self._transactions.open} transaction(s) are open in it: wait for their end, or abort them")
        self.terminated = True
        for producer in [*self.producers.producers.values(), *self.producers.waiting]:  # made anew they are refused, which fails what they still want to send
            self.producers.remove(producer)
            producer.sink.producer_closed(producer)
        position = await self.ledger.terminate()
        self._appended()
        return position

    # -- closing and statistics

    def disconnect(self) -> None:
        """Tells all clients to look the topic up again."""
        self.touch()
        self.closed = True
        self._stop_wake()
        if self._rates is not None:
            self._rates.open()
        for producer in [*self.producers.producers.values(), *self.producers.waiting]:
            self.producers.remove(producer)
            producer.sink.producer_closed(producer)
        for subscription in self.subscriptions.values():
            subscription.disconnect()
            subscription.closed = True

    def tick(self, now: float, elapsed_s: float) -> bool:
        """Rates since the last tick, and another try where a read of backlog failed. Returns whether the next tick must come here even if nothing happens."""
        again = self.meter.tick(elapsed_s, self.messages_in, self.bytes_in)
        for producer in self.producers.producers.values():
            if producer.meter.tick(elapsed_s, producer.messages_in, producer.bytes_in):
                again = True
        for subscription in list(self.subscriptions.values()):
            if subscription.tick(elapsed_s):
                again = True
            if subscription.has_moved():
                subscription.last_marked_ms = self._clock.wall_ms()
            if subscription.rules.throttle is not None:
                subscription.rules.throttle.follow(*self.meter.rates)
            if subscription.durable or subscription.consumers:
                subscription.idle_since = None
                continue
            again = True
            if subscription.idle_since is None:
                subscription.idle_since = now
            elif now - subscription.idle_since > _READER_IDLE_S:  # closed from here (a seek, a move), and its client never came back
                self.drop_reader(subscription)
        return again or (self.volatile and not self._connected)

    @property
    def _connected(self) -> bool:
        return bool(self.producers.producers or self.producers.waiting or any(s.consumers for s in self.subscriptions.values()))

    def forgotten(self, now: float) -> bool:
        """A non-persistent topic that nobody has been connected to for a while."""
        if not self.volatile or self._connected:
            self.idle_since = None
            return False
        if self.idle_since is None:
            self.idle_since = now
        return now - self.idle_since > _READER_IDLE_S

    def stats(self, links: list[Any]) -> dict[str, Any]:
        """Pulsar's TopicStats. `links`: what the link manager says of this topic."""
        return topic_stats(self, links)
