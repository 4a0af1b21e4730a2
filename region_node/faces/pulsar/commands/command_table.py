"""The table of commands, and the requests that concern no producer and no consumer: lookup, partitions, schemas.

Is: one row a command, with its right and its handler. Isn't: the decision who owns a topic (`Lookup`). A command that
is not in the table is not one that clients send.
Source: docs/protocols/pulsar.md, "Commands: what to answer".
"""

from __future__ import annotations

import struct

from heliograph.model.errors import HeliographError, MetadataError, NotAllowed, NotFound
from heliograph.model.topic_names import TopicName
from heliograph.wire.pulsar import pulsar_pb2 as pb
from region_node.faces.pulsar.commands import (
    consumer_commands,
    producer_commands,
    scalable_topics,
    topic_list_commands,
    transaction_commands,
)
from region_node.faces.pulsar.commands.command_rights import CommandRight as R
from region_node.faces.pulsar.commands.command_rights import CommandRow, checked
from region_node.faces.pulsar.server_errors import code_of
from region_node.faces.pulsar.session.pulsar_session import PulsarSession
from region_node.schemas.schema_definition import Schema
from region_node.security.authorization.authorization_service import Action
from region_node.transactions.coordinators.coordinator_topics import is_assign

Kind = pb.BaseCommand


def _on_connect(session: PulsarSession, command: pb.BaseCommand) -> None:
    session.connect(command.connect)


def _on_ping(session: PulsarSession, command: pb.BaseCommand) -> None:
    session.send(pb.BaseCommand(type=Kind.PONG, pong=pb.CommandPong()))


def _on_pong(session: PulsarSession, command: pb.BaseCommand) -> None:
    session.pong()


def _on_auth_response(session: PulsarSession, command: pb.BaseCommand) -> None:
    session.identity.respond(command.authResponse)


# -- lookup


def _on_lookup(session: PulsarSession, command: pb.BaseCommand) -> None:
    session.answer(command.lookupTopic, _lookup(session, command.lookupTopic))


def _check_found(session: PulsarSession, name: TopicName) -> None:
    """Coordinators are found by whoever may begin transactions. Raises Unauthorized."""
    if is_assign(str(name)):
        session.identity.check_transactions()
    else:
        session.identity.check_look_up(name)


async def _lookup(session: PulsarSession, command: pb.CommandLookupTopic) -> None:
    response = pb.CommandLookupTopicResponse(request_id=command.request_id)
    try:
        name = TopicName.parse(command.topic)
        _check_found(session, name)
        with session.broker.lookups.one() as counts:
            found = await session.broker.lookup.lookup(
                str(name), command.advertised_listener_name, command.authoritative
            )
            found = session.sent_on.look_up(name, found, authoritative=command.authoritative)
            counts.found(found.redirect)
        response.response = (
            pb.CommandLookupTopicResponse.Redirect if found.redirect else pb.CommandLookupTopicResponse.Connect
        )
        response.brokerServiceUrl, response.brokerServiceUrlTls = found.url, found.url_tls
        response.authoritative = found.authoritative if found.redirect else True
    except HeliographError as error:
        response.response = pb.CommandLookupTopicResponse.Failed
        response.error = pb.ServiceNotReady if error.retryable or isinstance(error, MetadataError) else code_of(error)
        response.message = str(error)
        session.refused(command.request_id, response.error, response.message, topic=command.topic)
    session.send(pb.BaseCommand(type=Kind.LOOKUP_RESPONSE, lookupTopicResponse=response))


def _on_partitions(session: PulsarSession, command: pb.BaseCommand) -> None:
    session.answer(command.partitionMetadata, _partitions(session, command.partitionMetadata))


async def _partitions(session: PulsarSession, command: pb.CommandPartitionedTopicMetadata) -> None:
    response = pb.CommandPartitionedTopicMetadataResponse(request_id=command.request_id)
    try:
        name = TopicName.parse(command.topic)
        _check_found(session, name)
        makes = command.metadata_auto_creation_enabled and (is_assign(str(name)) or session.identity.may_open(name))
        response.partitions = await session.broker.lookup.partitions(str(name), makes)
        response.response = pb.CommandPartitionedTopicMetadataResponse.Success
    except HeliographError as error:
        response.response = pb.CommandPartitionedTopicMetadataResponse.Failed
        response.error = pb.ServiceNotReady if error.retryable else code_of(error)
        response.message = str(error)
        session.refused(command.request_id, response.error, response.message, topic=command.topic)
    session.send(pb.BaseCommand(type=Kind.PARTITIONED_METADATA_RESPONSE, partitionMetadataResponse=response))


# -- schemas


def _on_get_schema(session: PulsarSession, command: pb.BaseCommand) -> None:
    session.answer(command.getSchema, _get_schema(session, command.getSchema))


async def _get_schema(session: PulsarSession, command: pb.CommandGetSchema) -> None:
    response = pb.CommandGetSchemaResponse(request_id=command.request_id)
    try:
        name = TopicName.parse(command.topic)
        session.identity.check_look_up(name)
        versions = await session.broker.topics.schemas.versions(name)
        await session.room()  # one read may answer thousands
        if command.schema_version:
            if len(command.schema_version) != 8:
                raise NotAllowed("a schema version has 8 bytes")
            (wanted,) = struct.unpack(">Q", command.schema_version)
            versions = [row for row in versions if row[0].number == wanted]
        if not versions:
            raise NotFound(f"{command.topic} has no schema{' of that version' if command.schema_version else ''}")
        number, found = versions[-1][0].number, versions[-1][1]
        response.schema.CopyFrom(found.to_wire())
        response.schema_version = struct.pack(">Q", number)
    except HeliographError as error:
        response.error_code, response.error_message = code_of(error), str(error)
        session.refused(command.request_id, response.error_code, response.error_message, topic=command.topic)
    session.send(pb.BaseCommand(type=Kind.GET_SCHEMA_RESPONSE, getSchemaResponse=response))


def _on_get_or_create_schema(session: PulsarSession, command: pb.BaseCommand) -> None:
    session.answer(command.getOrCreateSchema, _get_or_create_schema(session, command.getOrCreateSchema))


async def _get_or_create_schema(session: PulsarSession, command: pb.CommandGetOrCreateSchema) -> None:
    response = pb.CommandGetOrCreateSchemaResponse(request_id=command.request_id)
    try:
        name = TopicName.parse(command.topic)
        session.identity.check(Action.PRODUCE, name)
        number = await session.broker.topics.new_schema(name, Schema.from_wire(command.schema))
        response.schema_version = struct.pack(">Q", number)
    except HeliographError as error:
        response.error_code, response.error_message = code_of(error), str(error)
        session.refused(command.request_id, response.error_code, response.error_message, topic=command.topic)
    session.send(pb.BaseCommand(type=Kind.GET_OR_CREATE_SCHEMA_RESPONSE, getOrCreateSchemaResponse=response))


SERVED = checked(
    (
        CommandRow(Kind.CONNECT, R.NONE, _on_connect, links=True),
        CommandRow(Kind.PING, R.ANY_ROLE, _on_ping, links=True),
        CommandRow(Kind.PONG, R.ANY_ROLE, _on_pong, links=True),
        CommandRow(Kind.AUTH_RESPONSE, R.ANY_ROLE, _on_auth_response, links=True),
        CommandRow(Kind.LOOKUP, R.LOOK_UP, _on_lookup, links=True),
        CommandRow(Kind.PARTITIONED_METADATA, R.LOOK_UP, _on_partitions, links=True),
        CommandRow(Kind.GET_TOPICS_OF_NAMESPACE, R.LIST, topic_list_commands.on_topics),
        CommandRow(Kind.PRODUCER, R.PRODUCE, producer_commands.on_producer),
        CommandRow(Kind.CLOSE_PRODUCER, R.OPENED, producer_commands.on_close_producer),
        CommandRow(Kind.SUBSCRIBE, R.CONSUME, consumer_commands.on_subscribe),
        CommandRow(Kind.CLOSE_CONSUMER, R.OPENED, consumer_commands.on_close_consumer),
        CommandRow(Kind.ACK, R.OPENED, consumer_commands.on_ack),
        CommandRow(Kind.REDELIVER_UNACKNOWLEDGED_MESSAGES, R.OPENED, consumer_commands.on_redeliver),
        CommandRow(Kind.UNSUBSCRIBE, R.OPENED, consumer_commands.on_unsubscribe),
        CommandRow(Kind.SEEK, R.OPENED, consumer_commands.on_seek),
        CommandRow(Kind.GET_LAST_MESSAGE_ID, R.OPENED, consumer_commands.on_get_last_message_id),
        CommandRow(Kind.CONSUMER_STATS, R.OPENED, consumer_commands.on_consumer_stats),
        CommandRow(Kind.GET_SCHEMA, R.LOOK_UP, _on_get_schema),
        CommandRow(Kind.GET_OR_CREATE_SCHEMA, R.PRODUCE, _on_get_or_create_schema),
        CommandRow(Kind.WATCH_TOPIC_LIST, R.LIST, topic_list_commands.on_watch),
        CommandRow(Kind.WATCH_TOPIC_LIST_CLOSE, R.OPENED, topic_list_commands.on_watch_close),
        CommandRow(Kind.SCALABLE_TOPIC_LOOKUP, R.NOBODY, scalable_topics.on_lookup),
        CommandRow(Kind.SCALABLE_TOPIC_SUBSCRIBE, R.NOBODY, scalable_topics.on_subscribe),
        CommandRow(Kind.SCALABLE_TOPIC_CLOSE, R.NOBODY, scalable_topics.on_close),
        CommandRow(Kind.WATCH_SCALABLE_TOPICS, R.NOBODY, scalable_topics.on_watch),
        CommandRow(Kind.WATCH_SCALABLE_TOPICS_CLOSE, R.NOBODY, scalable_topics.on_close),
        CommandRow(Kind.TC_CLIENT_CONNECT_REQUEST, R.ANY_ROLE, transaction_commands.on_transaction),
        CommandRow(Kind.NEW_TXN, R.ANY_GRANT, transaction_commands.on_transaction),
        CommandRow(Kind.ADD_PARTITION_TO_TXN, R.OWN_TXN_PRODUCE, transaction_commands.on_transaction),
        CommandRow(Kind.ADD_SUBSCRIPTION_TO_TXN, R.OWN_TXN_CONSUME, transaction_commands.on_transaction),
        CommandRow(Kind.END_TXN, R.OWN_TXN, transaction_commands.on_transaction),
        CommandRow(Kind.END_TXN_ON_PARTITION, R.BROKERS, transaction_commands.on_transaction),
        CommandRow(Kind.END_TXN_ON_SUBSCRIPTION, R.BROKERS, transaction_commands.on_transaction),
    )
)
"""A region's certificate opens links, and nothing else: of these commands a link listener answers those that say so."""
