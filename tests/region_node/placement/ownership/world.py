"""Brokers over one metadata table on virtual time, each with its ownership of bundles, and hosts that note what is open
twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from geo_tests.sim.simulation import Machine, Simulation
from global_config.admin import ConfigAdmin
from global_config.view import ConfigView
from heliograph.kv.in_process_store import EmbeddedStore
from heliograph.kv.state_machine import KvMachine
from heliograph.model.configuration.configuration_records import NamespacePolicies, RegionInfo, TenantInfo
from local_meta import keys
from region_node.placement.ownership.broker_records import BrokerRecord, OwnerRecord
from region_node.placement.ownership.ownership_core import BundleRules, OwnershipSettings, Permit
from region_node.placement.ownership.ownership_service import Ownership

NAMESPACE = "public/default"
TOPICS = [f"persistent://{NAMESPACE}/t{index}" for index in range(20)]


class Host:
    """Stands for the topics of a broker: what was loaded and closed, in order."""

    def __init__(self, world: World, broker: str) -> None:
        self.world, self.broker = world, broker
        self.unload_s = 0.0
        self.sent_to: list[tuple[str, str] | None] = []

    async def unload_bundle(self, namespace: str, bundle: int, next_owner: tuple[str, str] | None = None) -> None:
        self.sent_to.append(next_owner)
        await asyncio.sleep(self.unload_s)
        present = self.world.local.get(keys.owner(namespace, bundle))
        mine = present is not None and OwnerRecord.decode(present[0]).broker == self.broker
        self.world.events.append((self.broker, "closed, still owned" if mine else "closed", (namespace, bundle)))

    async def unload_strays(self, namespace: str) -> None:
        return

    async def load_replicated(self, namespace: str, bundle: int) -> None:
        self.world.events.append((self.broker, "loaded", (namespace, bundle)))


class World:
    """One region's metadata, the global configuration, and brokers on machines of their own."""

    def __init__(self, sim: Simulation) -> None:
        self.sim = sim
        self.local, self.config = KvMachine(), KvMachine()
        self.events: list[tuple[str, str, tuple[str, int]]] = []
        self.brokers: dict[str, Ownership] = {}
        self.hosts: dict[str, Host] = {}
        self.stores: dict[str, EmbeddedStore] = {}
        self.settings = OwnershipSettings()
        self.permit: Permit | None = None

    async def start(self, *names: str, regions: tuple[str, ...] = ("us",)) -> None:
        admin = ConfigAdmin(EmbeddedStore(self.config))
        for number, region in enumerate(("us", "eu"), 1):
            await admin.ensure_region(RegionInfo(name=region, number=number))
        await admin.create_tenant("public", TenantInfo(allowed_regions=("us", "eu")))
        await admin.create_namespace(NAMESPACE, NamespacePolicies(regions=regions, bundles=4))
        for name in names:
            await self.boot(name)

    async def boot(self, name: str) -> None:
        started = asyncio.get_running_loop().create_future()

        async def main(machine: Machine) -> None:
            view = ConfigView(EmbeddedStore(self.config))
            await view.ready()
            store, host = self.make_store(machine), self.make_host(name)
            made = Ownership(
                region="us",
                broker=name,
                meta=store,
                view=view,
                host=host,
                clock=machine.clock,
                rng=machine.rng,
                settings=self.settings,
                rules=BundleRules(permit=self.permit),
            )
            self.brokers[name], self.hosts[name], self.stores[name] = made, host, store
            listeners = {
                "": f"pulsar://{name}:6650",
                "link": f"pulsar+ssl://{name}:6700",
                "link-eu": f"pulsar+ssl://proxy-{name}:1",
            }
            await made.start(BrokerRecord(name, listeners, f"http://{name}:8080", 1))
            started.set_result(None)

        self.sim.machine(name).start(main)
        await started

    def make_host(self, name: str) -> Host:
        return Host(self, name)

    def make_store(self, machine: Machine) -> EmbeddedStore:
        return EmbeddedStore(self.local)

    async def ask(self, name: str, call: Callable[..., Coroutine[Any, Any, Any]], *args: Any) -> Any:
        return await self.sim.machine(name).ask(call, *args)

    async def lookup(self, name: str, topic: str, listener: str = "", authoritative: bool = False) -> Any:
        return await self.ask(name, self.brokers[name].lookup, topic, listener, authoritative)

    async def served_by(self, name: str, topic: str) -> str:
        """The URL where a client that asks `name` ends up."""
        for _ in range(5):
            answer = await self.lookup(name, topic)
            if not answer.redirect:
                return str(answer.url)
            name = answer.url.removeprefix("pulsar://").partition(":")[0]
            answer = await self.lookup(name, topic, authoritative=True)
            if not answer.redirect:
                return str(answer.url)
        raise AssertionError("redirected for ever")

    async def until(self, holds: Callable[[], bool]) -> None:
        """Looks each 10 ms of virtual time; the run's limit ends it."""
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    def owners(self) -> dict[int, str]:
        return {keys.owner_of(k)[1]: OwnerRecord.decode(v).broker for k, v, _ in self.local.under(keys.OWNERS)}


def run(seed: int, scenario: Callable[[World], Coroutine[Any, Any, None]], kind: type[World] = World) -> None:
    with Simulation(seed) as sim:
        sim.run(scenario(kind(sim)), limit_s=300)
