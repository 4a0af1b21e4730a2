"""ACLs: what Kafka's tools say about rights, as grants of the namespace's and topic's roles.

Is: CreateAcls, DescribeAcls, DeleteAcls on topics. Isn't: a right's meaning
(`region_node.security.authorization.authorization_service`), or rights that are not there: who may consume a topic may
join any group on it, so groups have no grants of their own; there is no DENY, no host, and no prefix.
Invariants: what is taken is in force for both protocols and in all regions; what has no meaning here is refused, row by
row, with the reason.
Source: docs/protocols/kafka.md, "Security".

    READ on a topic = consume, WRITE = produce, ALL = both; DESCRIBE comes with either
    topic `*` = every topic of the listener's namespace
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from heliograph.model.configuration.configuration_records import NamespacePolicies
from heliograph.model.errors import HeliographError
from heliograph.model.topic_names import TopicName
from heliograph.wire.kafka.message_codec import Fields, Request
from region_node.faces.kafka.error_codes import Code, Refused, code_of
from region_node.security.authentication.principal import ROLE_CHARS_MAX
from region_node.security.authorization.authorization_service import Action

if TYPE_CHECKING:
    from region_node.faces.kafka.connection.kafka_broker import KafkaBroker
    from region_node.faces.kafka.connection.kafka_connection import KafkaConnection

ANY, TOPIC = 1, 2
LITERAL, MATCH, PREFIXED = 3, 2, 4
ALL, READ, WRITE, DESCRIBE = 2, 3, 4, 8
ALLOW = 3
_USER = "User:"
_ACTIONS = {READ: (Action.CONSUME,), WRITE: (Action.PRODUCE,), ALL: (Action.PRODUCE, Action.CONSUME), DESCRIBE: ()}
_OPERATIONS = {Action.CONSUME.value: READ, Action.PRODUCE.value: WRITE}
Grants = dict[str, list[str]]


class Acl(NamedTuple):
    """topic None: every topic of the namespace."""

    topic: TopicName | None
    role: str
    action: str

    def row(self, broker: KafkaBroker) -> Fields:
        return {
            "resource_type": TOPIC,
            "resource_name": "*" if self.topic is None else broker.cluster.kafka_name(self.topic),
            "pattern_type": LITERAL,
            "principal": _USER + self.role,
            "host": "*",
            "operation": _OPERATIONS[self.action],
            "permission_type": ALLOW,
        }


def _check_enabled(connection: KafkaConnection) -> None:
    if not connection.broker.security.rights.enabled:
        raise Refused(Code.SECURITY_DISABLED, "nothing is authorized here: set security.authorization")


def _check(connection: KafkaConnection, request: Request, topic: TopicName | None = None) -> None:
    """Whether the client may see and change grants of that topic; None: of the listener's namespace."""
    _check_enabled(connection)
    connection.gate.of_all(request, topic)


def _acls(broker: KafkaBroker) -> Iterator[Acl]:
    """All of the listener's namespace."""
    policies = broker.topics.view.namespace(broker.settings.namespace)
    if policies is None:
        return
    for role, actions in sorted(policies.permissions.items()):
        yield from (Acl(None, role, action) for action in actions if action in _OPERATIONS)
    for topic, grants in sorted(policies.topic_permissions.items()):
        for role, actions in sorted(grants.items()):
            yield from (Acl(TopicName.parse(topic), role, action) for action in actions if action in _OPERATIONS)


async def describe_acls(connection: KafkaConnection, request: Request) -> Fields:
    try:
        _check(connection, request)
        found = [
            acl.row(connection.broker)
            for acl in _acls(connection.broker)
            if _matches(acl.row(connection.broker), request.fields)
        ]
    except HeliographError as error:
        return {"error_code": code_of(error), "error_message": str(error), "resources": []}
    resources: dict[str, list[Fields]] = {}
    for row in found:
        resources.setdefault(row["resource_name"], []).append(row)
    rows = [
        {"resource_type": TOPIC, "resource_name": name, "pattern_type": LITERAL, "acls": acls}
        for name, acls in resources.items()
    ]
    return {"error_code": 0, "resources": rows}


def _matches(row: Fields, wanted: Fields) -> bool:
    name, pattern = wanted["resource_name_filter"], wanted.get("pattern_type_filter", LITERAL)
    named = name is None or row["resource_name"] == name or (pattern == MATCH and row["resource_name"] == "*")
    return (
        wanted["resource_type_filter"] in (ANY, TOPIC)
        and pattern in (ANY, MATCH, LITERAL)
        and named
        and wanted["principal_filter"] in (None, row["principal"])
        and wanted["host_filter"] in (None, "*")
        and wanted["operation"] in (ANY, row["operation"])
        and wanted["permission_type"] in (ANY, ALLOW)
    )


async def create_acls(connection: KafkaConnection, request: Request) -> Fields:
    rows: list[Fields] = []
    for wanted in request.fields["creations"]:
        row: Fields = {"error_code": 0, "error_message": None}
        rows.append(row)
        try:
            _check_enabled(connection)
            topic, role, actions = _meant(connection.broker, wanted)
            _check(connection, request, topic)
            if actions:
                await _change(
                    connection.broker,
                    topic,
                    lambda grants, role=role, actions=actions: _with(grants, role, actions),  # type: ignore[misc]
                )
        except HeliographError as error:
            row["error_code"], row["error_message"] = code_of(error), str(error)
    return {"results": rows}


def _meant(broker: KafkaBroker, wanted: Fields) -> tuple[TopicName | None, str, list[str]]:
    """(topic, role, actions). Raises Refused."""
    if wanted["resource_type"] != TOPIC:
        raise Refused(
            Code.INVALID_REQUEST,
            "only topics have grants here: who may consume all topics of a group may use it, and a transactional id "
            "belongs to the role that first initialised it",
        )
    if wanted.get("resource_pattern_type", LITERAL) != LITERAL:
        raise Refused(
            Code.INVALID_REQUEST,
            "prefixes are not known here: grant on each topic, or on '*' for every topic of the namespace",
        )
    if wanted["permission_type"] != ALLOW or wanted["host"] != "*":
        raise Refused(Code.INVALID_REQUEST, "only what is allowed can be said here, and for every host")
    if wanted["operation"] not in _ACTIONS:
        raise Refused(
            Code.INVALID_REQUEST,
            "of operations READ, WRITE, DESCRIBE, and ALL are known here; the tenant's administrators may do the "
            "others",
        )
    role = wanted["principal"].removeprefix(_USER)
    if (
        role == wanted["principal"]
        or not role
        or role == "*"
        or len(role) > ROLE_CHARS_MAX
        or any(ord(c) < 32 for c in role)
    ):
        raise Refused(Code.INVALID_REQUEST, "the principal must be User:ROLE")
    name = None if wanted["resource_name"] == "*" else broker.name(wanted["resource_name"])
    return name, role, [action.value for action in _ACTIONS[wanted["operation"]]]


async def delete_acls(connection: KafkaConnection, request: Request) -> Fields:
    rows: list[Fields] = []
    for wanted in request.fields["filters"]:
        row: Fields = {"error_code": 0, "error_message": None, "matching_acls": []}
        rows.append(row)
        try:
            _check(connection, request)
            for acl in list(_acls(connection.broker)):
                shown = acl.row(connection.broker)
                if _matches(shown, wanted):
                    await _change(
                        connection.broker,
                        acl.topic,
                        lambda grants, acl=acl: _without(grants, acl.role, acl.action),  # type: ignore[misc]
                    )
                    row["matching_acls"].append({"error_code": 0, **shown})
        except HeliographError as error:
            row["error_code"], row["error_message"] = code_of(error), str(error)
    return {"filter_results": rows}


async def _change(broker: KafkaBroker, topic: TopicName | None, change: Callable[[Grants], Grants]) -> None:
    """Changes the grants of the topic; None: of the listener's namespace. Raises what the configuration raises."""
    namespace = broker.settings.namespace if topic is None else topic.namespace

    def changed(policies: NamespacePolicies) -> NamespacePolicies:
        if topic is None:
            return replace(policies, permissions=change(policies.permissions))
        others = {name: grants for name, grants in policies.topic_permissions.items() if name != str(topic)}
        left = change(policies.topic_permissions.get(str(topic), {}))
        return replace(policies, topic_permissions={**others, str(topic): left} if left else others)

    await broker.config.update_namespace(namespace, changed)


def _with(grants: Grants, role: str, actions: list[str]) -> Grants:
    return {**grants, role: list(dict.fromkeys([*grants.get(role, []), *actions]))}


def _without(grants: Grants, role: str, action: str) -> Grants:
    left = [each for each in grants.get(role, []) if each != action]
    others = {name: actions for name, actions in grants.items() if name != role}
    return {**others, role: left} if left else others
