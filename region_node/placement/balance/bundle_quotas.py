"""QuotaBook: what an operator sets aside for bundles, whatever they use.

Is: the quotas of the region's local metadata (/quotas/), and what each bundle has of them. Isn't: a limit of traffic:
that is a rate of the namespace, or a resource group.
Rule: a quota that is not `dynamic` counts as load from the first moment: a bundle weighs at least that, where it is
placed and where bundles are shed; so room is kept for what is to come. A `dynamic` one says what was expected; what is
measured counts alone.
A quota belongs to a hash range. After a split each part has its part of it, by its width.
Invariants: a value that cannot be read (of a newer version, or damaged) leaves the last good one in place.
Source: Pulsar's ResourceQuota and /admin/v2/resource-quotas; docs/protocols/balancing.md, "Quotas".
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from heliograph.kv.metadata_store import MetadataStore
from heliograph.model.bundles import BundleTable
from heliograph.model.errors import CorruptData
from local_meta import keys
from region_node.placement.balance.broker_capacity import Capacity, ResourceQuota
from region_node.placement.balance.load_shedding import Bundle

log = logging.getLogger("region_node.balance.quotas")


class QuotaBook:
    """Watches from `start` on. table: the bundles of a namespace; None: it is not served here."""

    def __init__(self, meta: MetadataStore, table: Callable[[str], BundleTable | None], capacity: Capacity) -> None:
        self.default = ResourceQuota()
        self._meta, self._table, self._capacity = meta, table, capacity
        self._quotas: dict[str, dict[tuple[int, int], ResourceQuota]] = {}
        """Namespace -> [low, high) -> what is set aside for it."""
        self._stop: Callable[[], None] = lambda: None

    def start(self) -> None:
        self._stop = self._meta.watch(keys.QUOTAS, self._on_key)

    def stop(self) -> None:
        self._stop()

    def of(self, namespace: str, bounds: tuple[int, int]) -> ResourceQuota:
        """Returns the quota of exactly that hash range, [low, high); the region's default where it has none."""
        return self._quotas.get(namespace, {}).get(bounds, self.default)

    def share(self, bundle: Bundle) -> float:
        """What is set aside for a bundle, of a broker: its own quota, or its part of one that a larger bundle had
        before a split.
        """
        table = self._table(bundle[0])
        if table is None or bundle[1] >= table.count:
            return 0.0
        low, high = table.range(bundle[1])
        named = self._quotas.get(bundle[0], {})
        if not named:
            return self._reserved(self.default)
        total, covered = 0.0, 0
        for (begin, end), quota in named.items():
            width = min(high, end) - max(low, begin)
            if width > 0:
                covered += width
                total += self._reserved(quota) * width / (end - begin)
        return total if covered else self._reserved(self.default)

    def _reserved(self, quota: ResourceQuota) -> float:
        return 0.0 if quota.dynamic else self._capacity.share(quota)

    async def put(self, namespace: str, bounds: tuple[int, int], quota: ResourceQuota) -> None:
        """namespace "": the default. Raises MetadataUnavailable."""
        await self._meta.put(keys.quota(namespace, *bounds) if namespace else keys.QUOTA_DEFAULT, quota.encode())

    async def delete(self, namespace: str, bounds: tuple[int, int]) -> bool:
        """The default holds again. Returns whether there was one. Raises MetadataUnavailable."""
        return await self._meta.delete(keys.quota(namespace, *bounds))

    def _on_key(self, key: str, value: bytes | None, version: int) -> None:
        try:
            quota = ResourceQuota.decode(value) if value is not None else None
        except CorruptData as error:
            log.error("balance.quota_unknown", extra={"key": key, "error": str(error)})
            return
        if key == keys.QUOTA_DEFAULT:
            self.default = quota or ResourceQuota()
            return
        namespace, bounds = keys.quota_of(key)
        if quota is not None:
            self._quotas.setdefault(namespace, {})[bounds] = quota
        elif namespace in self._quotas:
            self._quotas[namespace].pop(bounds, None)
            if not self._quotas[namespace]:
                del self._quotas[namespace]
