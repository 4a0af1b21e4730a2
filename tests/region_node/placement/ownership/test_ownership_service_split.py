"""Bundles that are split, on virtual time: nothing is unloaded, all brokers agree in the end, and no topic is open
twice; whoever dies, moves, or is late.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import pytest

from geo_tests.sim.simulation import Machine
from global_config.admin import ConfigAdmin
from heliograph.kv.in_process_store import EmbeddedStore
from heliograph.kv.metadata_store import Op, WatchCallback
from heliograph.kv.state_machine import KvMachine
from heliograph.model.bundles import BundleTable
from heliograph.model.configuration.configuration_records import NamespacePolicies
from heliograph.model.errors import HeliographError, NotAllowed, NotOwner
from local_meta import keys
from tests.region_node.placement.ownership.world import NAMESPACE, TOPICS, Host, World, run


class LateStore(EmbeddedStore):
    """Tells of tables of bundles, and of owners, after up to `lag_s`, each kind in its order; a split's own answer
    comes after up to a tenth of it.
    """

    def __init__(self, machine: KvMachine, lag_s: Callable[[], float], shares: Mapping[str, float]) -> None:
        """shares: prefix of a watch -> how much of the lag it has."""
        super().__init__(machine)
        self._lag_s, self._shares = lag_s, shares

    async def txn(self, ops: Sequence[Op]) -> int:
        version = await super().txn(ops)
        await asyncio.sleep(self._lag_s() / 10)
        return version

    def watch(self, prefix: str, callback: WatchCallback) -> Callable[[], None]:
        loop, due = asyncio.get_running_loop(), 0.0
        share = self._shares.get(prefix, 0.0)

        def later(key: str, value: bytes | None, version: int) -> None:
            nonlocal due
            due = max(due, loop.time() + share * self._lag_s())
            loop.call_at(due, callback, key, value, version)

        return super().watch(prefix, later) if share else super().watch(prefix, callback)


class Serving(Host):
    """Topics that are open here, each as a client would have had it opened."""

    def __init__(self, world: World, broker: str) -> None:
        super().__init__(world, broker)
        self.open: dict[str, None] = {}
        self.closed: list[str] = []

    async def unload_bundle(self, namespace: str, bundle: int, next_owner: tuple[str, str] | None = None) -> None:
        table = self.world.brokers[self.broker].bundles(namespace)
        self._close([topic for topic in self.open if table is None or table.of(topic) == bundle])
        await super().unload_bundle(namespace, bundle, next_owner)

    async def unload_strays(self, namespace: str) -> None:
        self._close([topic for topic in self.open if not self.world.brokers[self.broker].owns(topic)])

    def _close(self, topics: list[str]) -> None:
        self.closed += topics
        for topic in topics:
            del self.open[topic]


class Region(World):
    lag_s = 0.0
    shares = MappingProxyType({keys.BUNDLES: 1.0, keys.OWNERS: 0.05})

    def host(self, name: str) -> Serving:
        host = self.hosts[name]
        assert isinstance(host, Serving)
        return host

    def make_host(self, name: str) -> Serving:
        return Serving(self, name)

    def make_store(self, machine: Machine) -> EmbeddedStore:
        return LateStore(self.local, lambda: machine.rng.uniform(0, self.lag_s), self.shares)

    async def open(self, topic: str) -> str:
        """Opens a topic where lookups lead; returns the broker."""
        for _ in range(200):
            for name in self.alive():
                try:
                    answer = await self.lookup(name, topic, authoritative=True)
                except HeliographError:
                    continue
                owner = str(answer.url).removeprefix("pulsar://").partition(":")[0]
                if owner in self.alive() and self.brokers[owner].owns(topic):
                    self.host(owner).open[topic] = None
                    return owner
            await asyncio.sleep(0.05)
        raise AssertionError(f"nobody serves {topic}")

    def alive(self) -> list[str]:
        return [name for name in self.brokers if self.sim.machine(name).running]

    def table(self) -> BundleTable:
        found = self.local.get(keys.bundles(NAMESPACE))
        return BundleTable.decode(found[0]) if found is not None else BundleTable.equal(4)

    def opened(self) -> list[str]:
        return [topic for name in self.alive() for topic in self.host(name).open]

    async def halve(self, name: str, bundle: int) -> Any:
        low, high = (self.brokers[name].bundles(NAMESPACE) or self.table()).range(bundle)
        return await self.ask(name, self.brokers[name].split, NAMESPACE, bundle, [(low + high) // 2])


def scene(seed: int, scenario: Callable[[Region], Any]) -> None:
    async def main(world: World) -> None:
        assert isinstance(world, Region)
        await scenario(world)

    run(seed, main, Region)


@pytest.mark.parametrize("seed", range(10))
def test_a_split_closes_nothing_and_both_parts_have_their_owner_at_once(seed: int) -> None:
    async def scenario(world: Region) -> None:
        world.lag_s = seed / 10
        world.shares = MappingProxyType({keys.OWNERS if seed % 2 else keys.BUNDLES: 0.5})
        await world.start("a", "b")
        await asyncio.sleep(world.lag_s)
        places = {topic: await world.open(topic) for topic in TOPICS}
        before = world.owners()
        for bundle, owner in sorted(before.items()):
            assert await world.halve(owner, bundle) == [4 + bundle]
            assert world.owners()[4 + bundle] == owner == world.owners()[bundle]
        await asyncio.sleep(3)
        assert world.table().count == 8 and not any(world.host(name).closed for name in ("a", "b"))
        for topic in TOPICS:
            assert [name for name in ("a", "b") if world.brokers[name].owns(topic)] == [places[topic]]
        moved = next(bundle for bundle in range(4, 8) if any(world.table().of(topic) == bundle for topic in TOPICS))
        source = world.owners()[moved]
        to = "b" if source == "a" else "a"
        assert await world.ask("b", world.brokers["b"].transfer, NAMESPACE, moved, to)
        assert set(world.host(source).closed) == {topic for topic in TOPICS if world.table().of(topic) == moved}, (
            "a part moves without the rest"
        )

    scene(seed, scenario)


def test_only_the_owner_splits_and_only_inside() -> None:
    async def scenario(world: Region) -> None:
        await world.start("a", "b")
        owner = await world.open(TOPICS[0])
        bundle, other = world.table().of(TOPICS[0]), "b" if owner == "a" else "a"
        with pytest.raises(NotOwner, match="does not own"):
            await world.halve(other, bundle)
        with pytest.raises(NotAllowed, match="between its ends"):
            await world.ask(owner, world.brokers[owner].split, NAMESPACE, bundle, [5 << 40])
        assert world.local.get(keys.bundles(NAMESPACE)) is None

    scene(2, scenario)


@pytest.mark.parametrize("seed", range(40))
def test_splits_moves_deaths_and_late_news_leave_each_topic_open_once(seed: int) -> None:
    async def scenario(world: Region) -> None:
        world.lag_s = 2.0
        await world.start("a", "b", "c", regions=("us", "eu") if seed % 2 else ("us",))
        rng = world.sim.machine("a").rng
        for topic in TOPICS:
            await world.open(topic)

        async def split() -> None:
            name = rng.choice(world.alive())
            if mine := world.brokers[name].owned():
                await world.halve(name, rng.choice(mine)[1])

        async def move() -> None:
            name, to = rng.choice(world.alive()), rng.choice(world.alive())
            await world.ask(name, world.brokers[name].transfer, NAMESPACE, rng.randrange(world.table().count), to)

        async def die() -> None:
            if len(world.alive()) == 3:
                world.sim.machine(rng.choice(world.alive())).kill()

        async def quiet(work: Any) -> None:
            try:
                async with asyncio.timeout(20):  # whom it asks may be dead by now
                    await work
            except (HeliographError, TimeoutError):
                return

        for _ in range(8):
            works = [rng.choice((split, split, split, move, move, die))() for _ in range(3)]
            await asyncio.gather(*(quiet(work) for work in works))
            for topic in rng.sample(TOPICS, 3):
                await world.open(topic)
        await asyncio.sleep(15)
        table = world.table()
        assert {world.brokers[name].bundles(NAMESPACE) for name in world.alive()} == {table}, "all have heard of it"
        assert max(world.owners(), default=0) < table.count
        for topic in TOPICS:
            owner = await world.open(topic)
            assert [name for name in world.alive() if world.brokers[name].owns(topic)] == [owner]
        assert sorted(world.opened()) == sorted(TOPICS), "each topic is open, and in one place"

    scene(seed, scenario)


@pytest.mark.parametrize("seed", range(5))
def test_splits_of_one_namespace_at_the_same_moment_do_not_undo_each_other(seed: int) -> None:
    async def scenario(world: Region) -> None:
        await world.start("a", "b", "c")
        for topic in TOPICS:
            await world.open(topic)
        pairs = [(owner, bundle) for bundle, owner in sorted(world.owners().items())]
        done = await asyncio.gather(*(world.halve(owner, bundle) for owner, bundle in pairs), return_exceptions=True)
        made = [number for new in done if isinstance(new, list) for number in new]
        assert made and all(isinstance(new, (list, NotOwner)) for new in done)
        assert sorted(made) == list(range(4, world.table().count)), "each that was told so is there"

    scene(seed, scenario)


def test_a_namespace_that_is_made_anew_begins_with_the_bundles_it_asks_for() -> None:
    async def scenario(world: Region) -> None:
        await world.start("a", "b")
        owner = await world.open(TOPICS[0])
        await world.halve(owner, world.table().of(TOPICS[0]))
        admin = ConfigAdmin(EmbeddedStore(world.config))
        await admin.delete_namespace(NAMESPACE)
        await world.until(lambda: world.local.get(keys.bundles(NAMESPACE)) is None and not world.owners())
        await admin.create_namespace(NAMESPACE, NamespacePolicies(regions=("us",), bundles=2))
        await asyncio.sleep(1)
        await world.open(TOPICS[0])
        assert {world.brokers[name].bundles(NAMESPACE) for name in ("a", "b")} == {BundleTable.equal(2)}

    scene(3, scenario)


def test_a_table_that_cannot_be_read_leaves_the_last_good_one() -> None:
    async def scenario(world: Region) -> None:
        await world.start("a")
        for topic in TOPICS:
            await world.open(topic)
        await world.halve("a", 0)
        good = world.brokers["a"].bundles(NAMESPACE)
        store = EmbeddedStore(world.local)
        await store.put(keys.bundles(NAMESPACE), b"\x81\xa6format\x63")
        await asyncio.sleep(1)
        assert world.brokers["a"].bundles(NAMESPACE) == good and not world.host("a").closed

    scene(4, scenario)


def test_bundles_that_a_table_no_longer_has_are_given_up() -> None:
    async def scenario(world: Region) -> None:
        await world.start("a", "b")
        for topic in TOPICS:
            owner = await world.open(topic)
            if world.table().count < 7:
                await world.halve(owner, world.table().of(topic))
        await EmbeddedStore(world.local).delete(keys.bundles(NAMESPACE))
        await world.until(lambda: max(world.owners(), default=0) < 4)
        for topic in TOPICS:
            await world.open(topic)
        assert sorted(world.opened()) == sorted(TOPICS)

    scene(5, scenario)
