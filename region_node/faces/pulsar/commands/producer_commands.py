"""PRODUCER and CLOSE_PRODUCER.

Is: making a producer, its schema, its initial subscription; closing it behind its last receipt. Isn't: the rules of
access (`region_node.topics.producers`).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

from heliograph.model.errors import ProducerBusy, ProducerFenced, RegionPassive, TopicTerminated
from heliograph.model.positions import BEFORE_ALL
from heliograph.model.topic_names import TopicName
from heliograph.wire.pulsar import pulsar_pb2 as pb
from heliograph.wire.pulsar.frame_cutter import IN_ORDER
from region_node.faces.pulsar.session.publishing import ProducerHandle, check_metadata
from region_node.faces.pulsar.session.pulsar_session import PulsarSession
from region_node.faces.pulsar.session.replicator_producers import cluster_of
from region_node.schemas.compatibility import IncompatibleSchema
from region_node.schemas.schema_definition import Schema
from region_node.security.authorization.authorization_service import Action
from region_node.topics.admission import check_producer, check_region
from region_node.topics.limits.topic_limits import CLIENT_METADATA_BYTES_MAX, PAIR_BYTES, metadata_of
from region_node.topics.producers import AccessMode, Producer
from region_node.topics.topic import Topic

NO_SCHEMA = (pb.Schema.Type.Value("None"), pb.Schema.AutoConsume)


def on_producer(session: PulsarSession, command: pb.BaseCommand) -> None:
    producer = command.producer
    known = session.producing.handles.get(producer.producer_id)
    if known is not None and not known.closed:
        if known.producer is None:
            session.send_error(producer.request_id, pb.ServiceNotReady, "this producer is still being made")
        else:
            known.request_id = producer.request_id
            send_producer_success(session, known)
        return
    if known is not None:
        session.producing.forget(known)
    if not session.has_room(producer.request_id):
        return
    name = producer.producer_name or session.broker.unique_name()
    handle = ProducerHandle(
        producer.producer_id,
        name,
        producer.request_id,
        in_order=IN_ORDER in {pair.key for pair in producer.metadata[: CLIENT_METADATA_BYTES_MAX // PAIR_BYTES]},
    )
    session.producing.begin(handle)
    session.answer(producer, _make_or_forget(session, handle, producer))


async def _make_or_forget(session: PulsarSession, handle: ProducerHandle, command: pb.CommandProducer) -> None:
    made = False
    try:
        await _make(session, handle, command)
        made = True
    except RegionPassive as error:
        name = str(TopicName.parse(command.topic))
        session.sent_on.tell(pb.CommandTopicMigrated.Producer, command.producer_id, name, error)
        raise session.sent_on.refusal(command, error) from error
    finally:
        if not made:
            session.producing.forget(handle)


async def _make(session: PulsarSession, handle: ProducerHandle, command: pb.CommandProducer) -> None:
    topics, identity = session.broker.topics, session.identity
    wanted = TopicName.parse(command.topic)
    identity.check(Action.PRODUCE, wanted)
    metadata = metadata_of("producer", command.metadata)
    cluster = cluster_of(session.broker, identity.principal, handle.name)
    if command.initial_subscription_name:
        identity.check_subscribe(wanted, command.initial_subscription_name)
    topic = await topics.get_for_client(command.topic)
    if (why := _goes_on(session, command, topic)) is not None:
        await _make_and_close(session, handle, command, topic, why)
        return
    if topic.terminated:
        raise TopicTerminated(f"{topic.text} is terminated")
    check_producer(topic, handle.name, encrypted=command.encrypted)
    handle.schema_version = await schema_version(session, topic, command)
    if command.initial_subscription_name:
        await topic.subscription(command.initial_subscription_name, initial=BEFORE_ALL)
    producer = _producer(session, handle, command, metadata)
    if topic.epoch is not None and (producer.mode is not AccessMode.SHARED or producer.topic_epoch is not None):
        await topic.epoch.load()
    rival = topic.producers.rival(producer)
    if rival is not None and rival.sink is not session.sink and await rival.sink.alive():
        raise ProducerBusy(f"a producer named {handle.name!r} is connected already")
    if handle.closed or session.closed:
        return
    if topic.closed:  # it went while we waited
        session.producing.close_from_here(handle)
        return
    identity.check(Action.PRODUCE, wanted)  # the grant may have gone while we waited
    check_region(topic)
    check_producer(topic, handle.name, encrypted=command.encrypted)  # others may have come while we waited
    check_metadata(metadata, session.producing.metadata_bytes, session.broker.settings.limits.metadata_bytes_max)
    ready, closing = topic.producers.add(producer)
    topic.touch()
    for old in closing:
        old.sink.producer_closed(old)
    session.producing.made(handle, topic, producer)
    if ready and producer.mode is not AccessMode.SHARED and topic.epoch is not None:
        await topic.epoch.save()
        if handle.closed:  # thrown out meanwhile, or closed by the client, which asks for no answer then
            raise ProducerFenced("another producer has taken the topic over")
    if ready:
        session.producing.ready(handle)
    else:
        session.producing.wait(handle)
    if cluster:
        session.replicates(handle, cluster)
    send_producer_success(session, handle)


def _goes_on(session: PulsarSession, command: pb.CommandProducer, topic: Topic) -> RegionPassive | None:
    """Why a producer goes on elsewhere that is not refused for it; None: it publishes here. Raises RegionPassive."""
    try:
        check_region(topic)
    except RegionPassive as why:
        if session.sent_on.gives_up(command) and session.sent_on.leads(why):
            return why
        raise
    return None


def _producer(
    session: PulsarSession, handle: ProducerHandle, command: pb.CommandProducer, metadata: Mapping[str, str]
) -> Producer:
    return Producer(
        command.producer_id,
        handle.name,
        session.sink,
        epoch=command.epoch,
        named_by_user=bool(command.producer_name) and command.user_provided_producer_name,
        mode=AccessMode(command.producer_access_mode),
        topic_epoch=command.topic_epoch if command.HasField("topic_epoch") else None,
        metadata=metadata,
        address=session.address,
        client_version=session.client_version,
        connected_ms=session.broker.clock.wall_ms(),
    )


async def _make_and_close(
    session: PulsarSession, handle: ProducerHandle, command: pb.CommandProducer, topic: Topic, why: RegionPassive
) -> None:
    """Takes a producer that publishes elsewhere, of a client that would give it up where it is refused, and closes it
    behind its answer: such a client comes back with it. It has a name that nobody else has, so no sequence of it is
    stored anywhere. Raises as `_make`.
    """
    if topic.terminated:
        raise TopicTerminated(f"{topic.text} is terminated")
    check_producer(topic, handle.name, encrypted=command.encrypted)
    version = await schema_version(session, topic, command)
    if handle.closed or session.closed:
        return
    success = pb.CommandProducerSuccess(
        request_id=handle.request_id, producer_name=handle.name, last_sequence_id=-1, schema_version=version
    )
    session.send(pb.BaseCommand(type=pb.BaseCommand.PRODUCER_SUCCESS, producer_success=success))
    session.sent_on.tell(pb.CommandTopicMigrated.Producer, handle.id, topic.text, why)
    session.producing.close_from_here(handle)


def send_producer_success(session: PulsarSession, handle: ProducerHandle) -> None:
    assert handle.topic is not None and handle.producer is not None
    success = pb.CommandProducerSuccess(
        request_id=handle.request_id,
        producer_name=handle.name,
        # a replicator's key here is a position: taken for a sequence, it would make the cluster ignore the receipts of
        # its markers
        last_sequence_id=-1 if session.producing.is_replicator(handle) else handle.topic.log.last_sequence(handle.name),
        schema_version=handle.schema_version,
        producer_ready=handle.ready,
    )
    if handle.producer.topic_epoch is not None:
        success.topic_epoch = handle.producer.topic_epoch
    session.send(pb.BaseCommand(type=pb.BaseCommand.PRODUCER_SUCCESS, producer_success=success))


async def schema_version(session: PulsarSession, topic: Topic, command: pb.CommandProducer) -> bytes:
    """The stored version of a producer's schema, as 8 bytes; empty where it brings none of its own. Raises
    IncompatibleSchema.
    """
    topics = session.broker.topics
    if command.HasField("schema") and command.schema.type not in NO_SCHEMA:
        return struct.pack(">Q", await topics.new_schema(topic.name, Schema.from_wire(command.schema)))
    if topic.policies.on("schemaValidationEnforced") and await topics.schemas.versions(topic.name):
        raise IncompatibleSchema(
            "producers must bring a schema to a topic that has one: schemaValidationEnforced is on here"
        )
    return b""


def on_close_producer(session: PulsarSession, command: pb.BaseCommand) -> None:
    """Answered behind the receipts of what was sent; cancels a producer that is still being made."""
    close = command.close_producer
    handle = session.producing.handles.get(close.producer_id)
    if handle is None:
        session.send_error(close.request_id, pb.UnknownError, f"producer {close.producer_id} is not on this connection")
        return

    def finish() -> None:
        session.producing.forget(handle)
        session.send_success(close.request_id)

    handle.when_answered(finish)
