"""Administration by Kafka's clients: topics, partitions, settings.

Is: one handler a request, and one row a thing that is asked for. Isn't: what a topic is.
Invariants: each row succeeds or fails by itself; a topic that is deleted takes its groups' offsets and its settings
along, once its data goes; one that other regions have is deleted in all of them, or not.
Source: docs/protocols/kafka.md, "Administration".
"""

from __future__ import annotations

import logging
from collections import Counter

from global_config.admin import PARTITIONS_MAX
from heliograph.model.errors import AlreadyExists, HeliographError
from heliograph.model.topic_names import TopicName
from heliograph.runtime.throttle import RowPace
from heliograph.wire.kafka.message_codec import Fields, Request
from region_node.faces.kafka.administration.metadata_requests import ensure_ids
from region_node.faces.kafka.cluster.kafka_configs import LISTS, check, kind_of
from region_node.faces.kafka.error_codes import Code, Refused, code_of
from region_node.faces.kafka.session.kafka_session import KafkaSession

log = logging.getLogger("region_node.kafka")

TOPIC, BROKER = 2, 4
_OF_TOPIC, _OF_BROKER, _DEFAULT = 1, 4, 5
SET, DELETE, APPEND, SUBTRACT = range(4)


async def create_topics(session: KafkaSession, request: Request) -> Fields:
    rows: list[Fields] = []
    named, pace = Counter(topic["name"] for topic in request.fields["topics"]), RowPace()
    for topic in request.fields["topics"]:
        await pace.row()
        row: Fields = {"name": topic["name"], "error_code": 0, "configs": None}
        rows.append(row)
        try:
            if named[topic["name"]] > 1:
                raise Refused(Code.INVALID_REQUEST, "the topic is named twice in this request")
            count, values = await _create(session, request, topic)
            row["num_partitions"], row["replication_factor"] = count, 1
            if not request.fields.get("validate_only", False):
                name = session.broker.name(topic["name"])
                await ensure_ids(session, [name])
                row["topic_id"] = session.broker.ids.known(name)
            row["configs"] = [
                {"name": name, "value": value, "config_source": _OF_TOPIC if name in values else _DEFAULT}
                for name, value in {**session.broker.configs.defaults(), **values}.items()
            ]
        except HeliographError as error:
            row["error_code"], row["error_message"] = code_of(error), str(error)
    return {"topics": rows}


async def _create(session: KafkaSession, request: Request, topic: Fields) -> tuple[int, dict[str, str]]:
    broker, validate_only = session.broker, request.fields.get("validate_only", False)
    name, count = session.gate.topic(request, topic["name"]), topic["num_partitions"]
    if topic["assignments"]:
        if count != -1 or topic["replication_factor"] != -1:
            raise Refused(Code.INVALID_REQUEST, "give partitions and replicas, or assignments, not both")
        count = len(topic["assignments"])
    elif count == -1:
        count = broker.settings.num_partitions
    if not 1 <= count <= PARTITIONS_MAX:
        raise Refused(Code.INVALID_PARTITIONS, f"Number of partitions must be 1 to {PARTITIONS_MAX}, not {count}")
    if not topic["assignments"] and (topic["replication_factor"] == 0 or topic["replication_factor"] < -1):
        raise Refused(Code.INVALID_REPLICATION_FACTOR, "Replication factor must be larger than 0")
    values = {each["name"]: each["value"] for each in topic["configs"]}
    for key, value in values.items():
        check(key, value)
    if validate_only:
        if await broker.cluster.partitions(name):
            raise AlreadyExists(f"Topic '{topic['name']}' already exists.")
        await broker.cluster.check_room(name, count)
        return count, values
    broker.quotas.changes(session, request.client, count, strict=request.version >= 6)
    try:
        await broker.cluster.create(name, count)
    except AlreadyExists as error:
        why = broker.topics.name_taken(name) or f"Topic '{topic['name']}' already exists."
        raise AlreadyExists(why) from error
    await broker.configs.put(str(name), values)
    return count, values


async def delete_topics(session: KafkaSession, request: Request) -> Fields:
    fields = request.fields
    rows: list[Fields] = []
    pace = RowPace()
    for topic in fields["topics"] if request.version >= 6 else [{"name": name} for name in fields["topic_names"]]:
        await pace.row()
        row: Fields = {"name": topic["name"], "error_code": 0}
        rows.append(row)
        try:
            if topic["name"] is None:
                row["topic_id"] = topic["topic_id"]
                kafka = session.broker.of_id(topic["topic_id"])
                name = session.gate.topic(request, kafka)
                row["name"] = kafka
            else:
                name = session.gate.topic(request, topic["name"])
                row["topic_id"] = session.broker.ids.known(name)
            await _delete(session, request, name)
        except HeliographError as error:
            row["error_code"], row["error_message"] = code_of(error), str(error)
    return {"responses": rows}


async def _delete(session: KafkaSession, request: Request, name: TopicName) -> None:
    broker = session.broker
    count = await broker.cluster.partitions(name)
    if not count:
        raise Refused(Code.UNKNOWN_TOPIC_OR_PARTITION, "This server does not host this topic-partition.")
    broker.quotas.changes(session, request.client, count, strict=request.version >= 5)
    everywhere = broker.topics.everywhere
    if everywhere is not None and everywhere.holds(name):  # what groups have committed goes with the data
        by = session.login.principal
        await everywhere.topic(name, by="" if by is None else by.role)
    else:
        await broker.delete_topic(name)
        await broker.coordinator.forget_topic(name)
    log.info("kafka.topic_deleted", extra={"topic": str(name), "partitions": count})


async def create_partitions(session: KafkaSession, request: Request) -> Fields:
    rows: list[Fields] = []
    pace = RowPace()
    for topic in request.fields["topics"]:
        await pace.row()
        row: Fields = {"name": topic["name"], "error_code": 0, "error_message": None}
        rows.append(row)
        try:
            name = session.gate.topic(request, topic["name"])
            present = await session.broker.cluster.partitions(name)
            if not present:
                raise Refused(Code.UNKNOWN_TOPIC_OR_PARTITION, "The topic does not exist")
            if not present < topic["count"] <= PARTITIONS_MAX:
                raise Refused(
                    Code.INVALID_PARTITIONS,
                    f"The topic has {present} partitions; {topic['count']} would not be an increase, or too many",
                )
            if name is session.broker.cluster.part(name, 0):
                raise Refused(
                    Code.INVALID_PARTITIONS,
                    "The topic was made as one that has no partitions: make another, and move to it",
                )
            if request.fields["validate_only"]:
                await session.broker.cluster.check_room(name, topic["count"])
            else:
                session.broker.quotas.changes(
                    session, request.client, topic["count"] - present, strict=request.version >= 3
                )
                await session.broker.cluster.grow(name, topic["count"])
        except HeliographError as error:
            row["error_code"], row["error_message"] = code_of(error), str(error)
    return {"results": rows}


# -- settings ----------------------------------------------------------------------------------------------------------


async def describe_configs(session: KafkaSession, request: Request) -> Fields:
    rows: list[Fields] = []
    pace = RowPace()
    resources: dict[tuple[int, str], set[str] | None] = {}
    for resource in request.fields["resources"]:
        key, keys = (resource["resource_type"], resource["resource_name"]), resource.get("configuration_keys")
        if keys is None:
            resources[key] = None
        elif (asked := resources.setdefault(key, set())) is not None:
            asked.update(keys)
    for (kind, resource_name), wanted in resources.items():
        await pace.row()
        row: Fields = {"resource_type": kind, "resource_name": resource_name, "error_code": 0, "configs": []}
        rows.append(row)
        try:
            values, own, source = await _values(session, request, kind, resource_name)
        except HeliographError as error:
            row["error_code"], row["error_message"] = code_of(error), str(error)
            continue
        await pace.rows(len(values))
        for name, value in sorted(values.items()):
            if wanted is None or name in wanted:
                from_here = source if name in own or source == _OF_BROKER else _DEFAULT
                shown: Fields = {
                    "name": name,
                    "value": value,
                    "read_only": source == _OF_BROKER,
                    "config_source": from_here,
                    "config_type": kind_of(value),
                }
                shown["is_default"] = from_here == _DEFAULT
                if request.fields.get("include_synonyms"):
                    shown["synonyms"] = [{"name": name, "value": value, "source": from_here}]
                row["configs"].append(shown)
    return {"results": rows}


async def _values(
    session: KafkaSession, request: Request, kind: int, resource: str
) -> tuple[dict[str, str], dict[str, str], int]:
    """(what holds, what was set, where from)."""
    broker = session.broker
    if kind == TOPIC:
        name = session.gate.topic(request, resource)
        if not await broker.cluster.partitions(name):
            raise Refused(Code.UNKNOWN_TOPIC_OR_PARTITION)
        own = broker.configs.of(str(name))
        return {**broker.configs.defaults(), **own}, own, _OF_TOPIC
    if kind == BROKER:
        session.gate.of_all(request)
        if resource and resource not in {str(node.number) for node in broker.cluster.nodes(session.tls)}:
            raise Refused(Code.INVALID_REQUEST, f"there is no broker {resource}")
        values = broker.configs.broker(int(resource or broker.leading.number))
        return values, values, _OF_BROKER
    raise Refused(Code.INVALID_REQUEST, f"settings of type {kind} are not known here")


async def alter_configs(session: KafkaSession, request: Request) -> Fields:
    """The old way: what is given takes the place of all that was set."""
    return await _all_altered(session, request, whole=True)


async def incremental_alter_configs(session: KafkaSession, request: Request) -> Fields:
    return await _all_altered(session, request, whole=False)


async def _all_altered(session: KafkaSession, request: Request, *, whole: bool) -> Fields:
    rows: list[Fields] = []
    pace = RowPace()
    for resource in request.fields["resources"]:
        await pace.row()
        rows.append(await _altered(session, request, resource, whole=whole))
    return {"responses": rows}


async def _altered(session: KafkaSession, request: Request, resource: Fields, *, whole: bool) -> Fields:
    row: Fields = {
        "resource_type": resource["resource_type"],
        "resource_name": resource["resource_name"],
        "error_code": 0,
        "error_message": None,
    }
    broker = session.broker
    try:
        if resource["resource_type"] != TOPIC:
            raise Refused(Code.INVALID_REQUEST, "a broker's settings are in its settings file")
        name = session.gate.topic(request, resource["resource_name"])
        if not await broker.cluster.partitions(name):
            raise Refused(Code.UNKNOWN_TOPIC_OR_PARTITION)
        values = {} if whole else dict(broker.configs.of(str(name)))
        for each in resource["configs"]:
            operation = SET if whole else each["config_operation"]
            if operation == SET:
                check(each["name"], each["value"])
                values[each["name"]] = each["value"]
            elif operation == DELETE:
                values.pop(each["name"], None)
            else:
                values[each["name"]] = _listed(each, values, broker.configs.defaults())
        if not request.fields["validate_only"]:
            await broker.configs.put(str(name), values)
    except HeliographError as error:
        row["error_code"], row["error_message"] = code_of(error), str(error)
    return row


def _listed(each: Fields, values: dict[str, str], defaults: dict[str, str]) -> str:
    """A setting that is a list, with something added or taken away. Raises Refused."""
    name, wanted = each["name"], [item for item in (each["value"] or "").split(",") if item]
    if name not in LISTS:
        raise Refused(Code.INVALID_CONFIG, f"{name} is no list: set it, or delete it")
    before = [item for item in values.get(name, defaults[name]).split(",") if item]
    if each["config_operation"] == APPEND:
        there = frozenset(before)
        after = [*before, *(item for item in wanted if item not in there)]
    elif each["config_operation"] == SUBTRACT:
        gone = frozenset(wanted)
        after = [item for item in before if item not in gone]
    else:
        raise Refused(Code.INVALID_REQUEST, f"{each['config_operation']} is nothing that can be done to a setting")
    text = ",".join(after)
    check(name, text)
    return text
