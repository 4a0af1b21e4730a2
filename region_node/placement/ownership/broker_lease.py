"""BrokerLease: keeps a broker registered under a lease of its region's metadata, and says when it has one and when that
is lost.

Is: the grant, the registration, the renewals, and the judgement that a lease is gone. Isn't: what a broker does with
its bundles then (`ownership_service`).
Invariants: a broker that was told to end is not registered again; who does not know whether its lease lives counts it
as lost after `lease_grace_s`.
Source: docs/protocols/ownership.md, "Leases".
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import replace

from heliograph.kv.metadata_store import MetadataStore
from heliograph.model.errors import HeliographError, LeaseLost
from heliograph.runtime.clock import Clock, Rng
from local_meta import keys
from region_node.placement.ownership.broker_records import BrokerRecord
from region_node.placement.ownership.ownership_core import OwnershipSettings

log = logging.getLogger("region_node.ownership.lease")


class BrokerLease:
    """Registers one broker for as long as the task that runs `keep` does."""

    def __init__(
        self,
        meta: MetadataStore,
        settings: OwnershipSettings,
        clock: Clock,
        rng: Rng,
        *,
        ending: Callable[[], bool],
        holds: Callable[[], bool],
        granted: Callable[[BrokerRecord], None],
        lost: Callable[[], None],
    ) -> None:
        """ending: whether the broker was told to end; holds: whether it has bundles still, which hang on the lease.
        granted: told once it is registered.
        """
        self._meta, self._settings, self._clock, self._rng = meta, settings, clock, rng
        self._ending, self._holds, self._granted, self._lost = ending, holds, granted, lost

    async def keep(self, record: BrokerRecord) -> None:
        """Registers the broker as `record`, anew whenever the lease was lost; returns once it was told to end and holds
        nothing any more.
        """
        while not self._ending():
            try:
                lease = await self._meta.grant(self._settings.lease_ttl_ms)
                record = replace(record, lease=lease)
                await self._meta.put(keys.broker(record.broker), record.encode(), lease=lease)
            except HeliographError as error:
                log.warning("ownership.lease_refused", extra={"broker": record.broker, "error": str(error)})
                await asyncio.sleep(self._rng.uniform(0.1, 0.5))
                continue
            if self._ending():  # meanwhile: its registration was taken away before it was there
                with contextlib.suppress(HeliographError):  # then it ends by itself
                    await self._meta.revoke(lease)
                return
            self._granted(record)
            await self._renew_until_lost(record)
            if not self._ending():
                self._lost()

    async def _renew_until_lost(self, record: BrokerRecord) -> None:
        """Returns when the lease is gone, or the metadata has not answered for so long that others have surely
        followed.
        """
        renewed = self._clock.monotonic()
        while not (self._ending() and not self._holds()):
            await asyncio.sleep(self._settings.lease_ttl_ms / 3000)
            asked = self._clock.monotonic()
            try:
                await self._meta.renew(record.lease)
                renewed = asked
            except LeaseLost:
                return
            except HeliographError as error:
                log.warning("ownership.renewal_failed", extra={"broker": record.broker, "error": str(error)})
                if self._clock.monotonic() - renewed > self._settings.lease_grace_s:
                    return
