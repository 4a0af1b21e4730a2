"""TransactionalIdRights: which role a transactional id belongs to.

Is: the owner of each producer that a transactional id was given, and who may use that producer. Isn't: fencing, which
is between producers of one owner (`kafka_transactions`).
Invariants: a transactional id belongs to the role that first initialised it; it, and admins of the listener's tenant,
may use it, and nobody else. A producer's owner never changes, so what was read of it once holds. An id of before owners
were written down belongs to who initialises it next. Where nothing is authorized, everybody may, and no owner is
written down.
Bounds: PRODUCERS_MAX owners are remembered; the rest is read again.
Source: docs/protocols/kafka.md, "Rights to groups and transactional ids".

    /kafka/producer-owners/{producer}  ->  [1, role]; beside the producer, which brokers of before must be able to read
"""

from __future__ import annotations

import msgpack

from heliograph.kv.metadata_store import MetadataStore, Op, Put
from heliograph.model.errors import CorruptData
from region_node.faces.kafka.error_codes import Code, Refused
from region_node.faces.kafka.transactions.transactional_id_expiration import owner_key
from region_node.security.authentication.principal import Principal
from region_node.security.authorization.authorization_service import Action, Authorization

FORMAT = 1
PRODUCERS_MAX = 10_000


class TransactionalIdRights:
    """Answers for the transactional ids of one listener, which is of `tenant`."""

    def __init__(self, meta: MetadataStore, rights: Authorization, tenant: str) -> None:
        self._meta, self._rights, self._tenant = meta, rights, tenant
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
            owner = self._owners[producer] = _decoded(found[0])
        return owner

    async def check(self, principal: Principal, producer: int) -> None:
        """Raises Refused where the role may not use that producer, and what `owner` raises."""
        if self._rights.enabled and not self._may(principal, await self.owner(producer)):
            raise _refusal(principal, "which is another role's")

    async def check_batch(self, principal: Principal, producer: int, epoch: int) -> None:
        """The same for a batch of that producer, whose epoch is the newest one."""
        if self.knows(principal, producer, epoch):
            return
        await self.check(principal, producer)
        if producer not in self._owners and self._rights.enabled:
            if len(self._unowned) >= PRODUCERS_MAX:
                self._unowned.clear()
            self._unowned[producer, epoch] = None

    def knows(self, principal: Principal, producer: int, epoch: int) -> bool:
        """Whether it is known here, without a wait, that the role may use that producer."""
        if not self._rights.enabled:
            return True
        owner = self._owners.get(producer)
        return (owner is not None or (producer, epoch) in self._unowned) and self._may(principal, owner)

    def check_new(self, principal: Principal) -> None:
        """Whether the role may make a transactional id that nobody has. Raises Refused."""
        if not self._rights.has_a_grant(principal, Action.PRODUCE):
            raise _refusal(principal, "because it may produce nowhere: an admin of a tenant can grant it produce")

    async def claim(self, principal: Principal | None, before: int, producer: int) -> list[Op]:
        """What is to be written with a record that gets this producer, which was `before` until now; -1: none.
        Nothing, where its owner is written down. Raises what `owner` raises.
        """
        owner = await self.owner(before) if before >= 0 else None
        if not self._rights.enabled or principal is None or (owner is not None and before == producer):
            return []
        packed: bytes = msgpack.packb([FORMAT, owner or principal.role])
        return [Put(owner_key(producer), packed)]

    def _may(self, principal: Principal, owner: str | None) -> bool:
        return (
            principal.internal
            or self._rights.administers(principal, self._tenant)
            or (owner in (None, principal.role) and self._rights.has_a_grant(principal))
        )


def _refusal(principal: Principal, why: str) -> Refused:
    return Refused(
        Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        f"the role {principal.role!r} may not use this transactional id, {why}",
    )


def _decoded(blob: bytes) -> str:
    try:
        number, owner = msgpack.unpackb(blob)
    except (ValueError, TypeError, msgpack.exceptions.UnpackException) as error:
        raise CorruptData(f"owner of a producer: {error}") from error
    if number != FORMAT or not isinstance(owner, str):
        raise CorruptData(f"owner of a producer: format {number}; this version reads {FORMAT}")
    return owner
