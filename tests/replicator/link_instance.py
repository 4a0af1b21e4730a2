"""Regions for tests of the link's shells: real managers, connections, and receivers on the simulated loop, over the
in-memory ledger.

Is: a listener that speaks what links need (CONNECT, LOOKUP, private commands), and one or more brokers a region. Isn't:
the real listener.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from copy import copy
from dataclasses import replace
from typing import Any

from geo_tests.sim.simulation import Simulation
from heliograph.model.configuration.configuration_records import RegionInfo
from heliograph.model.errors import HeliographError, NotOwner, PeerError
from heliograph.runtime.clock import CautiousClock
from heliograph.wire.pulsar.frame_cutter import FRAME_BYTES_MAX, FrameCutter, Private
from heliograph.wire.pulsar.pulsar_pb2 import BaseCommand, CommandLookupTopicResponse
from heliograph.wire.pulsar.server_frames import frame
from heliograph.wire.run import Run
from replicator.dedup.producer_dedup import DedupSettings
from replicator.log.replicated_log import ReplicatedLog
from replicator.log.topic_state import TopicState
from replicator.manager.configured_relays import Leaderships
from replicator.manager.link_manager import LinkHosts, LinkManager, LinkSettings
from replicator.receiving.link_receiver import LinkReceiver, ReceiverSettings
from replicator.receiving.link_session import LinkSession
from tests.replicator.fake_ledger import FakeLedger, Store
from tests.replicator.link_world import entry

TOPIC = "persistent://t/n/x"
PORT = 6650


class View:
    """The configuration's view."""

    def __init__(self, infos: dict[str, RegionInfo]) -> None:
        self.infos = infos
        self.callbacks: list[Callable[[str], None]] = []
        self.given: dict[int, str] = {}
        self.namespaces: dict[str, object] = {"t/n": "known"}
        self.broken: dict[str, str] = {}
        self.unheard: dict[str, None] = {}
        """Regions that this copy has never heard of."""

    def cluster(self, name: str) -> None:
        return None

    def region(self, name: str) -> RegionInfo | None:
        return self.infos.get(name)

    def regions(self) -> list[RegionInfo]:
        return [self.infos[name] for name in sorted(self.infos)]

    @property
    def region_numbers(self) -> dict[int, str]:
        return {number: name for number, name in self.given.items() if name not in self.unheard}

    def namespace(self, namespace: str) -> object | None:
        return self.namespaces.get(namespace)

    def on_change(self, callback: Callable[[str], None]) -> Callable[[], None]:
        self.callbacks.append(callback)
        return lambda: self.callbacks.remove(callback)

    def set(self, info: RegionInfo) -> None:
        self.infos[info.name] = info
        self._tell(info.name)

    def remove(self, name: str) -> None:
        del self.infos[name]
        self._tell(name)

    def _tell(self, name: str) -> None:
        for callback in list(self.callbacks):
            callback(f"/regions/{name}")


class Listener(asyncio.Protocol):
    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.cutter = FrameCutter(private=True, bytes_max=FRAME_BYTES_MAX)

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        broker = self.broker
        self.receiver = LinkReceiver(
            LinkSession(transport.writelines),
            broker.open_log,
            broker.clock,
            region=broker.region.name,
            region_number=broker.region.number_of,
            relays=broker.links.relays,
            settings=ReceiverSettings(feature_level=broker.links.settings.feature_level),
            incoming=broker.links.incoming,
            auditor=broker.links.auditor,
            schemas=broker.links.schemas,
        )

    def connection_lost(self, exc: Exception | None) -> None:
        self.receiver.connection_lost()

    def data_received(self, data: bytes) -> None:
        self.receiver.on_bytes()
        try:
            for event in self.cutter.feed(data):
                if isinstance(event, Private):
                    self.receiver.on_frame(event.kind, event.command, event.payload)
                elif isinstance(event, BaseCommand):
                    self.on_command(event)
        except PeerError as error:
            self.broker.region.faults.append(str(error))
            self.transport.abort()

    def on_command(self, command: BaseCommand) -> None:
        answer = BaseCommand()
        if command.type == BaseCommand.CONNECT:
            answer.type = BaseCommand.CONNECTED
            answer.connected.server_version = "test"
        elif command.type == BaseCommand.LOOKUP:
            lookup = command.lookupTopic
            assert lookup.advertised_listener_name.startswith("link-")
            owner = self.broker.region.brokers[self.broker.region.owner]
            answer.type = BaseCommand.LOOKUP_RESPONSE
            response = answer.lookupTopicResponse
            response.request_id = lookup.request_id
            response.brokerServiceUrl = f"pulsar://{owner.host}:{PORT}"
            response.response = (
                CommandLookupTopicResponse.Connect if owner is self.broker else CommandLookupTopicResponse.Redirect
            )
            response.authoritative = owner is not self.broker
        else:
            return
        self.transport.write(frame(answer))


class Broker:
    """One broker process."""

    def __init__(self, region: TestRegion, index: int) -> None:
        self.region, self.index = region, index
        self.host = f"{region.name}-{index}"
        self.machine = region.instance.sim.machine(self.host, zone=region.name)
        self.clock = self.machine.clock
        self.log: ReplicatedLog | None = None
        self.machine.start(self.serve)

    async def serve(self, machine: Any) -> None:
        self.expiry = CautiousClock(self.clock, lambda: self.links.incoming.clocks().values())
        self.links = LinkManager(
            expiry=self.expiry,
            region=self.region.name,
            view=self.region.instance.view,
            clock=machine.clock,
            rng=machine.rng,
            settings=self.region.instance.settings,
            hosts=LinkHosts(leaderships=self.region.instance.leaderships),
        )
        await machine.loop.create_server(lambda: Listener(self), self.host, PORT)

    async def open_log(self, topic: str, source: str) -> ReplicatedLog:
        if self.region.owner != self.index:
            raise NotOwner(f"{self.host} does not own {topic}")
        if self.region.refusal is not None:
            self.region.refused += 1
            raise self.region.refusal
        return self.load()

    def load(self) -> ReplicatedLog:
        if self.log is None:
            info = self.region.info
            rng = self.region.instance.sim.rng(f"log {self.host}")
            state = TopicState(
                region=info.number, epoch=info.epoch, rng=rng, deduplication=True, settings=DedupSettings()
            )
            ledger = FakeLedger(self.region.store, state, now_ms=self.clock.wall_ms, auto=True)
            state.begin_epoch(ledger.last_confirmed)
            ledger.save()  # as the compare-and-set does that begins the first ledger
            self.log = ReplicatedLog(ledger, state)  # type: ignore[arg-type]
            self.links.attach(self.log, [name for name in self.region.instance.view.infos if name != self.region.name])
        return self.log


class TestRegion:
    __test__ = False

    def __init__(self, instance: Instance, name: str, number: int, brokers: int) -> None:
        self.instance, self.name = instance, name
        self.info = RegionInfo(
            name=name,
            number=number,
            link_urls={source: [f"pulsar://{name}-{i}:{PORT}" for i in range(brokers)] for source in instance.names},
        )
        self.store = Store(TOPIC)
        self.owner = 0
        self.sequence = 0
        self.faults: list[str] = []
        self.refusal: HeliographError | None = None
        """Why it takes no link now."""
        self.refused = 0
        self.brokers: list[Broker] = []

    def number_of(self, name: str) -> int | None:
        info = self.instance.view.region(name)
        return info.number if info is not None else None

    @property
    def log(self) -> ReplicatedLog:
        broker = self.brokers[self.owner]
        return broker.machine.run(broker.load)

    @property
    def ledger(self) -> FakeLedger:
        return self.log.ledger  # type: ignore[return-value]

    def publish(self, count: int, to: tuple[str, ...] = (), body_bytes: int = 8) -> None:
        producer = f"{self.name}-producer"
        parts = [
            entry(self.info.number * 1_000_000 + self.sequence + i, producer, self.sequence + i, to, body_bytes)
            for i in range(count)
        ]
        run = Run(parts, [len(p) for p in parts], producers=((producer, count, self.sequence, None),))
        self.sequence += count
        log = self.log
        self.brokers[self.owner].machine.run(
            log.publish, run, lambda _: None, lambda error: self.faults.append(repr(error))
        )

    async def move(self, owner: int) -> None:
        """Another broker takes the topic over."""
        broker = self.brokers[self.owner]
        if broker.log is not None and broker.machine.running:
            log, broker.log = broker.log, None
            await broker.machine.ask(broker.links.detach, log)
            await broker.machine.ask(log.close)
        self.owner = owner
        self.brokers[owner].machine.run(self.brokers[owner].load)

    def back_up(self) -> Store:
        """What a backup of the metadata leads to later: the ledgers of now, as they are now."""
        backup = copy(self.store)
        backup.blocks, backup.cursors, backup.owner = list(self.store.blocks), {}, None
        return backup

    async def restore(self, backup: Store) -> None:
        """The region goes back to `backup`, under the next epoch; its ledgers go on above all that there were."""
        broker = self.brokers[self.owner]
        if (log := broker.log) is not None:
            broker.log = None
            await broker.machine.ask(broker.links.detach, log)
            await broker.machine.ask(log.close)
        self.store, backup.next_ledger = backup, self.store.next_ledger + 1000
        broker.links.auditor.storage = None
        self.info = replace(self.info, epoch=self.info.epoch + 1)
        self.instance.view.set(self.info)
        broker.machine.run(broker.load)

    def bodies(self) -> list[int]:
        """Payloads held, in order, without hidden entries."""
        return [
            int.from_bytes(bytes(p)[-8:], "big") for _, _, run in self.store.runs() for p in run.parts if not run.flags
        ]

    def outgoing(self, target: str) -> Any:
        return self.brokers[self.owner].links.links(TOPIC)[target]

    def link(self, target: str) -> Any:
        broker = self.brokers[self.owner]
        (stats,) = [s for s in broker.links.stats(TOPIC) if s.target == target]
        return stats


class Instance:
    """Regions on one simulation."""

    def __init__(
        self,
        sim: Simulation,
        names: tuple[str, ...] = ("us", "eu", "ap"),
        brokers: int = 1,
        settings: LinkSettings | None = None,
        leaderships: Leaderships | None = None,
    ) -> None:
        self.sim, self.names, self.settings, self.leaderships = sim, names, settings, leaderships
        self.view = View({})
        self.regions = {name: TestRegion(self, name, i + 1, brokers) for i, name in enumerate(names)}
        for region in self.regions.values():
            self.view.infos[region.name] = region.info
            self.view.given[region.info.number] = region.name
        for region in self.regions.values():
            region.brokers = [Broker(region, i) for i in range(brokers)]

    def choose(self, topology: Any, regions: Iterable[str] | None = None) -> None:
        """`replicationTopology`, as the configuration of these regions says it (None: of all)."""
        for name in self.names if regions is None else regions:
            region = self.regions[name]
            broker = region.brokers[region.owner]
            broker.machine.run(broker.links.obey, region.log, {"replicationTopology": topology})

    async def load(self) -> None:
        await asyncio.sleep(0.01)
        for region in self.regions.values():
            _ = region.log
        await asyncio.sleep(1)


Scenario = Callable[[Instance, Simulation], Coroutine[Any, Any, None]]


def play(
    scenario: Scenario, *, seed: int = 1, names: tuple[str, ...] = ("us", "eu", "ap"), brokers: int = 1, **settings: Any
) -> None:
    with Simulation(seed) as sim:

        async def main() -> None:
            instance = Instance(sim, names, brokers, LinkSettings(**settings) if settings else None)
            for a in names:
                for b in names:
                    if a < b:
                        sim.network.latency(a, b, 0.04, 0.06)
            await instance.load()
            await scenario(instance, sim)
            assert all(not region.faults for region in instance.regions.values())

        sim.run(main(), limit_s=300)
