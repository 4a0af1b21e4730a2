"""ACLs: what Kafka's tools allow or refuse, as records of the tenant in the global configuration.

Is: CreateAcls, DescribeAcls, DeleteAcls. Isn't: a record's meaning (`region_node.security.authorization`), or Kafka's
words for it (`acl_filters`).
Invariants: a record is of the tenant that its topic is in, else of the listener's, and is made, seen, and deleted by
that tenant's admins alone; what is taken is in force for all protocols and in all regions; what has no meaning here is
refused, row by row, with the reason. Grants of the namespace's and topic's roles are shown as what they are worth, and
can be deleted.
Source: docs/protocols/kafka.md, "ACLs".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from heliograph.model.configuration.acl_records import AclOperation, AclRecord, unreadable
from heliograph.model.configuration.configuration_records import NamespacePolicies
from heliograph.model.errors import HeliographError
from heliograph.model.topic_names import TopicName
from heliograph.runtime.throttle import RowPace
from heliograph.wire.kafka.message_codec import Fields, Request
from region_node.faces.kafka.error_codes import Code, Refused, code_of
from region_node.faces.kafka.security.acl_filters import granted, means, means_all, record_of, row_of, topic_of
from region_node.faces.kafka.session.kafka_session import KafkaSession
from region_node.security.authorization.authorization_service import Action

if TYPE_CHECKING:
    from region_node.faces.kafka.session.kafka_broker import KafkaBroker

_OPERATIONS = {Action.CONSUME.value: AclOperation.READ, Action.PRODUCE.value: AclOperation.WRITE}
Grants = dict[str, list[str]]


class Grant(NamedTuple):
    """topic None: every topic of the namespace."""

    namespace: str
    topic: TopicName | None
    role: str
    action: str

    @property
    def record(self) -> AclRecord:
        return granted(self.topic, self.namespace, self.role, _OPERATIONS[self.action])


def _check(session: KafkaSession, request: Request, topic: TopicName | None) -> None:
    """Whether the client may see and change what is of that topic's tenant; None: of the listener's."""
    if not session.broker.security.rights.enabled:
        raise Refused(Code.SECURITY_DISABLED, "nothing is authorized here: set security.authorization")
    session.gate.of_all(request, topic)


def _namespace(broker: KafkaBroker, topic: TopicName | None) -> str:
    return broker.settings.namespace if topic is None else topic.namespace


def _grants(broker: KafkaBroker, namespace: str) -> Iterator[Grant]:
    policies = broker.topics.view.namespace(namespace)
    if policies is None:
        return
    for role, actions in sorted(policies.permissions.items()):
        yield from (Grant(namespace, None, role, action) for action in actions if action in _OPERATIONS)
    for name, grants in sorted(policies.topic_permissions.items()):
        for role, actions in sorted(grants.items()):
            topic = TopicName.parse(name)
            yield from (Grant(namespace, topic, role, action) for action in actions if action in _OPERATIONS)


async def describe_acls(session: KafkaSession, request: Request) -> Fields:
    broker, wanted = session.broker, request.fields
    try:
        _check(session, request, topic := topic_of(broker, wanted))
        namespace = _namespace(broker, topic)
        records = [grant.record for grant in _grants(broker, namespace)]
        tenant = namespace.partition("/")[0]
        if (of_tenant := broker.security.rights.acls(tenant)) is None:
            raise Refused(Code.UNKNOWN_SERVER_ERROR, unreadable(tenant, "a broker's log says why"))
        records += of_tenant
        found = [row_of(broker, record) for record in dict.fromkeys(records) if means(broker, record, wanted)]
    except HeliographError as error:
        return {"error_code": code_of(error), "error_message": str(error), "resources": []}
    resources: dict[tuple[int, str, int], list[Fields]] = {}
    for row in found:
        resources.setdefault((row["resource_type"], row["resource_name"], row["pattern_type"]), []).append(row)
    rows = [
        {"resource_type": kind, "resource_name": name, "pattern_type": pattern, "acls": acls}
        for (kind, name, pattern), acls in resources.items()
    ]
    return {"error_code": 0, "resources": rows}


async def create_acls(session: KafkaSession, request: Request) -> Fields:
    """All of one namespace at once, and what is of no topics with the listener's."""
    rows: list[Fields] = []
    new: dict[str, list[tuple[AclRecord, Fields]]] = {}
    pace = RowPace()
    for wanted in request.fields["creations"]:
        await pace.row()
        row: Fields = {"error_code": 0, "error_message": None}
        rows.append(row)
        try:
            if not session.broker.security.rights.enabled:
                _check(session, request, None)
            record, topic = record_of(session.broker, wanted)
            _check(session, request, topic)
            new.setdefault(_namespace(session.broker, topic), []).append((record, row))
        except HeliographError as error:
            row["error_code"], row["error_message"] = code_of(error), str(error)
    for namespace, made in new.items():
        tenant, records = namespace.partition("/")[0], tuple(record for record, _ in made)
        try:
            await session.broker.config.acls.change(tenant, lambda before, more=records: (*before, *more))  # type: ignore[misc]
        except HeliographError as error:
            for _, row in made:
                row["error_code"], row["error_message"] = code_of(error), str(error)
    return {"results": rows}


async def delete_acls(session: KafkaSession, request: Request) -> Fields:
    rows: list[Fields] = []
    pace = RowPace()
    for wanted in request.fields["filters"]:
        await pace.row()
        row: Fields = {"error_code": 0, "error_message": None, "matching_acls": []}
        rows.append(row)
        try:
            _check(session, request, topic := topic_of(session.broker, wanted))
            for record in await _deleted(session.broker, wanted, _namespace(session.broker, topic)):
                row["matching_acls"].append({"error_code": 0, **row_of(session.broker, record)})
        except HeliographError as error:
            row["error_code"], row["error_message"] = code_of(error), str(error)
    return {"filter_results": rows}


async def _deleted(broker: KafkaBroker, wanted: Fields, namespace: str) -> list[AclRecord]:
    """Grants, and what is in the configuration now of the records; where those cannot be read, they alone, and only as
    all of them are meant. Raises what the configuration raises.
    """
    if means_all(wanted) and await broker.config.acls.drop_unreadable(namespace.partition("/")[0]):
        return []
    deleted: dict[AclRecord, None] = {}
    for grant in list(_grants(broker, namespace)):
        if means(broker, grant.record, wanted):
            await _change(
                broker,
                grant,
                lambda grants, grant=grant: _without(grants, grant.role, grant.action),  # type: ignore[misc]
            )
            deleted[grant.record] = None

    def left(records: tuple[AclRecord, ...]) -> tuple[AclRecord, ...]:
        return tuple(record for record in records if not means(broker, record, wanted))

    before = await broker.config.acls.change(namespace.partition("/")[0], left)
    deleted.update(dict.fromkeys(record for record in before if means(broker, record, wanted)))
    return list(deleted)


async def _change(broker: KafkaBroker, grant: Grant, change: Callable[[Grants], Grants]) -> None:
    """Changes the grants of the topic, or of the namespace. Raises what the configuration raises."""

    def changed(policies: NamespacePolicies) -> NamespacePolicies:
        if grant.topic is None:
            return replace(policies, permissions=change(policies.permissions))
        others = {name: grants for name, grants in policies.topic_permissions.items() if name != str(grant.topic)}
        left = change(policies.topic_permissions.get(str(grant.topic), {}))
        return replace(policies, topic_permissions={**others, str(grant.topic): left} if left else others)

    await broker.config.update_namespace(grant.namespace, changed)


def _without(grants: Grants, role: str, action: str) -> Grants:
    left = [each for each in grants.get(role, []) if each != action]
    others = {name: actions for name, actions in grants.items() if name != role}
    return {**others, role: left} if left else others
