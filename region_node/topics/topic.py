"""Topic: one loaded topic of this broker: its log, its producers, and what it obeys.

Is: publishing, its part in transactions, policies, ending, statistics. Isn't: its subscriptions
(`topic_subscriptions`), its compaction (`topic_compaction`), loading and unloading
(`region_node.topics.serving.topic_service`), storage, or frames.
Invariants: after `disconnect` nothing is accepted.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from heliograph.kv.metadata_store import MetadataStore
from heliograph.model.configuration.policy_table import DEFAULTS, Applied
from heliograph.model.coordinates import Origin
from heliograph.model.errors import HeliographError, NotAllowed, TopicClosed, TopicTerminated
from heliograph.model.positions import Position
from heliograph.model.topic_names import TopicName
from heliograph.runtime.clock import Clock
from heliograph.runtime.task_set import TaskSet, report_error
from heliograph.wire.run import Run
from region_node.compaction.compacted_view import CURSOR as COMPACTION_CURSOR
from region_node.compaction.compaction_state import TopicCompaction
from region_node.compaction.compactor import Compactor
from region_node.runtime.rate_meter import Meter
from region_node.runtime.ready_queue import BoundedReads, ReadyQueue
from region_node.runtime.topic_ports import GatePort, LeadershipOf, LogPort, ReadablePort, Segments
from region_node.subscriptions.delayed_delivery import DelayWheel
from region_node.subscriptions.filter_plugins import Chosen
from region_node.subscriptions.rate_limits import DispatchThrottle, PublishGate
from region_node.subscriptions.subscription import Subscription
from region_node.topics.incoming_rates import IncomingRates
from region_node.topics.limits.topic_limits import SubscribeRate, is_strict, refusals
from region_node.topics.limits.topic_rates import NO_GROUP, GroupRates, TopicRates, has_rates
from region_node.topics.producer_epochs import TopicEpoch
from region_node.topics.producers import Producer, ProducerRegistry, ProducerSink
from region_node.topics.topic_compaction import CompactingTopic
from region_node.topics.topic_statistics import topic_stats
from region_node.topics.topic_subscriptions import is_internal
from region_node.transactions.participants.topic_participant import TopicTransactions

if TYPE_CHECKING:
    from region_node.topics.serving.publish_gates import Migration

log = logging.getLogger("region_node.topics")

_READER_IDLE_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicBroker:
    """What all topics of one broker share. `busy`: where a topic puts itself when the broker's tick is to visit it
    (`region_node.topics.serving.topic_activity`). `on_fatal`: hears that a log cannot go on here. `on_held`: called
    where a committed transaction is held until its other topics have it; None: nothing is held. `leadership_of`: of
    subscriptions that are active in one region at a time.
    """

    ready: ReadyQueue
    reads: BoundedReads
    tasks: TaskSet
    clock: Clock
    wheel: DelayWheel | None = None
    meta: MetadataStore | None = None
    busy: dict[Topic, None] = field(default_factory=dict)
    on_fatal: Callable[[Topic, HeliographError], None] | None = None
    on_held: Callable[[Topic], None] | None = None
    leadership_of: LeadershipOf | None = None


class Topic(CompactingTopic):
    """`terminated`: nothing is appended any more."""

    __slots__ = (
        "_busy",
        "_epoch",
        "_meta",
        "_offered",
        "_shown",
        "_stop_wake",
        "_strict",
        "_transactions",
        "bytes_in",
        "converted_in",
        "converted_out",
        "created_ms",
        "entries_in",
        "gate",
        "idle_since",
        "incoming_rates",
        "last_publish_ms",
        "loaded_ms",
        "messages_in",
        "meter",
        "migration",
        "next_owner",
        "on_fatal",
        "on_held",
        "over_quota",
        "producers",
        "unreadable_out",
    )

    def __init__(
        self,
        name: TopicName,
        log: LogPort,
        broker: TopicBroker,
        compactor: Compactor | None = None,
    ) -> None:
        self._wheel, clock = broker.wheel, broker.clock
        self._busy = broker.busy
        self._busy[self] = None
        self.name, self.log, self.ledger = name, log, log.ledger
        self.text: str = getattr(log.ledger, "topic", "") or str(name)
        self.producers = ProducerRegistry()
        self._meta = broker.meta
        self._compactor = compactor
        self._compaction: TopicCompaction | None = None
        self._epoch: TopicEpoch | None = None
        self.subscriptions: dict[str, Subscription] = {}
        self.volatile = not name.persistent
        self.idle_since: float | None = None
        """Of a non-persistent one: when the tick first found nobody connected."""
        self.terminated = getattr(self.ledger, "terminated_at", None) is not None
        self.closed = False
        self.leadership_of = broker.leadership_of
        self.gate: GatePort | None = None
        """Of an active-passive namespace: what is published passes it twice. Of a migrated topic: `migration`, which
        lets nothing pass.
        """
        self.migration: Migration | None = None
        self.next_owner: tuple[str, str] | None = None
        """Where clients find it when it closes here: URLs without and with TLS."""
        self.loaded_ms = clock.wall_ms()
        self.created_ms = self.ledger.created_ms or self.loaded_ms
        self.last_publish_ms = self.ledger.published_ms
        """By a client of this broker; what has come over a link the ledger knows."""
        self.messages_in = self.bytes_in = self.entries_in = 0
        self.converted_in = self.converted_out = self.unreadable_out = 0
        """Messages that went from one protocol's form, or format, to another, since it was loaded."""
        self.on_fatal, self.on_held = broker.on_fatal, broker.on_held
        self.meter = Meter(2)
        self.incoming_rates: IncomingRates | None = None
        """By the region that a link brings messages from; None: none has."""
        self._ready, self._reads, self._tasks, self._clock = broker.ready, broker.reads, broker.tasks, clock
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
        self._moving = ()
        self._transactions: TopicTransactions | None = None
        if (transactional := log.transactional) is not None and transactional.transactions is not None:
            self._transactions = TopicTransactions(self)
        elif transactional is not None:
            transactional.await_transaction(self)
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
        """The epoch of its exclusive producers; None where nothing is stored (non-persistent, or no metadata)."""
        if self._epoch is None and self._meta is not None and self.name.persistent:
            self._epoch = TopicEpoch(self._meta, self.name, self.producers)
        return self._epoch

    def touch(self) -> None:
        """Something has changed that the next tick is to see."""
        self._busy[self] = None

    # -- publishing

    def refused(self, run: Run) -> list[tuple[int, HeliographError]]:
        """(index, why) of the entries that the topic's policies keep out, in order."""
        return refusals(self.policies, self.text, run, self._clock.wall_ms()) if self._strict else []

    def publish(
        self,
        run: Run,
        done: Callable[[Segments], None],
        failed: Callable[[HeliographError], None],
        *,
        judged: bool = False,
    ) -> None:
        """`done` or `failed` is called once, in the order of the calls. judged: whoever calls has asked `refused`; else
        one such entry fails all.
        """
        if self.closed:
            failed(TopicClosed(f"{self.text} is being unloaded"))
            return
        if self.terminated:
            failed(TopicTerminated(f"{self.text} is terminated"))
            return
        if self._strict and not judged and (found := self.refused(run)):
            failed(found[0][1])
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
            try:
                if self.volatile:
                    subscription.offer(self._offered)
                elif dispatcher is not None and not dispatcher.queued:
                    dispatcher.run_ready()
            except Exception as error:  # one subscription's error keeps nothing from the others
                report_error(error, f"subscription {subscription.name} of {self.text} failed")

    # -- transactions

    @property
    def transactions(self) -> TopicTransactions:
        """Its part in transactions, made when it is first asked for."""
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
        """Returns the origin of a stored entry that was first published here: it changes with the region's epoch."""
        log = self.log.transactional
        assert log is not None, f"nothing of {self.text} is stored"
        return log.origin_at(position)

    def shown_more(self) -> None:
        """Readers may go on: what was held is shown."""
        self._appended()
        for callback in self._shown:
            callback()

    def wake_on_shown(self, callback: Callable[[], None]) -> Callable[[], None]:
        """For who reads without a subscription: calls back when what was held is shown, which appends nothing. Returns
        "stop".
        """
        self._shown = (*self._shown, callback)

        def stop() -> None:
            self._shown = tuple(other for other in self._shown if other is not callback)

        return stop

    # -- policies

    def obey(self, policies: Applied, groups: GroupRates = NO_GROUP, filters: Chosen = ()) -> None:
        """They are known, or have changed: they hold from now on. groups: the rates that the namespace shares with
        others.
        """
        self.touch()
        self.policies, self.filters = policies, filters
        self._strict = is_strict(policies)
        if self._rates is None and self._wheel is not None and has_rates(policies, groups):
            self._rates = TopicRates(self._clock, self._wheel, self._readers)
        if self._rates is not None:
            self._rates.obey(policies, groups)
        for subscription in self.subscriptions.values():
            subscription.obey(self._rules(subscription.name, durable=subscription.durable))
        if policies.on("storageFull") and self.producers.producers:
            self.close_producers()

    @property
    def rate_limited(self) -> int:
        """How often publishers had to wait for the rate, since it was set."""
        return self._rates.gate.closed_times if self._rates is not None and self._rates.gate is not None else 0

    @property
    def publish_gate(self) -> PublishGate | None:
        """Where publishers wait that are none of its producers; None: nobody is slowed."""
        return None if self._rates is None else self._rates.gate

    @property
    def reading_throttle(self) -> DispatchThrottle | None:
        """What readers may take that are no subscription; None: everything."""
        return None if self._rates is None else self._rates.readers()

    def _readers(self) -> list[ProducerSink]:
        return list(dict.fromkeys(producer.sink for producer in self.producers.producers.values()))

    def close_producers(self) -> None:
        """They look the topic up again, and are told then why they may not come back."""
        self.touch()
        for producer in [*self.producers.waiting, *self.producers.producers.values()]:
            self.producers.remove(producer)
            producer.sink.producer_closed(producer)

    # -- positions

    @property
    def unused(self) -> bool:
        """Nobody is connected, and nothing is stored: whoever comes first may say what it is for."""
        connected = self.producers.producers or any(
            subscription.consumers for subscription in self.subscriptions.values()
        )
        return not connected and not self.ledger.entries

    async def terminate(self) -> Position:
        """Nothing is appended any more; returns the last position. Raises NotAllowed of a shadow, and while
        transactions are open, or will be by what is on its way: they could not end.
        """
        if self.shadow_of:
            raise NotAllowed(f"{self.text} is a shadow of {self.shadow_of}: terminate the source")
        if self._transactions is not None and self._transactions.open:
            raise NotAllowed(
                f"{self.text}: {self._transactions.open} transaction(s) are open in it: wait for their end, or abort "
                "them"
            )
        if (log := self.log.transactional) is not None and log.transaction_comes:
            raise NotAllowed(f"{self.text}: a message of a transaction is being stored in it: try again")
        self.terminated = True
        for producer in [
            *self.producers.producers.values(),
            *self.producers.waiting,
        ]:  # made anew they are refused, which fails what they still want to send
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

    def traffic(self) -> tuple[float, float]:
        """Messages/s and bytes/s, in and out, as of the last tick."""
        meters = [self.meter, *(subscription.meter for subscription in self.subscriptions.values())]
        return sum(meter.rates[0] for meter in meters), sum(meter.rates[1] for meter in meters)

    def tick(self, now: float, elapsed_s: float) -> bool:
        """Rates since the last tick, and another try where a read of backlog failed. Returns whether the next tick must
        come here even if nothing happens.
        """
        again = self.meter.tick(elapsed_s, self.messages_in, self.bytes_in)
        if incoming := self.log.incoming:
            if self.incoming_rates is None and any(link.messages for link in incoming.values()):
                self.incoming_rates = IncomingRates()
            if self.incoming_rates is not None and self.incoming_rates.tick(incoming, elapsed_s):
                again = True
        for producer in self.producers.producers.values():
            if producer.meter.tick(elapsed_s, producer.messages_in, producer.bytes_in, producer.chunks_in):
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
            elif (
                now - subscription.idle_since > _READER_IDLE_S
            ):  # closed from here (a seek, a move), and its client never came back
                self.drop_reader(subscription)
        return again or (self.volatile and not self._connected)

    @property
    def _connected(self) -> bool:
        return bool(
            self.producers.producers or self.producers.waiting or any(s.consumers for s in self.subscriptions.values())
        )

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
