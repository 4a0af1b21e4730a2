"""Consumers of one connection: who they are, what waits for them, and how they end.

Is: the ids of a connection, news to its client, acknowledgements that wait for an answer or for their transaction.
Isn't: a command (`consumer_commands`), or dispatch.
Bounds: UNKNOWN_ACKS_MAX acknowledgements and UNKNOWN_BYTES_MAX bytes whose transaction is asked for.
"""

from __future__ import annotations

from collections import deque
from functools import partial

from heliograph.wire.pulsar import pulsar_pb2 as pb
from heliograph.wire.run import TxnId
from region_node.faces.pulsar.session.deliveries import Deliveries
from region_node.faces.pulsar.session.publishing import NO_REQUEST, PARTS_MAX, name_next_owner
from region_node.faces.pulsar.session.pulsar_broker import ClientPort, PulsarBroker
from region_node.faces.pulsar.session.sent_on import SentOn
from region_node.subscriptions.consumer import Consumer
from region_node.subscriptions.subscription import Subscription
from region_node.topics.limits.topic_limits import metadata_bytes
from region_node.topics.topic import Topic
from region_node.usage.tenant_usage import TenantUsage

NEWS_AFTER_S = 1.0
_UNKNOWN = "acks"
UNKNOWN_ACKS_MAX = 1000
"""So many acknowledgements whose transaction is asked for may wait on a connection; then nothing is read from it."""
UNKNOWN_BYTES_MAX = 4 << 20
"""The same of the bytes of those."""


class ConsumerHandle:
    """One consumer id of a connection. `subscription` is None while it is being made; `permits`: of FLOWs that came
    meanwhile.
    """

    __slots__ = (
        "ack_waiting",
        "active",
        "closed",
        "consumer",
        "flowed",
        "id",
        "partition",
        "permits",
        "subscription",
        "topic",
        "usage",
    )

    def __init__(self, consumer_id: int) -> None:
        self.id = consumer_id
        self.topic: Topic | None = None
        self.subscription: Subscription | None = None
        self.consumer: Consumer | None = None
        self.partition = -1
        self.permits = 0
        self.closed = False
        self.flowed = False
        self.active: bool | None = None
        """Whether it is the active one, as long as it was not told."""
        self.ack_waiting: list[pb.CommandAckResponse] = []
        """Answers to acknowledgements that are not durable yet."""
        self.usage = TenantUsage()
        """The tenant's sums, once the topic is known."""


class Consuming:
    """All consumers of one connection."""

    __slots__ = (
        "_broker",
        "_deliveries",
        "_parts",
        "_port",
        "_sent_on",
        "handles",
        "metadata_bytes",
        "unanswered",
        "unanswered_max",
        "unknown",
        "unknown_bytes",
    )

    def __init__(self, port: ClientPort, broker: PulsarBroker, deliveries: Deliveries, sent_on: SentOn) -> None:
        self._port, self._broker, self._deliveries, self._sent_on = port, broker, deliveries, sent_on
        self.handles: dict[int, ConsumerHandle] = {}
        self.metadata_bytes = 0
        """Of what they say of themselves."""
        self._parts: dict[tuple[Subscription, TxnId], None] = {}
        """Transactions of this client that subscriptions are known to take part in."""
        self.unknown: deque[tuple[pb.BaseCommand, ConsumerHandle]] = deque()
        """Acknowledgements whose transaction is asked for, one at a time: the first is."""
        self.unknown_bytes = 0
        self.unanswered, self.unanswered_max = 0, broker.settings.limits.unanswered_acks_max
        """Acknowledgements that are not durable yet, and are to be answered."""

    def begin(self, consumer_id: int) -> ConsumerHandle:
        """From here on the id is taken; what comes for it waits until it is made."""
        handle = self.handles[consumer_id] = ConsumerHandle(consumer_id)
        return handle

    def made(self, handle: ConsumerHandle, topic: Topic, subscription: Subscription, consumer: Consumer) -> None:
        """The consumer is about to join the subscription."""
        handle.topic, handle.subscription, handle.consumer = topic, subscription, consumer
        handle.partition, handle.usage = topic.name.partition, self._broker.usage.of(topic.name.tenant)
        self.metadata_bytes += metadata_bytes(consumer.metadata)
        self._sent_on.consumer_came(topic.text)

    def answer_later(self, handle: ConsumerHandle, response: pb.CommandAckResponse) -> bool:
        """An acknowledgement is answered once it is durable. Returns whether no other of the consumer waits."""
        handle.ack_waiting.append(response)
        self.unanswered += 1
        return len(handle.ack_waiting) == 1

    def answered(self, handle: ConsumerHandle, count: int) -> None:
        """The first of the acknowledgements that waited have their answers."""
        del handle.ack_waiting[:count]
        self.unanswered -= count

    def ask_later(self, command: pb.BaseCommand, handle: ConsumerHandle) -> bool:
        """An acknowledgement waits until its transaction is known. Nothing is read from a client of which too many
        wait. Returns whether no other waits.
        """
        self.unknown.append((command, handle))
        self.unknown_bytes += command.ByteSize()
        if len(self.unknown) >= UNKNOWN_ACKS_MAX or self.unknown_bytes >= UNKNOWN_BYTES_MAX:
            self._port.hold_reading(True, _UNKNOWN)
        return len(self.unknown) == 1

    def asked(self) -> None:
        """The transaction of the first that waits is known."""
        command, _ = self.unknown.popleft()
        self.unknown_bytes -= command.ByteSize()
        if len(self.unknown) <= UNKNOWN_ACKS_MAX // 2 and self.unknown_bytes <= UNKNOWN_BYTES_MAX // 2:
            self._port.hold_reading(False, _UNKNOWN)

    def ask_no_more(self) -> None:
        """Drops what waits, if anything does."""
        self.unknown.clear()
        self.unknown_bytes = 0
        self._port.hold_reading(False, _UNKNOWN)

    def is_part(self, subscription: Subscription, txn: TxnId) -> bool:
        """Whether that is known, or will never be, as transactions are off."""
        if self._broker.transactions is None:
            return True
        held = subscription.transactional
        return (subscription, txn) in self._parts and (held is None or not held.pending.may_have_ended(txn))

    def note_part(self, subscription: Subscription, txn: TxnId) -> None:
        if len(self._parts) >= PARTS_MAX:
            self._parts.clear()
        self._parts[subscription, txn] = None

    def flow(self, consumer_id: int, permits: int) -> None:
        handle = self.handles.get(consumer_id)
        if handle is None:
            return
        if handle.consumer is None or handle.subscription is None:
            handle.permits += permits
            return
        if not handle.flowed:
            self._listens(handle)
        handle.consumer.flow_ms = handle.subscription.last_flow_ms = self._broker.clock.wall_ms()
        handle.subscription.flow(handle.consumer, permits)

    def tell_active(self, consumer: Consumer, active: bool) -> None:
        """The first news waits for the first FLOW, or a second: Go's client drops what comes before it has handled the
        answer to SUBSCRIBE.
        """
        handle = self.handles[consumer.id]
        if handle.flowed:
            self._send_active(handle.id, active)
            return
        if handle.active is None:
            self._port.call_later(NEWS_AFTER_S, partial(self._listens, handle))
        handle.active = active

    def _listens(self, handle: ConsumerHandle) -> None:
        if handle.flowed or handle.closed:
            return
        handle.flowed = True
        if handle.active is not None:
            self._send_active(handle.id, handle.active)

    def _send_active(self, consumer_id: int, active: bool) -> None:
        change = pb.CommandActiveConsumerChange(consumer_id=consumer_id, is_active=active)
        self._port.send(pb.BaseCommand(type=pb.BaseCommand.ACTIVE_CONSUMER_CHANGE, active_consumer_change=change))

    def wake(self) -> None:
        """The connection can be written to again."""
        for handle in self.handles.values():
            if handle.subscription is not None:
                handle.subscription.wake()

    def closed_from_here(self, consumer: Consumer) -> None:
        """The client must subscribe again."""
        handle = self.handles.get(consumer.id)
        if handle is None or handle.consumer is not consumer:
            return
        handle.closed = True
        self._deliveries.forget(handle)
        self._drop(handle)
        topic = handle.topic
        if (
            topic is not None
            and topic.migration is not None
            and handle.subscription is not None
            and (why := topic.migration.of_consumers(handle.subscription)) is not None
        ):
            self._sent_on.tell(pb.CommandTopicMigrated.Consumer, handle.id, topic.text, why)
        elif topic is not None:
            self._sent_on.consumer_closed(topic.name, topic.text)
        close = pb.CommandCloseConsumer(consumer_id=consumer.id, request_id=NO_REQUEST)
        name_next_owner(close, topic)
        self._port.send(pb.BaseCommand(type=pb.BaseCommand.CLOSE_CONSUMER, close_consumer=close))

    def forget(self, handle: ConsumerHandle) -> None:
        """The consumer is gone, here and in its subscription; a reader's subscription with it."""
        self._let_go(handle)
        if handle.subscription is not None and handle.consumer is not None and handle.topic is not None:
            handle.subscription.remove(handle.consumer)
            if not handle.subscription.durable and not handle.subscription.consumers:
                handle.topic.drop_reader(handle.subscription)

    def _let_go(self, handle: ConsumerHandle) -> None:
        handle.closed = True
        self._deliveries.forget(handle)
        if self.handles.get(handle.id) is handle:
            self._drop(handle)

    def _drop(self, handle: ConsumerHandle) -> None:
        del self.handles[handle.id]
        if handle.consumer is not None:
            self.metadata_bytes -= metadata_bytes(handle.consumer.metadata)

    def throw_out(self, handle: ConsumerHandle) -> None:
        """The client hears of it, subscribes again, and then learns why not."""
        self.forget(handle)
        if handle.topic is not None:
            self._sent_on.consumer_closed(handle.topic.name, handle.topic.text)
        close = pb.CommandCloseConsumer(consumer_id=handle.id, request_id=NO_REQUEST)
        self._port.send(pb.BaseCommand(type=pb.BaseCommand.CLOSE_CONSUMER, close_consumer=close))

    def close(self) -> None:
        leaving: dict[Subscription, tuple[Topic, list[Consumer]]] = {}
        for handle in list(self.handles.values()):
            self._let_go(handle)
            if handle.subscription is not None and handle.consumer is not None and handle.topic is not None:
                leaving.setdefault(handle.subscription, (handle.topic, []))[1].append(handle.consumer)
        for subscription, (topic, consumers) in leaving.items():
            subscription.remove(*consumers)
            if not subscription.durable and not subscription.consumers:
                topic.drop_reader(subscription)

    def find(self, consumer_id: int, request_id: int) -> ConsumerHandle | None:
        """A consumer that is ready; else the client is told."""
        handle = self.handles.get(consumer_id)
        if handle is None or handle.subscription is None:
            self._port.send_error(request_id, pb.ConsumerNotFound, f"consumer {consumer_id} is not on this connection")
            return None
        return handle
