"""Region and Node: one simulated region's machines, each running the roles that production's composition builds.

Is: settings, starts, crashes, and the restarts that a supervisor would do. Isn't: faults or checks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from geo_tests.sim.broker_calls import SimulatedCalls
from geo_tests.sim.checkers import Violation
from geo_tests.sim.config_transport import SimConfigTransport
from geo_tests.sim.durability_reports import DURABILITY
from geo_tests.sim.ledgers import QUICK_LEDGER, SMALL_BOOKIE, SMALL_LEDGERS
from geo_tests.sim.pulsar_client import Address
from geo_tests.sim.simulation import Machine
from geo_tests.sim.wrong_clocks import AGING_POLICIES
from global_config.admin import ConfigAdmin
from global_config.node import ConfigNodeSettings
from heliograph.kv.metadata_client import ClientSettings, MetaClient
from heliograph.model.configuration.configuration_records import NamespacePolicies, RegionInfo, TenantInfo
from heliograph.model.errors import HeliographError
from heliograph.model.feature_levels import LEVEL
from local_meta.node import LocalMetaSettings
from region_node.dr.leadership.write_leases import LeaseSettings
from region_node.process.composition import Role, Runtime, build
from region_node.process.settings import (
    BookieRoleSettings,
    BrokerSettings,
    ConfigRoleSettings,
    MetaNodeSettings,
    ProcessSettings,
)

if TYPE_CHECKING:
    from geo_tests.sim.world import World

NAMESPACE = "sim/ns"
META_PORT, CONFIG_PORT, RAFT_PORT, BOOKIE_PORT, BROKER_PORT, ADMIN_PORT, LINK_PORT = (
    7001,
    7002,
    7003,
    3181,
    6650,
    8080,
    6700,
)
RESTART_S = 0.5
METADATA_SEGMENT_BYTES = 64 << 10
LEFT_GRACE_S = 0.5
"""Where nothing is kept, so long what a region has not got that leaves is."""
TUNED: dict[type, object] = {
    type(value): value
    for value in (
        replace(SMALL_BOOKIE, segment_bytes=160 << 10, frame_bytes_max=128 << 10, free_bytes_min=32 << 10),
        replace(QUICK_LEDGER, lost_after_s=1.5),
        replace(SMALL_LEDGERS, pending_timeout_s=1.5),
        LeaseSettings(ttl_ms=2000, renew_s=0.5),
        ClientSettings(range_limit=3),
    )
}
"""Small segments, ledgers, and ranges of metadata, so that few messages meet all the seams. A frame must hold the
largest run that a link makes of the world's messages.
"""
SMALL_LOGS: dict[type, object] = {
    type(value): value
    for value in (
        LocalMetaSettings(raft=replace(LocalMetaSettings().raft, segment_bytes=METADATA_SEGMENT_BYTES)),
        ConfigNodeSettings(raft=replace(ConfigNodeSettings().raft, segment_bytes=METADATA_SEGMENT_BYTES)),
    )
}
"""In worlds with weather: metadata whose logs go from segment to segment, which is where a full disk shows."""


class Node:
    """One process of a region, on a machine of its own."""

    def __init__(self, region: Region, name: str, roles: tuple[str, ...]) -> None:
        self.region, self.name, self.role_names = region, name, roles
        self.machine = region.world.sim.machine(name, zone=region.name)
        self.roles: list[Role] = []
        self.ready = False
        self.on_started: Callable[[Node], None] = lambda node: None
        """Called whenever all roles of a life have started."""
        self.speaks = LEVEL
        """The feature level of its version."""
        self.tuned: dict[type, object] = {}
        """What its version sets otherwise."""
        self.lasts = ""
        """What it must live through, once it is ready; "" while it may end."""

    def start(self) -> None:
        self.region.world.trace(f"start {self.name}")
        self.ready = False
        self.machine.start(self._main)

    def revive(self) -> None:
        """Starts it where it does not run."""
        if not self.machine.running:
            self.start()

    def kill(self) -> None:
        self.ready = False
        self.machine.kill()

    def power_cut(self) -> None:
        self.ready = False
        self.machine.power_cut()

    def is_ready(self) -> bool:
        return self.ready and self.machine.running

    async def _main(self, machine: Machine) -> None:
        """What `region_node.process.role_process` does, and, where it ends, what its supervisor does."""
        self.roles = []
        runtime = Runtime(
            clock=machine.clock,
            rng=machine.rng,
            disk=machine.disk,
            usage=machine.usage,
            config_transport=self._config_transport,
            broker_calls=SimulatedCalls,
            tuned=(TUNED | SMALL_LOGS if self.region.world.faults.weather else TUNED) | self.tuned,
            feature_level=self.speaks,
        )
        try:
            for name in self.role_names:
                role = build(name, self.region.settings(self), runtime)
                self.roles.append(role)
                await role.start()
            self.on_started(self)
            self.ready = True
            self.region.world.trace(f"{self.name} is ready")
            failed = [asyncio.ensure_future(role.failed()) for role in self.roles]
            done, _ = await asyncio.wait(failed, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
            self._ended("a role ended")
        except (HeliographError, OSError, TimeoutError) as error:
            self._ended(repr(error))

    def _config_transport(self, settings: ProcessSettings) -> SimConfigTransport:
        names = self.region.names
        return SimConfigTransport(
            self.region.name, {other: f"{other}-meta" for other in names}, RAFT_PORT, self.machine.rng
        )

    def _ended(self, why: str) -> None:
        sim = self.region.world.sim
        self.region.world.trace(f"{self.name} ends: {why}")
        if self.ready and self.lasts:
            text = f"{self.name} ends though {self.lasts}, and nothing else: {why}"
            sim.loop.fail(text, Violation(text))
        self.kill()
        sim.loop.call_later(RESTART_S, self.revive, context=sim.network.neutral)


class Region:
    """The machines of one region: metadata (the first voter with the region's voter of the global configuration),
    bookies, brokers.
    """

    def __init__(
        self,
        world: World,
        name: str,
        number: int,
        names: tuple[str, ...],
        *,
        bookies: int,
        brokers: int,
        voters: int = 1,
    ) -> None:
        self.world, self.name, self.number, self.names = world, name, number, names
        self.metadata = Node(self, f"{name}-meta", ("meta", "config"))
        self.voters = [self.metadata, *(Node(self, f"{name}-meta-{i}", ("meta",)) for i in range(1, voters))]
        self.bookies = [Node(self, f"{name}-bookie-{i}", ("bookie",)) for i in range(bookies)]
        self.brokers = [Node(self, f"{name}-broker-{i}", ("broker",)) for i in range(brokers)]

    @property
    def nodes(self) -> list[Node]:
        return [*self.voters, *self.bookies, *self.brokers]

    def addresses(self) -> list[Address]:
        return [(node.name, BROKER_PORT) for node in self.brokers]

    def start_metadata(self) -> None:
        for node in self.voters:
            node.start()

    def start_data(self) -> None:
        for node in [*self.bookies, *self.brokers]:
            node.start()

    def info(self) -> RegionInfo:
        links = [f"pulsar://{node.name}:{LINK_PORT}" for node in self.brokers]
        return RegionInfo(
            name=self.name,
            number=self.number,
            service_url=f"pulsar://{self.brokers[0].name}:{BROKER_PORT}",
            admin_url=f"http://{self.brokers[0].name}:{ADMIN_PORT}",
            link_urls={source: links for source in self.names if source != self.name},
        )

    async def provision(self, regions: dict[str, Region]) -> None:
        """Writes regions, tenant, and namespace into the global configuration, through this region's node."""
        await self.world.sim.call(f"{self.name}-admin", self._provision, [r.info() for r in regions.values()])

    async def _provision(self, infos: list[RegionInfo]) -> None:
        machine = self.world.sim.machine(f"{self.name}-admin")
        store = MetaClient([f"{self.metadata.name}:{CONFIG_PORT}"], clock=machine.clock, rng=machine.rng)
        admin = ConfigAdmin(store)
        deadline = asyncio.get_running_loop().time() + 30
        names = tuple(info.name for info in infos)
        steps: list[Any] = [lambda info=info: admin.ensure_region(info) for info in infos]
        steps.append(lambda: admin.create_tenant(NAMESPACE.split("/")[0], TenantInfo(allowed_regions=names)))
        trims, ages = self.world.settings.trims, self.world.settings.ages
        kept = dict.fromkeys(("retentionTimeInMinutes", "retentionSizeInMB"), 0 if trims else -1)
        given = {"deduplication": True, "retention": kept, **(AGING_POLICIES if ages else {})}
        given |= DURABILITY if self.world.settings.durable else {}
        policies = NamespacePolicies(regions=names, bundles=2, policies=given)
        steps.append(lambda: admin.create_namespace(NAMESPACE, policies))
        while steps:
            try:
                await steps[0]()
            except HeliographError as error:
                if not error.retryable or asyncio.get_running_loop().time() > deadline:
                    raise
                await asyncio.sleep(0.2)
                continue
            steps.pop(0)
        store.close()

    def settings(self, node: Node) -> ProcessSettings:
        name = node.name
        return ProcessSettings(
            region=self.name,
            node_id=name,
            data_dir="data",
            roles=node.role_names,
            bind=name,
            meta=tuple(f"{voter.name}:{META_PORT}" for voter in self.voters),
            config=(f"{self.metadata.name}:{CONFIG_PORT}",),
            broker=BrokerSettings(
                port=BROKER_PORT,
                admin_port=-1,
                link_port=LINK_PORT,
                advertised_host=name,
                auto_recovery=self.world.settings.auto_recovery,
                balance=self.world.stories.balance,
                link_left_grace_s=LEFT_GRACE_S if self.world.settings.trims else 86_400.0,
                listeners={
                    f"link-{source}": f"pulsar://{name}:{LINK_PORT}" for source in self.names if source != self.name
                },
            ),
            bookie=BookieRoleSettings(port=BOOKIE_PORT, bookie_id=name, advertised_host=name),
            meta_node=MetaNodeSettings(
                node_id=name,
                port=META_PORT,
                peers={voter.name: f"{voter.name}:{META_PORT}" for voter in self.voters},
            ),
            config_node=ConfigRoleSettings(
                node_id=self.name,
                port=CONFIG_PORT,
                raft_port=RAFT_PORT,
                peers={other: f"{other}-meta:{RAFT_PORT}" for other in self.names},
            ),
        )
