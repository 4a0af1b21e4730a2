"""An instance of brokers with real leases whose namespace fails over by itself: who is heard, and who is there, is as a
test says.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from geo_tests.sim.leadership import DriftingClock
from heliograph.kv.in_process_store import EmbeddedStore
from heliograph.kv.metadata_store import MetadataStore
from heliograph.model.configuration.configuration_records import NamespacePolicies, RegionInfo
from heliograph.model.configuration.leadership import OPEN, Leadership, leadership
from heliograph.model.errors import MetadataUnavailable, NotAllowed
from region_node.dr.leadership.effective_leaderships import EffectiveLeaderships
from region_node.dr.leadership.leadership_changes import Switching
from region_node.dr.leadership.write_leases import WriteLeases
from region_node.dr.operations.automatic_failover import AutomaticFailover
from region_node.dr.operations.automatic_policy import Automatic, automatic
from region_node.dr.operations.operation import Operation, StepAges, operation_key
from region_node.dr.operations.operation_steps import Conductor
from region_node.dr.operations.silent_regions import SilentRegions
from replicator.health.incoming_stats import Heard, IncomingStats
from tests.region_node.dr.operations.counted_store import Counted
from tests.region_node.dr.operations.world import NS, TOPIC, alone, lack


class Broker:
    def __init__(self, instance: Instance, region: str, name: str) -> None:
        begins = name not in instance.without_admin
        self.tried = 0
        """Operations that it wanted to begin, or go on with."""
        self.region, self.name, self.clock = region, name, DriftingClock(1.0)
        self.store = Counted(instance.store.machine, 0.0)
        self.leases = WriteLeases(
            self.store,
            region=region,
            broker=name,
            clock=self.clock,
            url_of=lambda _: "",
            beside=lambda: [broker.name for broker in instance.brokers if broker.region == region],
        )
        self.effective = EffectiveLeaderships(self.leases.core, self.store, lambda _: instance.regions, self.clock)
        self.incoming = IncomingStats()
        for other in instance.regions:
            if other != region:
                self.incoming.region(other).on.append(Heard(self.clock.monotonic))
        self.silent = SilentRegions(self.leases, self.incoming, region=region, clock=self.clock, begins=begins)
        self.automatic = AutomaticFailover(
            self.leases,
            self.silent,
            (lambda store: instance.conductor(self, store)) if begins else None,
            region=region,
            regions_of=lambda _: instance.regions,
            clock=self.clock,
            told=instance.events.append,
        )

    async def start(self) -> None:
        await self.leases.start()
        await self.effective.start()
        await self.automatic.start()

    async def stop(self) -> None:
        await self.automatic.stop()
        await self.effective.stop()
        await self.leases.stop()

    async def cut_off(self) -> None:
        """The configuration is out of its reach, until it is started anew."""
        self.store.unavailable = "cut off"
        await self.stop()


class Instance:
    def __init__(self, *regions: str, brokers: int = 1, without_admin: Sequence[str] = ()) -> None:
        """without_admin: brokers that have no admin interface."""
        self.without_admin = without_admin
        self.regions = regions or ("us", "eu", "ap")
        self.store = EmbeddedStore()
        self.events: list[dict[str, Any]] = []
        self.brokers: list[Broker] = []
        self.unheard: set[tuple[str, str]] = set()
        """(who, whom): nothing of the second comes to the first."""
        self.deaf: set[str] = set()
        """Regions that answer no other one."""
        self.lacks: dict[str, dict[str, Any]] = {}
        """Region -> what is otherwise of what it lacks of every other one."""
        self.missing: dict[str, list[str]] = {}
        """Region -> topics that no broker there has loaded."""
        self.missing_closed: list[str] = []
        """Those of every region, while the namespace is closed."""
        self.mute: tuple[str, ...] = ()
        """Regions that know nothing of their topics once an operation was begun."""
        self.asked = 0
        """Steps of operations, and their beginnings."""
        self._count = brokers
        self._beat: asyncio.Task[None] | None = None

    async def start(self, **wanted: Any) -> Instance:
        """Active in us, effective, and failing over by itself as `wanted` says."""
        await Switching(self.store, lambda: 0).begin(NS, "us", {})
        for region in self.regions:
            for number in range(self._count):
                self.brokers.append(Broker(self, region, f"{region}-{number}"))
        for broker in self.brokers:
            await broker.start()
        self._beat = asyncio.get_running_loop().create_task(self._beats())
        await asyncio.sleep(10)
        if wanted:
            await self.store.put(automatic(NS), Automatic(**wanted).encode())
        return self

    async def _beats(self) -> None:
        while True:
            for broker in self.brokers:
                for source, found in broker.incoming.regions.items():
                    if (broker.region, source) not in self.unheard:
                        for heard in found.on:
                            heard.bytes()
            await asyncio.sleep(0.5)

    async def stop(self) -> None:
        assert self._beat is not None
        self._beat.cancel()
        for broker in self.brokers:
            await broker.stop()

    def of(self, region: str) -> list[Broker]:
        return [broker for broker in self.brokers if broker.region == region]

    def hush(self, region: str, by: tuple[str, ...] = ()) -> None:
        """by: those that hear nothing of it any more; none: all others."""
        self.unheard.update((other, region) for other in by or self.regions if other != region)

    async def lose(self, region: str) -> None:
        """It is silent, and reaches nobody."""
        self.hush(region)
        self.deaf.add(region)
        for broker in self.of(region):
            await broker.cut_off()

    async def back(self, region: str) -> None:
        """With new lives of its brokers."""
        self.unheard = {(who, whom) for who, whom in self.unheard if whom != region}
        self.deaf.discard(region)
        for broker in self.of(region):
            self.brokers.remove(broker)
            again = Broker(self, region, broker.name)
            self.brokers.append(again)
            await again.start()

    def conductor(self, broker: Broker, store: MetadataStore | None = None) -> Conductor:
        async def facts_of(region: str, _: str) -> dict[str, Any]:
            if region != broker.region and region in self.deaf:
                raise MetadataUnavailable(f"{region} does not answer")
            if region in self.mute and self.store.machine.get(operation_key(NS)) is not None:
                raise MetadataUnavailable(f"{region} does not know")
            return self.facts(region)

        async def nobody(*_: Any) -> dict[str, Any]:
            raise NotAllowed("nobody counts here")

        self.asked += 1
        made = Conductor(
            store or broker.store,
            self,
            facts_of=facts_of,
            counts_of=nobody,
            wall_ms=broker.clock.wall_ms,
            ages=StepAges(broker.clock.monotonic),
        )
        begin = made.begin

        async def counted(*of: Any, **more: Any) -> Operation:
            broker.tried += 1
            return await begin(*of, **more)

        made.begin = counted  # type: ignore[method-assign]
        return made

    def facts(self, region: str) -> dict[str, Any]:
        told = {**lack(age_s=0.0), **self.lacks.get(region, {})}
        lacks = {other: told for other in self.regions if other != region}
        topic = {"vector": {}, "links": {}, "lacks": lacks, "subscriptions": {}, "producers": 0}
        missing = self.missing.get(region) or (self.missing_closed if self.leadership().state != OPEN else [])
        unopened = alone(*lacks)
        return {"region": region, "namespace": NS, "missing": missing, "topics": {TOPIC: topic}, "unopened": unopened}

    def region(self, name: str) -> RegionInfo | None:
        return RegionInfo(name=name, number=1 + self.regions.index(name))

    def namespace(self, _: str) -> NamespacePolicies | None:
        return NamespacePolicies(regions=self.regions)

    def leadership(self) -> Leadership:
        found = self.store.machine.get(leadership(NS))
        assert found is not None
        return Leadership.decode(found[0])

    async def operation(self) -> Operation | None:
        return (await self.conductor(self.brokers[-1]).operation(NS))[0]

    async def begun(self) -> Operation:
        """Waits until there is an operation."""
        for _ in range(2000):
            if (op := await self.operation()) is not None:
                return op
            await asyncio.sleep(0.1)
        raise AssertionError("nothing was begun")

    def said(self, region: str) -> str:
        return self.of(region)[0].automatic.said.get(NS, "")
