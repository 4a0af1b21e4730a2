"""A topic that is deleted at its source and made again, on the simulated loop."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from geo_tests.sim.simulation import Simulation
from replicator.audit.audit_settings import AuditSettings
from replicator.log.deletion import recall, remember
from replicator.log.replicated_log import ReplicatedLog
from replicator.manager.link_manager import LinkSettings
from replicator.sending.link_sender import SenderSettings
from tests.replicator.fake_ledger import Store
from tests.replicator.link_instance import TOPIC, Instance, TestRegion

DEFAULT_SENDER = SenderSettings()


def play(
    scenario: Callable[[Instance], Coroutine[Any, Any, None]],
    names: tuple[str, ...] = ("us", "eu"),
    sender: SenderSettings = DEFAULT_SENDER,
) -> None:
    with Simulation(2) as sim:

        async def main() -> None:
            instance = Instance(sim, names, 2, LinkSettings(audit=AuditSettings(period_s=0), sender=sender))
            sim.network.latency("us", "eu", 0.01, 0.02)
            await instance.load()
            await scenario(instance)
            assert all(not region.faults for region in instance.regions.values())

        sim.run(main(), limit_s=300)


class Metadata:
    """The part of a metadata store that outlives a topic."""

    def __init__(self) -> None:
        self.held: dict[str, bytes] = {}

    async def get(self, key: str) -> tuple[bytes, int] | None:
        return (self.held[key], 1) if key in self.held else None

    async def put(self, key: str, value: bytes) -> int:
        self.held[key] = value
        return 1

    async def delete(self, key: str) -> bool:
        return self.held.pop(key, None) is not None


async def made_again(region: TestRegion, meta: Any) -> ReplicatedLog:
    """The topic is deleted in this region, with all that is stored of it, and made again."""
    broker = region.brokers[region.owner]
    log = region.log
    broker.log = None
    await broker.machine.ask(broker.links.detach, log)
    await broker.machine.ask(log.close)
    await broker.machine.ask(remember, log, meta)
    store, sim = Store(TOPIC), region.instance.sim
    store.next_ledger = region.store.next_ledger
    region.store = store
    rng = sim.rng
    sim.rng = lambda name: rng(f"{name} {store.next_ledger}")  # type: ignore[method-assign]
    await broker.machine.ask(recall, region.log, meta)
    return region.log
