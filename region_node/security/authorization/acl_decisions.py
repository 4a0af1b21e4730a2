"""AclDecisions: what a tenant's ACLs say to one role, from one address, about one thing.

Is: the answer of the records, in which any that refuses wins, kept until the configuration changes. Isn't: a grant, an
admin, or a super user (`authorization_service`), or the record (`heliograph.model.configuration.acl_records`).
Bounds: ANSWERS_MAX answers are kept. A tenant without ACLs costs one look-up; another one two, but behind a change.
Source: docs/protocols/kafka.md, "ACLs".
"""

from __future__ import annotations

from enum import Enum
from typing import Protocol

from heliograph.model.configuration.acl_records import ALLOWED_BY, REFUSED_BY, AclOperation, AclRecord, Resource
from heliograph.model.topic_names import TopicName

ANSWERS_MAX = 10_000


class AclAnswer(Enum):
    REFUSED = "refused"
    ALLOWED = "allowed"
    SILENT = "silent"


class AclView(Protocol):
    def acls(self, tenant: str) -> tuple[AclRecord, ...]: ...


class AclDecisions:
    """Over the watch-fed copy of the configuration; whoever hears of a change of it calls `changed`."""

    def __init__(self, view: AclView) -> None:
        self._view = view
        self._answers: dict[tuple[str, object, str, str, AclOperation], AclAnswer] = {}
        self._resources: dict[str, frozenset[str]] = {}
        """Tenant -> what its ACLs are about."""

    def changed(self) -> None:
        self._answers.clear()
        self._resources.clear()

    def are_about(self, tenant: str, resource: Resource) -> bool:
        """Whether any is, of that tenant."""
        found = self._resources.get(tenant)
        if found is None:
            found = self._resources[tenant] = frozenset(record.resource for record in self._view.acls(tenant))
        return resource in found

    def of_topic(self, role: str, host: str, operation: AclOperation, topic: TopicName) -> AclAnswer:
        """What is said of a topic; of a partition, also what is said of its partitioned topic."""
        records = self._view.acls(topic.tenant)
        if not records:
            return AclAnswer.SILENT
        key = (topic.tenant, topic, role, host, operation)
        found = self._answers.get(key)
        if found is None:
            names, namespace = {str(topic), str(topic.partitioned)}, topic.namespace
            about = [
                record
                for record in records
                if record.resource == Resource.TOPIC and any(record.names(name, namespace) for name in names)
            ]
            found = self._keep(key, _answer(about, role, host, operation))
        return found

    def of_namespace(self, role: str, host: str, operation: AclOperation, namespace: str) -> AclAnswer:
        """What is said of every topic of a namespace."""
        records = self._view.acls(namespace.partition("/")[0])
        about = [record for record in records if record.resource == Resource.TOPIC and record.names("", namespace)]
        return _answer(about, role, host, operation)

    def of_name(
        self, role: str, host: str, operation: AclOperation, tenant: str, resource: Resource, name: str
    ) -> AclAnswer:
        """What is said of a group, or a transactional id, at the listeners of a tenant."""
        records = self._view.acls(tenant)
        if not records:
            return AclAnswer.SILENT
        key = (tenant, (resource, name), role, host, operation)
        found = self._answers.get(key)
        if found is None:
            about = [record for record in records if record.resource == resource and record.names(name)]
            found = self._keep(key, _answer(about, role, host, operation))
        return found

    def _keep(self, key: tuple[str, object, str, str, AclOperation], answer: AclAnswer) -> AclAnswer:
        if len(self._answers) >= ANSWERS_MAX:
            self._answers.clear()
        self._answers[key] = answer
        return answer


def _answer(about: list[AclRecord], role: str, host: str, operation: AclOperation) -> AclAnswer:
    allowed = False
    for record in about:
        if record.meets(role, host):
            if record.allow:
                allowed = allowed or record.operation in ALLOWED_BY[operation]
            elif record.operation in REFUSED_BY[operation]:
                return AclAnswer.REFUSED
    return AclAnswer.ALLOWED if allowed else AclAnswer.SILENT
