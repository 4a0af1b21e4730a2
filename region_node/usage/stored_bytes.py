"""StoredBytes: how much each tenant stores in the region, loaded or not; and which tenants have as much as they may.

Is: a walk over the metadata of all topics by one broker at a time, now and then; what it found, in the region's
metadata for the others; the verdict, at every broker. Isn't: what a quota is (`TenantQuota`), or what a full tenant's
topics do (the policy `storageFull`).
Invariants: a closed ledger counts at the broker that walked last, an open one at the broker that writes it, so that the
brokers' sums add up to the region's; a walk takes at most a tenth of a core, however many topics there are; a tenant
that could not be counted is not called full.
Keys: /usage/stored/{tenant}: JSON [bytes of closed ledgers, wall ms].
Source: docs/operating/tenants.md.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Mapping

from heliograph.kv.metadata_store import MetadataStore, prefix_end, rows_under
from heliograph.kv.unreadable_records import readable
from heliograph.model.configuration.configuration_records import TenantQuota
from heliograph.model.errors import CorruptData, HeliographError
from heliograph.model.ledger_metadata import ManagedLedgerMetadata
from heliograph.model.topic_names import TopicName
from heliograph.runtime.clock import Clock
from heliograph.runtime.every import every
from heliograph.runtime.task_set import TaskSet
from local_meta import keys
from region_node.usage.settings import UsageSettings
from region_node.usage.tenant_usage import Usage

log = logging.getLogger("region_node.usage")

STORED = "/usage/stored/"
_PAGE = 200
_REST = 9.0
"""Times what a page took, until the next: a tenth of a core."""


class StoredBytes:
    """One broker's. open_bytes: tenant -> of the ledgers that are open here. walks: whether it is the one that counts.
    quotas: of all tenants that have one.
    tell_full: the tenants that are full, when they change.
    """

    def __init__(
        self,
        meta: MetadataStore,
        usage: Usage,
        open_bytes: Callable[[], Awaitable[Mapping[str, int]]],
        *,
        walks: Callable[[], bool],
        quotas: Callable[[], dict[str, TenantQuota]],
        tell_full: Callable[[frozenset[str]], None],
        clock: Clock,
        settings: UsageSettings,
    ) -> None:
        self._meta, self._usage, self._open_bytes, self._walks, self._quotas, self._tell_full = (
            meta,
            usage,
            open_bytes,
            walks,
            quotas,
            tell_full,
        )
        self._clock, self._settings = clock, settings
        self._walked_at: float | None = None
        self._full: frozenset[str] = frozenset()
        self._tasks = TaskSet("what tenants store has ended")

    def start(self) -> None:
        self._tasks.spawn(every(self._settings.quota_s, self.sweep, first_s=0, failed=self._put_off))

    async def stop(self) -> None:
        await self._tasks.close()

    async def of(self, tenant: str) -> int:
        """Closed ledgers of the whole region as of the last walk, and the open ones of this broker."""
        found = await self._meta.get(STORED + tenant)
        closed = None if found is None else readable(_closed, STORED + tenant, found[0])
        return (closed or 0) + self._usage.open_bytes(tenant)

    def _put_off(self, error: HeliographError) -> None:
        log.info("stored_bytes.put_off", extra={"error": str(error)})

    async def sweep(self) -> None:
        """Walks where it is this broker's to do, and due; judges every tenant with a quota."""
        if not self._walks():
            self._walked_at = None
            self._usage.closed({})
        elif self._walked_at is None or self._clock.monotonic() >= self._walked_at + self._due_s():
            begun = self._clock.monotonic()
            self._usage.closed(await self._tell(await self._walk()))
            self._walked_at = begun
        if any(quota.max_storage_bytes for quota in self._quotas().values()):
            self._usage.stored(await self._open_bytes())
        await self._judge()

    def _due_s(self) -> float:
        """Often only where a verdict hangs on it."""
        bound = any(quota.max_storage_bytes for quota in self._quotas().values())
        return self._settings.quota_s if bound else self._settings.stored_s

    async def _walk(self) -> dict[str, int]:
        """Tenant -> bytes of the closed ledgers of its topics."""
        found: dict[str, int] = {}
        at, end = keys.MANAGED_LEDGERS, prefix_end(keys.MANAGED_LEDGERS)
        while page := await self._meta.range(at, end, limit=_PAGE):
            begun = self._clock.monotonic()
            for key, blob, _ in page:
                if (topic := readable(ManagedLedgerMetadata.decode, key, blob)) is None:
                    continue
                tenant = TopicName.parse(keys.topic_of(key)).tenant
                found[tenant] = found.get(tenant, 0) + closed_bytes(topic)
            at = page[-1][0] + "\0"
            await asyncio.sleep(_REST * (self._clock.monotonic() - begun))
        return found

    async def _tell(self, found: dict[str, int]) -> dict[str, int]:
        for key, _, _ in await rows_under(self._meta, STORED):
            if key.removeprefix(STORED) not in found:
                await self._meta.delete(key)
        for tenant, size in found.items():
            await self._meta.put(STORED + tenant, json.dumps([size, self._clock.wall_ms()]).encode())
        return found

    async def _judge(self) -> None:
        over = [
            tenant
            for tenant, quota in self._quotas().items()
            if quota.max_storage_bytes and await self.of(tenant) >= quota.max_storage_bytes
        ]
        full = frozenset(over)
        if full != self._full:
            for tenant in sorted(full - self._full):
                log.warning(
                    "tenant.full",
                    extra={
                        "tenant": tenant,
                        "stored_bytes": await self.of(tenant),
                        "may": self._quotas()[tenant].max_storage_bytes,
                    },
                )
            for tenant in sorted(self._full - full):
                log.warning("tenant.has_room_again", extra={"tenant": tenant})
            self._full = full
            self._tell_full(full)


def closed_bytes(metadata: ManagedLedgerMetadata) -> int:
    return sum(page.size_bytes for page in metadata.pages) + sum(
        info.size_bytes for info in metadata.ledgers if info.closed_ms
    )


def _closed(blob: bytes) -> int:
    """The bytes of closed ledgers that the last walk found. Raises CorruptData."""
    try:
        return int(json.loads(blob)[0])
    except (ValueError, TypeError, LookupError) as error:
        raise CorruptData(f"what a tenant stores: {error}") from error
