"""Requests of consumer groups: from fields to the coordinator and back.

Is: one handler a request. Isn't: a rule of the protocol (`consumer_group`), or storage (`committed_offsets`).
Source: docs/protocols/kafka.md, "Groups".
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from heliograph.model.configuration.acl_records import AclOperation
from heliograph.model.errors import HeliographError, NotAllowed
from heliograph.model.topic_names import TopicName
from heliograph.runtime.throttle import RowPace
from heliograph.wire.kafka.message_codec import Fields, Request
from region_node.faces.kafka.error_codes import Code, Refused, code_of
from region_node.faces.kafka.groups.committed_offsets import Row
from region_node.faces.kafka.groups.consumer_group import GroupMember
from region_node.faces.kafka.groups.group_regions import CONSUMERS, may_name, subscribed
from region_node.faces.kafka.groups.group_rights import named
from region_node.faces.kafka.session.kafka_session import KafkaSession
from region_node.security.authentication.principal import Principal

if TYPE_CHECKING:
    from region_node.faces.kafka.groups.coordinated_group import CoordinatedGroup

_NO_OFFSET = -1
_PROTOCOLS_MAX = 32
_JOIN_BYTES_MAX = 1 << 20
"""What one member says of itself; a group of more could not be stored."""
_TOPICS_MAX = 50_000
"""In all protocols of one member: they are looked at one after another, before anybody asks for rights."""
_CLIENT_MAX = 256
"""Characters of a client's id that are kept, and are part of its member's."""


def _group_code(error: HeliographError) -> Code:
    """Returns a code that clients of groups understand: what is no Refused is COORDINATOR_NOT_AVAILABLE."""
    if isinstance(error, Refused):
        return error.code
    return Code.COORDINATOR_NOT_AVAILABLE


async def _group(session: KafkaSession, group: str, operation: AclOperation = AclOperation.READ) -> CoordinatedGroup:
    """The group, for a role that may use it, or see it. Raises Refused: it may not, or this broker does not coordinate
    it.
    """
    held = await session.broker.coordinator.known(group)
    await session.broker.group_rights.check(_principal(session), held, operation)
    return held


def _principal(session: KafkaSession) -> Principal:
    assert session.login.principal is not None
    return session.login.principal


def _check_join(fields: Fields) -> None:
    """Comes before anything of it is parsed, or kept. Raises Refused."""
    protocols = fields["protocols"]
    if len(protocols) > _PROTOCOLS_MAX:
        raise Refused(
            Code.INVALID_REQUEST, f"{len(protocols)} protocols; a member may join with {_PROTOCOLS_MAX} at most"
        )
    size = sum(len(each["name"]) + len(each["metadata"]) for each in protocols)
    size += sum(len(fields.get(name) or "") for name in ("protocol_type", "member_id", "group_instance_id"))
    if size > _JOIN_BYTES_MAX:
        raise Refused(
            Code.INVALID_REQUEST,
            f"a member with {size} bytes of metadata; at most {_JOIN_BYTES_MAX} are taken: subscribe to fewer topics, "
            "or configure one assignor",
        )
    if fields["protocol_type"] == CONSUMERS and sum(may_name(each["metadata"]) for each in protocols) > _TOPICS_MAX:
        raise Refused(
            Code.INVALID_REQUEST,
            f"a member may name {_TOPICS_MAX} topics at most, counted once for each assignor: subscribe to fewer",
        )


async def join_group(session: KafkaSession, request: Request) -> Fields:
    fields, broker = request.fields, session.broker
    settings, client = broker.settings, request.client[:_CLIENT_MAX]
    try:
        _check_join(fields)
        if not settings.session_timeout_min_ms <= fields["session_timeout"] <= settings.session_timeout_max_ms:
            raise Refused(Code.INVALID_SESSION_TIMEOUT)
        held = await broker.coordinator.known(fields["group_id"])
        broker.leading.check_settled(settings.namespace)
        session_s = fields["session_timeout"] / 1000
        rebalance_ms = fields.get("rebalance_timeout", -1)
        protocols = [(protocol["name"], protocol["metadata"]) for protocol in fields["protocols"]]
        first = await named(fields["protocol_type"], protocols[:1])
        names = first | await named(fields["protocol_type"], protocols[1:])
        topics = await broker.group_rights.check_join(_principal(session), held, names)
        await broker.group_leadership.check(fields["group_id"], first)
        await broker.group_rights.join(_principal(session), held, topics)
        member = GroupMember(
            fields["member_id"],
            fields.get("group_instance_id"),
            client,
            "/" + session.host,
            session_s,
            rebalance_ms / 1000 if rebalance_ms >= 0 else session_s,
            protocols,
        )
        broker.coordinator.check_room(held, _principal(session))
        waiter = broker.coordinator.waiter()
        held.group.join(
            broker.coordinator.now,
            member,
            fields["protocol_type"],
            f"{client}-{broker.rng.getrandbits(128):032x}",
            waiter,
            needs_id=request.version >= 4,
            may_skip=request.version >= 9,
        )
        await broker.coordinator.settle(held)
        answer: Fields = await waiter
    except HeliographError as error:  # the text is for the log: this answer has no room for one
        answer = {
            "error_code": _group_code(error),
            "error_message": str(error),
            "member_id": fields["member_id"],
        }
    answer = {"protocol_name": "", "leader": "", "members": [], "generation_id": -1, **answer}
    if answer["error_code"] and request.version >= 7:
        answer["protocol_name"] = None
    return answer


async def sync_group(session: KafkaSession, request: Request) -> Fields:
    fields, coordinator = request.fields, session.broker.coordinator
    try:
        held = await _group(session, fields["group_id"])
        kind, name = fields.get("protocol_type"), fields.get("protocol_name")
        if (kind is not None and kind != held.group.protocol_type) or (
            name is not None and name != held.group.protocol
        ):
            raise Refused(Code.INCONSISTENT_GROUP_PROTOCOL)
        waiter = coordinator.waiter()
        assignments = {each["member_id"]: each["assignment"] for each in fields["assignments"]}
        held.group.sync(
            coordinator.now,
            fields["member_id"],
            fields.get("group_instance_id"),
            fields["generation_id"],
            assignments,
            waiter,
        )
        await coordinator.settle(held)
        answer: Fields = await waiter
    except HeliographError as error:
        return {"error_code": _group_code(error), "assignment": b""}
    return answer


async def heartbeat(session: KafkaSession, request: Request) -> Fields:
    fields, coordinator = request.fields, session.broker.coordinator
    try:
        held = await _group(session, fields["group_id"])
        code = held.group.heartbeat(
            coordinator.now, fields["member_id"], fields.get("group_instance_id"), fields["generation_id"]
        )
    except HeliographError as error:
        code = _group_code(error)
    return {"error_code": code}


async def leave_group(session: KafkaSession, request: Request) -> Fields:
    fields, coordinator = request.fields, session.broker.coordinator
    leaving = (
        fields["members"] if request.version >= 3 else [{"member_id": fields["member_id"], "group_instance_id": None}]
    )
    rows: list[Fields] = []
    try:
        held = await _group(session, fields["group_id"])
        pace = RowPace()
        for each in leaving:
            await pace.row()
            code = held.group.leave(coordinator.now, each["member_id"], each["group_instance_id"])
            rows.append(
                {"member_id": each["member_id"], "group_instance_id": each["group_instance_id"], "error_code": code}
            )
        await coordinator.settle(held)
    except HeliographError as error:
        return {"error_code": _group_code(error), "members": []}
    return {"error_code": 0 if request.version >= 3 else rows[0]["error_code"], "members": rows}


# -- offsets -----------------------------------------------------------------------------------------------------------


async def offset_commit(session: KafkaSession, request: Request) -> Fields:
    fields, broker = request.fields, session.broker
    coordinator = broker.coordinator
    rows: dict[tuple[str, int], Row] = {}
    codes: dict[tuple[str, int], Code] = {}
    names: dict[str, TopicName | Code] = {}
    now_ms = broker.clock.wall_ms()
    pace = RowPace()
    whole, held = Code.NONE, None
    try:
        held = await _group(session, fields["group_id"])
        for topic in fields["topics"]:
            await pace.row()
            names[topic["name"]] = _consumed(session, request, topic["name"])
        if not held.group.members:
            allowed = {name for name, found in names.items() if isinstance(found, TopicName)}
            await broker.group_leadership.check(fields["group_id"], allowed)
        whole = held.group.committed(
            coordinator.now,
            fields.get("member_id", ""),
            fields.get("group_instance_id"),
            fields.get("generation_id_or_member_epoch", -1),
        )
        coordinator.check_room(held, _principal(session))
    except HeliographError as error:
        whole = _group_code(error)
    for topic in fields["topics"]:
        for part in topic["partitions"]:
            await pace.row()
            key = (topic["name"], part["partition_index"])
            metadata = part["committed_metadata"] or ""
            codes[key] = whole
            if whole:
                continue
            try:
                name = names[topic["name"]]
                if isinstance(name, Code):
                    raise Refused(name)
                if len(metadata.encode()) > broker.settings.offset_metadata_bytes_max:
                    raise Refused(Code.OFFSET_METADATA_TOO_LARGE)
                if not 0 <= key[1] < await broker.cluster.partitions(name):
                    raise Refused(Code.UNKNOWN_TOPIC_OR_PARTITION)
                broker.check_committed(session.epochs, key, part, joined=bool(fields.get("member_id")))
                row = Row(part["committed_offset"], part.get("committed_leader_epoch", -1), metadata, now_ms)
                rows[broker.kept_as(key[0]), key[1]] = row
            except HeliographError as error:
                codes[key] = code_of(error)
    if rows and held is not None:
        try:
            coordinator.shares.take_room(held, rows)
            await broker.commits.put(held.offsets, rows, held.payer)
        except Refused as error:
            whole = error.code
        except NotAllowed:  # 256 partitions with what is said of them make one value of the metadata
            whole = Code.OFFSET_METADATA_TOO_LARGE
        except HeliographError:
            whole = Code.COORDINATOR_NOT_AVAILABLE
        finally:
            coordinator.keep(held)
        codes = {key: code or whole for key, code in codes.items()}
    return {
        "topics": [
            {
                "name": topic["name"],
                "partitions": [
                    {
                        "partition_index": part["partition_index"],
                        "error_code": codes[topic["name"], part["partition_index"]],
                    }
                    for part in topic["partitions"]
                ],
            }
            for topic in fields["topics"]
        ]
    }


async def offset_fetch(session: KafkaSession, request: Request) -> Fields:
    fields = request.fields
    if request.version >= 8:
        groups: dict[str, list[Fields] | None] = {}
        for group in fields["groups"]:
            name, topics = group["group_id"], group["topics"]
            if topics is None:
                groups[name] = None
            elif (asked := groups.setdefault(name, [])) is not None:
                asked.extend(topics)
        return {"groups": [await _fetched(session, request, name, topics) for name, topics in groups.items()]}
    return await _fetched(session, request, fields["group_id"], fields["topics"])


async def _fetched(session: KafkaSession, request: Request, group: str, topics: list[Fields] | None) -> Fields:
    """topics None: all that were committed. With `require_stable` what an open transaction may still change is
    refused.
    """
    stable = request.fields.get("require_stable", False)
    unstable: set[tuple[str, int]] = set()
    try:
        held = await _group(session, group)
        await held.offsets.load()  # a transaction's offsets, and those of other regions, are written by others
        session.broker.coordinator.keep(held)
        await session.broker.group_rights.check(_principal(session), held)  # they may be of more topics
        if stable and session.broker.transactions is not None:
            unstable = await session.broker.transactions.unstable(group)
    except HeliographError as error:
        code = _group_code(error)
        wanted = [(topic["name"], index) for topic in topics or () for index in topic["partition_indexes"]]
        return {
            "group_id": group,
            "error_code": code,
            "topics": await _offset_rows({}, wanted, dict.fromkeys((topic for topic, _ in wanted), code)),
        }
    rows = dict(held.offsets.rows)
    names = {topic for topic, _ in rows} if topics is None else {topic["name"] for topic in topics}
    codes, epochs, pace = dict[str, Code](), dict[str, int](), RowPace()
    for topic in names:
        await pace.row()
        found = _consumed(session, request, topic)
        codes[topic] = found if isinstance(found, Code) else Code.NONE
        if isinstance(found, TopicName) and (epoch := session.broker.leading.epoch(found.namespace)):
            epochs[topic] = epoch
            if session.broker.leading.elsewhere(found.namespace):  # numbers here are of no use there: it asks again
                codes[topic] = Code.UNSTABLE_OFFSET_COMMIT
    if topics is None:
        keys = [key for key in rows if not codes[key[0]]]
    else:
        keys = [(topic["name"], index) for topic in topics for index in topic["partition_indexes"]]
        kept = {(name, index): (session.broker.kept_as(name), index) for name, index in keys}
        # earlier versions kept them by what the client wrote
        rows = {key: row for key in keys if (row := rows.get(kept[key]) or rows.get(key)) is not None}
        unstable = {key for key in keys if kept[key] in unstable or key in unstable}
    return {"group_id": group, "error_code": 0, "topics": await _offset_rows(rows, keys, codes, unstable, epochs)}


def _consumed(session: KafkaSession, request: Request, topic: str) -> TopicName | Code:
    """The topic, or why the client may not see, commit, or delete offsets of it."""
    try:
        return session.gate.topic(request, topic)
    except HeliographError as error:
        return code_of(error)


async def _offset_rows(
    rows: dict[tuple[str, int], Row],
    keys: list[tuple[str, int]],
    codes: dict[str, Code],
    unstable: set[tuple[str, int]] | None = None,
    epochs: Mapping[str, int] = MappingProxyType({}),
) -> list[Fields]:
    """codes: of each topic that `keys` name; nothing of one that is refused is told. epochs: of topics that have
    leader epochs, the one that offsets here are of, whatever they were committed with.
    """
    topics: dict[str, list[Fields]] = {}
    pace = RowPace()
    for key in dict.fromkeys(keys):
        await pace.row()
        code = codes[key[0]]
        row = None if code else rows.get(key)
        refused = not code and unstable is not None and key in unstable
        topics.setdefault(key[0], []).append(
            {
                "partition_index": key[1],
                "committed_offset": _NO_OFFSET if row is None or refused else row.offset,
                "committed_leader_epoch": -1 if row is None else epochs.get(key[0], row.leader_epoch),
                "metadata": "" if row is None else row.metadata,
                "error_code": Code.UNSTABLE_OFFSET_COMMIT if refused else code,
            }
        )
    return [{"name": name, "partitions": parts} for name, parts in topics.items()]


async def offset_delete(session: KafkaSession, request: Request) -> Fields:
    fields = request.fields
    codes: dict[str, Code] = {}
    try:
        held = await session.broker.coordinator.known(fields["group_id"])
        await session.broker.group_rights.check_deletes(_principal(session), held)
        if held.group.members and held.group.protocol_type != "consumer":
            raise Refused(Code.NON_EMPTY_GROUP)
        kept = session.broker.kept_as
        used = {kept(topic) for topic in await subscribed(held.group)}
        for topic in fields["topics"]:
            code = _consumed(session, request, topic["name"])
            if not isinstance(code, Code):
                code = Code.GROUP_SUBSCRIBED_TO_TOPIC if kept(topic["name"]) in used else Code.NONE
            codes[topic["name"]] = code
        free = [name for name, code in codes.items() if not code]
        held_elsewhere = session.broker.positions.had_elsewhere(fields["group_id"], free)
        codes |= dict.fromkeys(held_elsewhere, Code.POLICY_VIOLATION)
        doomed = {
            (name, part["partition_index"])
            for topic in fields["topics"]
            for part in topic["partitions"]
            for name in (topic["name"], kept(topic["name"]))
            if not codes[topic["name"]]
        }
        await held.offsets.delete([key for key in doomed if key in held.offsets.rows])
        session.broker.coordinator.keep(held)
    except HeliographError as error:
        return {"error_code": _group_code(error), "topics": []}
    return {
        "topics": [
            {
                "name": topic["name"],
                "partitions": [
                    {"partition_index": p["partition_index"], "error_code": codes[topic["name"]]}
                    for p in topic["partitions"]
                ],
            }
            for topic in fields["topics"]
        ]
    }


# -- administration ----------------------------------------------------------------------------------------------------


async def describe_groups(session: KafkaSession, request: Request) -> Fields:
    rows: list[Fields] = []
    pace = RowPace()
    for name in dict.fromkeys(request.fields["groups"]):
        await pace.row()
        row: Fields = {
            "group_id": name,
            "error_code": 0,
            "group_state": "Dead",
            "protocol_type": "",
            "protocol_data": "",
            "members": [],
        }
        rows.append(row)
        try:
            held = await _group(session, name, AclOperation.DESCRIBE)
        except HeliographError as error:
            row["error_code"] = _group_code(error)
            continue
        group = held.group
        if not group.members and not held.offsets.rows and held.version < 0:
            continue
        row["group_state"], row["protocol_type"] = group.state, group.protocol_type
        row["protocol_data"] = group.protocol
        await pace.rows(len(group.members))
        row["members"] = [
            {
                "member_id": m.id,
                "group_instance_id": m.instance,
                "client_id": m.client,
                "client_host": m.host,
                "member_metadata": m.metadata(group.protocol),
                "member_assignment": m.assignment,
            }
            for m in group.members.values()
        ]
    return {"groups": rows}


async def list_groups(session: KafkaSession, request: Request) -> Fields:
    coordinator, wanted = session.broker.coordinator, frozenset(request.fields.get("states_filter") or ())
    types = frozenset(kind.lower() for kind in request.fields.get("types_filter") or ())
    principal, rights = _principal(session), session.broker.group_rights
    rows: list[Fields] = []
    pace = RowPace()
    try:
        for name, listed in (await coordinator.names()).items():
            await pace.row()
            said = rights.by_name(principal, name, AclOperation.DESCRIBE)
            judged = said is not None or listed.loaded
            if not judged and await rights.rules_out(principal, name, listed, AclOperation.DESCRIBE):
                said = False
            if said is False:
                continue
            held = await (coordinator.known(name) if listed.topics else coordinator.held(name))
            if said is None and not await rights.may(principal, held, AclOperation.DESCRIBE):
                continue
            if (not wanted or held.group.state in wanted) and (not types or "classic" in types):
                rows.append(
                    {
                        "group_id": name,
                        "protocol_type": held.group.protocol_type,
                        "group_state": held.group.state,
                        "group_type": "classic",
                    }
                )
    except HeliographError as error:
        return {"error_code": _group_code(error), "groups": []}
    return {"groups": rows}


async def delete_groups(session: KafkaSession, request: Request) -> Fields:
    rows: list[Fields] = []
    pace = RowPace()
    for name in dict.fromkeys(request.fields["groups_names"]):
        await pace.row()
        code = Code.NONE
        try:
            held = await session.broker.coordinator.known(name)
            await session.broker.group_rights.check_deletes(_principal(session), held)
            await session.broker.coordinator.delete(name)
        except HeliographError as error:
            code = _group_code(error)
        rows.append({"group_id": name, "error_code": code})
    return {"results": rows}
