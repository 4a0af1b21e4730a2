"""What a client asks first: versions, brokers, topics, and where a coordinator is.

Is: ApiVersions, Metadata, DescribeCluster, FindCoordinator, DescribeLogDirs. Isn't: ownership (`cluster`).
Source: docs/protocols/kafka.md, "Topics and brokers".
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from heliograph.model.errors import HeliographError
from heliograph.model.names import TopicName
from heliograph.wire.kafka_codec import APIS, Fields, Request
from region_node.kafka.cluster import Node
from region_node.kafka.errors import Code, Refused, code_of
from region_node.kafka.log import LEADER_EPOCH
from region_node.kafka.transaction_requests import opened

if TYPE_CHECKING:
    from region_node.kafka.connection import KafkaConnection

_GROUP, _TRANSACTION = 0, 1


def api_rows(names: frozenset[str]) -> list[Fields]:
    return [{"api_key": api.key, "min_version": api.lowest, "max_version": api.highest} for api in APIS.values() if api.name in names]


async def api_versions(connection: KafkaConnection, request: Request) -> Fields:
    from region_node.kafka.requests import HANDLERS

    connection.client_software = f"{request.fields.get('client_software_name', '')} {request.fields.get('client_software_version', '')}".strip()
    return {"error_code": 0, "api_keys": api_rows(frozenset(HANDLERS))}


async def metadata(connection: KafkaConnection, request: Request) -> Fields:
    broker, fields = connection.broker, request.fields
    wanted = fields["topics"]
    everything = wanted is None or (request.version == 0 and not wanted)
    create = fields.get("allow_auto_topic_creation", True)
    rows: list[Fields] = []
    if everything:
        for name in await broker.cluster.names():
            if _visible(connection, name):
                rows.append(await _topic(connection, broker.cluster.kafka_name(name), create=False))
    else:
        for topic in wanted:
            if topic["name"] is None:
                nameless: Fields = {"name": None if request.version >= 12 else "", "topic_id": topic["topic_id"]}
                rows.append({**nameless, "error_code": Code.UNKNOWN_TOPIC_ID, "partitions": []})
            else:
                rows.append(await _topic(connection, topic["name"], create=create))
    nodes = broker.cluster.nodes(connection.tls)
    return {
        "brokers": [{"node_id": node.number, "host": node.host, "port": node.port} for node in nodes],
        "cluster_id": broker.instance,
        "controller_id": broker.number,
        "topics": rows,
    }


def _visible(connection: KafkaConnection, name: TopicName) -> bool:
    assert connection.login.principal is not None
    return connection.broker.security.rights.may_look_up(connection.login.principal, name)


async def _topic(connection: KafkaConnection, kafka: str, *, create: bool) -> Fields:
    broker = connection.broker
    row: Fields = {"name": kafka, "error_code": 0, "partitions": [], "is_internal": False}
    try:
        name = broker.name(kafka)
        if not _visible(connection, name):
            raise Refused(Code.TOPIC_AUTHORIZATION_FAILED)
        count = await (broker.cluster.ensure(name) if create else broker.cluster.partitions(name))
        if not count:
            raise Refused(Code.UNKNOWN_TOPIC_OR_PARTITION)
        leaders = await broker.cluster.leaders(name, count, connection.tls)
    except HeliographError as error:
        row["error_code"] = code_of(error)
        return row
    row["partitions"] = [_partition(index, leader) for index, leader in enumerate(leaders)]
    return row


def _partition(index: int, leader: Node | None) -> Fields:
    if leader is None:
        row: Fields = {"partition_index": index, "error_code": Code.LEADER_NOT_AVAILABLE, "leader_id": -1, "leader_epoch": LEADER_EPOCH}
        return {**row, "replica_nodes": [], "isr_nodes": []}
    number = leader.number
    return {
        "partition_index": index,
        "error_code": 0,
        "leader_id": number,
        "leader_epoch": LEADER_EPOCH,
        "replica_nodes": [number],
        "isr_nodes": [number],
    }


async def describe_cluster(connection: KafkaConnection, request: Request) -> Fields:
    broker = connection.broker
    nodes = broker.cluster.nodes(connection.tls)
    return {
        "error_code": 0,
        "cluster_id": broker.instance,
        "controller_id": broker.number,
        "brokers": [{"broker_id": node.number, "host": node.host, "port": node.port} for node in nodes],
    }


async def find_coordinator(connection: KafkaConnection, request: Request) -> Fields:
    fields = request.fields
    kind = fields.get("key_type", _GROUP)
    if request.version >= 4:
        return {"coordinators": [{"key": key, **await _coordinator(connection, key, kind)} for key in fields["coordinator_keys"]]}
    return await _coordinator(connection, fields["key"], kind)


async def _coordinator(connection: KafkaConnection, key: str, kind: int) -> Fields:
    broker = connection.broker
    row: Fields = {"error_code": 0, "error_message": None, "node_id": -1, "host": "", "port": -1}
    try:
        if kind not in (_GROUP, _TRANSACTION):
            raise Refused(Code.INVALID_REQUEST, f"coordinators of type {kind} are not known")
        if kind == _GROUP:
            leader = await broker.cluster.leader(broker.coordinator.place(key), connection.tls)
        else:
            leader = await broker.cluster.leader(TopicName.parse(opened(connection).topic_of(key)), connection.tls)
        if leader is None:
            raise Refused(Code.COORDINATOR_NOT_AVAILABLE, "no broker coordinates it now")
        row["node_id"], row["host"], row["port"] = leader.number, leader.host, leader.port
    except HeliographError as error:
        row["error_code"] = error.code if isinstance(error, Refused) else Code.COORDINATOR_NOT_AVAILABLE
        row["error_message"] = str(error)
    return row


async def describe_log_dirs(connection: KafkaConnection, request: Request) -> Fields:
    """One directory, in which the partitions lie that are loaded here."""
    wanted = request.fields["topics"]
    keys = None if wanted is None else {(topic["topic"], index) for topic in wanted for index in topic["partitions"]}
    topics: dict[str, list[Fields]] = {}
    for log in connection.broker.logs():
        name = log.topic.name
        kafka, index = connection.broker.cluster.kafka_name(name.partitioned), max(0, name.partition)
        if (keys is None or (kafka, index) in keys) and _visible(connection, name):
            topics.setdefault(kafka, []).append({"partition_index": index, "partition_size": log.ledger.size_bytes, "offset_lag": 0, "is_future_key": False})
    rows = [{"name": kafka, "partitions": parts} for kafka, parts in sorted(topics.items())]
    return {"error_code": 0, "results": [{"error_code": 0, "log_dir": "/heliograph", "topics": rows}]}
