"""A region's metadata is put back to an older copy beneath two running brokers, and gives the number of a lease out
again.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from geo_tests.sim.pulsar_client import Client, Producer, Reader
from geo_tests.sim.region import META_PORT, NAMESPACE, Node, Region
from geo_tests.sim.world import World, WorldSettings
from heliograph.kv.metadata_client import MetaClient
from region_node.placement.ownership.broker_records import BrokerRecord
from region_node.placement.ownership.ownership_service import Ownership
from region_node.process.broker_role import BrokerRole

TOPIC = f"persistent://{NAMESPACE}/topic-0"
Image = dict[str, dict[str, bytes]]


class _PutBack(World):
    """One region. The copy is made before its second broker was there."""

    def __init__(self) -> None:
        super().__init__(1, WorldSettings(regions=("us",), topics=1, faults=0, stories=()))
        self.lives: list[str] = []
        self.receipts: dict[int, float] = {}
        """Sequence -> when it was acknowledged."""

    async def _main(self) -> None:
        await self._start()
        region = self.regions["us"]
        first, second = region.brokers
        for node in region.brokers:
            node.on_started = lambda node: self.lives.append(node.name)
        self.sim.machine("us-client", zone="us").start(_idle)
        second.kill()
        await asyncio.sleep(10)
        image = self._copy(region)
        await self.sim.call("us-admin", self._grant_until, 0, 50)
        second.start()
        await self._until("the second broker is up", second.is_ready, 30)
        await self.sim.call("us-admin", self._grant_until, 0, 300)  # it takes them at versions that come late again
        await self._take(second)
        self.lives.clear()
        lease = _ownership(second).lease
        publishing = asyncio.ensure_future(self._publish_on(region))
        await asyncio.sleep(3)
        for host in ("us-broker-0", "us-broker-1"):
            self.sim.network.cut(host, "us-meta")
        self._put_back(region, image)
        await self._until("the metadata is up", region.metadata.is_ready, 30)
        await self.sim.call("us-admin", self._grant_until, lease)
        self.sim.network.heal_all([(node.name, "us-meta") for node in region.brokers])
        await asyncio.sleep(15)
        anew = sorted(self.lives)
        first.kill()  # whatever became of them: another life of it believes what the metadata says
        first.start()
        await self._until("it is up", first.is_ready, 30)
        await self.sim.call("us-client", self._ask_for, first)
        settled = self.sim.now()
        for _ in range(200):
            await asyncio.sleep(0.1)
            both = set(_ownership(first).owned()) & set(_ownership(second).owned())
            assert not both, f"two brokers own {both}"
        publishing.cancel()
        since = {sequence for sequence, at in self.receipts.items() if at > settled}
        read = await self.sim.call("us-client", Reader(Client(region.addresses(), self.sim.rng("r")), TOPIC).read_all)
        assert since and since <= {found.sequence for found in read}, "what was acknowledged is there"
        assert anew == [first.name, second.name], "both began anew by themselves"
        assert all(map(_is_registered, region.brokers))

    def _copy(self, region: Region) -> Image:
        return {path: platter.image() for path, platter in _platters(region.metadata)}

    def _put_back(self, region: Region, image: Image) -> None:
        region.metadata.power_cut()
        for path, platter in _platters(region.metadata):
            platter.put_back(image.get(path, {}))
        region.metadata.start()

    async def _take(self, node: Node) -> None:
        """Every bundle is moved to it."""
        ownership = _ownership(node)
        for bundle in range(2):
            await node.machine.ask(ownership.bundle_owner, NAMESPACE, bundle)
            await node.machine.ask(ownership.transfer, NAMESPACE, bundle, node.name)

    async def _ask_for(self, node: Node) -> None:
        """Has the broker look for the topic's owner, and take it where it sees none."""
        await node.machine.ask(_ownership(node).owner, TOPIC)

    async def _publish_on(self, region: Region) -> None:
        """By one connection, as long as it lasts; it looks for another broker where that ends."""

        def on_receipt(sequence: int, _ledger: int, _entry: int) -> None:
            self.receipts[sequence] = self.sim.now()

        machine = self.sim.machine("us-client")
        client = Client(region.addresses(), self.sim.rng("p"))
        producer = machine.run(Producer, client, TOPIC, "p", on_receipt)
        running, sequence = machine.run(_task, producer), 0
        running.add_done_callback(self.sim.report)
        try:
            while True:
                sequence += producer.send(sequence, b"p:%d:" % sequence)
                await asyncio.sleep(0.05)
        finally:
            producer.close()

    async def _grant_until(self, lease: int, count: int = 0) -> None:
        """Another client has that number by now, and keeps it; or so many of its own end at once."""
        machine = self.sim.machines["us-admin"]
        store = MetaClient([f"us-meta:{META_PORT}"], clock=machine.clock, rng=machine.rng)
        for _ in range(count):
            await store.revoke(await store.grant(100))
        while lease and (granted := await store.grant(600_000)) < lease:
            pass
        store.close()
        assert not lease or granted == lease


def _platters(node: Node) -> list[tuple[str, Any]]:
    return [(path, platter) for path, platter in node.machine.platters().items() if path.startswith("data/meta")]


def _ownership(node: Node) -> Ownership:
    role = node.roles[0]
    assert isinstance(role, BrokerRole)
    return role.ownership


def _is_registered(node: Node) -> bool:
    record: BrokerRecord | None = next((r for r in _ownership(node).brokers() if r.broker == node.name), None)
    return node.is_ready() and record is not None and record.lease == _ownership(node).lease > 0


def _task(producer: Producer) -> asyncio.Task[None]:
    return asyncio.get_running_loop().create_task(producer.run())


async def _idle(_: object) -> None: ...


@pytest.mark.slow
def test_a_lease_of_before_is_nobodys_and_what_is_acknowledged_stays() -> None:
    _PutBack().run()
