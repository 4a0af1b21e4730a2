"""Requests of transactional producers: from fields to their coordinator and back.

Is: one handler a request. Isn't: a rule (`kafka_transactions`).
Source: docs/protocols/kafka.md, "Transactions".
"""

from __future__ import annotations

from heliograph.model.errors import HeliographError
from heliograph.model.topic_names import TopicName
from heliograph.runtime.throttle import RowPace
from heliograph.wire.kafka.message_codec import Fields, Request
from region_node.faces.kafka.error_codes import Code, Refused, code_of
from region_node.faces.kafka.groups.committed_offsets import Row
from region_node.faces.kafka.session.kafka_session import KafkaSession
from region_node.faces.kafka.transactions.kafka_transactions import KafkaTransactions, check_id

_EPOCH_MAX = (1 << 15) - 1


async def _owned(session: KafkaSession, fields: Fields, *, ends: bool = False) -> KafkaTransactions:
    """Raises Refused where transactions are off, no id is so long, or the producer is another role's; unless it only
    `ends` what is open, where another region leads, too.
    """
    transactions = session.broker.opened_transactions()
    if not ends:
        _check_leads(session)
    check_id(fields["transactional_id"])
    assert session.login.principal is not None
    await transactions.rights.check(session.login.principal, fields["producer_id"], fields["transactional_id"])
    return transactions


def _check_leads(session: KafkaSession) -> None:
    """Raises Refused where another region coordinates the listener's transactional ids."""
    if region := session.broker.leading.elsewhere(session.broker.settings.namespace):
        raise Refused(Code.NOT_COORDINATOR, f"transactional ids are coordinated in region {region}")


def code_for(error: HeliographError, request: Request) -> Code:
    code = error.code if isinstance(error, Refused) else Code.COORDINATOR_NOT_AVAILABLE
    if code == Code.PRODUCER_FENCED and request.version < 2:
        return Code.INVALID_PRODUCER_EPOCH
    return code


async def add_partitions_to_txn(session: KafkaSession, request: Request) -> Fields:
    fields, broker = request.fields, session.broker
    codes: dict[tuple[str, int], Code] = {}
    topics: dict[tuple[str, int], str] = {}
    pace = RowPace()
    for topic in fields["topics"]:
        for index in topic["partitions"]:
            await pace.row()
            key = (topic["name"], index)
            try:
                name = session.gate.topic(request, topic["name"])
                if not 0 <= index < await broker.cluster.partitions(name):
                    raise Refused(Code.UNKNOWN_TOPIC_OR_PARTITION)
                topics[key], codes[key] = str(broker.cluster.part(name, index)), Code.NONE
            except HeliographError as error:
                codes[key] = code_of(error)
    if any(codes.values()):  # all or none
        codes = {key: code or Code.OPERATION_NOT_ATTEMPTED for key, code in codes.items()}
    else:
        try:
            transactions = await _owned(session, fields)
            await transactions.add_partitions(
                fields["transactional_id"], fields["producer_id"], fields["producer_epoch"], list(topics.values())
            )
        except HeliographError as error:
            codes = dict.fromkeys(codes, code_for(error, request))
    return {
        "results": [
            {
                "name": t["name"],
                "partitions": [
                    {"partition_index": index, "error_code": codes[t["name"], index]} for index in t["partitions"]
                ],
            }
            for t in fields["topics"]
        ]
    }


async def add_offsets_to_txn(session: KafkaSession, request: Request) -> Fields:
    fields = request.fields
    try:
        transactions = await _owned(session, fields)
        await transactions.add_offsets(fields["transactional_id"], fields["producer_id"], fields["producer_epoch"])
    except HeliographError as error:
        return {"error_code": code_for(error, request)}
    return {"error_code": 0}


async def end_txn(session: KafkaSession, request: Request) -> Fields:
    fields = request.fields
    try:
        transactions = await _owned(session, fields, ends=True)
        await transactions.end(
            fields["transactional_id"], fields["producer_id"], fields["producer_epoch"], fields["committed"]
        )
    except HeliographError as error:
        return {"error_code": code_for(error, request)}
    return {"error_code": 0}


async def txn_offset_commit(session: KafkaSession, request: Request) -> Fields:
    fields, broker = request.fields, session.broker
    principal = session.login.principal
    assert principal is not None
    rows: dict[tuple[str, int], Row] = {}
    code, now_ms = Code.NONE, broker.clock.wall_ms()
    try:
        transactions = await _owned(session, fields)
        held = await broker.coordinator.known(fields["group_id"])
        await broker.group_rights.check(principal, held)
        names, pace = dict[str, TopicName](), RowPace()
        for topic in fields["topics"]:
            await pace.row()
            names[topic["name"]] = session.gate.topic(request, topic["name"])
        if not held.group.members:
            await broker.group_leadership.check(fields["group_id"], names)
        broker.coordinator.check_room(held, principal)
        if fields.get("generation_id", -1) >= 0 or fields.get("member_id"):
            code = held.group.committed(
                broker.coordinator.now, fields["member_id"], fields.get("group_instance_id"), fields["generation_id"]
            )
        for topic in fields["topics"]:
            await pace.row()
            partitions = await broker.cluster.partitions(names[topic["name"]])
            for part in topic["partitions"]:
                await pace.row()
                metadata = part["committed_metadata"] or ""
                if len(metadata.encode()) > broker.settings.offset_metadata_bytes_max:
                    raise Refused(Code.OFFSET_METADATA_TOO_LARGE)
                if not 0 <= part["partition_index"] < partitions:
                    raise Refused(Code.UNKNOWN_TOPIC_OR_PARTITION)
                key = (topic["name"], part["partition_index"])
                broker.check_committed(session.epochs, key, part, joined=bool(fields.get("member_id")))
                row = Row(part["committed_offset"], part.get("committed_leader_epoch", -1), metadata, now_ms)
                rows[broker.kept_as(topic["name"]), part["partition_index"]] = row
        if not code:
            try:
                broker.coordinator.shares.take_room(held, rows)
                of = fields["transactional_id"], fields["producer_id"], fields["producer_epoch"]
                await transactions.hold_offsets(*of, fields["group_id"], rows)
            finally:
                broker.coordinator.keep(held)
    except HeliographError as error:
        code = code_of(error) if isinstance(error, Refused) else Code.COORDINATOR_NOT_AVAILABLE
    return {
        "topics": [
            {
                "name": t["name"],
                "partitions": [{"partition_index": p["partition_index"], "error_code": code} for p in t["partitions"]],
            }
            for t in fields["topics"]
        ]
    }


async def init_producer_id(session: KafkaSession, request: Request) -> Fields:
    fields, broker = request.fields, session.broker
    try:
        if fields["transactional_id"] is not None:
            _check_leads(session)
            given = await session.broker.opened_transactions().begin_producer(
                fields["transactional_id"],
                fields["transaction_timeout"],
                fields.get("producer_id", -1),
                fields.get("producer_epoch", -1),
                session.login.principal,
            )
            return {"error_code": 0, "producer_id": given[0], "producer_epoch": given[1]}
        session.gate.somewhere(request, Code.CLUSTER_AUTHORIZATION_FAILED)
        number, epoch = fields.get("producer_id", -1), fields.get("producer_epoch", -1)
        if number >= 0 and 0 <= epoch < _EPOCH_MAX - 1:  # it begins its sequences anew, and is still itself
            return {"error_code": 0, "producer_id": number, "producer_epoch": epoch + 1}
        return {"error_code": 0, "producer_id": await broker.producer_ids.next(), "producer_epoch": 0}
    except HeliographError as error:
        code = error.code if isinstance(error, Refused) else Code.COORDINATOR_NOT_AVAILABLE
        if code == Code.PRODUCER_FENCED and request.version < 4:
            code = Code.INVALID_PRODUCER_EPOCH
        return {"error_code": code, "producer_id": -1, "producer_epoch": -1}
