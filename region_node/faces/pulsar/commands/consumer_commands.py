"""Consumers of one connection: SUBSCRIBE, FLOW, ACK, REDELIVER, SEEK, UNSUBSCRIBE, CLOSE_CONSUMER, and questions about
a subscription.

Is: commands to calls of the subscription, and its answers back. Isn't: dispatch.
Invariants: what comes for a consumer that is still being made waits for it (permits) or cancels it (close); an
acknowledgement is answered only once it is durable; an id with an ack set acknowledges part of a batch, or nothing yet
where the broker is set so.
Source: docs/protocols/pulsar.md, "SUBSCRIBE" to "SEEK".
"""

from __future__ import annotations

import logging
import struct
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING

from heliograph.model.errors import HeliographError, NotAllowed, RegionPassive, TopicError
from heliograph.model.positions import AFTER_ALL, BEFORE_ALL, Position
from heliograph.model.topic_names import TopicName
from heliograph.wire.pulsar import pulsar_pb2 as pb
from heliograph.wire.run import TxnId
from heliograph.wire.varint import signed
from region_node.faces.pulsar.commands.producer_commands import NO_SCHEMA
from region_node.faces.pulsar.commands.publishing import (
    NO_REQUEST,
    PARTS_MAX,
    check_metadata,
    has_room,
    name_next_owner,
    send_on,
)
from region_node.faces.pulsar.commands.transaction_commands import check_available
from region_node.faces.pulsar.server_errors import code_of
from region_node.replication.replicated_subscriptions import replicate, replicate_by_policy
from region_node.schemas.schema_definition import Schema
from region_node.subscriptions.consumer import Consumer, SubscriptionType
from region_node.subscriptions.dispatcher import after
from region_node.subscriptions.subscription import Subscription, consumer_stats
from region_node.topics.admission import check_consumers, check_type
from region_node.topics.limits.topic_limits import check_name, metadata_bytes, metadata_of
from region_node.topics.topic import Topic
from region_node.transactions.participants.pending_acks import Part, part_of
from region_node.usage.tenant_usage import TenantUsage

if TYPE_CHECKING:
    from region_node.faces.pulsar.connection.pulsar_connection import PulsarConnection

log = logging.getLogger("region_node.pulsar")

ACK_SET_WORDS_MAX = 4096
ACK_WORDS_MAX = 65_536
"""Of all ack sets of one command together: of 16 of the largest batches that there are."""
ACK_IDS_MAX = 50_000
"""Ids of one command: each costs microseconds, and nobody else has a turn meanwhile."""
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

    def __init__(self, connection: PulsarConnection) -> None:
        self._connection = connection
        self.handles: dict[int, ConsumerHandle] = {}
        self.metadata_bytes = 0
        """Of what they say of themselves."""
        self._parts: dict[tuple[Subscription, TxnId], None] = {}
        """Transactions of this client that subscriptions are known to take part in."""
        self.unknown: deque[tuple[pb.BaseCommand, ConsumerHandle]] = deque()
        """Acknowledgements whose transaction is asked for, one at a time: the first is."""
        self.unknown_bytes = 0
        self.unanswered, self.unanswered_max = 0, connection.limits.unanswered_acks_max
        """Acknowledgements that are not durable yet, and are to be answered."""

    def is_part(self, subscription: Subscription, txn: TxnId) -> bool:
        """Whether that is known, or will never be, as transactions are off."""
        if self._connection.listener.transactions is None:
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
        handle.consumer.flow_ms = handle.subscription.last_flow_ms = self._connection.listener.clock.wall_ms()
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
            self._connection.listener.loop.call_later(NEWS_AFTER_S, self._listens, handle)
        handle.active = active

    def _listens(self, handle: ConsumerHandle) -> None:
        if handle.flowed or handle.closed:
            return
        handle.flowed = True
        if handle.active is not None:
            self._send_active(handle.id, handle.active)

    def _send_active(self, consumer_id: int, active: bool) -> None:
        change = pb.CommandActiveConsumerChange(consumer_id=consumer_id, is_active=active)
        self._connection.send(pb.BaseCommand(type=pb.BaseCommand.ACTIVE_CONSUMER_CHANGE, active_consumer_change=change))

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
        self._connection.deliveries.forget(handle)
        self._drop(handle)
        migration = None if handle.topic is None else handle.topic.migration
        if (
            migration is not None
            and handle.subscription is not None
            and (why := migration.of_consumers(handle.subscription)) is not None
        ):
            send_on(self._connection, pb.CommandTopicMigrated.Consumer, handle.id, why)
        close = pb.CommandCloseConsumer(consumer_id=consumer.id, request_id=NO_REQUEST)
        name_next_owner(close, handle.topic)
        self._connection.send(pb.BaseCommand(type=pb.BaseCommand.CLOSE_CONSUMER, close_consumer=close))

    def forget(self, handle: ConsumerHandle) -> None:
        """The consumer is gone, here and in its subscription; a reader's subscription with it."""
        handle.closed = True
        self._connection.deliveries.forget(handle)
        if self.handles.get(handle.id) is handle:
            self._drop(handle)
        if handle.subscription is not None and handle.consumer is not None and handle.topic is not None:
            handle.subscription.remove(handle.consumer)
            if not handle.subscription.durable and not handle.subscription.consumers:
                handle.topic.drop_reader(handle.subscription)

    def _drop(self, handle: ConsumerHandle) -> None:
        del self.handles[handle.id]
        if handle.consumer is not None:
            self.metadata_bytes -= metadata_bytes(handle.consumer.metadata)

    def throw_out(self, handle: ConsumerHandle) -> None:
        """The client hears of it, subscribes again, and then learns why not."""
        self.forget(handle)
        close = pb.CommandCloseConsumer(consumer_id=handle.id, request_id=NO_REQUEST)
        self._connection.send(pb.BaseCommand(type=pb.BaseCommand.CLOSE_CONSUMER, close_consumer=close))

    def close(self) -> None:
        for handle in list(self.handles.values()):
            self.forget(handle)

    def find(self, consumer_id: int, request_id: int) -> ConsumerHandle | None:
        """A consumer that is ready; else the client is told."""
        handle = self.handles.get(consumer_id)
        if handle is None or handle.subscription is None:
            self._connection.send_error(
                request_id, pb.ConsumerNotFound, f"consumer {consumer_id} is not on this connection"
            )
            return None
        return handle


def position_of(message_id: pb.MessageIdData) -> Position:
    """Earliest and latest come as all bits set, and as the largest signed number."""
    position = (signed(message_id.ledgerId), signed(message_id.entryId))
    if position >= AFTER_ALL:
        return AFTER_ALL
    return BEFORE_ALL if position[0] < 0 else (position[0], max(position[1], -1))


def _before(position: Position) -> Position:
    """The mark-delete position whose next entry is `position`."""
    return position if position in (BEFORE_ALL, AFTER_ALL) else (position[0], position[1] - 1)


def on_subscribe(connection: PulsarConnection, command: pb.BaseCommand) -> None:
    subscribe = command.subscribe
    known = connection.consuming.handles.get(subscribe.consumer_id)
    if known is not None:
        if known.subscription is None:
            connection.send_error(subscribe.request_id, pb.ServiceNotReady, "this consumer is still being made")
        else:
            connection.send_success(subscribe.request_id)
        return
    if not has_room(connection, subscribe.request_id):
        return
    handle = connection.consuming.handles[subscribe.consumer_id] = ConsumerHandle(subscribe.consumer_id)
    connection.answer(subscribe, _subscribe_or_forget(connection, handle, subscribe))


async def _subscribe_or_forget(
    connection: PulsarConnection, handle: ConsumerHandle, command: pb.CommandSubscribe
) -> None:
    try:
        await _subscribe(connection, handle, command)
    except RegionPassive as error:
        send_on(connection, pb.CommandTopicMigrated.Consumer, command.consumer_id, error)
        raise
    finally:
        if handle.subscription is None:
            connection.consuming.forget(handle)


async def _subscribe(connection: PulsarConnection, handle: ConsumerHandle, command: pb.CommandSubscribe) -> None:
    kind = SubscriptionType(command.subType)
    if command.read_compacted and kind not in (SubscriptionType.EXCLUSIVE, SubscriptionType.FAILOVER):
        raise NotAllowed("compacted reads want an exclusive or failover subscription")
    topics, wanted = connection.listener.topics, TopicName.parse(command.topic)
    check_name("consumer", command.consumer_name)
    metadata = metadata_of("consumer", command.metadata)
    connection.identity.check_subscribe(wanted, command.subscription)
    topic = await topics.get_for_client(command.topic, create=command.force_topic_creation)
    check_type(topic, kind)
    topic.check_subscribe_rate(f"{connection.address} {command.consumer_name} {command.consumer_id}")
    if command.HasField("schema") and command.schema.type not in NO_SCHEMA:
        await topics.schema_of_consumer(topic, Schema.from_wire(command.schema))
    properties = {pair.key: pair.value for pair in command.subscription_properties}
    initial = await _initial(connection, topic, command)
    if topic.migration is not None:
        topic.migration.check_consumer(command.subscription, new_ends_here=initial == AFTER_ALL)
    await topic.moved(command.subscription)
    make = not command.durable or bool(topic.policies.part("autoSubscriptionCreation", "allowAutoSubscriptionCreation"))
    subscription = await topic.subscription(
        command.subscription, initial=initial, durable=command.durable, create=make, properties=properties
    )
    listener = connection.listener
    sticky = kind is SubscriptionType.KEY_SHARED and command.keySharedMeta.keySharedMode == pb.STICKY
    consumer = Consumer(
        command.consumer_id,
        command.consumer_name or listener.unique_name(),
        connection,
        priority=command.priority_level,
        epoch=command.consumer_epoch,
        metadata=metadata,
        address=connection.address,
        client_version=connection.client_version,
        connected_ms=listener.clock.wall_ms(),
        hash_ranges=[(r.start, r.end) for r in command.keySharedMeta.hashRanges] if sticky else None,
        out_of_order=kind is SubscriptionType.KEY_SHARED and command.keySharedMeta.allowOutOfOrderDelivery,
        compacted=topic.compaction().view if command.read_compacted and not topic.volatile else None,
    )
    try:
        if not topic.volatile and consumer.compacted is None:
            await _check_not_lost(connection, topic, subscription)
        connection.identity.check_subscribe(wanted, command.subscription)  # the grant may have gone while we waited
        check_consumers(topic, command.subscription)
        subscription.check_room(kind, consumer)
        check_metadata(metadata, connection.consuming.metadata_bytes, connection.limits.metadata_bytes_max)
    except BaseException:
        topic.drop_reader(subscription)
        raise
    if handle.closed or connection.closed:
        topic.drop_reader(subscription)
        return
    if (
        command.replicate_subscription_state or subscription.rules.leadership is not None
    ):  # before the first message goes out
        replicate(topic, subscription)
    replicate_by_policy(topic)
    handle.topic, handle.subscription, handle.consumer, handle.partition = (
        topic,
        subscription,
        consumer,
        topic.name.partition,
    )
    connection.consuming.metadata_bytes += metadata_bytes(metadata)
    handle.usage = listener.usage.of(topic.name.tenant)
    connection.send_success(command.request_id)
    subscription.add(consumer, kind)
    if handle.permits:
        connection.consuming.flow(handle.id, handle.permits)


async def _check_not_lost(connection: PulsarConnection, topic: Topic, subscription: Subscription) -> None:
    """Raises EntriesLost where what comes next was found to be lost, and is not to be passed over."""
    topics = connection.listener.topics
    if topics.losses and not subscription.rules.skips_lost:
        position = await topic.ledger.first_from(after(subscription.cursor.mark_delete))
        if position is not None:
            topics.check_not_lost(position)


async def _initial(connection: PulsarConnection, topic: Topic, command: pb.CommandSubscribe) -> Position:
    """The mark-delete position of the subscription, if it is made now."""
    if command.start_message_rollback_duration_sec:
        return await topic.before_time(
            connection.listener.clock.wall_ms() - 1000 * command.start_message_rollback_duration_sec
        )
    if command.HasField("start_message_id") and not command.durable:
        return _before(position_of(command.start_message_id))
    return BEFORE_ALL if command.initialPosition == pb.CommandSubscribe.Earliest else AFTER_ALL


def on_close_consumer(connection: PulsarConnection, command: pb.BaseCommand) -> None:
    close = command.close_consumer
    handle = connection.consuming.handles.get(close.consumer_id)
    if handle is None:
        connection.send_error(
            close.request_id, pb.ConsumerNotFound, f"consumer {close.consumer_id} is not on this connection"
        )
        return
    connection.consuming.forget(handle)
    connection.send_success(close.request_id)


def on_ack(connection: PulsarConnection, command: pb.BaseCommand, *, known: ConsumerHandle | None = None) -> None:
    """known: that the subscription of this consumer takes part in the transaction was found out just now."""
    ack = command.ack
    handle = connection.consuming.handles.get(ack.consumer_id)
    if (
        handle is None
        or handle.subscription is None
        or handle.consumer is None
        or known not in (None, handle)  # another one has its id now
    ):
        if ack.HasField("request_id"):
            _send_ack_response(
                connection,
                _response_to(ack),
                pb.ConsumerNotFound,
                f"consumer {ack.consumer_id} is not on this connection",
            )
        return
    subscription, consumer = handle.subscription, handle.consumer
    consuming = connection.consuming
    if ack.HasField("request_id") and consuming.unanswered >= consuming.unanswered_max:
        text = f"{consuming.unanswered_max} acknowledgements of this connection wait to be stored: try again later"
        _send_ack_response(connection, _response_to(ack), pb.ServiceNotReady, text)
        return
    in_transaction, many = ack.HasField("txnid_least_bits"), len(ack.message_id) > ACK_IDS_MAX
    if known is None and in_transaction and not many and not consuming.is_part(subscription, _txn(ack)):
        _ack_when_known(connection, command, handle)
        return
    consumer.last_acked_ms = subscription.last_acked_ms = connection.listener.clock.wall_ms()
    try:
        if many:
            raise NotAllowed(
                f"{len(ack.message_id)} ids in one acknowledgement; at most {ACK_IDS_MAX} are allowed: send several"
            )
        upto = _cumulative(ack)
        if in_transaction:
            _ack_in_transaction(connection, subscription, ack, upto)
        else:
            if upto is not None:
                subscription.ack_cumulative(consumer, upto)
            else:
                subscription.ack(consumer, _positions(ack.message_id))
            parts = _parts(ack.message_id) if connection.listener.topics.settings.batch_index_acks else []
            for position, left in parts:
                subscription.ack_batch(consumer, position, left)
    except TopicError as error:
        named = ack.request_id if ack.HasField("request_id") else NO_REQUEST
        connection.refused(named, code_of(error), str(error), consumer=ack.consumer_id)
        if ack.HasField("request_id"):
            _send_ack_response(connection, _response_to(ack), code_of(error), str(error))
        return
    if ack.HasField("request_id"):
        handle.ack_waiting.append(_response_to(ack))
        if len(handle.ack_waiting) == 1:
            connection.listener.tasks.spawn(_answer_acks(connection, handle, subscription))
        consuming.unanswered += 1


def _txn(ack: pb.CommandAck) -> TxnId:
    return ack.txnid_most_bits, ack.txnid_least_bits


def _ack_when_known(connection: PulsarConnection, command: pb.BaseCommand, handle: ConsumerHandle) -> None:
    """Once it is known whether the subscription takes part in the client's transaction. Nothing is read from a client
    of which too many wait.
    """
    consuming = connection.consuming
    consuming.unknown.append((command, handle))
    consuming.unknown_bytes += command.ByteSize()
    if len(consuming.unknown) == 1:
        connection.listener.tasks.spawn(_ask_for_transactions(connection))
    if len(consuming.unknown) >= UNKNOWN_ACKS_MAX or consuming.unknown_bytes >= UNKNOWN_BYTES_MAX:
        connection.hold_reading(True, _UNKNOWN)


async def _ask_for_transactions(connection: PulsarConnection) -> None:
    """Each transaction is asked for once; in the order of the acknowledgements."""
    consuming = connection.consuming
    unknown = consuming.unknown
    try:
        while unknown and not connection.closed:
            command, handle = unknown[0]
            try:
                await _check_part(connection, command.ack, handle)
                on_ack(connection, command, known=handle)
            except HeliographError as error:
                if command.ack.HasField("request_id"):
                    _send_ack_response(connection, _response_to(command.ack), code_of(error), str(error))
            unknown.popleft()
            consuming.unknown_bytes -= command.ByteSize()
            if len(unknown) <= UNKNOWN_ACKS_MAX // 2 and consuming.unknown_bytes <= UNKNOWN_BYTES_MAX // 2:
                connection.hold_reading(False, _UNKNOWN)
    finally:
        unknown.clear()
        consuming.unknown_bytes = 0
        connection.hold_reading(False, _UNKNOWN)


async def _check_part(connection: PulsarConnection, ack: pb.CommandAck, handle: ConsumerHandle) -> None:
    """Raises NotAllowed, and what the metadata raises. Of a consumer that has gone meanwhile nothing is noted."""
    consuming, transactions, subscription = connection.consuming, connection.listener.transactions, handle.subscription
    if handle.closed or handle.topic is None or subscription is None:
        return
    if transactions is None or consuming.is_part(subscription, _txn(ack)):
        return
    await transactions.check_part(_txn(ack), connection.identity.role, handle.topic.text, subscription.name)
    consuming.note_part(subscription, _txn(ack))


def _cumulative(ack: pb.CommandAck) -> Position | None:
    """The last position of a cumulative acknowledgement, wholly acknowledged; None: it is none. Raises NotAllowed."""
    if ack.ack_type != pb.CommandAck.Cumulative:
        return None
    if len(ack.message_id) != 1:
        raise NotAllowed("a cumulative acknowledgement has exactly one message id")
    position = position_of(ack.message_id[0])
    return _before(position) if any(ack.message_id[0].ack_set) else position


def _ack_in_transaction(
    connection: PulsarConnection, subscription: Subscription, ack: pb.CommandAck, upto: Position | None
) -> None:
    """Acknowledges as part of a transaction, whole or in parts. Raises TransactionConflict, NotAllowed."""
    check_available(connection)
    txn, transactions = _txn(ack), subscription.transactions
    parts: list[Part] = []
    if connection.listener.topics.settings.batch_index_acks:
        sizes = {(i.ledgerId, i.entryId): i.batch_size for i in ack.message_id}
        if not all(0 <= size <= 64 * ACK_SET_WORDS_MAX for size in sizes.values()):
            raise NotAllowed(f"a batch has at most {64 * ACK_SET_WORDS_MAX} messages")
        parts = [part_of(position, left, sizes[position]) for position, left in _parts(ack.message_id)]
    if upto is not None:
        transactions.ack_cumulative(txn, upto, parts, in_batch=any(ack.message_id[0].ack_set))
    else:
        transactions.ack(txn, _positions(ack.message_id), parts)


def _positions(ids: Iterable[pb.MessageIdData]) -> list[Position]:
    """Returns the ids that acknowledge whole entries: those without an ack set, or with no message left in it."""
    return [(i.ledgerId, i.entryId) for i in ids if not i.ack_set or not any(i.ack_set)]


def _parts(ids: Iterable[pb.MessageIdData]) -> list[tuple[Position, int]]:
    """Returns the ids that acknowledge parts of batches: (position, bits of the messages that are not acknowledged).
    Raises NotAllowed where no batch has so many messages, or all together too many.
    """
    parts: list[tuple[Position, int]] = []
    total = 0
    for part in ids:
        words = part.ack_set
        if not words:
            continue
        total += len(words)
        if len(words) > ACK_SET_WORDS_MAX:
            raise NotAllowed(f"an ack set of {len(words)} words; at most {ACK_SET_WORDS_MAX} are allowed")
        if total > ACK_WORDS_MAX:
            raise NotAllowed(
                f"more than {ACK_WORDS_MAX} words in the ack sets of one acknowledgement: send several acknowledgements"
            )
        if left := int.from_bytes(struct.pack(f"<{len(words)}q", *words), "little"):
            parts.append(((part.ledgerId, part.entryId), left))
    return parts


async def _answer_acks(connection: PulsarConnection, handle: ConsumerHandle, subscription: Subscription) -> None:
    """Answers what waits once it is durable: one task and one wait for all that came meanwhile."""
    while handle.ack_waiting:
        count = len(handle.ack_waiting)
        code, text = None, ""
        try:
            if subscription.transactional is not None:
                await subscription.transactional.stored()
            else:
                await subscription.cursor.flushed()
        except HeliographError as error:
            code, text = code_of(error), str(error)
        for response in handle.ack_waiting[:count]:
            _send_ack_response(connection, response, code, text)
        del handle.ack_waiting[:count]
        connection.consuming.unanswered -= count


def _response_to(ack: pb.CommandAck) -> pb.CommandAckResponse:
    response = pb.CommandAckResponse(consumer_id=ack.consumer_id, request_id=ack.request_id)
    if ack.HasField("txnid_least_bits"):
        response.txnid_least_bits, response.txnid_most_bits = ack.txnid_least_bits, ack.txnid_most_bits
    return response


def _send_ack_response(
    connection: PulsarConnection,
    response: pb.CommandAckResponse,
    code: pb.ServerError.ValueType | None = None,
    text: str = "",
) -> None:
    if code is not None:
        response.error, response.message = code, text
    connection.send(pb.BaseCommand(type=pb.BaseCommand.ACK_RESPONSE, ackResponse=response))


def on_redeliver(connection: PulsarConnection, command: pb.BaseCommand) -> None:
    redeliver = command.redeliverUnacknowledgedMessages
    handle = connection.consuming.handles.get(redeliver.consumer_id)
    if handle is None or handle.subscription is None or handle.consumer is None:
        return
    if redeliver.HasField("consumer_epoch"):
        handle.consumer.epoch = redeliver.consumer_epoch
    many = len(redeliver.message_ids) > ACK_IDS_MAX  # then all that the consumer holds goes out again
    ids = [] if many else [(i.ledgerId, i.entryId) for i in redeliver.message_ids]
    if not ids:  # what has not gone out yet is among them
        handle.subscription.flow(handle.consumer, connection.deliveries.forget(handle))
    handle.subscription.redeliver(handle.consumer, ids or None)


def on_unsubscribe(connection: PulsarConnection, command: pb.BaseCommand) -> None:
    unsubscribe = command.unsubscribe
    handle = connection.consuming.find(unsubscribe.consumer_id, unsubscribe.request_id)
    if handle is not None:
        connection.answer(unsubscribe, _unsubscribe(connection, handle, unsubscribe))


async def _unsubscribe(connection: PulsarConnection, handle: ConsumerHandle, command: pb.CommandUnsubscribe) -> None:
    topic, subscription, consumer = handle.topic, handle.subscription, handle.consumer
    assert topic is not None and subscription is not None and consumer is not None
    if len(subscription.consumers) > 1 and not command.force:
        connection.send_error(
            command.request_id, pb.MetadataError, f"subscription {subscription.name!r} has other consumers"
        )
        return
    subscription.remove(consumer)
    connection.consuming.forget(handle)
    await topic.delete_subscription(subscription.name, force=command.force)
    connection.send_success(command.request_id)


def on_seek(connection: PulsarConnection, command: pb.BaseCommand) -> None:
    seek = command.seek
    handle = connection.consuming.find(seek.consumer_id, seek.request_id)
    if handle is not None:
        connection.answer(seek, _seek(connection, handle, seek))


async def _seek(connection: PulsarConnection, handle: ConsumerHandle, command: pb.CommandSeek) -> None:
    topic, subscription = handle.topic, handle.subscription
    assert topic is not None and subscription is not None
    if command.HasField("message_publish_time"):
        compacted = handle.consumer is not None and handle.consumer.compacted is not None
        target = await (topic.before_time_compacted if compacted else topic.before_time)(command.message_publish_time)
    elif command.HasField("message_id"):
        target = _before(position_of(command.message_id))
    else:
        raise NotAllowed("SEEK wants a message id or a publish time")
    await topic.seek(subscription, target)
    connection.send_success(command.request_id)


def on_get_last_message_id(connection: PulsarConnection, command: pb.BaseCommand) -> None:
    ask = command.getLastMessageId
    handle = connection.consuming.find(ask.consumer_id, ask.request_id)
    if handle is not None:
        connection.answer(ask, _last_message_id(connection, handle, ask.request_id))


async def _last_message_id(connection: PulsarConnection, handle: ConsumerHandle, request_id: int) -> None:
    assert handle.topic is not None and handle.subscription is not None
    compacted = handle.consumer is not None and handle.consumer.compacted is not None
    (ledger, entry), batch_index = await (
        handle.topic.last_compacted_message() if compacted else handle.topic.last_message()
    )
    response = pb.CommandGetLastMessageIdResponse(
        last_message_id=_message_id((ledger, entry), handle.partition, batch_index),
        request_id=request_id,
        consumer_mark_delete_position=_message_id(handle.subscription.cursor.mark_delete),
    )
    connection.send(pb.BaseCommand(type=pb.BaseCommand.GET_LAST_MESSAGE_ID_RESPONSE, getLastMessageIdResponse=response))


def _message_id(position: Position, partition: int = -1, batch_index: int = -1) -> pb.MessageIdData:
    mask = (1 << 64) - 1
    made = pb.MessageIdData(ledgerId=position[0] & mask, entryId=position[1] & mask)
    if partition >= 0:
        made.partition = partition
    if batch_index >= 0:
        made.batch_index = batch_index
    return made


def on_consumer_stats(connection: PulsarConnection, command: pb.BaseCommand) -> None:
    ask = command.consumerStats
    handle = connection.consuming.handles.get(ask.consumer_id)
    response = pb.CommandConsumerStatsResponse(request_id=ask.request_id)
    if handle is None or handle.subscription is None or handle.consumer is None:
        response.error_code, response.error_message = (
            pb.ConsumerNotFound,
            f"consumer {ask.consumer_id} is not on this connection",
        )
    else:
        stats = consumer_stats(handle.consumer)
        for name in ("msgRateOut", "msgThroughputOut", "msgRateRedeliver", "messageAckRate"):
            setattr(response, name, stats[name])
        response.consumerName, response.address = handle.consumer.name, handle.consumer.address
        response.availablePermits, response.unackedMessages = max(0, handle.consumer.permits), handle.consumer.unacked
        response.blockedConsumerOnUnackedMsgs = handle.consumer.blocked
        response.connectedSince, response.type = stats["connectedSince"], handle.subscription.kind.label
        response.msgBacklog = handle.subscription.cursor.backlog_entries
    connection.send(pb.BaseCommand(type=pb.BaseCommand.CONSUMER_STATS_RESPONSE, consumerStatsResponse=response))
