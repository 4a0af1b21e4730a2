"""What a client asks first: versions, brokers, topics, and where a coordinator is.

Is: ApiVersions, Metadata, DescribeTopicPartitions, DescribeCluster, FindCoordinator, DescribeLogDirs. Isn't: ownership
(`kafka_cluster`).
Source: docs/protocols/kafka.md, "Topics and brokers".
"""

from __future__ import annotations

import logging

from heliograph.model.configuration.acl_records import Resource
from heliograph.model.errors import HeliographError
from heliograph.model.topic_names import TopicName
from heliograph.runtime.throttle import RowPace
from heliograph.wire.kafka.message_codec import APIS, Fields, Request
from region_node.faces.kafka.cluster.kafka_nodes import KafkaNode
from region_node.faces.kafka.error_codes import Code, Refused, code_of
from region_node.faces.kafka.session.kafka_session import KafkaSession
from region_node.topics.serving.topic_ids import NO_ID

log = logging.getLogger("region_node.kafka")

_GROUP, _TRANSACTION = 0, 1
_COORDINATED = {
    _GROUP: (Resource.GROUP, Code.GROUP_AUTHORIZATION_FAILED),
    _TRANSACTION: (Resource.TRANSACTIONAL_ID, Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
}
"""What a key type means, and how it is refused."""
_IDS_SINCE = 10
_NO_ELR: Fields = {"eligible_leader_replicas": [], "last_known_elr": []}
"""They may be null, and Java's tools fail on that."""
_PARTITIONS_MAX = 2000
"""max.request.partition.size.limit"""


def api_rows(names: frozenset[str]) -> list[Fields]:
    return [
        {"api_key": api.key, "min_version": api.lowest, "max_version": api.highest}
        for api in APIS.values()
        if api.name in names
    ]


async def api_versions(session: KafkaSession, request: Request) -> Fields:
    session.introduce(*(request.fields.get(f"client_software_{each}", "") for each in ("name", "version")))
    return {"error_code": 0, "api_keys": api_rows(session.gate.served)}


async def metadata(session: KafkaSession, request: Request) -> Fields:
    broker, fields = session.broker, request.fields
    wanted = fields["topics"]
    everything = wanted is None or (request.version == 0 and not wanted)
    create = fields.get("allow_auto_topic_creation", True)
    rows: list[Fields] = []
    leading: dict[int, KafkaNode] = {}
    pace = RowPace()
    if everything:
        names = await _seen(session)
        if request.version >= _IDS_SINCE:
            await ensure_ids(session, names)
        for name in names:
            await pace.row()
            row = await _topic(session, request, broker.cluster.kafka_name(name), create=False, leading=leading)
            await pace.rows(len(row["partitions"]))
            rows.append(row)
    else:
        with_id = request.version >= _IDS_SINCE
        for kafka in dict.fromkeys(topic["topic_id"] if topic["name"] is None else topic["name"] for topic in wanted):
            await pace.row()
            if isinstance(kafka, bytes):
                row = await _by_id(session, request, kafka, leading)
            else:
                row = await _topic(session, request, kafka, create=create, with_id=with_id, leading=leading)
            await pace.rows(len(row["partitions"]))
            rows.append(row)
    shown = {**leading, **{node.number: node for node in broker.cluster.shown(session.tls)}}
    return {
        "brokers": [
            {"node_id": node.number, "host": node.host, "port": node.port} for _, node in sorted(shown.items())
        ],
        "cluster_id": broker.instance,
        "controller_id": broker.leading.number,
        "topics": rows,
    }


def _visible(session: KafkaSession, name: TopicName) -> bool:
    assert session.login.principal is not None
    return session.broker.security.rights.may_look_up(session.login.principal, name)


async def _seen(session: KafkaSession) -> list[TopicName]:
    pace, seen = RowPace(), list[TopicName]()
    for name in await session.broker.cluster.names():
        await pace.row()
        if _visible(session, name):
            seen.append(name)
    return seen


async def ensure_ids(session: KafkaSession, names: list[TopicName]) -> None:
    """Where they cannot be made now, clients are shown names alone, and use those."""
    try:
        await session.broker.ids.ensure(names)
    except HeliographError as error:
        log.warning("kafka.topic_ids_not_made", extra={"topics": len(names), "error": str(error)})


async def _by_id(session: KafkaSession, request: Request, topic: bytes, leading: dict[int, KafkaNode]) -> Fields:
    try:
        row = await _topic(session, request, session.broker.of_id(topic), create=False, leading=leading)
    except Refused as error:
        row = {"error_code": error.code, "partitions": []}
    if row["error_code"]:  # who may not see it is not told its name
        row["name"] = None if request.version >= 12 else ""
    return {**row, "topic_id": topic}


async def _topic(
    session: KafkaSession,
    request: Request,
    kafka: str,
    *,
    create: bool,
    with_id: bool = False,
    leading: dict[int, KafkaNode] | None = None,
) -> Fields:
    """leading: where the leaders of its partitions are put."""
    broker = session.broker
    row: Fields = {"name": kafka, "error_code": 0, "partitions": [], "is_internal": False}
    try:
        name = session.gate.topic(request, kafka)
        create = create and session.gate.makes(name)
        count = await (broker.cluster.ensure(name) if create else broker.cluster.partitions(name))
        if not count:
            raise Refused(Code.UNKNOWN_TOPIC_OR_PARTITION)
        leaders = await broker.cluster.leaders(name, count, session.tls)
        elsewhere = bool(broker.leading.elsewhere(name.namespace))  # which gives ids of its own
        if with_id and not elsewhere:
            await ensure_ids(session, [name])
    except HeliographError as error:
        row["error_code"] = code_of(error)
        return row
    row["topic_id"] = NO_ID if elsewhere else broker.ids.known(name)
    epoch = broker.leading.epoch(name.namespace)
    row["partitions"] = [_partition(index, leader, epoch) for index, leader in enumerate(leaders)]
    if leading is not None:
        leading.update((leader.number, leader) for leader in leaders if leader is not None)
    return row


def _partition(index: int, leader: KafkaNode | None, epoch: int) -> Fields:
    if leader is None:
        row: Fields = {
            "partition_index": index,
            "error_code": Code.LEADER_NOT_AVAILABLE,
            "leader_id": -1,
            "leader_epoch": epoch,
        }
        return {**row, "replica_nodes": [], "isr_nodes": []}
    number = leader.number
    return {
        "partition_index": index,
        "error_code": 0,
        "leader_id": number,
        "leader_epoch": epoch,
        "replica_nodes": [number],
        "isr_nodes": [number],
    }


async def describe_topic_partitions(session: KafkaSession, request: Request) -> Fields:
    """As Metadata, in pages: what does not go into one answer begins at `next_cursor` in the next."""
    fields, cursor, cluster = request.fields, request.fields["cursor"], session.broker.cluster
    left = min(max(1, fields["response_partition_limit"]), _PARTITIONS_MAX)
    names = sorted(
        {topic["name"] for topic in fields["topics"]} or {cluster.kafka_name(name) for name in await _seen(session)}
    )
    rows: list[Fields] = []
    following: Fields | None = None
    pace = RowPace()
    for kafka in names:
        await pace.row()
        if cursor is not None and kafka < cursor["topic_name"]:
            continue
        if not left:
            following = {"topic_name": kafka, "partition_index": 0}
            break
        row = await _topic(session, request, kafka, create=False, with_id=True)
        first = max(0, cursor["partition_index"]) if cursor is not None and cursor["topic_name"] == kafka else 0
        parts = row["partitions"][first : first + left]
        left -= len(parts)
        if first + len(parts) < len(row["partitions"]):
            following = {"topic_name": kafka, "partition_index": first + len(parts)}
        rows.append({**row, "partitions": [{**part, **_NO_ELR} for part in parts]})
        if following is not None:
            break
    return {"topics": rows, "next_cursor": following}


async def describe_cluster(session: KafkaSession, request: Request) -> Fields:
    broker = session.broker
    nodes = broker.cluster.shown(session.tls)
    return {
        "error_code": 0,
        "cluster_id": broker.instance,
        "controller_id": broker.leading.number,
        "brokers": [{"broker_id": node.number, "host": node.host, "port": node.port} for node in nodes],
    }


async def find_coordinator(session: KafkaSession, request: Request) -> Fields:
    fields = request.fields
    kind = fields.get("key_type", _GROUP)
    if request.version >= 4:
        rows: list[Fields] = []
        pace = RowPace()
        for key in dict.fromkeys(fields["coordinator_keys"]):
            await pace.row()
            rows.append({"key": key, **await _coordinator(session, request, key, kind)})
        return {"coordinators": rows}
    return await _coordinator(session, request, fields["key"], kind)


async def _coordinator(session: KafkaSession, request: Request, key: str, kind: int) -> Fields:
    broker = session.broker
    row: Fields = {"error_code": 0, "error_message": None, "node_id": -1, "host": "", "port": -1}
    try:
        if kind not in _COORDINATED:
            raise Refused(Code.INVALID_REQUEST, f"coordinators of type {kind} are not known")
        resource, refused = _COORDINATED[kind]
        session.gate.somewhere(request, refused, (resource, key))
        if kind == _GROUP:
            leader = await broker.cluster.coordinator(broker.coordinator.place(key), session.tls)
        else:
            leader = await broker.cluster.coordinator(
                TopicName.parse(session.broker.opened_transactions().topic_of(key)), session.tls
            )
        if leader is None:
            raise Refused(Code.COORDINATOR_NOT_AVAILABLE, "no broker coordinates it now")
        row["node_id"], row["host"], row["port"] = leader.number, leader.host, leader.port
    except HeliographError as error:
        row["error_code"] = error.code if isinstance(error, Refused) else Code.COORDINATOR_NOT_AVAILABLE
        row["error_message"] = str(error)
    return row


async def describe_log_dirs(session: KafkaSession, request: Request) -> Fields:
    """One directory, in which the partitions lie that are loaded here."""
    wanted = request.fields["topics"]
    keys = None if wanted is None else {(topic["topic"], index) for topic in wanted for index in topic["partitions"]}
    topics: dict[str, list[Fields]] = {}
    pace = RowPace()
    for partition in session.broker.logs():
        await pace.row()
        name = partition.topic.name
        kafka, index = session.broker.cluster.kafka_name(name.partitioned), max(0, name.partition)
        if (keys is None or (kafka, index) in keys) and _visible(session, name):
            part: Fields = {
                "partition_index": index,
                "partition_size": partition.ledger.size_bytes,
                "offset_lag": 0,
                "is_future_key": False,
            }
            topics.setdefault(kafka, []).append(part)
    rows = [{"name": kafka, "partitions": parts} for kafka, parts in sorted(topics.items())]
    return {"error_code": 0, "results": [{"error_code": 0, "log_dir": "/heliograph", "topics": rows}]}
