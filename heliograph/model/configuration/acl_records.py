"""ACLs: what Kafka's tools allow or refuse to roles, as the global configuration says it.

Is: the record, the value that holds all of a tenant, and whether a record speaks of something. Isn't: who is asked
(`region_node.security.authorization.acl_decisions`), or who writes (`global_config.acl_writes`).
Invariants: what is in a value is understood: where any record of it is not, the value is not read, and then refuses, as
a DENY may be in it.
Names: a topic by its full name, or the beginning of one; every topic of a namespace by `tenant/namespace`; a group or a
transactional id as clients say it, at the listeners of the tenant.
Key: /acls/{tenant} (TenantAcls).
Source: docs/protocols/kafka.md, "ACLs".
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from heliograph.model.configuration.configuration_records import _Value

ANYBODY = ANYWHERE = "*"


class Resource(StrEnum):
    TOPIC = "topic"
    GROUP = "group"
    TRANSACTIONAL_ID = "transactional-id"


class Pattern(StrEnum):
    """What a record's name is: ALL is Kafka's `*`, of topics those of one namespace."""

    LITERAL = "literal"
    PREFIXED = "prefixed"
    ALL = "all"


class AclOperation(StrEnum):
    ALL = "all"
    READ = "read"
    WRITE = "write"
    CREATE = "create"
    DELETE = "delete"
    ALTER = "alter"
    DESCRIBE = "describe"
    DESCRIBE_CONFIGS = "describe-configs"
    ALTER_CONFIGS = "alter-configs"


_IMPLYING = {
    AclOperation.DESCRIBE: (AclOperation.READ, AclOperation.WRITE, AclOperation.DELETE, AclOperation.ALTER),
    AclOperation.DESCRIBE_CONFIGS: (AclOperation.ALTER_CONFIGS,),
}
REFUSED_BY = {each: frozenset((each, AclOperation.ALL)) for each in AclOperation}
"""AclOperation -> those which refuse it where they are denied."""
ALLOWED_BY = {each: frozenset((each, AclOperation.ALL, *_IMPLYING.get(each, ()))) for each in AclOperation}
"""AclOperation -> those which allow it where they are allowed."""


class AclRecord(NamedTuple):
    """role: `*` is every one. host: an address, or `*`. allow False: it refuses, whatever else allows."""

    resource: str
    pattern: str
    name: str
    role: str
    host: str
    operation: str
    allow: bool

    def names(self, name: str, namespace: str = "") -> bool:
        """Whether it is about what is called so; namespace: of a topic."""
        if self.pattern == Pattern.LITERAL:
            return self.name == name
        return name.startswith(self.name) if self.pattern == Pattern.PREFIXED else self.name == namespace

    @property
    def namespace(self) -> str:
        """Whose topics it is about, `tenant/namespace`; "": it is about no topics."""
        if self.resource != Resource.TOPIC:
            return ""
        return self.name if self.pattern == Pattern.ALL else "/".join(self.name.partition("://")[2].split("/", 2)[:2])


def unreadable(tenant: str, why: str) -> str:
    """What is to be done about a tenant's value that is not read."""
    return (
        f"the ACLs of tenant {tenant!r} cannot be read ({why}): where a later version wrote them, upgrade; "
        "where they are damaged, restore the global configuration, or let an admin of the tenant delete them all by "
        "DeleteAcls with a filter that leaves nothing out (AclBindingFilter.ANY), and make them anew"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantAcls(_Value):
    records: tuple[AclRecord, ...] = ()

    def __post_init__(self) -> None:
        records = tuple(AclRecord(*each) for each in self.records)
        for record in records:
            Resource(record.resource), Pattern(record.pattern), AclOperation(record.operation)
        object.__setattr__(self, "records", records)
