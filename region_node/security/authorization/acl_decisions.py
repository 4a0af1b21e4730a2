"""AclDecisions: what a tenant's ACLs say to one role, from one address, about one thing.

Is: the answer of the records, in which any that refuses wins, by an index of each tenant's. Isn't: a grant, an admin,
or a super user (`authorization_service`), or the record (`heliograph.model.configuration.acl_records`).
Invariants: ACLs that cannot be read refuse everything, as a DENY may be among them.
Bounds: a tenant without ACLs costs one look-up; another one a few, however many ACLs it has, and an index when they
have changed (`acl_index`). No answers are kept, so that nobody's questions take room from another's.
Source: docs/protocols/kafka.md, "ACLs".
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import Protocol

from global_config import keys
from heliograph.model.configuration.acl_records import (
    ANYBODY,
    ANYWHERE,
    AclOperation,
    AclRecord,
    Pattern,
    Resource,
)
from heliograph.model.topic_names import TopicName
from region_node.security.authorization.acl_index import AclIndex, allows, refuses


class AclAnswer(Enum):
    REFUSED = "refused"
    ALLOWED = "allowed"
    SILENT = "silent"


class AclView(Protocol):
    def acls(self, tenant: str) -> tuple[AclRecord, ...] | None: ...


_UNREADABLE = AclIndex(
    tuple(
        AclRecord(each.value, Pattern.PREFIXED, "", ANYBODY, ANYWHERE, AclOperation.ALL, allow=False)
        for each in Resource
    )
)
"""What counts where ACLs cannot be read."""


class AclDecisions:
    """Over the watch-fed copy of the configuration; whoever hears of a change of it calls `changed`."""

    def __init__(self, view: AclView) -> None:
        self._view = view
        self._made: dict[str, AclIndex] = {}
        """Tenant -> the index of the records that it had when it was asked for last."""

    def changed(self, key: str) -> None:
        self._made.pop(key.removeprefix(keys.ACLS), None)

    def _index(self, tenant: str) -> AclIndex | None:
        """None: there are no ACLs."""
        records = self._view.acls(tenant)
        if not records:
            return _UNREADABLE if records is None else None
        found = self._made.get(tenant)
        if found is None or found.records is not records:
            found = self._made[tenant] = AclIndex(records)
        return found

    def are_about(self, tenant: str, resource: Resource) -> bool:
        """Whether any is, of that tenant."""
        index = self._index(tenant)
        return index is not None and index.is_about(resource)

    def name_hosts(self, tenant: str) -> bool:
        """Whether any of that tenant names one."""
        index = self._index(tenant)
        return index is not None and index.names_hosts

    def roles(self, tenant: str, resource: Resource, operation: AclOperation) -> Iterator[str]:
        """Those that an ACL of the tenant lets do it with something; some may come twice."""
        if (index := self._index(tenant)) is not None:
            yield from index.roles(resource, operation)

    def of_topic(self, role: str, host: str, operation: AclOperation, topic: TopicName) -> AclAnswer:
        """What is said of a topic; of a partition, also what is said of its partitioned topic."""
        index = self._index(topic.tenant)
        if index is None:
            return AclAnswer.SILENT
        whole = topic.partitioned
        names = (str(topic),) if whole is topic else (str(topic), str(whole))
        return _answer(index.said(Resource.TOPIC, role, host, names, topic.namespace), operation)

    def of_namespace(self, role: str, host: str, operation: AclOperation, namespace: str) -> AclAnswer:
        """What is said of every topic of a namespace."""
        index = self._index(namespace.partition("/")[0])
        if index is None:
            return AclAnswer.SILENT
        return _answer(index.said(Resource.TOPIC, role, host, ("",), namespace), operation)

    def of_name(
        self, role: str, host: str, operation: AclOperation, tenant: str, resource: Resource, name: str
    ) -> AclAnswer:
        """What is said of a group, or a transactional id, at the listeners of a tenant."""
        index = self._index(tenant)
        if index is None:
            return AclAnswer.SILENT
        return _answer(index.said(resource, role, host, (name,)), operation)


def _answer(said: int, operation: AclOperation) -> AclAnswer:
    if refuses(said, operation):
        return AclAnswer.REFUSED
    return AclAnswer.ALLOWED if allows(said, operation) else AclAnswer.SILENT
