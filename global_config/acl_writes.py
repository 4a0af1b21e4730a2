"""AclWrites: the writes to the ACLs of tenants, each one a checked transaction.

Is: compare-and-set of all ACLs of one tenant, and how much there may be. Isn't: the record
(`heliograph.model.configuration.acl_records`), who may call it, or what an ACL opens
(`region_node.security.authorization`).
Invariants: a tenant's ACLs end with it, and those of a namespace's topics with the namespace: what is written names
namespaces that are there when the write commits, and what is made has no ACLs from before.
Source: docs/protocols/kafka.md, "ACLs".
"""

from __future__ import annotations

from collections.abc import Callable

from global_config import keys
from global_config.write_retries import Tries, busy
from heliograph.kv.metadata_store import ABSENT, Check, Delete, MetadataStore, Op, Put
from heliograph.model.configuration.acl_records import AclRecord, TenantAcls, unreadable
from heliograph.model.errors import CorruptData, NotAllowed, NotFound, VersionConflict
from heliograph.runtime.clock import Rng

RECORDS_MAX = 1_000
BYTES_MAX = 256 * 1024

Records = tuple[AclRecord, ...]


class AclWrites:
    """Over a linearizable store of the global configuration. Every call raises MetadataUnavailable, OutcomeUnknown."""

    def __init__(self, store: MetadataStore, rng: Rng | None = None) -> None:
        self._store, self._rng = store, rng

    async def change(self, tenant: str, change: Callable[[Records], Records]) -> Records:
        """Applies `change` (it may be called several times). Returns what was there before. Raises NotFound (the
        tenant, or a namespace that a new one is about), NotAllowed (there would be too many), CorruptData.
        """
        async for _ in Tries(self._rng):
            known, stored = await self._store.get(keys.tenant(tenant)), await self._store.get(keys.acls(tenant))
            if known is None:
                raise NotFound(f"tenant {tenant!r} does not exist")
            before = () if stored is None else _records(tenant, stored[0])
            after = tuple(sorted(set(change(before))))
            if after == before:
                return before
            version = ABSENT if stored is None else stored[1]
            write: Op = Put(keys.acls(tenant), _bounded(tenant, after, before), version)
            if not after:
                write = Delete(keys.acls(tenant), version)
            namespaces = {record.namespace for record in set(after).difference(before)} - {""}
            try:
                await self._store.txn([Check(keys.tenant(tenant), known[1]), *await self._there(namespaces), write])
            except VersionConflict:
                continue
            return before
        raise busy()

    async def _there(self, namespaces: set[str]) -> list[Op]:
        """The checks that they are still there. Raises NotFound."""
        checks: list[Op] = []
        for namespace in sorted(namespaces):
            found = await self._store.get(keys.namespace(namespace))
            if found is None:
                raise NotFound(f"namespace {namespace!r} does not exist: create it before ACLs of its topics")
            checks.append(Check(keys.namespace(namespace), found[1]))
        return checks

    async def drop_unreadable(self, tenant: str) -> bool:
        """Deletes a tenant's ACLs where they cannot be read. Returns whether it was so."""
        async for _ in Tries(self._rng):
            stored = await self._store.get(keys.acls(tenant))
            if stored is None:
                return False
            try:
                _records(tenant, stored[0])
            except CorruptData:
                pass
            else:
                return False
            try:
                await self._store.delete(keys.acls(tenant), expected=stored[1])
            except VersionConflict:
                continue
            return True
        raise busy()

    async def without(self, namespace: str) -> list[Op]:
        """What is to be written with the end of a namespace, and with its beginning, as an earlier version may have
        left some behind. Raises CorruptData.
        """
        tenant = namespace.partition("/")[0]
        stored = await self._store.get(keys.acls(tenant))
        if stored is None:
            return [Check(keys.acls(tenant), ABSENT)]
        before = _records(tenant, stored[0])
        left = tuple(record for record in before if record.namespace != namespace)
        if left == before:
            return [Check(keys.acls(tenant), stored[1])]
        if not left:
            return [Delete(keys.acls(tenant), stored[1])]
        return [Put(keys.acls(tenant), TenantAcls(records=left).encode(), stored[1])]


def _records(tenant: str, value: bytes) -> Records:
    """Raises CorruptData, with what is to be done."""
    try:
        return TenantAcls.decode(value).records
    except CorruptData as error:
        raise CorruptData(unreadable(tenant, str(error))) from error


def _bounded(tenant: str, records: Records, before: Records) -> bytes:
    """Raises NotAllowed. What makes them fewer is always taken."""
    value = TenantAcls(records=records).encode()
    if (len(records) > RECORDS_MAX or len(value) > BYTES_MAX) and not set(records) < set(before):
        raise NotAllowed(
            f"tenant {tenant!r} would have {len(records)} ACLs of {len(value)} bytes, and may have {RECORDS_MAX} of "
            f"{BYTES_MAX}: delete those that are needed no more, or name many topics at once by a prefix"
        )
    return value
