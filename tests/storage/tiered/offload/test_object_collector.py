"""The collection of objects, by metadata that is put back to a snapshot and keeps its instance id: nothing says so but
what was seen of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from geo_tests.sim.simulation import Simulation
from heliograph.model.errors import VersionConflict
from local_meta import keys
from storage.managed_ledger.log.managed_ledger import ManagedLedger
from storage.tiered.objects.object_names import MANIFEST, parse
from storage.tiered.offload.object_collector import ObjectCollector
from tests.local_meta.passed_over_ids import pass_over
from tests.storage.bookie.maintenance.garbage import put_back
from tests.storage.managed_ledger.world import TOPIC, Region
from tests.storage.tiered.world import AT_ONCE, FakeStore, TierBroker, filled, more, settled, simulated


class World:
    """A broker that collects, and a topic of which two ledgers are moved."""

    broker: TierBroker
    collector: ObjectCollector
    ledger: ManagedLedger
    snapshot: bytes
    """Of the metadata, before more was moved."""
    since: set[str]
    """Objects that were made after it."""

    def __init__(self, region: Region) -> None:
        self.region, self.store = region, FakeStore({})

    async def begin(self, *, seen: bool) -> None:
        """seen: a sweep looks at the metadata behind the snapshot too."""
        self.broker = TierBroker(self.region, self.store, AT_ONCE)
        await self.broker.tiering.start()
        self.collector = self._collector(self.broker)
        self.ledger = await filled(self.broker, 25)
        await settled(self.broker, self.ledger)
        assert await self.collector.sweep() == []
        self.snapshot = self.region.machine.snapshot()
        before = set(self.store.objects)
        await more(self.broker, self.ledger, 25, 45)
        await settled(self.broker, self.ledger)
        self.since = {key for key in set(self.store.objects) - before if _of_ledger(key)}
        assert self.since, "nothing was moved: the case is none"
        if seen:
            await self.collector.sweep()

    def put_back(self) -> None:
        self.broker.meta.machine = put_back(self.snapshot)  # type: ignore[attr-defined]

    async def anew(self) -> None:
        """The collection of another broker."""
        meta = self.broker.meta
        self.collector = ObjectCollector(meta, self.store, self.broker.tiering.holder, self.instance())

    def instance(self) -> bytes:
        found = self.broker.meta.machine.get(keys.INSTANCE)  # type: ignore[attr-defined]
        assert found is not None
        return bytes(found[0])

    async def sweeps(self, count: int = 3) -> None:
        for _ in range(count):
            await self.collector.sweep()

    def kept(self) -> bool:
        return self.since <= set(self.store.objects)

    @staticmethod
    def _collector(broker: TierBroker) -> ObjectCollector:
        assert broker.tiering.collector is not None
        return broker.tiering.collector


def _of_ledger(key: str) -> bool:
    name = parse(key)
    return name is not None and name.kind != MANIFEST


def scenario(work: Callable[[World], Awaitable[None]], *, seen: bool = True) -> None:
    async def begun(_sim: Simulation, region: Region) -> None:
        world = World(region)
        await world.begin(seen=seen)
        await work(world)

    simulated(begun)


def test_a_topic_that_is_restored_while_the_others_are_looked_at_keeps_its_objects(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def work(world: World) -> None:
        meta, key = world.broker.meta, keys.managed_ledger(TOPIC)
        found = await meta.get(key)
        assert found is not None
        await meta.delete(key)
        await world.collector.sweep()  # notes what nobody names
        trusted = world.collector._trusted

        async def restored(*judged: Any) -> bool:
            assert await trusted(*judged)
            await meta.put(key, found[0])
            return True

        monkeypatch.setattr(world.collector, "_trusted", restored)
        assert await world.collector.sweep() == [] and world.kept()

    scenario(work)


def test_objects_made_since_the_snapshot_stay_in_the_store() -> None:
    """An object goes from the store only where its ledger was trimmed or its topic deleted, never because the metadata
    forgot it: no bookie has a copy any more.
    """

    async def work(world: World) -> None:
        world.put_back()
        await world.sweeps()
        assert world.kept() and "went back" in world.collector.went_back

    scenario(work)


def test_however_far_the_metadata_has_come_since_and_by_whichever_broker(caplog: pytest.LogCaptureFixture) -> None:
    async def work(world: World) -> None:
        far = world.region.machine.index + 500
        world.put_back()
        while world.broker.meta.machine.index < far:  # type: ignore[attr-defined]
            await world.broker.meta.put("/load/broker", b"")
        await world.broker.meta.next_ids(keys.LEDGER_IDS, 100)
        await world.anew()
        await world.sweeps()
        assert world.kept() and world.collector.went_back
        assert [record.message for record in caplog.records].count("tier.metadata_went_back") == 1, "said once"

    scenario(work)


def test_an_id_that_is_still_to_be_given_out_is_proof_and_stays_so() -> None:
    """Put back to a moment behind the last sweep: the mark is as it was. Bookies raise the counter meanwhile."""

    async def work(world: World) -> None:
        world.put_back()
        await world.sweeps(1)
        assert "has an object of ledger" in world.collector.went_back
        await world.broker.meta.next_ids(keys.LEDGER_IDS, 100)
        await world.sweeps()
        assert world.kept() and world.collector.went_back
        await world.anew()
        await world.sweeps()
        assert world.kept() and world.collector.went_back

    scenario(work, seen=False)


def test_objects_of_ids_that_were_passed_over_are_proof_until_an_operator_confirms() -> None:
    """Put back to a moment behind the last sweep, by a metadata whose ids go on above all that were given out."""

    async def work(world: World) -> None:
        world.put_back()
        meta = world.broker.meta
        await pass_over(meta, await meta.next_ids(keys.LEDGER_IDS, 0), 100_000)
        await world.sweeps()
        assert world.kept() and "never gave out" in world.collector.went_back
        await world.collector.confirm()
        await world.anew()
        await world.sweeps(2)
        assert not world.since & set(world.store.objects) and not world.collector.went_back

    scenario(work, seen=False)


@pytest.mark.parametrize("seen", [True, False])
def test_what_an_operator_confirms_goes(seen: bool) -> None:
    async def work(world: World) -> None:
        world.put_back()
        await world.sweeps()
        assert world.kept()
        await world.broker.meta.next_ids(keys.LEDGER_IDS, 100)
        await world.collector.confirm()
        await world.sweeps(1)
        assert world.kept() and not world.collector.went_back, "two sweeps again"
        await world.sweeps(1)
        assert not world.since & set(world.store.objects)

    scenario(work, seen=seen)


def test_the_newer_disk_put_in_again_needs_no_operator() -> None:
    async def work(world: World) -> None:
        newest = world.region.machine
        world.put_back()
        await world.sweeps()
        assert world.collector.went_back
        world.broker.meta.machine = newest  # type: ignore[attr-defined]
        await world.sweeps()
        assert world.kept() and not world.collector.went_back
        await world.ledger.close()
        await world.broker.factory.delete(world.ledger.topic)
        await world.sweeps()
        assert not [key for key in world.store.objects if parse(key) is not None], "collected again"

    scenario(work)


def test_two_brokers_that_sweep_at_once_take_each_other_for_no_step_back() -> None:
    async def work(world: World) -> None:
        other = ObjectCollector(world.broker.meta, world.store, world.broker.tiering.holder, world.instance())
        for _ in range(5):
            for found in await asyncio.gather(world.collector.sweep(), other.sweep(), return_exceptions=True):
                assert found == [] or isinstance(found, VersionConflict), found
        assert not world.collector.went_back and not other.went_back and world.kept()

    scenario(work)
