"""Rates of resource groups over several brokers: what each may have, and that together they keep to what is set."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from heliograph.kv.in_process_store import EmbeddedStore
from heliograph.kv.state_machine import KvMachine
from heliograph.model.configuration.configuration_records import ResourceGroup
from heliograph.model.errors import CorruptData
from local_meta import keys
from region_node.runtime.logged_tasks import logged_tasks
from region_node.subscriptions.rate_limits import CountingBucket
from region_node.topics.limits.resource_group_shares import Use, UseReport, is_news, share
from region_node.topics.limits.resource_group_usage import GroupUse
from region_node.topics.limits.topic_rates import IDLE_S, Groups
from tests.region_node.topics.fake_storage import FakeClock


@pytest.mark.parametrize("seed", range(200))
def test_shares_add_up_to_the_rate_and_nobody_who_waits_has_less_than_another(seed: int) -> None:
    rng = random.Random(seed)
    rate = rng.choice([1, 7, 100, 1e6, 5e9])
    uses: list[Use] = [
        (rng.choice([0.0, rng.random() * rate * 1.2]), rng.random() < 0.4) for _ in range(rng.randrange(1, 9))
    ]
    shares = [share(rate, mine, uses[:at] + uses[at + 1 :]) for at, mine in enumerate(uses)]
    assert sum(shares) == pytest.approx(rate, rel=1e-6)
    assert min(shares) >= rate / len(uses) * 0.1 * (1 - 1e-9), "whoever begins has something to begin with"
    waiting = [part for part, (_, held) in zip(shares, uses, strict=True) if held]
    assert not waiting or max(waiting) >= max(shares) * (1 - 1e-9)
    assert not waiting or max(waiting) - min(waiting) <= 1e-6 * rate
    if len(uses) == 1:
        assert shares == [pytest.approx(rate)]


def test_what_one_does_not_need_another_has() -> None:
    idle, calm, busy = (0.0, False), (20.0, False), (30.0, True)
    assert share(100, busy, [idle]) == pytest.approx(95) and share(100, idle, [busy]) == pytest.approx(5)
    assert share(100, busy, [calm]) == pytest.approx(78.0), "its use and a tenth more is left to the calm one"
    assert share(100, busy, [busy]) == pytest.approx(50.0)


def test_reports_come_back_as_they_were_and_bad_ones_are_told() -> None:
    uses = (12.3, True), (0.0, False), (5e6, False), (1.0, True)
    assert UseReport.decode(UseReport({"g": uses}).encode()) == UseReport({"g": uses})
    for bad in (b"", b"\x80", b"\x81\xa6format\x02", b"nonsense", b"\x82\xa6format\x01\xa6groups\x91\x01"):
        with pytest.raises(CorruptData, match="resource groups"):
            UseReport.decode(bad)
    assert not is_news({"g": uses}, {"g": ((12.9, True), *uses[1:])})
    for after in ({}, {"g": ((12.3, False), *uses[1:])}, {"g": (uses[0], uses[1], (6e6, False), uses[3])}):
        assert is_news({"g": uses}, after)


class World:
    """Brokers over one metadata, on virtual time: each tries to publish so many messages a second by topics of one
    group.
    """

    def __init__(self, rate: int) -> None:
        self.clock, self.tasks, self.machine = FakeClock(), logged_tasks(), KvMachine()
        self.set: dict[str, ResourceGroup] = {"g": ResourceGroup(publish_messages=rate)}
        self.stores: list[EmbeddedStore] = []
        self.groups: list[Groups] = []
        self.uses: list[GroupUse] = []
        self.leases: list[int] = []

    async def join(self) -> None:
        number, store, groups = len(self.stores), EmbeddedStore(self.machine), Groups(self.set.get, self.clock)
        self.stores.append(store)
        self.groups.append(groups)
        self.leases.append(await store.grant(600_000))
        self.uses.append(
            GroupUse(
                groups,
                broker=f"b{number}",
                lease=lambda: self.leases[number],
                meta=store,
                tasks=self.tasks,
                clock=self.clock,
            )
        )

    def bucket(self, number: int) -> CountingBucket:
        found = self.groups[number].rates("g")[0]
        assert isinstance(found, CountingBucket)
        return found

    async def run(self, seconds: float, wanted: list[float]) -> list[int]:
        """How many each got through in that time."""
        got, owed = [0] * len(wanted), [0.0] * len(wanted)
        for step in range(int(seconds * 10)):
            self.clock.now += 0.1
            for number, want in enumerate(wanted):
                bucket = self.bucket(number)
                bucket.refill(self.clock.now)
                owed[number] = min(owed[number] + want / 10, want)
                while owed[number] >= 1 and bucket.messages_left:
                    bucket.spend(1, 1)
                    got[number], owed[number] = got[number] + 1, owed[number] - 1
            if step % 10 == 9:
                for use in self.uses:
                    use.tick(self.clock.now)
                for _ in range(8):
                    await asyncio.sleep(0)
        return got


def in_world(rate: int, brokers: int, test: Any) -> None:
    async def main() -> None:
        world = World(rate)
        for _ in range(brokers):
            await world.join()
        await test(world)
        await world.tasks.close()

    asyncio.run(main())


@pytest.mark.parametrize("seed", range(8))
def test_brokers_together_keep_to_the_rate_and_use_it(seed: int) -> None:
    async def test(world: World) -> None:
        rng = random.Random(seed)
        for _ in range(6):
            wanted = [rng.choice([0.0, 20.0, 60.0, 1000.0]) for _ in range(3)]
            await world.run(8, wanted)  # what changed is said, and heard
            got = sum(await world.run(20, wanted))
            assert got <= 100 * 20 * 1.02 + 100, f"{got} by {wanted}"
            assert got >= min(sum(wanted), 100) * 20 * 0.85, f"{got} by {wanted}: what one leaves another may have"

    in_world(100, 3, test)


def test_one_alone_has_everything_and_so_has_the_last_that_lives() -> None:
    async def test(world: World) -> None:
        assert sum(await world.run(20, [1000.0])) >= 1900
        await world.join()
        await world.run(8, [1000.0, 1000.0])
        one, other = await world.run(20, [1000.0, 1000.0])
        assert 900 <= one <= 1120 and 900 <= other <= 1120
        await world.stores[1].revoke(world.leases[1])
        world.uses.pop().close()
        await world.run(4, [1000.0])
        assert sum(await world.run(20, [1000.0])) >= 1900

    in_world(100, 1, test)


def test_reports_that_cannot_be_read_or_written_change_nothing() -> None:
    async def test(world: World) -> None:
        await world.run(8, [1000.0, 1000.0])
        parts = [bucket.messages for bucket in (world.bucket(0), world.bucket(1))]
        assert parts == [pytest.approx(50, rel=0.05)] * 2
        await world.stores[1].put(keys.group_use("b1"), b"from the future", lease=world.leases[1])
        await world.run(1, [1000.0, 1000.0])
        assert world.bucket(0).messages == pytest.approx(50, rel=0.05)
        for store in world.stores:
            store.unavailable = "cut off"
        await world.run(8, [1000.0, 0.0])
        assert world.bucket(0).messages == pytest.approx(50, rel=0.05)
        for store in world.stores:
            store.unavailable = None
        await world.run(IDLE_S + 6, [1000.0, 0.0])
        assert world.bucket(0).messages == pytest.approx(100), "who is idle for long does not count any more"
        writes = world.machine.index
        await world.run(20, [1000.0, 0.0])
        assert world.machine.index - writes <= 4, "nothing is written where nothing is new"

    in_world(100, 2, test)


def test_less_than_one_a_second_is_not_nothing() -> None:
    bucket = CountingBucket(0.25, -1, 0.0)
    bucket.spend(1, 1)
    found = []
    for now in (3.9, 7.9, 8.1):
        bucket.refill(now)
        found.append(bucket.messages_left)
    assert found == [0, 1, 1]
