"""Metadata that goes back in time: its volume, or its machine, is put back to a snapshot, and keeps its instance id.

Unlike a restore from a backup, nothing says so but the metadata's version, which is lower than what was seen before.
"""

from __future__ import annotations

import pytest

from geo_tests.sim.simulation import Simulation
from tests.known_faults.storage_worlds import Broken, promised
from tests.storage.bookie.maintenance.garbage import put_back
from tests.storage.managed_ledger.world import Region
from tests.storage.tiered.world import AT_ONCE, FakeStore, TierBroker, filled, more, settled, simulated


@pytest.mark.xfail(
    strict=True,
    raises=Broken,
    reason="the object store loses every ledger that was moved to it since the snapshot of the metadata",
)
def test_objects_made_since_the_snapshot_stay_in_the_store() -> None:
    """An object goes from the store only where its ledger was trimmed or its topic deleted, never because the metadata
    forgot it.

    Ledgers that were moved since the snapshot have no copy on bookies any more; two sweeps find no topic that names
    their objects, and delete them. Right: the collector has seen a higher version of this metadata, and so deletes
    nothing until an operator has looked.
    """

    async def work(sim: Simulation, region: Region) -> None:
        store = FakeStore({})
        broker = TierBroker(region, store, AT_ONCE)
        await broker.tiering.start()
        collector = broker.tiering.collector
        assert collector is not None
        ledger = await filled(broker, 25)
        await settled(broker, ledger)
        assert await collector.sweep() == []
        snapshot = region.machine.snapshot()
        before = set(store.objects)
        await more(broker, ledger, 25, 45)
        await settled(broker, ledger)
        await collector.sweep()
        since = {key for key in store.objects if key not in before and "/manifest/" not in key}
        assert since, "nothing was moved: the case is none"
        broker.meta.machine = put_back(snapshot)  # type: ignore[attr-defined]
        for _ in range(3):
            await collector.sweep()
        gone = sorted(since - set(store.objects))
        promised(not gone, f"deleted from the store: {gone}")

    simulated(work)
