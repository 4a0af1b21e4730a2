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
from collections.abc import Iterable

from heliograph.model.errors import HeliographError, NotAllowed, RegionPassive, TopicError
from heliograph.model.positions import AFTER_ALL, BEFORE_ALL, Position
from heliograph.model.topic_names import TopicName
from heliograph.wire.pulsar import pulsar_pb2 as pb
from heliograph.wire.run import TxnId
from heliograph.wire.varint import signed
from region_node.faces.pulsar.commands.producer_commands import NO_SCHEMA
from region_node.faces.pulsar.commands.transaction_commands import check_available
from region_node.faces.pulsar.server_errors import code_of
from region_node.faces.pulsar.session.consuming import ConsumerHandle
from region_node.faces.pulsar.session.publishing import NO_REQUEST, check_metadata
from region_node.faces.pulsar.session.pulsar_session import PulsarSession
from region_node.replication.replicated_subscriptions import replicate, replicate_by_policy
from region_node.schemas.schema_definition import Schema
from region_node.subscriptions.consumer import Consumer, SubscriptionType
from region_node.subscriptions.dispatcher import after
from region_node.subscriptions.subscription import Subscription, consumer_stats
from region_node.topics.admission import check_consumers, check_type
from region_node.topics.limits.topic_limits import check_name, metadata_of
from region_node.topics.serving.deletion_everywhere import check_not_elsewhere
from region_node.topics.topic import Topic
from region_node.transactions.participants.pending_acks import Part, part_of

log = logging.getLogger("region_node.pulsar")

ACK_SET_WORDS_MAX = 4096
ACK_WORDS_MAX = 65_536
"""Of all ack sets of one command together: of 16 of the largest batches that there are."""
ACK_IDS_MAX = 50_000
"""Ids of one command: each costs microseconds, and nobody else has a turn meanwhile."""


def position_of(message_id: pb.MessageIdData) -> Position:
    """Earliest and latest come as all bits set, and as the largest signed number."""
    position = (signed(message_id.ledgerId), signed(message_id.entryId))
    if position >= AFTER_ALL:
        return AFTER_ALL
    return BEFORE_ALL if position[0] < 0 else (position[0], max(position[1], -1))


def _before(position: Position) -> Position:
    """The mark-delete position whose next entry is `position`."""
    return position if position in (BEFORE_ALL, AFTER_ALL) else (position[0], position[1] - 1)


def on_subscribe(session: PulsarSession, command: pb.BaseCommand) -> None:
    subscribe = command.subscribe
    known = session.consuming.handles.get(subscribe.consumer_id)
    if known is not None:
        if known.subscription is None:
            session.send_error(subscribe.request_id, pb.ServiceNotReady, "this consumer is still being made")
        else:
            session.send_success(subscribe.request_id)
        return
    if not session.has_room(subscribe.request_id):
        return
    handle = session.consuming.begin(subscribe.consumer_id)
    session.answer(subscribe, _subscribe_or_forget(session, handle, subscribe))


async def _subscribe_or_forget(session: PulsarSession, handle: ConsumerHandle, command: pb.CommandSubscribe) -> None:
    try:
        await _subscribe(session, handle, command)
    except RegionPassive as error:
        name = str(TopicName.parse(command.topic))
        session.sent_on.tell(pb.CommandTopicMigrated.Consumer, command.consumer_id, name, error)
        raise
    finally:
        if handle.subscription is None:
            session.consuming.forget(handle)


async def _subscribe(session: PulsarSession, handle: ConsumerHandle, command: pb.CommandSubscribe) -> None:
    kind = SubscriptionType(command.subType)
    if command.read_compacted and kind not in (SubscriptionType.EXCLUSIVE, SubscriptionType.FAILOVER):
        raise NotAllowed("compacted reads want an exclusive or failover subscription")
    topics, wanted = session.broker.topics, TopicName.parse(command.topic)
    check_name("consumer", command.consumer_name)
    metadata = metadata_of("consumer", command.metadata)
    session.identity.check_subscribe(wanted, command.subscription)
    topic = await topics.get_for_client(command.topic, create=command.force_topic_creation)
    check_type(topic, kind)
    topic.check_subscribe_rate(f"{session.address} {command.consumer_name} {command.consumer_id}")
    if command.HasField("schema") and command.schema.type not in NO_SCHEMA:
        await topics.schema_of_consumer(topic, Schema.from_wire(command.schema))
    properties = {pair.key: pair.value for pair in command.subscription_properties}
    initial = await _initial(session, topic, command)
    if topic.migration is not None:
        topic.migration.check_consumer(command.subscription, new_ends_here=initial == AFTER_ALL)
    await topic.moved(command.subscription)
    make = not command.durable or bool(topic.policies.part("autoSubscriptionCreation", "allowAutoSubscriptionCreation"))
    subscription = await topic.subscription(
        command.subscription, initial=initial, durable=command.durable, create=make, properties=properties
    )
    listener = session.broker
    sticky = kind is SubscriptionType.KEY_SHARED and command.keySharedMeta.keySharedMode == pb.STICKY
    consumer = Consumer(
        command.consumer_id,
        command.consumer_name or listener.unique_name(),
        session.sink,
        priority=command.priority_level,
        epoch=command.consumer_epoch,
        metadata=metadata,
        address=session.address,
        client_version=session.client_version,
        connected_ms=listener.clock.wall_ms(),
        hash_ranges=[(r.start, r.end) for r in command.keySharedMeta.hashRanges] if sticky else None,
        out_of_order=kind is SubscriptionType.KEY_SHARED and command.keySharedMeta.allowOutOfOrderDelivery,
        compacted=topic.compaction().view if command.read_compacted and not topic.volatile else None,
    )
    try:
        if not topic.volatile and consumer.compacted is None:
            await _check_not_lost(session, topic, subscription)
        session.identity.check_subscribe(wanted, command.subscription)  # the grant may have gone while we waited
        check_consumers(topic, command.subscription)
        subscription.check_room(kind, consumer)
        check_metadata(metadata, session.consuming.metadata_bytes, session.broker.settings.limits.metadata_bytes_max)
    except BaseException:
        topic.drop_reader(subscription)
        raise
    if handle.closed or session.closed:
        topic.drop_reader(subscription)
        return
    if (
        command.replicate_subscription_state or subscription.rules.leadership is not None
    ):  # before the first message goes out
        replicate(topic, subscription)
    replicate_by_policy(topic)
    session.consuming.made(handle, topic, subscription, consumer)
    session.send_success(command.request_id)
    subscription.add(consumer, kind)
    if handle.permits:
        session.consuming.flow(handle.id, handle.permits)


async def _check_not_lost(session: PulsarSession, topic: Topic, subscription: Subscription) -> None:
    """Raises EntriesLost where what comes next was found to be lost, and is not to be passed over."""
    topics = session.broker.topics
    if topics.losses and not subscription.rules.skips_lost:
        position = await topic.ledger.first_from(after(subscription.cursor.mark_delete))
        if position is not None:
            topics.check_not_lost(position)


async def _initial(session: PulsarSession, topic: Topic, command: pb.CommandSubscribe) -> Position:
    """The mark-delete position of the subscription, if it is made now."""
    if command.start_message_rollback_duration_sec:
        return await topic.before_time(
            session.broker.clock.wall_ms() - 1000 * command.start_message_rollback_duration_sec
        )
    if command.HasField("start_message_id") and not command.durable:
        return _before(position_of(command.start_message_id))
    return BEFORE_ALL if command.initialPosition == pb.CommandSubscribe.Earliest else AFTER_ALL


def on_close_consumer(session: PulsarSession, command: pb.BaseCommand) -> None:
    close = command.close_consumer
    handle = session.consuming.handles.get(close.consumer_id)
    if handle is None:
        session.send_error(
            close.request_id, pb.ConsumerNotFound, f"consumer {close.consumer_id} is not on this connection"
        )
        return
    session.consuming.forget(handle)
    session.send_success(close.request_id)


def on_ack(session: PulsarSession, command: pb.BaseCommand, *, known: ConsumerHandle | None = None) -> None:
    """known: that the subscription of this consumer takes part in the transaction was found out just now."""
    ack = command.ack
    handle = session.consuming.handles.get(ack.consumer_id)
    if (
        handle is None
        or handle.subscription is None
        or handle.consumer is None
        or known not in (None, handle)  # another one has its id now
    ):
        if ack.HasField("request_id"):
            _send_ack_response(
                session,
                _response_to(ack),
                pb.ConsumerNotFound,
                f"consumer {ack.consumer_id} is not on this connection",
            )
        return
    subscription, consumer = handle.subscription, handle.consumer
    consuming = session.consuming
    if ack.HasField("request_id") and consuming.unanswered >= consuming.unanswered_max:
        text = f"{consuming.unanswered_max} acknowledgements of this connection wait to be stored: try again later"
        _send_ack_response(session, _response_to(ack), pb.ServiceNotReady, text)
        return
    in_transaction, many = ack.HasField("txnid_least_bits"), len(ack.message_id) > ACK_IDS_MAX
    if known is None and in_transaction and not many and not consuming.is_part(subscription, _txn(ack)):
        _ack_when_known(session, command, handle)
        return
    consumer.last_acked_ms = subscription.last_acked_ms = session.broker.clock.wall_ms()
    try:
        if many:
            raise NotAllowed(
                f"{len(ack.message_id)} ids in one acknowledgement; at most {ACK_IDS_MAX} are allowed: send several"
            )
        upto = _cumulative(ack)
        if in_transaction:
            _ack_in_transaction(session, subscription, ack, upto)
        else:
            if upto is not None:
                subscription.ack_cumulative(consumer, upto)
            else:
                subscription.ack(consumer, _positions(ack.message_id))
            parts = _parts(ack.message_id) if session.broker.topics.settings.batch_index_acks else []
            for position, left in parts:
                subscription.ack_batch(consumer, position, left)
    except TopicError as error:
        named = ack.request_id if ack.HasField("request_id") else NO_REQUEST
        session.refused(named, code_of(error), str(error), consumer=ack.consumer_id)
        if ack.HasField("request_id"):
            _send_ack_response(session, _response_to(ack), code_of(error), str(error))
        return
    if ack.HasField("request_id") and consuming.answer_later(handle, _response_to(ack)):
        session.broker.tasks.spawn(_answer_acks(session, handle, subscription))


def _txn(ack: pb.CommandAck) -> TxnId:
    return ack.txnid_most_bits, ack.txnid_least_bits


def _ack_when_known(session: PulsarSession, command: pb.BaseCommand, handle: ConsumerHandle) -> None:
    """Once it is known whether the subscription takes part in the client's transaction."""
    if session.consuming.ask_later(command, handle):
        session.broker.tasks.spawn(_ask_for_transactions(session))


async def _ask_for_transactions(session: PulsarSession) -> None:
    """Each transaction is asked for once; in the order of the acknowledgements."""
    consuming = session.consuming
    try:
        while consuming.unknown and not session.closed:
            command, handle = consuming.unknown[0]
            try:
                await _check_part(session, command.ack, handle)
                on_ack(session, command, known=handle)
            except HeliographError as error:
                if command.ack.HasField("request_id"):
                    _send_ack_response(session, _response_to(command.ack), code_of(error), str(error))
            consuming.asked()
    finally:
        consuming.ask_no_more()


async def _check_part(session: PulsarSession, ack: pb.CommandAck, handle: ConsumerHandle) -> None:
    """Raises NotAllowed, and what the metadata raises. Of a consumer that has gone meanwhile nothing is noted."""
    consuming, transactions, subscription = session.consuming, session.broker.transactions, handle.subscription
    if handle.closed or handle.topic is None or subscription is None:
        return
    if transactions is None or consuming.is_part(subscription, _txn(ack)):
        return
    await transactions.check_part(_txn(ack), session.identity.role, handle.topic.text, subscription.name)
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
    session: PulsarSession, subscription: Subscription, ack: pb.CommandAck, upto: Position | None
) -> None:
    """Acknowledges as part of a transaction, whole or in parts. Raises TransactionConflict, NotAllowed."""
    check_available(session)
    txn, transactions = _txn(ack), subscription.transactions
    parts: list[Part] = []
    if session.broker.topics.settings.batch_index_acks:
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


async def _answer_acks(session: PulsarSession, handle: ConsumerHandle, subscription: Subscription) -> None:
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
            _send_ack_response(session, response, code, text)
        session.consuming.answered(handle, count)


def _response_to(ack: pb.CommandAck) -> pb.CommandAckResponse:
    response = pb.CommandAckResponse(consumer_id=ack.consumer_id, request_id=ack.request_id)
    if ack.HasField("txnid_least_bits"):
        response.txnid_least_bits, response.txnid_most_bits = ack.txnid_least_bits, ack.txnid_most_bits
    return response


def _send_ack_response(
    session: PulsarSession,
    response: pb.CommandAckResponse,
    code: pb.ServerError.ValueType | None = None,
    text: str = "",
) -> None:
    if code is not None:
        response.error, response.message = code, text
    session.send(pb.BaseCommand(type=pb.BaseCommand.ACK_RESPONSE, ackResponse=response))


def on_redeliver(session: PulsarSession, command: pb.BaseCommand) -> None:
    redeliver = command.redeliverUnacknowledgedMessages
    handle = session.consuming.handles.get(redeliver.consumer_id)
    if handle is None or handle.subscription is None or handle.consumer is None:
        return
    if redeliver.HasField("consumer_epoch"):
        handle.consumer.epoch = redeliver.consumer_epoch
    many = len(redeliver.message_ids) > ACK_IDS_MAX  # then all that the consumer holds goes out again
    ids = [] if many else [(i.ledgerId, i.entryId) for i in redeliver.message_ids]
    if not ids:  # what has not gone out yet is among them
        handle.subscription.flow(handle.consumer, session.deliveries.forget(handle))
    handle.subscription.redeliver(handle.consumer, ids or None)


def on_unsubscribe(session: PulsarSession, command: pb.BaseCommand) -> None:
    unsubscribe = command.unsubscribe
    handle = session.consuming.find(unsubscribe.consumer_id, unsubscribe.request_id)
    if handle is not None:
        session.answer(unsubscribe, _unsubscribe(session, handle, unsubscribe))


async def _unsubscribe(session: PulsarSession, handle: ConsumerHandle, command: pb.CommandUnsubscribe) -> None:
    topic, subscription, consumer = handle.topic, handle.subscription, handle.consumer
    assert topic is not None and subscription is not None and consumer is not None
    if len(subscription.consumers) > 1 and not command.force:
        session.send_error(
            command.request_id, pb.MetadataError, f"subscription {subscription.name!r} has other consumers"
        )
        return
    check_not_elsewhere(topic, subscription.name)
    subscription.remove(consumer)
    session.consuming.forget(handle)
    await session.broker.topics.delete_subscription(topic.text, subscription.name, force=command.force)
    session.send_success(command.request_id)


def on_seek(session: PulsarSession, command: pb.BaseCommand) -> None:
    seek = command.seek
    handle = session.consuming.find(seek.consumer_id, seek.request_id)
    if handle is not None:
        session.answer(seek, _seek(session, handle, seek))


async def _seek(session: PulsarSession, handle: ConsumerHandle, command: pb.CommandSeek) -> None:
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
    session.send_success(command.request_id)


def on_get_last_message_id(session: PulsarSession, command: pb.BaseCommand) -> None:
    ask = command.getLastMessageId
    handle = session.consuming.find(ask.consumer_id, ask.request_id)
    if handle is not None:
        session.answer(ask, _last_message_id(session, handle, ask.request_id))


async def _last_message_id(session: PulsarSession, handle: ConsumerHandle, request_id: int) -> None:
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
    session.send(pb.BaseCommand(type=pb.BaseCommand.GET_LAST_MESSAGE_ID_RESPONSE, getLastMessageIdResponse=response))


def _message_id(position: Position, partition: int = -1, batch_index: int = -1) -> pb.MessageIdData:
    mask = (1 << 64) - 1
    made = pb.MessageIdData(ledgerId=position[0] & mask, entryId=position[1] & mask)
    if partition >= 0:
        made.partition = partition
    if batch_index >= 0:
        made.batch_index = batch_index
    return made


def on_consumer_stats(session: PulsarSession, command: pb.BaseCommand) -> None:
    ask = command.consumerStats
    handle = session.consuming.handles.get(ask.consumer_id)
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
    session.send(pb.BaseCommand(type=pb.BaseCommand.CONSUMER_STATS_RESPONSE, consumerStatsResponse=response))
