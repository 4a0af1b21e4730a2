"""Reborn: a region that is taken out for good, and comes again under its name, with empty disks.

Is: one story of a world once all is well: the operator's steps (docs/operating.md, "A region joins, a region leaves"),
what the region publishes in its second life, and what must hold. Isn't: a region that is lost with what nobody else has
(every other region has everything when it goes), or a voter without its log: its part of the configuration stays.

In its second life it has another number. What it published in the first one comes back to it from the others, under the
old coordinates, and stays as it is in all of them; what it publishes now is new, and arrives everywhere.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from geo_tests.sim.beside import Beside
from geo_tests.sim.checkers import Violation
from geo_tests.sim.pulsar_client import Client, Producer
from geo_tests.sim.region import CONFIG_PORT, NAMESPACE, Region
from global_config import keys
from global_config.admin import ConfigAdmin
from heliograph.kv.metadata_client import MetaClient
from heliograph.model.configuration.configuration_records import RegionInfo, TenantInfo
from heliograph.model.errors import AlreadyExists, HeliographError, NotFound

if TYPE_CHECKING:
    from geo_tests.sim.world import World

TOPIC = f"persistent://{NAMESPACE}/meanwhile"
MESSAGES = 6
"""That it publishes to each topic of the world in its second life."""
_TENANT = NAMESPACE.partition("/")[0]
_ADMIN = "rejoining-admin"
_KEPT = "data/config"
_TRY_S = 0.2
_ENDS_S = 90.0


class Reborn:
    """Of one world; nothing happens before `finish`, and nothing at all unless `begin` was called."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._rng = world.sim.rng("reborn")
        self._meanwhile = Beside(world, TOPIC, "meanwhile")
        self.begun = False
        self._receipts: dict[str, int] = {}

    def begin(self) -> bool:
        """It comes once everything is well. False: it is to come already."""
        begun, self.begun = self.begun, True
        return not begun

    async def finish(self) -> None:
        """Raises Violation."""
        if not self.begun:
            return
        world = self._world
        region = world.regions[self._rng.choice(sorted(world.regions))]
        world.trace(f"{region.name} is taken out for good")
        world.reconfiguration.leave(region.name)
        await world._until(f"{region.name} is out of the namespace", world.reconfiguration.settled, _ENDS_S)
        await asyncio.sleep(self._rng.uniform(1.0, 3.0))
        await world.sim.call(_ADMIN, self._take_out, region, limit_s=_ENDS_S)
        self._wipe(region)
        self._meanwhile.publish()
        self._meanwhile.consume()
        await asyncio.sleep(self._rng.uniform(0.0, 3.0))
        before = region.number
        region.number = await world.sim.call(_ADMIN, self._make_again, region, limit_s=_ENDS_S)
        if region.number == before:
            raise Violation(f"{region.name} has number {before} again")
        for node in region.nodes:
            node.revive()
        world.reconfiguration.come(region.name)
        clients = [self._publish(region, topic) for topic in world.topics]
        await world._until(f"{region.name} has receipts", self._acknowledged, _ENDS_S)
        await world._until("every region has everything", world._consumed_everywhere, _ENDS_S)
        await self._meanwhile.finish()
        for producer, task in clients:
            producer.close()
            await task

    # -- the operator --------------------------------------------------------------------------------------------------

    async def _take_out(self, region: Region) -> None:
        others = tuple(name for name in self._world.regions if name != region.name)
        store = self._store(others)
        await self._taken(ConfigAdmin(store).update_tenant, _TENANT, TenantInfo(allowed_regions=others))
        await self._taken(ConfigAdmin(store).delete_region, region.name)
        store.close()

    async def _make_again(self, region: Region) -> int:
        """Returns its number."""
        store, info, names = self._store(tuple(self._world.regions)), region.info(), tuple(self._world.regions)
        admin = ConfigAdmin(store)

        async def create() -> None:
            await admin.create_region(
                region.name, service_url=info.service_url, admin_url=info.admin_url, link_urls=info.link_urls
            )

        await self._taken(create)
        await self._taken(admin.update_tenant, _TENANT, TenantInfo(allowed_regions=names))
        found = await store.get(keys.region(region.name))
        store.close()
        assert found is not None
        return RegionInfo.decode(found[0]).number

    async def _taken(self, call: Any, *args: Any) -> None:
        while True:
            try:
                await call(*args)
                return
            except (AlreadyExists, NotFound):  # by a try whose answer was lost
                return
            except HeliographError as error:
                if not error.retryable:
                    raise
                await asyncio.sleep(_TRY_S)

    def _store(self, regions: tuple[str, ...]) -> MetaClient:
        machine = self._world.sim.machines[_ADMIN]
        nodes = [f"{self._world.regions[name].metadata.name}:{CONFIG_PORT}" for name in regions]
        return MetaClient(nodes, clock=machine.clock, rng=machine.rng)

    def _wipe(self, region: Region) -> None:
        """All of its machines get empty disks; what was published there is the others' from now on."""
        for node in region.nodes:
            node.kill()
            for path, platter in node.machine.platters().items():
                if path != _KEPT:
                    platter.put_back({})
        for history in self._world.histories.values():
            history.begin_life(region.name)

    # -- its second life -----------------------------------------------------------------------------------------------

    def _publish(self, region: Region, topic: str, when: str = "again") -> tuple[Producer, asyncio.Task[Any]]:
        """At once, while what it published before still comes back to it."""
        world, name = self._world, f"{region.name}-{when}-{self._world.topics.index(topic)}"
        history = world.histories[topic]

        def on_receipt(sequence: int, ledger: int, entry: int) -> None:
            self._receipts[name] = max(self._receipts[name], sequence + 1)
            history.acknowledge(name, sequence, ledger, entry)

        self._receipts[name] = 0
        producer = Producer(Client(region.addresses(), world.sim.rng(name)), topic, name, on_receipt)
        for sequence in range(MESSAGES):
            payload = f"{name}:{sequence}".encode()
            history.submit(region.name, name, sequence, payload)
            assert producer.send(sequence, payload)
        return producer, world.at_client(region.name, producer.run)

    def _acknowledged(self) -> str:
        lacking = [name for name, count in self._receipts.items() if count < MESSAGES]
        return f"{lacking} wait" if lacking else ""
