"""Which rights each request of Kafka's wants: they stand in the row that names its handler, and the gate asks by them.

Is: the rights, the form of a row, the check of a table of rows, and the gate by which handlers ask for a topic or for
what is of all. Isn't: the rows (`request_table`), or who may use a group or a transactional id (`group_rights`,
`transactional_id_rights`).
Invariants: a row without a right ends the start. A handler names what a client wants to touch, never the right: that
is its row's. Each right to a topic is an operation of Kafka's, which ACLs may allow and refuse. Produce and Fetch ask
for their topics themselves (`KafkaBroker.check`), as they do it for each partition.
Source: docs/protocols/kafka.md, "Rights of requests"; docs/decisions/0221-a-request-says-its-right.md.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping
from enum import Enum
from typing import Any, NamedTuple, Protocol

from heliograph.model.configuration.acl_records import AclOperation, Resource
from heliograph.model.topic_names import TopicName
from heliograph.wire.kafka.message_codec import BY_NAME, Fields, Request
from region_node.faces.kafka.error_codes import Code, Refused
from region_node.security.authentication.principal import Principal
from region_node.security.authorization.acl_decisions import AclAnswer
from region_node.security.authorization.authorization_service import Action, Authorization


class ApiRight(Enum):
    """Named by Kafka's operation and resource; the value says who has it here, where no ACL allows or refuses it."""

    NONE = "anybody: a client signs in by it"
    ANY_ROLE = "any role: what it may not see is left out"
    READ_TOPIC = "consume each topic"
    WRITE_TOPIC = "produce to each topic"
    DESCRIBE_TOPIC = "produce to or consume each topic"
    CREATE_TOPIC = "an admin of the tenant that each new topic is in"
    ALTER_TOPIC = "an admin of each topic's tenant, to give it more partitions"
    ALTER_TOPIC_CONFIGS = "an admin of each topic's tenant, to change its settings"
    DESCRIBE_TOPIC_CONFIGS = "produce to or consume each topic, to see its settings"
    DELETE_TOPIC = "an admin of each topic's tenant, to delete it or of it"
    READ_GROUP = (
        "use of the group: consume all its topics, or have made it, or administer the tenants that it belongs to"
    )
    DESCRIBE_GROUP = "use of each group, to see it"
    DELETE_GROUP = "an admin of all tenants that the group belongs to"
    WRITE_TRANSACTIONAL_ID = (
        "the transactional id: the role that it belongs to, or an admin of all tenants of that role"
    )
    ANY_GRANT = "a grant to produce, to consume, or to administer somewhere, or an ACL to see what is named"
    IDEMPOTENT_WRITE = "a grant to produce, or to administer somewhere"
    TENANT = "an admin of the listener's tenant, or of the topic's where one is named"
    SUPER = "a super user"


_ACTIONS = {ApiRight.READ_TOPIC: Action.CONSUME, ApiRight.WRITE_TOPIC: Action.PRODUCE}
_OF_ADMINS = {
    ApiRight.CREATE_TOPIC: AclOperation.CREATE,
    ApiRight.ALTER_TOPIC: AclOperation.ALTER,
    ApiRight.ALTER_TOPIC_CONFIGS: AclOperation.ALTER_CONFIGS,
    ApiRight.DELETE_TOPIC: AclOperation.DELETE,
}
"""Nobody grants these: an ACL may."""
_OF_TOPICS = frozenset((*_ACTIONS, ApiRight.DESCRIBE_TOPIC, ApiRight.DESCRIBE_TOPIC_CONFIGS, *_OF_ADMINS))
_OF_ALL = frozenset((ApiRight.TENANT, ApiRight.SUPER))
_SOMEWHERE = {ApiRight.ANY_GRANT: (Action.PRODUCE, Action.CONSUME), ApiRight.IDEMPOTENT_WRITE: (Action.PRODUCE,)}
_ALONE = frozenset((ApiRight.NONE, ApiRight.ANY_ROLE, ApiRight.ANY_GRANT, ApiRight.SUPER))


class ApiRow(NamedTuple):
    """One row. changes: it is an administrator's, and in the audit log, also where it was refused. reads: nothing comes
    of it but its answer, so that it ends with its connection; all others go on to their end.
    """

    name: str
    rights: tuple[ApiRight, ...]
    handler: Callable[[Any, Request], Coroutine[Any, Any, Fields | None]]
    changes: bool = False
    reads: bool = False

    @property
    def of_topics(self) -> ApiRight | None:
        return next((right for right in self.rights if right in _OF_TOPICS), None)

    @property
    def of_all(self) -> ApiRight | None:
        return next((right for right in self.rights if right in _OF_ALL), None)

    @property
    def somewhere(self) -> ApiRight | None:
        return next((right for right in self.rights if right in _SOMEWHERE), None)


def checked(rows: Iterable[ApiRow]) -> dict[str, ApiRow]:
    """The rows by their names. Raises TypeError where one says no right, ValueError for one that nobody can check."""
    found: dict[str, ApiRow] = {}
    for row in rows:
        if (
            not isinstance(row, ApiRow)
            or not row.rights
            or not all(isinstance(right, ApiRight) for right in row.rights)
        ):
            raise TypeError(f"{row!r:.200} says no right: write ApiRow(name, (ApiRight.…,), handler)")
        if row.name not in BY_NAME or row.name in found:
            raise ValueError(f"{row.name}: no request of Kafka's is called so, or it has two rows")
        if row.changes and row.reads:
            raise ValueError(f"{row.name}: what changes something goes on without its client: leave `reads`")
        if len(row.rights) > 1 and _ALONE & set(row.rights):
            raise ValueError(f"{row.name}: {next(iter(_ALONE & set(row.rights))).name} goes with no other right")
        if any(len(kind & set(row.rights)) > 1 for kind in (_OF_TOPICS, _OF_ALL)):
            raise ValueError(f"{row.name}: two rights to topics, or to what is of all: leave one")
        found[row.name] = row
    return found


class SignedIn(Protocol):
    """`region_node.faces.kafka.session.login.Login`, as the gate reads it."""

    principal: Principal | None


class RequestGate:
    """Answers for the requests of one connection. name: of a topic that a client names; raises Refused."""

    __slots__ = ("_login", "_name", "_rights", "_rows", "_tenant")

    def __init__(
        self,
        rows: Mapping[str, ApiRow],
        login: SignedIn,
        rights: Authorization,
        namespace: str,
        name: Callable[[str], TopicName],
    ) -> None:
        self._rows, self._login, self._rights, self._name = rows, login, rights, name
        self._tenant = namespace.partition("/")[0]

    @property
    def served(self) -> frozenset[str]:
        """Returns the names of the requests that are answered."""
        return frozenset(self._rows)

    def topic(self, request: Request, kafka: str) -> TopicName:
        """The topic, with which the client may do what the request's row says. Raises Refused, in the same words
        whether it is there or not.
        """
        right, name, principal = self._rows[request.api.name].of_topics, self._name(kafka), self._login.principal
        assert principal is not None
        if right in _ACTIONS:
            allowed, what = self._rights.may(principal, _ACTIONS[right], name), f"{_ACTIONS[right]} {name}"
        elif right is ApiRight.DESCRIBE_TOPIC:
            allowed, what = self._rights.may_look_up(principal, name), f"produce to or consume {name}"
        elif right is ApiRight.DESCRIBE_TOPIC_CONFIGS:
            said, what = (
                self._rights.says_of_topic(principal, AclOperation.DESCRIBE_CONFIGS, name),
                f"see settings of {name}",
            )
            allowed = said is AclAnswer.ALLOWED or (
                said is AclAnswer.SILENT and self._rights.may_look_up(principal, name)
            )
        elif right in _OF_ADMINS:
            allowed, what = self._rights.may_do(principal, _OF_ADMINS[right], name), f"administer {name.tenant}"
        else:
            raise LookupError(f"{request.api.name} asks for a topic, and its row says no right to topics")
        if not allowed:
            raise Refused(Code.TOPIC_AUTHORIZATION_FAILED, f"the role {principal.role!r} may not {what}")
        return name

    def makes(self, name: TopicName) -> bool:
        """Whether the client may make that topic by asking for it."""
        assert self._login.principal is not None
        return self._rights.may_make(self._login.principal, name)

    def of_all(self, request: Request, topic: TopicName | None = None) -> None:
        """What is of the listener's whole namespace, or of the instance, as the row says; topic: of its tenant. Raises
        Refused.
        """
        right, principal = self._rows[request.api.name].of_all, self._login.principal
        assert principal is not None
        if right is ApiRight.SUPER:
            allowed, what = self._rights.is_super(principal), "is no super user"
        elif right is ApiRight.TENANT:
            tenant = self._tenant if topic is None else topic.tenant
            allowed, what = self._rights.administers(principal, tenant), f"does not administer {tenant}"
        else:
            raise LookupError(f"{request.api.name} asks for what is of all, and its row says no such right")
        if not allowed:
            raise Refused(Code.CLUSTER_AUTHORIZATION_FAILED, f"the role {principal.role!r} {what}")

    def somewhere(self, request: Request, code: Code, named: tuple[Resource, str] | None = None) -> None:
        """What names nothing that anybody grants, and wants a grant somewhere, as the row says. named: what an ACL may
        allow and refuse to see. Raises Refused with that code.
        """
        right, principal = self._rows[request.api.name].somewhere, self._login.principal
        assert principal is not None
        if right is None:
            raise LookupError(f"{request.api.name} asks for a grant somewhere, and its row says no such right")
        if named is not None:
            said = self._rights.says(principal, AclOperation.DESCRIBE, self._tenant, *named)
            if said is AclAnswer.REFUSED and self._rights.tenants_of(principal.roles, self._tenant) <= {self._tenant}:
                raise Refused(code, f"an ACL refuses the role {principal.role!r} to see the {named[0]} {named[1]!r}")
            if said is AclAnswer.ALLOWED:
                return
        if not self._rights.has_a_grant(principal, *_SOMEWHERE[right]):
            wanted = " or ".join(_SOMEWHERE[right])
            raise Refused(
                code, f"the role {principal.role!r} may {wanted} nowhere: an admin of a tenant can grant it {wanted}"
            )
