"""PRODUCER and CLOSE_PRODUCER.

Is: making a producer, its schema, its initial subscription; closing it behind its last receipt. Isn't: the rules of
access (`region_node.topics.producers`).
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from heliograph.model.errors import ProducerBusy, ProducerFenced, RegionPassive, TopicTerminated
from heliograph.model.positions import BEFORE_ALL
from heliograph.model.topic_names import TopicName
from heliograph.wire.pulsar import pulsar_pb2 as pb
from heliograph.wire.pulsar.frame_cutter import IN_ORDER
from region_node.faces.pulsar.commands.publishing import ProducerHandle, check_metadata, has_room, send_on
from region_node.faces.pulsar.commands.replicator_producers import Replicated, cluster_of
from region_node.schemas.compatibility import IncompatibleSchema
from region_node.schemas.schema_definition import Schema
from region_node.security.authorization.authorization_service import Action
from region_node.topics.admission import check_producer, check_region
from region_node.topics.limits.topic_limits import CLIENT_METADATA_BYTES_MAX, PAIR_BYTES, metadata_bytes, metadata_of
from region_node.topics.producers import AccessMode, Producer
from region_node.topics.topic import Topic

if TYPE_CHECKING:
    from region_node.faces.pulsar.connection.pulsar_connection import PulsarConnection

NO_SCHEMA = (pb.Schema.Type.Value("None"), pb.Schema.AutoConsume)


def on_producer(connection: PulsarConnection, command: pb.BaseCommand) -> None:
    producer = command.producer
    known = connection.producing.handles.get(producer.producer_id)
    if known is not None and not known.closed:
        if known.producer is None:
            connection.send_error(producer.request_id, pb.ServiceNotReady, "this producer is still being made")
        else:
            known.request_id = producer.request_id
            send_producer_success(connection, known)
        return
    if known is not None:
        connection.producing.forget(known)
    if not has_room(connection, producer.request_id):
        return
    name = producer.producer_name or connection.listener.unique_name()
    handle = ProducerHandle(
        producer.producer_id,
        name,
        producer.request_id,
        in_order=IN_ORDER in {pair.key for pair in producer.metadata[: CLIENT_METADATA_BYTES_MAX // PAIR_BYTES]},
    )
    connection.producing.begin(handle)
    connection.answer(producer, _make_or_forget(connection, handle, producer))


async def _make_or_forget(connection: PulsarConnection, handle: ProducerHandle, command: pb.CommandProducer) -> None:
    made = False
    try:
        await _make(connection, handle, command)
        made = True
    except RegionPassive as error:
        send_on(connection, pb.CommandTopicMigrated.Producer, command.producer_id, error)
        raise  # ServiceNotReady: whoever does not know the command above tries again
    finally:
        if not made:
            connection.producing.forget(handle)


async def _make(connection: PulsarConnection, handle: ProducerHandle, command: pb.CommandProducer) -> None:
    topics, identity = connection.listener.topics, connection.identity
    wanted = TopicName.parse(command.topic)
    identity.check(Action.PRODUCE, wanted)
    metadata = metadata_of("producer", command.metadata)
    cluster = cluster_of(connection, handle.name)
    if command.initial_subscription_name:
        identity.check_subscribe(wanted, command.initial_subscription_name)
    topic = await topics.get_for_client(command.topic)
    check_region(topic)
    if topic.terminated:
        raise TopicTerminated(f"{topic.text} is terminated")
    check_producer(topic, handle.name, encrypted=command.encrypted)
    handle.schema_version = await schema_version(connection, topic, command)
    if command.initial_subscription_name:
        await topic.subscription(command.initial_subscription_name, initial=BEFORE_ALL)
    producer = Producer(
        command.producer_id,
        handle.name,
        connection,
        epoch=command.epoch,
        named_by_user=bool(command.producer_name) and command.user_provided_producer_name,
        mode=AccessMode(command.producer_access_mode),
        topic_epoch=command.topic_epoch if command.HasField("topic_epoch") else None,
        metadata=metadata,
        address=connection.address,
        client_version=connection.client_version,
        connected_ms=connection.listener.clock.wall_ms(),
    )
    if topic.epoch is not None and (producer.mode is not AccessMode.SHARED or producer.topic_epoch is not None):
        await topic.epoch.load()
    rival = topic.producers.rival(producer)
    if rival is not None and rival.sink is not connection and await rival.sink.alive():
        raise ProducerBusy(f"a producer named {handle.name!r} is connected already")
    if handle.closed or connection.closed:
        return
    if topic.closed:  # it went while we waited
        connection.producing.close_from_here(handle)
        return
    identity.check(Action.PRODUCE, wanted)  # the grant may have gone while we waited
    check_region(topic)
    check_producer(topic, handle.name, encrypted=command.encrypted)  # others may have come while we waited
    check_metadata(metadata, connection.producing.metadata_bytes, connection.limits.metadata_bytes_max)
    ready, closing = topic.producers.add(producer)
    topic.touch()
    for old in closing:
        old.sink.producer_closed(old)
    handle.topic, handle.producer = topic, producer
    connection.producing.metadata_bytes += metadata_bytes(metadata)
    if ready and producer.mode is not AccessMode.SHARED and topic.epoch is not None:
        await topic.epoch.save()
        if handle.closed:  # thrown out meanwhile, or closed by the client, which asks for no answer then
            raise ProducerFenced("another producer has taken the topic over")
    if ready:
        connection.producing.ready(handle)
    else:
        connection.producing.wait(handle)
    if cluster:
        del connection.cutter.producers[handle.id]
        connection.cutter.replicators[handle.id] = cluster
        connection.replicated = connection.replicated or Replicated(connection, by_position=connection.by_position)
    send_producer_success(connection, handle)


def send_producer_success(connection: PulsarConnection, handle: ProducerHandle) -> None:
    assert handle.topic is not None and handle.producer is not None
    success = pb.CommandProducerSuccess(
        request_id=handle.request_id,
        producer_name=handle.name,
        # a replicator's key here is a position: taken for a sequence, it would make the cluster ignore the receipts of
        # its markers
        last_sequence_id=-1
        if handle.id in connection.cutter.replicators
        else handle.topic.log.last_sequence(handle.name),
        schema_version=handle.schema_version,
        producer_ready=handle.ready,
    )
    if handle.producer.topic_epoch is not None:
        success.topic_epoch = handle.producer.topic_epoch
    connection.send(pb.BaseCommand(type=pb.BaseCommand.PRODUCER_SUCCESS, producer_success=success))


async def schema_version(connection: PulsarConnection, topic: Topic, command: pb.CommandProducer) -> bytes:
    """The stored version of a producer's schema, as 8 bytes; empty where it brings none of its own. Raises
    IncompatibleSchema.
    """
    topics = connection.listener.topics
    if command.HasField("schema") and command.schema.type not in NO_SCHEMA:
        return struct.pack(">Q", await topics.new_schema(topic.name, Schema.from_wire(command.schema)))
    if topic.policies.on("schemaValidationEnforced") and await topics.schemas.versions(topic.name):
        raise IncompatibleSchema(
            "producers must bring a schema to a topic that has one: schemaValidationEnforced is on here"
        )
    return b""


def on_close_producer(connection: PulsarConnection, command: pb.BaseCommand) -> None:
    """Answered behind the receipts of what was sent; cancels a producer that is still being made."""
    close = command.close_producer
    handle = connection.producing.handles.get(close.producer_id)
    if handle is None:
        connection.send_error(
            close.request_id, pb.UnknownError, f"producer {close.producer_id} is not on this connection"
        )
        return

    def finish() -> None:
        connection.producing.forget(handle)
        connection.send_success(close.request_id)

    handle.when_answered(finish)
