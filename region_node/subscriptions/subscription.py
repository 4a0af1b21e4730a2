"""Subscription: a cursor of a topic, and the consumers that share it.

Is: who may join, permits, acknowledgements, redelivery, seeking, statistics. Isn't: storage (the cursor) or the choice
of who gets what (the dispatcher of its type). Invariants: all its consumers have one type; a non-durable one lives as
long as its consumers.
Source: docs/protocols/pulsar.md, "SUBSCRIBE", "Acks and redelivery".
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from heliograph.model.errors import ConsumerBusy, CorruptData, NotAllowed
from heliograph.model.positions import Position
from region_node.runtime.cursor_ports import CursorPort, LeadershipPort, LedgerPort
from region_node.runtime.rate_meter import Meter, iso_time
from region_node.runtime.ready_queue import BoundedReads, ReadyQueue
from region_node.subscriptions.consumer import Consumer, SubscriptionType, Traced
from region_node.subscriptions.delayed_delivery import Wheel
from region_node.subscriptions.dispatcher import Dispatcher, after
from region_node.subscriptions.filters import EntryFilter, Filtering
from region_node.subscriptions.key_shared_dispatcher import KeySharedDispatcher
from region_node.subscriptions.rate_limits import DispatchThrottle
from region_node.subscriptions.shared_dispatcher import UNACKED_CONSUMER_MAX, UNACKED_SUBSCRIPTION_MAX, SharedDispatcher
from region_node.subscriptions.single_active_dispatcher import SingleActive
from region_node.subscriptions.sticky_keys import Sticky
from region_node.subscriptions.transactional_acks import DeliveryCursor, SubscriptionTransactions
from region_node.transactions.participants.pending_acks import PROPERTY as TRANSACTIONS
from region_node.transactions.participants.pending_acks import PendingAcks
from replicator.subscriptions.subscription_state import is_replicated

log = logging.getLogger("region_node.subscriptions")

_INTERNAL = "heliograph."
"""Properties of a cursor that begin so are no client's."""


def check_given(properties: Mapping[str, str] | None) -> None:
    """Raises NotAllowed where a client's properties have one that is not its own."""
    for key in properties or ():
        if key.startswith(_INTERNAL):
            raise NotAllowed(f"property {key!r:.100}: names that begin with {_INTERNAL} are the broker's, take another")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What policies say of one subscription. `unacked_max`, `unacked_consumer_max`: messages; `delaying`: messages may
    ask to come later.
    """

    unacked_max: int = UNACKED_SUBSCRIPTION_MAX
    unacked_consumer_max: int = UNACKED_CONSUMER_MAX
    delaying: bool = True
    throttle: DispatchThrottle | None = None
    consistent: bool = False
    """Hashes of Key_Shared are divided by consistent hashing."""
    pausing: bool = False
    """Dispatch pauses while acknowledgements cannot all be stored."""
    filters: tuple[tuple[str, EntryFilter | None], ...] = ()
    """(name, filter), in their order; None: this broker does not have it."""
    topic: str = ""
    skips_lost: bool = False
    """What is lost counts as acknowledged; else its consumers are told."""
    leadership: LeadershipPort | None = None
    """It is active in one region at a time; None: in every one."""


class Subscription:
    """`dispatcher` is None while nobody is connected."""

    def __init__(
        self,
        name: str,
        ledger: LedgerPort,
        cursor: CursorPort,
        ready: ReadyQueue,
        reads: BoundedReads,
        *,
        durable: bool,
        partition: int,
        on_end: Callable[[], bool],
        properties: Mapping[str, str] | None = None,
        wheel: Wheel | None = None,
        volatile: bool = False,
        touched: Callable[[], None] = lambda: None,
    ) -> None:
        """touched: called when anything changed that the owner's tick is to see."""
        self._touched = touched
        cursor.on_moved = touched
        self.traced: Traced | None = None
        """Called with what goes to its consumers; set before the first of them comes."""
        self.volatile = volatile
        """Of a non-persistent topic; `dropped`: messages that no consumer had room for."""
        self.dropped = 0
        self._wheel = wheel
        self.name, self.ledger, self.cursor, self.durable = name, ledger, cursor, durable
        self.properties = _given(properties or {})
        self.delivering: CursorPort = cursor
        """The cursor as dispatchers see it: without what open transactions have acknowledged."""
        self._transactions: SubscriptionTransactions | None = None
        self._ready, self._reads, self._partition, self._on_end = ready, reads, partition, on_end
        self.dispatcher: Dispatcher | None = None
        self.kind = SubscriptionType.EXCLUSIVE
        self.closed = False
        self.idle_since: float | None = None
        """Of a non-durable one: when the owner's tick first found it without consumers."""
        self.messages_out = self.bytes_out = self.messages_acked = self.messages_redelivered = 0
        self.meter = Meter(6)
        self.rules = Rules()
        self._counted_elsewhere: Mapping[Position, int] | None = None
        """Of a replicated one: entries that were handed out again in other regions, and how often."""
        self.filtering: Filtering | None = None
        """Where entry filters decide, or have decided, what it gets."""
        self.expired = 0
        """Messages that their time to live, or a backlog quota, has taken away unacknowledged: as entries."""
        self.last_expired_ms = 0
        self.unused_since = 0.0
        """Of a durable one: when it was first found without consumers; 0: it has some."""
        self.last_flow_ms = self.last_consumed_ms = self.last_acked_ms = 0
        self.last_marked_ms = 0
        """When its mark-delete position was last seen to have moved: looked at on the tick."""
        self._marked = cursor.mark_delete
        if properties is not None and TRANSACTIONS in properties:
            try:
                self._take_part(PendingAcks.decode(properties[TRANSACTIONS]))
            except CorruptData as error:  # what open transactions held goes out again; nothing is left out
                log.error("subscription.transactions_bad", extra={"subscription": name, "error": str(error)})

    @property
    def shared(self) -> bool:
        """Messages are acknowledged one by one, by whoever got them."""
        return self.kind in (SubscriptionType.SHARED, SubscriptionType.KEY_SHARED)

    @property
    def consumers(self) -> list[Consumer]:
        return self.dispatcher.consumers if self.dispatcher is not None else []

    @property
    def held(self) -> int:
        """Messages that consumers have and did not acknowledge; of an exclusive or failover one only whether there are
        any, 1 or 0.
        """
        if isinstance(self.dispatcher, SharedDispatcher):
            return self.dispatcher.unacked
        return int(self.dispatcher is not None and self.dispatcher.position > after(self.cursor.mark_delete))

    def check_room(self, kind: SubscriptionType, consumer: Consumer | None = None) -> None:
        """Raises ConsumerBusy, or ConsumerAssignError where the hash ranges of `consumer` are not to be had."""
        if self.closed:
            raise ConsumerBusy(f"subscription {self.name!r} is being closed")
        if self.consumers and (kind is not self.kind or kind is SubscriptionType.EXCLUSIVE):
            raise ConsumerBusy(
                f"subscription {self.name!r} has {len(self.consumers)} consumer(s) of type {self.kind.label}"
            )
        if consumer is not None and kind is SubscriptionType.KEY_SHARED:
            if isinstance(self.dispatcher, KeySharedDispatcher):
                self.dispatcher.check(consumer)
            elif consumer.hash_ranges is not None:
                Sticky().check(consumer.hash_ranges)

    def add(self, consumer: Consumer, kind: SubscriptionType) -> None:
        self.check_room(kind, consumer)
        if self.dispatcher is None:
            self.kind = kind
            if kind is SubscriptionType.SHARED:
                self.dispatcher = SharedDispatcher(
                    self.ledger, self.delivering, self._ready, self._reads, on_end=self._on_end, wheel=self._wheel
                )
            elif kind is SubscriptionType.KEY_SHARED:
                self.dispatcher = KeySharedDispatcher(
                    self.ledger,
                    self.delivering,
                    self._ready,
                    self._reads,
                    on_end=self._on_end,
                    sticky=consumer.hash_ranges is not None,
                    out_of_order=consumer.out_of_order,
                    wheel=self._wheel,
                )
            else:
                self.dispatcher = SingleActive(
                    kind,
                    self.ledger,
                    self.delivering,
                    self._ready,
                    self._reads,
                    partition=self._partition,
                    on_end=self._on_end,
                )
            self.dispatcher.volatile = self.volatile
            self.dispatcher.touched = self._touched
            self._rule(self.dispatcher)
            if self._counted_elsewhere is not None:
                self.count_redeliveries(self._counted_elsewhere)
            dispatcher = self.dispatcher
            self.cursor.reading = lambda: dispatcher.position
        consumer.traced = self.traced
        self.unused_since = 0.0  # also where it leaves before anybody looks
        self.dispatcher.add(consumer)
        self._touched()

    def obey(self, rules: Rules) -> None:
        """The policies are known, or have changed: they hold from now on."""
        self.rules = rules
        if self.dispatcher is not None:
            self._rule(self.dispatcher)
            self.tell_leadership()
            self.dispatcher.wake()

    def tell_leadership(self) -> None:
        """Consumers hear whether one of them is the active one, or another region leads."""
        if isinstance(self.dispatcher, SingleActive):
            self.dispatcher.tell_leadership()

    def _rule(self, dispatcher: Dispatcher) -> None:
        dispatcher.throttle, dispatcher.pausing, dispatcher.leadership = (
            self.rules.throttle,
            self.rules.pausing,
            self.rules.leadership,
        )
        dispatcher.skips_lost = self.rules.skips_lost
        if self.rules.filters and self.filtering is None:
            self.filtering = Filtering(self.rules.topic, self.name, self.properties)
        if self.filtering is not None:
            self.filtering.filters = self.rules.filters
        dispatcher.filter_by(self.filtering if self.rules.filters else None)
        if isinstance(dispatcher, SharedDispatcher):
            dispatcher.unacked_max, dispatcher.unacked_consumer_max = (
                self.rules.unacked_max,
                self.rules.unacked_consumer_max,
            )
            dispatcher.delaying = self.rules.delaying
        if isinstance(dispatcher, KeySharedDispatcher):
            dispatcher.divide(consistent=self.rules.consistent)

    @property
    def replicated(self) -> bool:
        """Whether its acknowledgements are those of all regions."""
        return is_replicated(self.name, self.cursor.properties)

    def set_properties(self, properties: dict[str, str]) -> None:
        """They are durable when the cursor is flushed."""
        self.properties = _given(properties)
        kept = {key: value for key, value in self.cursor.properties.items() if key.startswith(_INTERNAL)}
        self.cursor.set_properties({**self.properties, **kept})

    def passed(self) -> None:
        """The cursor was moved on from here: what consumers hold of that is not waited for any more."""
        self._touched()
        mark_delete = self.cursor.mark_delete
        if isinstance(self.dispatcher, SharedDispatcher):
            for consumer in self.consumers:
                gone = [position for position in consumer.pending if position <= mark_delete]
                if gone:
                    self.dispatcher.acked(consumer, gone)
        self.wake()

    def remove(self, *consumers: Consumer) -> None:
        """They leave at once; who is none of its consumers is passed over."""
        here = self.consumers if len(consumers) == 1 else set(self.consumers)
        leaving = [consumer for consumer in consumers if consumer in here]
        if self.dispatcher is None or not leaving:
            return
        self._touched()
        self.dispatcher.remove(*leaving)
        for consumer in leaving:  # what it had not acknowledged is among what was redelivered
            self.messages_out += consumer.messages_out
            self.bytes_out += consumer.bytes_out
            self.messages_acked += consumer.messages_acked
            self.messages_redelivered += consumer.messages_redelivered
        if not self.dispatcher.consumers:
            self.dispatcher.rewind()  # a read that is still under way finds another generation
            self.dispatcher = self.cursor.reading = None

    def flow(self, consumer: Consumer, permits: int) -> None:
        consumer.permits += permits
        if self.dispatcher is not None:
            self.dispatcher.wake()

    def wake(self) -> None:
        """Something was appended, or a connection can be written to again."""
        if self.dispatcher is not None:
            self.dispatcher.wake()

    def offer(self, messages: int) -> None:
        """Hands out at once, or drops, what was published just now on a non-persistent topic. `messages`: how many they
        are.
        """
        if self.dispatcher is None:
            self.dropped += messages
            self._touched()
        else:
            self.dispatcher.run_ready()
            self.dropped += self.dispatcher.drop_rest()

    # -- acknowledgements

    def ack(self, consumer: Consumer, positions: list[Position]) -> None:
        self._touched()
        last = self.ledger.last_confirmed
        if any(p > last for p in positions):  # an entry that is still to come is not acknowledged beforehand
            positions = [p for p in positions if p <= last]
        self.cursor.ack(positions)
        if self.dispatcher is not None:
            self.dispatcher.acked(consumer, positions)
        if not self.shared:
            consumer.messages_acked += len(positions)
        if self._on_end():
            self.wake()  # with the last one acknowledged, consumers hear of the end

    def ack_batch(self, consumer: Consumer, position: Position, given: int) -> None:
        """Acknowledges messages of a batch: bit i of `given` says that message i is not."""
        if position > self.ledger.last_confirmed:
            return
        self._touched()
        left = self.cursor.ack_batch(position, given)
        if not left:
            self.ack(consumer, [position])
        elif self.dispatcher is not None:
            self.dispatcher.acked_partly(consumer, position, left.bit_count())

    def ack_cumulative(self, consumer: Consumer, position: Position) -> None:
        """Raises NotAllowed on a shared subscription."""
        if self.shared:
            raise NotAllowed("cumulative acknowledgement is not possible on a shared subscription")
        self.cursor.ack_cumulative(min(position, self.ledger.last_confirmed))
        if self._on_end():
            self.wake()

    def redeliver(self, consumer: Consumer, positions: list[Position] | None) -> None:
        self._touched()
        if self.dispatcher is not None:
            self.dispatcher.redeliver(consumer, positions)

    def redeliveries(self, most: int) -> dict[Position, int]:
        """Returns how often the `most` oldest entries were handed out again; {} unless the type is Shared or
        Key_Shared.
        """
        return self.dispatcher.redeliveries(most) if isinstance(self.dispatcher, SharedDispatcher) else {}

    def count_redeliveries(self, counts: Mapping[Position, int]) -> None:
        """In other regions these were handed out again so often; in place of what was said before."""
        self._counted_elsewhere = counts or None
        if isinstance(self.dispatcher, SharedDispatcher):
            self.dispatcher.count_at_least(counts)

    # -- transactions

    @property
    def transactions(self) -> SubscriptionTransactions:
        """What transactions acknowledge of it; made with the first one."""
        return self._transactions or self._take_part(PendingAcks())

    @property
    def transactional(self) -> SubscriptionTransactions | None:
        """The same; None where there never was one."""
        return self._transactions

    def _take_part(self, pending: PendingAcks) -> SubscriptionTransactions:
        """From now on dispatchers see the cursor without what transactions hold."""
        self._transactions = SubscriptionTransactions(self, pending)
        self.delivering = DeliveryCursor(self.cursor, pending)
        if self.dispatcher is not None:
            self.dispatcher.cursor = self.delivering
        return self._transactions

    def read_through(self, ledger: LedgerPort) -> None:
        """From now on entries are read there."""
        self.ledger = ledger
        if self.dispatcher is not None:
            self.dispatcher.read_through(ledger)

    # -- moving

    def disconnect(self) -> None:
        """Closes all consumers from this side."""
        consumers = list(self.consumers)
        self.remove(*consumers)
        for consumer in consumers:
            consumer.sink.consumer_closed(consumer)

    def reset(self, mark_delete: Position) -> None:
        """Moves the cursor; the consumers are closed and subscribe again."""
        self.disconnect()
        if self._transactions is not None:
            self._transactions.forget()
        self.cursor.reset(mark_delete)
        self._touched()

    def begin_earlier(self, mark_delete: Position, start: Position, never: Sequence[tuple[int, int, int]]) -> None:
        """Another region made it too, and began earlier: what lies in (mark_delete, start], and `never`, is part of it
        now.
        """
        self.disconnect()
        if self._transactions is not None:
            self._transactions.begin_earlier(never)
        self.cursor.begin_earlier(mark_delete, start, never)
        self._touched()

    # -- statistics

    def has_moved(self) -> bool:
        """Whether the mark-delete position is another than at the last call."""
        before, self._marked = self._marked, self.cursor.mark_delete
        return before != self._marked

    def tick(self, elapsed_s: float) -> bool:
        """Rates since the last tick, and another try where a read of backlog failed. Returns whether any rate is above
        0.
        """
        consumers = self.consumers
        for consumer in consumers:
            consumer.meter.tick(
                elapsed_s,
                consumer.messages_out,
                consumer.bytes_out,
                consumer.messages_redelivered,
                consumer.messages_acked,
            )
        moving = self.meter.tick(
            elapsed_s,
            self.messages_out + sum(c.messages_out for c in consumers),
            self.bytes_out + sum(c.bytes_out for c in consumers),
            self.messages_redelivered + sum(c.messages_redelivered for c in consumers),
            self.messages_acked + sum(c.messages_acked for c in consumers),
            self.expired,
            self.dropped,
        )
        if self.dispatcher is not None and self.dispatcher.stalled:
            lost, self.dispatcher.lost, self.dispatcher.stalled = self.dispatcher.lost, None, False
            if lost is not None and not self.held:
                self.disconnect()  # whoever subscribes again hears why
            else:
                self.dispatcher.wake()
        return moving

    def stats(self, backlog_entries: int, backlog_bytes: int) -> dict[str, Any]:
        """Returns Pulsar's SubscriptionStats. The backlog is the caller's to count: what is delayed is a part of it."""
        consumers = self.consumers
        active = self.dispatcher.active if isinstance(self.dispatcher, SingleActive) else None
        shared = self.dispatcher if isinstance(self.dispatcher, SharedDispatcher) else None
        delayed = shared.waiting if shared is not None else 0
        keyed = self.dispatcher if isinstance(self.dispatcher, KeySharedDispatcher) else None
        draining = keyed.draining() if keyed is not None else {}
        return {
            "msgBacklog": backlog_entries,
            "msgBacklogNoDelayed": backlog_entries - delayed,
            "msgDelayed": delayed,
            "backlogSize": backlog_bytes,
            "blockedSubscriptionOnUnackedMsgs": shared.blocked if shared else False,
            "unackedMessages": shared.unacked if shared else 0,
            "type": self.kind.label if consumers else "None",
            "activeConsumerName": active.name if active else "",
            "isDurable": self.durable,
            "isReplicated": self.replicated,
            **({"waitsForItsTurn": self.rules.leadership.waiting()} if self.rules.leadership is not None else {}),
            "allowOutOfOrderDelivery": keyed.out_of_order if keyed else False,
            **({"keySharedMode": "STICKY" if keyed.sticky else "AUTO_SPLIT"} if keyed else {}),
            "subscriptionProperties": self.properties,
            "msgOutCounter": self.messages_out + sum(c.messages_out for c in consumers),
            "bytesOutCounter": self.bytes_out + sum(c.bytes_out for c in consumers),
            **_rates(self.meter),
            "msgRateExpired": self.meter.rates[4],
            "totalMsgExpired": self.expired,
            "lastExpireTimestamp": self.last_expired_ms,
            "lastConsumedFlowTimestamp": self.last_flow_ms,
            "lastConsumedTimestamp": self.last_consumed_ms,
            "lastAckedTimestamp": self.last_acked_ms,
            "filterProcessedMsgCount": self.filtering.processed if self.filtering is not None else 0,
            "filterAcceptedMsgCount": self.filtering.accepted if self.filtering is not None else 0,
            "filterRejectedMsgCount": self.filtering.rejected if self.filtering is not None else 0,
            "filterRescheduledMsgCount": self.filtering.rescheduled if self.filtering is not None else 0,
            "consumersAfterMarkDeletePosition": {},
            **({"msgDropCount": self.dropped, "msgDropRate": self.meter.rates[5]} if self.volatile else {}),
            "lastMarkDeleteAdvancedTimestamp": self.last_marked_ms,
            "consumers": [
                consumer_stats(c) | (_keyed_stats(keyed.ranges.ranges(c), draining.get(c, {})) if keyed else {})
                for c in consumers
            ],
        }


def _given(properties: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in properties.items() if not key.startswith(_INTERNAL)}


_DRAINING_SHOWN = 100


def _keyed_stats(ranges: list[tuple[int, int]], draining: dict[int, int]) -> dict[str, Any]:
    """What ConsumerStats says of a Key_Shared consumer beside the rest. draining: hash -> messages it holds that
    another waits for.
    """
    return {
        "keyHashRanges": [f"[{low}, {high}]" for low, high in ranges],
        "drainingHashesCount": len(draining),
        "drainingHashesUnackedMessages": sum(draining.values()),
        "drainingHashes": [
            {"hash": hashed, "unackMsgs": messages} for hashed, messages in sorted(draining.items())[:_DRAINING_SHOWN]
        ],
    }


def consumer_stats(consumer: Consumer) -> dict[str, Any]:
    """Returns Pulsar's ConsumerStats; times are wall milliseconds, but for `connectedSince`."""
    return {
        "consumerName": consumer.name,
        "availablePermits": consumer.permits,
        "unackedMessages": consumer.unacked,
        "blockedConsumerOnUnackedMsgs": consumer.blocked,
        "msgOutCounter": consumer.messages_out,
        "bytesOutCounter": consumer.bytes_out,
        "avgMessagesPerEntry": round(consumer.messages_out / consumer.entries_out) if consumer.entries_out else 0,
        **_rates(consumer.meter),
        "address": consumer.address,
        "connectedSince": iso_time(consumer.connected_ms),
        "clientVersion": consumer.client_version,
        "metadata": consumer.metadata,
        "lastAckedTimestamp": consumer.last_acked_ms,
        "lastConsumedTimestamp": consumer.last_consumed_ms,
        "lastConsumedFlowTimestamp": consumer.flow_ms,
    }


def _rates(meter: Meter) -> dict[str, float]:
    rate, throughput, redelivered, acked = meter.rates[:4]
    return {
        "msgRateOut": rate,
        "msgThroughputOut": throughput,
        "msgRateRedeliver": redelivered,
        "messageAckRate": acked,
        "chunkedMessageRate": 0.0,
    }
