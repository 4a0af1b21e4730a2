"""A broker that compacts one topic, with an object store for what comes of it."""

from __future__ import annotations

from geo_tests.sim.simulation import Simulation
from region_node.tiering.compacted_offload import CompactionOffload
from storage.sealing.sealing import Sealing
from storage.tiered.offload.offload_plan import OffloadPolicy
from tests.region_node.compaction.world import TOPIC, Owner
from tests.storage.managed_ledger.world import Region
from tests.storage.tiered.world import FakeStore, TierBroker

NOW = OffloadPolicy(threshold_bytes=0, deletion_lag_ms=0)


class TieredOwner(Owner):
    """With an object store for what is compacted."""

    def __init__(
        self,
        region: Region,
        sim: Simulation,
        objects: dict[str, bytes],
        *,
        allowed: bool = True,
        policy: OffloadPolicy = NOW,
        sealing: Sealing | None = None,
    ) -> None:
        super().__init__(region, sim, keys_max=1000)
        tiered = TierBroker(region, FakeStore(objects), policy, sealing=sealing)
        self.tiering, self.store = tiered.tiering, tiered.store
        self.broker = tiered
        self.offload = CompactionOffload(
            lambda: self.topic._compactor,
            self.find,
            tiered.meta,
            tiered.stores,
            lambda: self.tiering.holder,
            lambda: allowed,
            self.count,
        )
        self.tiering._beside = self.offload
        self.opened = False

    def count(self, topic: str) -> None:
        assert self.tiering.collector is not None
        self.tiering.collector.count(topic)

    def find(self, topic: str) -> object:
        return self.topic if self.opened and topic == TOPIC else None

    async def open(self):  # type: ignore[no-untyped-def]
        await self.tiering.start()
        opened = await super().open()
        self.opened = True
        assert opened._compactor is not None
        opened._compactor._cold = lambda: self.broker.cold
        opened._compactor.delete_objects_by(self.offload.delete)
        if opened.compacted is not None:
            opened.compacted.view._cold = self.broker.cold
        return opened

    async def tiered(self) -> None:
        """Until the policies want nothing more."""
        while True:
            self.tiering.tick()
            if self.tiering.status(TOPIC).state != "RUNNING":
                return
            await self.tiering.idle()
            assert self.tiering.status(TOPIC).state == "SUCCESS", self.tiering.status(TOPIC).error
