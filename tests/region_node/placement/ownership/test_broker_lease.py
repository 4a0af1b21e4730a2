"""A broker's registration: there while its lease is, anew when that was lost, and never after the broker was told to
end.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

from heliograph.kv.in_process_store import EmbeddedStore
from heliograph.runtime.clock import SystemClock
from local_meta import keys
from region_node.placement.ownership.broker_lease import BrokerLease
from region_node.placement.ownership.broker_records import BrokerRecord
from region_node.placement.ownership.ownership_core import OwnershipSettings


class Store(EmbeddedStore):
    """`on_put`: called when a registration is under way, before it is there."""

    def __init__(self) -> None:
        super().__init__()
        self.on_put: Callable[[], None] = lambda: None

    async def put(self, key: str, value: bytes, *, expected: int | None = None, lease: int = 0) -> int:
        self.on_put()
        return await super().put(key, value, expected=expected, lease=lease)


class Broker:
    def __init__(self) -> None:
        self.store = Store()
        self.ending, self.lost = False, 0
        self.leases: list[int] = []
        self.registered = asyncio.Event()
        self.lease = BrokerLease(
            self.store,
            OwnershipSettings(lease_ttl_ms=100),
            SystemClock(),
            random.Random(1),
            ending=lambda: self.ending,
            holds=lambda: False,
            granted=self._granted,
            lost=self._lost,
        )

    def _granted(self, record: BrokerRecord) -> None:
        self.leases.append(record.lease)
        self.registered.set()

    def _lost(self) -> None:
        self.lost += 1

    async def keep(self) -> None:
        await self.lease.keep(BrokerRecord("b", {"": "pulsar://b:6650"}, "http://b:8080", 1))

    async def record(self) -> BrokerRecord | None:
        found = await self.store.get(keys.broker("b"))
        return None if found is None else BrokerRecord.decode("b", found[0])


def test_who_was_told_to_end_while_it_registered_is_not_registered() -> None:
    async def run() -> None:
        broker = Broker()

        def drained() -> None:
            broker.ending = True

        broker.store.on_put = drained
        await broker.keep()
        assert await broker.record() is None and broker.leases == [] and broker.lost == 0

    asyncio.run(run())


def test_who_lost_its_lease_is_told_and_registered_anew() -> None:
    async def run() -> None:
        broker = Broker()
        keeping = asyncio.ensure_future(broker.keep())
        for _ in range(2):
            await asyncio.wait_for(broker.registered.wait(), 60)
            broker.registered.clear()
            found = await broker.record()
            assert found is not None and found.lease == broker.leases[-1]
            if len(broker.leases) == 1:
                await broker.store.revoke(broker.leases[0])
        broker.ending = True
        await asyncio.wait_for(keeping, 60)
        assert len(set(broker.leases)) == 2 and broker.lost == 1

    asyncio.run(run())
