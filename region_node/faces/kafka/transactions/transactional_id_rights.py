"""TransactionalIdRights: which role a transactional id belongs to.

Is: the owner of each producer that a transactional id was given, what ACLs say of the id, and who may use that
producer. Isn't: fencing, which is between producers of one owner (`kafka_transactions`).
Invariants: a transactional id belongs to the role that first initialised it; it, those that an ACL allows the id, and
admins of all tenants in which that role has a grant may use it, and nobody else; an ACL that refuses wins over all but
admins. ACLs are the listener's tenant's, and are about ids of roles that have grants there alone. Where they speak of
ids, a batch is under an id only where that id's record names its producer, whatever its client says. A producer's owner
never changes, so what was read of it once holds. An id of before owners were written down belongs to who initialises it
next. Where nothing is authorized, everybody may, and no owner is written down.
Bounds: PRODUCERS_MAX owners are remembered; the rest is read again.
Source: docs/protocols/kafka.md, "Rights to groups and transactional ids".

    /kafka/producer-owners/{producer}  ->  [1, role]; beside the producer, which brokers of before must be able to read
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from heliograph.kv.metadata_store import MetadataStore, Op, Put
from heliograph.model.configuration.acl_records import AclOperation, Resource
from region_node.faces.kafka.error_codes import Code, Refused
from region_node.faces.kafka.groups.coordinated_group import owner_of, stored_owner
from region_node.faces.kafka.transactions.transactional_id_expiration import owner_key
from region_node.security.authentication.principal import Principal
from region_node.security.authorization.acl_decisions import AclAnswer
from region_node.security.authorization.authorization_service import Action, Authorization

PRODUCERS_MAX = 10_000


class TransactionalIdRights:
    """Answers for the transactional ids of one listener, which is of `tenant`."""

    def __init__(
        self,
        meta: MetadataStore,
        rights: Authorization,
        tenant: str,
        producer_of: Callable[[str], Awaitable[int | None]],
    ) -> None:
        """producer_of: reads which producer a transactional id has now; None: none."""
        self._meta, self._rights, self._tenant, self._producer_of = meta, rights, tenant, producer_of
        self._ids: dict[int, str] = {}
        """Producer -> its transactional id, as that one's record said."""
        self._owners: dict[int, str] = {}
        self._unowned: dict[tuple[int, int], None] = {}
        """(producer, epoch) of those whose owner nobody wrote down: that is done with the next epoch."""

    async def owner(self, producer: int) -> str | None:
        """The role that owns a producer; None: nobody wrote it down. Raises what the metadata raises, CorruptData."""
        if not self._rights.enabled:
            return None
        owner = self._owners.get(producer)
        if owner is None:
            found = await self._meta.get(owner_key(producer))
            if found is None:
                return None
            if len(self._owners) >= PRODUCERS_MAX:
                self._owners.clear()
            owner = self._owners[producer] = owner_of(found[0])
        return owner

    async def check(self, principal: Principal, producer: int, name: str) -> None:
        """name: the id, whose record has that producer, or else the request ends there. Raises Refused where the role
        may not use that producer, and what `owner` raises.
        """
        if self._rights.enabled and not self._may(principal, await self.owner(producer), name):
            raise _refusal(principal, "which is another role's, or which an ACL refuses it")

    async def check_batch(self, principal: Principal, producer: int, epoch: int, name: str) -> None:
        """The same for a batch of that producer, whose epoch is the newest one."""
        if self.knows(principal, producer, epoch, name):
            return
        if not self._is_named(producer, name):
            if await self._producer_of(name) != producer:
                raise _refusal(principal, "which is not the id of this producer")
            if len(self._ids) >= PRODUCERS_MAX:
                self._ids.clear()
            self._ids[producer] = name
        await self.check(principal, producer, name)
        if producer not in self._owners and self._rights.enabled:
            if len(self._unowned) >= PRODUCERS_MAX:
                self._unowned.clear()
            self._unowned[producer, epoch] = None

    def knows(self, principal: Principal, producer: int, epoch: int, name: str) -> bool:
        """Whether it is known here, without a wait, that the role may use that producer."""
        if not self._rights.enabled:
            return True
        if not self._is_named(producer, name):
            return False
        owner = self._owners.get(producer)
        return (owner is not None or (producer, epoch) in self._unowned) and self._may(principal, owner, name)

    def check_new(self, principal: Principal, name: str) -> None:
        """Whether the role may make a transactional id that nobody has. Raises Refused."""
        said = self._says(principal, None, name)
        if said is AclAnswer.REFUSED:
            raise _refusal(principal, "which an ACL refuses it")
        if said is AclAnswer.SILENT and not self._rights.has_a_grant(principal, Action.PRODUCE, at=self._tenant):
            raise _refusal(
                principal, "because it may produce nowhere: an admin of a tenant can grant it produce, by its name"
            )

    async def claim(self, principal: Principal | None, before: int, producer: int) -> list[Op]:
        """What is to be written with a record that gets this producer, which was `before` until now; -1: none.
        Nothing, where its owner is written down. Raises what `owner` raises.
        """
        owner = await self.owner(before) if before >= 0 else None
        if not self._rights.enabled or principal is None or (owner is not None and before == producer):
            return []
        return [Put(owner_key(producer), stored_owner(owner or principal.role))]

    def _is_named(self, producer: int, name: str) -> bool:
        """Whether nobody asks what the producer's id is, or it is known to be that one."""
        return self._ids.get(producer) == name or not self._rights.acls_are_about(
            self._tenant, Resource.TRANSACTIONAL_ID
        )

    def _tenants(self, principal: Principal, owner: str | None) -> set[str]:
        """Those that an id of that owner belongs to; owner None: it is the role's, or will be. Empty: the owner has no
        grant left.
        """
        if owner in (None, principal.role):
            return self._rights.tenants_of(principal.roles, self._tenant) or {self._tenant}
        return self._rights.tenants_of((owner,), self._tenant)

    def _says(self, principal: Principal, owner: str | None, name: str) -> AclAnswer:
        said = self._rights.says(principal, AclOperation.WRITE, self._tenant, Resource.TRANSACTIONAL_ID, name)
        if said is AclAnswer.SILENT or self._tenants(principal, owner) == {self._tenant}:
            return said
        return AclAnswer.SILENT

    def _may(self, principal: Principal, owner: str | None, name: str) -> bool:
        if principal.internal:
            return True
        said = self._says(principal, owner, name)
        if said is not AclAnswer.SILENT:
            return said is AclAnswer.ALLOWED
        if owner in (None, principal.role):
            return self._rights.has_a_grant(principal, at=self._tenant)
        return self._rights.administers_all(principal, self._tenants(principal, owner))


def _refusal(principal: Principal, why: str) -> Refused:
    return Refused(
        Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        f"the role {principal.role!r} may not use this transactional id, {why}",
    )
