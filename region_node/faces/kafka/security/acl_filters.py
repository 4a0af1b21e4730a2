"""Kafka's words for ACLs, and ours: numbers, names, patterns, and filters.

Is: from a row of CreateAcls to a record, back to a row of DescribeAcls, and whether a filter means it. Isn't: a handler
(`acl_requests`), or what a record opens (`region_node.security.authorization`).
Invariants: what has no meaning here is refused with the reason; a record that was made comes back as it was said, but
for its host, which comes back as addresses are written.
Source: docs/protocols/kafka.md, "ACLs"; Kafka's `AclBinding`, `ResourcePatternFilter`.

    orders            the topic of the listener's namespace      shop/live/orders      of another one
    orders- PREFIXED  every topic that begins so                 shop/live/orders- …   of another one
    *                 every topic of the listener's namespace    shop/live/*           of another one
"""

from __future__ import annotations

from ipaddress import ip_address
from typing import TYPE_CHECKING, Protocol

from heliograph.model.configuration.acl_records import (
    ANYWHERE,
    AclOperation,
    AclRecord,
    Pattern,
    Resource,
)
from heliograph.model.topic_names import TopicName
from heliograph.wire.kafka.message_codec import Fields
from region_node.faces.kafka.error_codes import Code, Refused
from region_node.security.authentication.principal import ROLE_CHARS_MAX, plain_address

if TYPE_CHECKING:
    from region_node.faces.kafka.kafka_settings import KafkaSettings

ANY = 1
TOPIC, GROUP, CLUSTER, TRANSACTIONAL_ID = 2, 3, 4, 5
MATCH, LITERAL, PREFIXED = 2, 3, 4
ALL, READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE, DESCRIBE_CONFIGS, ALTER_CONFIGS = 2, 3, 4, 5, 6, 7, 8, 10, 11
DENY, ALLOW = 2, 3
NAME_CHARS_MAX = 1024
_USER, _EVERY = "User:", "*"
_PERSISTENT = "persistent://"
_RESOURCES = {TOPIC: Resource.TOPIC, GROUP: Resource.GROUP, TRANSACTIONAL_ID: Resource.TRANSACTIONAL_ID}
_OPERATIONS = {
    ALL: AclOperation.ALL,
    READ: AclOperation.READ,
    WRITE: AclOperation.WRITE,
    CREATE: AclOperation.CREATE,
    DELETE: AclOperation.DELETE,
    ALTER: AclOperation.ALTER,
    DESCRIBE: AclOperation.DESCRIBE,
    DESCRIBE_CONFIGS: AclOperation.DESCRIBE_CONFIGS,
    ALTER_CONFIGS: AclOperation.ALTER_CONFIGS,
}
_OF = {
    TOPIC: frozenset(_OPERATIONS),
    GROUP: frozenset((ALL, READ, DELETE, DESCRIBE)),
    TRANSACTIONAL_ID: frozenset((ALL, WRITE, DESCRIBE)),
}
"""As in Kafka: which operations there are on what."""
_RESOURCE_NUMBERS = {resource: number for number, resource in _RESOURCES.items()}
_OPERATION_NUMBERS = {operation: number for number, operation in _OPERATIONS.items()}


class TopicNaming(Protocol):
    """`region_node.faces.kafka.session.kafka_broker.KafkaBroker`, as names are resolved by it."""

    @property
    def settings(self) -> KafkaSettings: ...

    def name(self, kafka: str) -> TopicName: ...


def record_of(names: TopicNaming, wanted: Fields) -> tuple[AclRecord, TopicName | None]:
    """The record, and the topic whose tenant it is of; None: of the listener's. Raises Refused."""
    kind, pattern, text = wanted["resource_type"], wanted.get("resource_pattern_type", LITERAL), wanted["resource_name"]
    resource = _RESOURCES.get(kind)
    if resource is None:
        raise _refused(
            "ACLs are of topics, groups, and transactional ids here: what is of the whole cluster is for super users "
            "and admins of the tenant, and whoever may produce somewhere may do so idempotently"
        )
    if pattern not in (LITERAL, PREFIXED):
        raise _refused("an ACL's pattern is LITERAL or PREFIXED")
    if wanted["operation"] not in _OF[kind]:
        raise _refused(f"there is no such operation on a {resource.value}")
    if wanted["permission_type"] not in (DENY, ALLOW):
        raise _refused("an ACL is ALLOW or DENY")
    topic: TopicName | None = None
    if not text or (kind != TOPIC and (len(text) > NAME_CHARS_MAX or any(ord(c) < 32 for c in text))):
        raise _refused(
            f"the name of a {resource.value} has 1 to {NAME_CHARS_MAX} characters, none of them control ones"
        )
    if pattern == LITERAL and text.rpartition("/")[2] == _EVERY and (kind == TOPIC or text == _EVERY):
        how, name = Pattern.ALL, ""
        if kind == TOPIC:  # one of that namespace stands for its tenant
            topic = names.name(f"{text[:-1]}x")
            name = topic.namespace
    else:
        how, name = (Pattern.LITERAL if pattern == LITERAL else Pattern.PREFIXED), text
        if kind == TOPIC:
            topic = names.name(text)
            name = str(topic)
    record = AclRecord(
        resource=resource.value,
        pattern=how.value,
        name=name,
        role=_role(wanted["principal"]),
        host=_host(wanted["host"]),
        operation=_OPERATIONS[wanted["operation"]].value,
        allow=wanted["permission_type"] == ALLOW,
    )
    return record, topic


def _refused(why: str) -> Refused:
    return Refused(Code.INVALID_REQUEST, why)


def _role(principal: str) -> str:
    role = principal.removeprefix(_USER)
    if role == principal or not role or len(role) > ROLE_CHARS_MAX or any(ord(c) < 32 for c in role):
        raise _refused("the principal must be User:ROLE, or User:*")
    return role


def _host(host: str) -> str:
    if host == ANYWHERE:
        return host
    try:
        ip_address(host)
    except ValueError:
        raise _refused("the host must be an address, as 10.0.0.1, or *: names are not resolved") from None
    return plain_address(host)


def granted(topic: TopicName | None, namespace: str, role: str, operation: AclOperation) -> AclRecord:
    """A grant, as an ACL would say it; topic None: of the whole namespace."""
    how, name = (Pattern.ALL, namespace) if topic is None else (Pattern.LITERAL, str(topic))
    return AclRecord(Resource.TOPIC.value, how.value, name, role, ANYWHERE, operation.value, True)


def row_of(names: TopicNaming, record: AclRecord) -> Fields:
    text = record.name
    if record.resource == Resource.TOPIC:
        text = f"{text}/{_EVERY}" if record.pattern == Pattern.ALL else text.removeprefix(_PERSISTENT)
        text = text.removeprefix(f"{names.settings.namespace}/")
    elif record.pattern == Pattern.ALL:
        text = _EVERY
    return {
        "resource_type": _RESOURCE_NUMBERS[Resource(record.resource)],
        "resource_name": text,
        "pattern_type": PREFIXED if record.pattern == Pattern.PREFIXED else LITERAL,
        "principal": _USER + record.role,
        "host": record.host,
        "operation": _OPERATION_NUMBERS[AclOperation(record.operation)],
        "permission_type": ALLOW if record.allow else DENY,
    }


def topic_of(names: TopicNaming, wanted: Fields) -> TopicName | None:
    """The topic that a filter names; None: it names none, and is about what is the listener's. Raises Refused."""
    text, kind = wanted["resource_name_filter"], wanted["resource_type_filter"]
    if text in (None, _EVERY) or kind not in (ANY, TOPIC):
        return None
    try:
        return names.name(f"{text[:-1]}x" if text.endswith(f"/{_EVERY}") else text)
    except Refused:
        if kind == TOPIC:
            raise
        return None  # it may be a group's


def means(names: TopicNaming, record: AclRecord, wanted: Fields) -> bool:
    """Whether a filter means that record."""
    row = row_of(names, record)
    return (
        wanted["resource_type_filter"] in (ANY, row["resource_type"])
        and _named(names, record, row, wanted["resource_name_filter"], wanted.get("pattern_type_filter", LITERAL))
        and wanted["principal_filter"] in (None, row["principal"])
        and (wanted["host_filter"] is None or plain_address(wanted["host_filter"]) == row["host"])
        and wanted["operation"] in (ANY, row["operation"])
        and wanted["permission_type"] in (ANY, row["permission_type"])
    )


def means_all(wanted: Fields) -> bool:
    """Whether a filter leaves nothing out."""
    return (
        wanted["resource_type_filter"] == wanted.get("pattern_type_filter", LITERAL) == ANY
        and wanted["operation"] == wanted["permission_type"] == ANY
        and wanted["resource_name_filter"] is wanted["principal_filter"] is wanted["host_filter"] is None
    )


def _named(names: TopicNaming, record: AclRecord, row: Fields, text: str | None, pattern: int) -> bool:
    """MATCH: whatever speaks of what is called so; ANY: whatever has that name, whichever pattern it is."""
    if pattern in (LITERAL, PREFIXED) and pattern != row["pattern_type"]:
        return False
    if pattern not in (ANY, MATCH, LITERAL, PREFIXED):
        return False
    if text is None:
        return True
    if record.resource == Resource.TOPIC:
        text = text.removeprefix(_PERSISTENT)
        text = text if "/" in text else f"{names.settings.namespace}/{text}"
        if pattern == MATCH and text.rpartition("/")[2] != _EVERY:
            return record.names(_PERSISTENT + text, text.rpartition("/")[0])
        return bool(text.removeprefix(f"{names.settings.namespace}/") == row["resource_name"])
    if pattern == MATCH and text != _EVERY:
        return record.names(text)
    return bool(text == row["resource_name"])
