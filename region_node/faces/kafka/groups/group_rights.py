"""GroupRights: which roles may use which consumer group.

Is: the owner of a group, the topics that it is about, the tenants that it belongs to, what ACLs say of it, and the
answer, kept until one of them or the rules change.
Isn't: a right to a topic (`region_node.security.authorization`), or storage (`group_coordinator`).
Invariants: a group is used by the role that made it, by roles that may consume every one of its topics, by those that
an ACL allows it, and by admins of all tenants that it belongs to, and by nobody else; an ACL that refuses wins over all
but admins. It is about what its members subscribe to and what it has offsets of, and belongs to the tenants of these
topics; without any, to those in which its owner has a grant. The listener's tenant has no say by being that: its ACLs
allow a group that belongs to it alone, and refuse one that has topics of it, or belongs to it alone. A group without
members and offsets is nobody's: who joins it first owns it. A member names only topics that it may consume. Where
nothing is authorized, everybody may, and no owner is written down.
Bounds: an answer is a look-up, except behind a change of the rules, the members, or the partitions: then others have
their turn between its topics, and who asks for the same group waits for what is being found. It is the answer of when
it was begun: a later change holds from the next request on.
Source: docs/protocols/kafka.md, "Rights to groups and transactional ids".
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from weakref import WeakValueDictionary

from heliograph.model.configuration.acl_records import AclOperation, Resource
from heliograph.model.topic_names import TopicName
from heliograph.runtime.throttle import RowPace
from region_node.faces.kafka.error_codes import Code, Refused
from region_node.faces.kafka.groups.consumer_group import Protocols
from region_node.faces.kafka.groups.coordinated_group import CoordinatedGroup, GroupAccess, ListedGroup, Stamp
from region_node.faces.kafka.groups.group_regions import CONSUMERS, ROWS_A_TOPIC, named_in, parsed
from region_node.security.authentication.principal import Principal
from region_node.security.authorization.acl_decisions import AclAnswer
from region_node.security.authorization.authorization_service import Action, Authorization

ANSWERS_MAX = 1_000
"""Of one group."""


async def named(protocol_type: str, protocols: Protocols) -> dict[str, None]:
    """Topics that a member names when it joins."""
    if protocol_type != CONSUMERS:
        return {}
    return await named_in(dict.fromkeys(metadata for _, metadata in protocols))


class GroupRights:
    """Answers for the groups of one listener. name: of a topic that a client names; raises Refused."""

    def __init__(self, rights: Authorization, namespace: str, name: Callable[[str], TopicName]) -> None:
        self._rights, self._name = rights, name
        self._tenant, _, self._namespace = namespace.partition("/")
        self._locks = WeakValueDictionary[str, asyncio.Lock]()
        """Of groups whose topics, or answers, are being found."""

    async def check_join(
        self, principal: Principal, held: CoordinatedGroup, names: Collection[str]
    ) -> Collection[TopicName]:
        """Whether a member of that role may name these topics, and no ACL refuses it the group: comes before anybody
        hears of a topic that was named. Returns the topics. Raises Refused.
        """
        if not self._rights.enabled:
            return ()
        topics, pace = await parsed(names, self._name), RowPace()
        if await self._says_of_join(principal, held, topics) is AclAnswer.REFUSED:
            raise _refusal(principal, held)
        for topic in topics:
            await pace.rows(ROWS_A_TOPIC)
            if not self._rights.may(principal, Action.CONSUME, topic):
                raise Refused(
                    Code.GROUP_AUTHORIZATION_FAILED,
                    f"the role {principal.role!r} may not consume {topic}, which it names: grant it consume there",
                )
        return topics

    async def join(self, principal: Principal, held: CoordinatedGroup, topics: Collection[TopicName]) -> None:
        """Lets a member of that role in, with what `check_join` returned; a group that is nobody's is its from now on.
        Raises Refused.
        """
        if not self._rights.enabled:
            return
        said = await self._says_of_join(principal, held, topics)
        if said is AclAnswer.REFUSED:
            raise _refusal(principal, held)
        if nobodys(held):
            if not topics and said is AclAnswer.SILENT and not self._rights.has_a_grant(principal, at=self._tenant):
                raise Refused(
                    Code.GROUP_AUTHORIZATION_FAILED,
                    f"the role {principal.role!r} has no grant anywhere: an admin of a tenant can grant it consume, by "
                    "its name",
                )
            held.access.owner = principal.role
            return
        await self.check(principal, held)
        if held.access.owner is None:
            held.access.owner = principal.role
            held.access.forget()

    async def check(
        self, principal: Principal, held: CoordinatedGroup, operation: AclOperation = AclOperation.READ
    ) -> None:
        """Raises Refused where `may` says no."""
        if not await self.may(principal, held, operation):
            raise _refusal(principal, held)

    async def may(
        self, principal: Principal, held: CoordinatedGroup, operation: AclOperation = AclOperation.READ
    ) -> bool:
        """Whether the role may use it, or see it (DESCRIBE); one that is nobody's has nothing to see."""
        if not self._rights.enabled or principal.internal:
            return True
        answer = self._kept(principal, held, operation)
        if answer is None:
            async with self._locks.setdefault(held.group.name, asyncio.Lock()):
                answer = self._kept(principal, held, operation)  # who had the lock may have found it
                if answer is None:
                    access = await self._known(held)
                    who = (principal.roles, principal.host if access.by_host else "", operation)
                    answer = await self._answer(principal, held, operation)
                    access.keep(who, answer, ANSWERS_MAX)
        return answer

    def by_name(self, principal: Principal, group: str, operation: AclOperation) -> bool | None:
        """Whether the role may, before anything of the group is loaded; None: its owner and its topics decide (`may`).
        A role without any grant has no group's topics, and none of its own; one with grants in the listener's tenant
        alone is refused by its ACLs.
        """
        rights = self._rights
        if rights.is_super(principal):
            return True
        said = rights.says(principal, operation, self._tenant, Resource.GROUP, group)
        if said is AclAnswer.REFUSED and rights.tenants_of(principal.roles, self._tenant) <= {self._tenant}:
            return False
        return None if said is AclAnswer.ALLOWED or rights.has_a_grant(principal) else False

    async def rules_out(self, principal: Principal, group: str, listed: ListedGroup, operation: AclOperation) -> bool:
        """Whether what is stored of a group, of which `by_name` knows no answer, is enough to say that the role may not
        use it, without loading it: it is no group of the role's, no ACL allows it, and it has offsets of a topic that
        the role may not consume.
        """
        said = self._rights.says(principal, operation, self._tenant, Resource.GROUP, group)
        if principal.role == listed.owner or said is AclAnswer.ALLOWED:
            return False
        pace = RowPace()
        for topic in await parsed(listed.topics, self._name):
            await pace.rows(ROWS_A_TOPIC)
            if not self._rights.may(principal, Action.CONSUME, topic):
                return True
        return False

    def _kept(self, principal: Principal, held: CoordinatedGroup, operation: AclOperation) -> bool | None:
        """The answer, where it was found before and holds still."""
        access = held.access
        if access.stamp != self._stamp(held):
            return None
        who = (principal.roles, principal.host if access.by_host else "", operation)
        answer = access.allowed.get(who)
        if answer is None and (answer := access.allowed_before.get(who)) is not None:
            access.keep(who, answer, ANSWERS_MAX)
        return answer

    async def check_deletes(self, principal: Principal, held: CoordinatedGroup) -> None:
        """Whether the role may delete it, or offsets of it: it administers all tenants that the group belongs to, or an
        ACL allows it. Raises Refused.
        """
        async with self._locks.setdefault(held.group.name, asyncio.Lock()):
            topics = (await self._known(held)).topics
        tenants = self._tenants(principal, held, topics)
        if self._rights.administers_all(principal, tenants):
            return
        if self._says(principal, held, topics, AclOperation.DELETE) is not AclAnswer.ALLOWED:
            named = ", ".join(sorted(tenants)) or "none"
            raise Refused(
                Code.GROUP_AUTHORIZATION_FAILED,
                f"the role {principal.role!r} does not administer all tenants that the group belongs to ({named})",
            )

    def _stamp(self, held: CoordinatedGroup) -> Stamp:
        return self._rights.changes, held.group.subscription_changes, held.offsets.key_changes

    async def _known(self, held: CoordinatedGroup) -> GroupAccess:
        """Finds its topics where they may have changed, under the group's lock."""
        access, stamp = held.access, self._stamp(held)
        if access.stamp != stamp:
            names = dict.fromkeys(topic for topic, _ in held.offsets.rows)
            metadata = {each for member in held.group.members.values() for each in member.protocols}
            names |= await named(held.group.protocol_type, list(metadata))
            access.topics, access.stamp = await parsed(names, self._name), stamp
            tenants = {self._tenant, *(topic.tenant for topic in access.topics)}
            access.by_host = any(map(self._rights.acls_name_hosts, tenants))
            access.forget()
        return access

    def _tenants(self, principal: Principal, held: CoordinatedGroup, topics: Collection[TopicName]) -> set[str]:
        """Those that the group belongs to, which is about these topics; of one that is nobody's, those that it would
        belong to if that role made it. Empty: its owner has no grant left.
        """
        if topics:
            return {topic.tenant for topic in topics}
        owner = held.access.owner
        if nobodys(held) or owner == principal.role:
            return self._rights.tenants_of(principal.roles, self._tenant) or {self._tenant}
        return {self._tenant} if owner is None else self._rights.tenants_of((owner,), self._tenant)

    def _says(
        self, principal: Principal, held: CoordinatedGroup, topics: Collection[TopicName], operation: AclOperation
    ) -> AclAnswer:
        """What ACLs of the listener's tenant say, as far as the group is its; topics: what the group is about."""
        said = self._rights.says(principal, operation, self._tenant, Resource.GROUP, held.group.name)
        if said is AclAnswer.SILENT or self._tenants(principal, held, topics) == {self._tenant}:
            return said
        some = any(topic.tenant == self._tenant for topic in topics)
        return said if some and said is AclAnswer.REFUSED else AclAnswer.SILENT

    async def _says_of_join(
        self, principal: Principal, held: CoordinatedGroup, topics: Collection[TopicName]
    ) -> AclAnswer:
        """The same to who joins, and names these topics."""
        if not self._rights.acls_are_about(self._tenant, Resource.GROUP):
            return AclAnswer.SILENT
        if not nobodys(held):
            async with self._locks.setdefault(held.group.name, asyncio.Lock()):
                topics = (await self._known(held)).topics
        return self._says(principal, held, topics, AclOperation.READ)

    async def _answer(self, principal: Principal, held: CoordinatedGroup, operation: AclOperation) -> bool:
        rights, access = self._rights, held.access
        said = self._says(principal, held, access.topics, operation)
        if said is not AclAnswer.SILENT:
            return said is AclAnswer.ALLOWED
        if nobodys(held):
            return True
        # no owner and no topics: nobody wrote down whose it is, as it was made before this was so
        of_its_own = principal.role == access.owner or (access.owner is None and not access.topics)
        if of_its_own and rights.has_a_grant(principal, at=self._tenant):
            return True
        tenants, topics = self._tenants(principal, held, access.topics), access.topics
        if rights.administers_all(principal, tenants):
            return True
        if not topics:
            if tenants != {self._tenant}:
                return False
            topics = [TopicName("persistent", self._tenant, self._namespace, f"__group__{held.group.name}")]
        pace = RowPace()
        for topic in topics:
            await pace.rows(ROWS_A_TOPIC)
            if not rights.may(principal, Action.CONSUME, topic):
                return False
        return True


def _refusal(principal: Principal, held: CoordinatedGroup) -> Refused:
    return Refused(
        Code.GROUP_AUTHORIZATION_FAILED,
        f"the role {principal.role!r} may not use the group {held.group.name!r}: grant it consume on each of the "
        "group's topics, or let an ACL allow it the group, and none refuse it",
    )


def nobodys(held: CoordinatedGroup) -> bool:
    """Whether it has neither members nor, as far as its coordinator has read, offsets."""
    return not held.group.members and not held.offsets.rows
