"""A configuration that was put back to an older copy of all of its voters: regions know it by their marks, and nothing
is obeyed as it stands.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest

from geo_tests.sim.leadership import DriftingClock
from geo_tests.sim.loop import run_alone
from global_config import keys
from global_config.backup import restored_rows
from heliograph.kv.engine.table_rows import Row
from heliograph.kv.in_process_store import EmbeddedStore, _Watch
from heliograph.kv.state_machine import KvMachine
from heliograph.model.configuration.leadership import (
    DRAINING,
    ENDED,
    FENCED,
    FLOOR,
    LEADERSHIPS,
    OPEN,
    Leadership,
    leadership,
    writer,
    writers,
)
from heliograph.model.errors import CorruptData, MetadataUnavailable, NotAllowed, OutcomeUnknown
from local_meta import keys as meta_keys
from region_node.dr.leadership import configuration_age
from region_node.dr.leadership.configuration_age import WHY, ConfigurationAge
from region_node.dr.leadership.leadership_changes import Switching, closing
from region_node.dr.leadership.write_gates import Writing
from region_node.dr.leadership.write_leases import WriteLeases
from region_node.dr.operations.operation import CANCELLED, FAILOVER, Operation, operation_key
from tests.broken_rules import BrokenRules

NAME, REGIONS = "t/n", ("us", "eu", "ap")


class Broker:
    def __init__(self, world: World, region: str) -> None:
        self.region, clock = region, DriftingClock(1.0)
        self.age = ConfigurationAge(world.config, world.metas[region], region, clock.wall_ms, random.Random(1))
        self.leases = WriteLeases(
            world.config,
            region=region,
            broker=f"{region}-0",
            clock=clock,
            url_of=lambda _: "",
            beside=lambda: (f"{region}-0",),
            age=self.age,
        )

    @property
    def epoch(self) -> int:
        """Under which it confirms now; 0: it does not."""
        gate = self.leases.gate(NAME)
        return gate.epoch if gate is not None and gate.open else 0


class World:
    """One configuration, three regions of one broker each."""

    def __init__(self) -> None:
        self.config = EmbeddedStore()
        self.metas = {region: EmbeddedStore() for region in REGIONS}
        self.switching = Switching(self.config, self.wall_ms)
        self.brokers: dict[str, Broker] = {}

    @staticmethod
    def wall_ms() -> int:
        return int(asyncio.get_running_loop().time() * 1000)

    async def start(self, *regions: str) -> None:
        for region in regions:
            await self.stop(region)
            self.brokers[region] = Broker(self, region)
            await self.brokers[region].leases.start()

    async def stop(self, *regions: str) -> None:
        for region in regions:
            if (broker := self.brokers.pop(region, None)) is not None:
                await broker.leases.stop()

    async def end(self) -> None:
        await self.stop(*self.brokers)

    def copied(self) -> bytes:
        return self.config.machine.snapshot()

    def put_back(self, copy: bytes) -> None:
        """Beneath those that run, which watch it from then on; leases of the copy end as a new leader ends them."""
        self.config.machine = machine = KvMachine()
        machine.restore(copy)
        for lease, ttl_ms in machine.leases().items():
            self.config._arm(lease, ttl_ms)
        for watch in [one for one in self.config._watches if not one.stopped]:
            watch._stop_observing()
            self.config.watch(watch.prefix, partial(_told, watch))

    async def moved(self, to: str) -> None:
        """As a switchover does."""
        await self.switching.change(NAME, lambda old: closing(old, to, DRAINING, self.wall_ms()))
        for _ in range(100):
            flipped, _ = await self.switching.flip(NAME, to, regions=())
            if flipped is not None:
                return
            await asyncio.sleep(0.5)
        raise AssertionError("the old region never obeys")

    def open_in(self) -> dict[str, int]:
        return {region: broker.epoch for region, broker in self.brokers.items() if broker.epoch}


def _told(watch: _Watch, key: str, value: bytes | None, version: int) -> None:
    if not watch.stopped:
        watch._callback(key, value, version)


def run(main: Callable[[World], Coroutine[Any, Any, None]]) -> None:
    async def whole() -> None:
        world = World()
        try:
            await main(world)
        finally:
            await world.end()

    run_alone(whole(), limit_s=2000.0)


async def led(world: World, *regions: str) -> None:
    await asyncio.sleep(50)  # epochs that begin at the wall clock are above all others
    await world.switching.begin(NAME, "us", {})
    await world.start(*(regions or REGIONS))
    await asyncio.sleep(3)


@pytest.mark.parametrize("value", (b"next year", b"", b"-5", b"9" * 40, b'{"format": 9}', b"9" * 16))
def test_what_was_restored_when_cannot_be_read_stops_nobody_and_the_mark_still_decides(value: bytes) -> None:
    """As of a later version, or far ahead of every clock. A lease is renewed, and taken anew, beside it; one that
    went back asks all the same.
    """

    async def main(world: World) -> None:
        await led(world)
        await world.config.put(keys.RESTORED, value)
        await asyncio.sleep(30)
        assert world.open_in() == {"us": 1}
        await world.start("us", "eu")
        await asyncio.sleep(10)
        assert world.open_in() == {"us": 1}
        copy = world.copied()
        await world.moved("eu")
        await asyncio.sleep(12)
        assert world.open_in() == {"eu": 2}
        await world.end()
        world.put_back(copy)
        await world.start("us")
        await asyncio.sleep(10)
        assert world.open_in() == {} and (await world.switching.get(NAME))[0].asks == WHY

    run(main)


@pytest.mark.parametrize("value", (b"7", b"[1]", b"no json"))
def test_a_mark_that_cannot_be_read_is_made_anew(value: bytes) -> None:
    async def main(world: World) -> None:
        await led(world)
        await world.metas["us"].put(meta_keys.CONFIGURATION_SEEN, value)
        await world.start("us")
        await asyncio.sleep(10)
        found = await world.metas["us"].get(meta_keys.CONFIGURATION_SEEN)
        assert world.open_in() == {"us": 1} and found is not None and found[0] != value

    run(main)


def test_a_writer_that_cannot_be_read_obeys_nothing_and_ends_with_its_lease() -> None:
    async def main(world: World) -> None:
        await led(world)
        await asyncio.sleep(10)
        lease = await world.config.grant(5000)
        await world.config.put(writer("eu", "eu-1", lease), b"of a later version", lease=lease)
        assert await world.switching.unheard(NAME, REGIONS) == {"eu": (["eu-1." + str(lease)], 2)}
        await asyncio.sleep(10)
        assert await world.switching.unheard(NAME, REGIONS) == {}

    run(main)


@pytest.mark.parametrize("key", (FLOOR, ENDED + NAME))
def test_no_leadership_begins_above_an_epoch_that_cannot_be_read(key: str) -> None:
    async def main(world: World) -> None:
        await world.config.put(key, b"of a later version")
        with pytest.raises(CorruptData, match="the epoch of earlier leaderships"):
            await world.switching.begin(NAME, "us", {})

    run(main)


def test_what_went_back_asks_once_and_is_answered_under_an_epoch_of_its_own() -> None:
    async def main(world: World) -> None:
        await led(world)
        under_way = Operation(id="o", kind=FAILOVER, namespace=NAME, source="us", target="eu", by="x", begun_ms=1)
        await world.config.put(operation_key(NAME), under_way.encode())
        copy = world.copied()
        await world.config.delete(operation_key(NAME))
        await world.moved("eu")
        await asyncio.sleep(3)
        assert world.open_in() == {"eu": 2}
        await world.end()
        world.put_back(copy)
        await world.start("us", "eu")
        await asyncio.sleep(20)
        record, _ = await world.switching.get(NAME)
        assert world.open_in() == {} and (record.state, record.asks) == (FENCED, WHY) and record.epoch > 1_000_000
        found = await world.config.get(operation_key(NAME))
        assert found is not None and Operation.decode(found[0]).state == CANCELLED
        answered = await world.switching.begin(NAME, "eu", {})
        await world.start("ap")
        await asyncio.sleep(20)
        assert world.open_in() == {"eu": answered.epoch} and answered.epoch > record.epoch, "ap does not ask again"
        assert (await world.switching.get(NAME))[0] == answered

    run(main)


def test_brokers_that_ran_on_believe_nothing_that_they_had_heard() -> None:
    async def main(world: World) -> None:
        await led(world)
        for _ in range(50):  # so that the copy is far behind
            await world.config.put("/other", b"x")
        copy = world.copied()
        await asyncio.sleep(10)
        await world.moved("eu")
        await asyncio.sleep(3)
        world.put_back(copy)
        await world.start("us")
        await asyncio.sleep(20)
        assert world.open_in() == {} and (await world.switching.get(NAME))[0].asks == WHY
        answered = await world.switching.begin(NAME, "us", {})
        await asyncio.sleep(10)
        assert world.open_in() == {"us": answered.epoch}

    run(main)


def test_one_that_had_heard_it_before_its_first_look_believes_nothing_of_that() -> None:
    """Watches tell without a majority; a lease, and a look, need one."""

    async def main(world: World) -> None:
        await led(world)
        copy = world.copied()
        for _ in range(50):  # so that the copy is far behind
            await world.config.put("/other", b"x")
        for to in ("eu", "us"):
            await world.moved(to)
        await asyncio.sleep(12)
        await world.end()
        world.config.unavailable = "a majority is away"
        await world.start("us")
        await asyncio.sleep(3)
        world.put_back(copy)
        world.config.unavailable = None
        await asyncio.sleep(10)
        assert world.open_in() == {} and (await world.switching.get(NAME))[0].asks == WHY
        answered = await world.switching.begin(NAME, "eu", {})
        await world.start("eu")
        await asyncio.sleep(10)
        assert world.open_in() == {"eu": answered.epoch}

    run(main)


def test_what_was_written_under_a_lease_that_is_another_brokers_by_now_is_taken_away() -> None:
    """Its number is given out again: under it the key would stay as long as that broker lives, and obey nothing."""

    async def main(world: World) -> None:
        await led(world, "us")
        copy, config = world.copied(), world.config
        await world.start("eu")
        await asyncio.sleep(12.5)  # no renewal is due
        (lease,) = [lease for lease, held in config.machine.held.items() if writers("eu") in str(held.keys)]
        world.put_back(copy)
        while config.machine.index < lease - 1:
            await config.put("/other", b"x")
        assert await config.grant(3_600_000) == lease
        put = list[str]()
        config.watch(writers("eu"), lambda key, value, _: put.append(key))
        for name in ("/other", "/other", "/other", leadership("t/other")):  # which is to be told
            await config.put(name, Leadership(active="us").encode())
        await asyncio.sleep(20)
        own = world.brokers["eu"].leases._lease
        assert own != lease and writer("eu", "eu-0", lease) in put
        assert [key for key, _, _ in config.machine.under(writers("eu"))] == [writer("eu", "eu-0", own)]

    run(main)


def test_a_namespace_whose_leadership_is_forgotten_begins_above_it() -> None:
    async def main(world: World) -> None:
        await world.start(*REGIONS)
        copy = world.copied()
        await led(world)
        await world.moved("eu")
        await asyncio.sleep(3)
        await world.end()
        world.put_back(copy)
        await world.config.put(leadership("t/other"), Leadership(active="us").encode())
        await world.start(*REGIONS)
        await asyncio.sleep(10)
        assert (await world.switching.begin(NAME, "ap", {})).epoch > 50_000

    run(main)


def test_a_restore_from_a_backup_is_none() -> None:
    """It says so itself, and what is answered then stands."""

    async def main(world: World) -> None:
        await led(world)
        rows = await world.config.range("/", "0")
        await asyncio.sleep(10)
        await world.moved("eu")
        await asyncio.sleep(3)
        await world.end()
        world.config = EmbeddedStore()
        world.switching = Switching(world.config, world.wall_ms)
        held: list[tuple[str, Row]] = [(key, (value, at, 0)) for key, value, at in rows if "/writers/" not in key]
        for key, value in restored_rows(held, world.wall_ms()):
            await world.config.put(key, value)
        answered = await world.switching.begin(NAME, "us", {})
        await world.start(*REGIONS)
        await asyncio.sleep(20)
        assert (await world.switching.get(NAME))[0] == answered and world.open_in() == {"us": answered.epoch}

    run(main)


class Failing(EmbeddedStore):
    """The `at`-th transaction is lost, before or after it happened."""

    def __init__(self, machine: KvMachine, at: int, after: bool) -> None:
        super().__init__(machine)
        self.at, self.after = at, after

    async def txn(self, ops: Any) -> int:
        self.at -= 1
        if self.at:
            return await super().txn(ops)
        if self.after:
            await super().txn(ops)
        raise OutcomeUnknown("lost") if self.after else MetadataUnavailable("away")


@pytest.mark.parametrize("after", [False, True])
def test_one_that_was_interrupted_is_gone_on_with_by_the_next(after: bool) -> None:
    """Every namespace asks before anybody says that it is done."""

    async def main() -> None:
        for at in range(1, 20):
            meta, config = EmbeddedStore(), EmbeddedStore()
            for number in range(120):
                await config.put(leadership(f"t/{number}"), Leadership(active="us").encode())
            copy = config.machine.snapshot()
            await ConfigurationAge(config, meta, "us", lambda: 9_000_000).look(anew=True)
            assert config.machine.get(keys.RESTORED) is None
            machine = KvMachine()
            machine.restore(copy)
            broken = Failing(machine, at, after)
            lost = 0
            for store in (broken, EmbeddedStore(machine)):
                try:
                    await ConfigurationAge(store, meta, "us", lambda: 9_000_000).look(anew=True)
                except (OutcomeUnknown, MetadataUnavailable):
                    lost += 1
            rows = [Leadership.decode(value) for _, value, _ in machine.under(leadership("t/"))]
            assert len(rows) == 120 and all(row.asks == WHY for row in rows)
            assert machine.get(keys.RESTORED) is not None
            if not lost:
                return
        raise AssertionError("it has fewer writes than that")

    run_alone(main())


class Far(EmbeddedStore):
    """Its pages of leaderships wait for `near`."""

    def __init__(self, machine: KvMachine) -> None:
        super().__init__(machine)
        self.asked, self.near = asyncio.Event(), asyncio.Event()

    async def range(self, start: str, end: str, *, limit: int | None = None) -> list[tuple[str, bytes, int]]:
        if start == LEADERSHIPS:
            self.asked.set()
            await self.near.wait()
        return await super().range(start, end, limit=limit)


def test_one_that_is_late_undoes_nothing_that_was_answered_since() -> None:
    async def main() -> None:
        metas, config, machine = [EmbeddedStore(), EmbeddedStore()], EmbeddedStore(), KvMachine()
        await config.put(leadership(NAME), Leadership(active="us").encode())
        copy = config.machine.snapshot()
        for region, meta in zip(REGIONS, metas, strict=False):
            await ConfigurationAge(config, meta, region, lambda: 9_000_000).look(anew=True)
        machine.restore(copy)
        near, far = EmbeddedStore(machine), Far(machine)
        late = asyncio.ensure_future(ConfigurationAge(far, metas[1], "eu", lambda: 9_000_000).look(anew=True))
        await far.asked.wait()
        await ConfigurationAge(near, metas[0], "us", lambda: 9_000_000).look(anew=True)
        answered = await Switching(near, lambda: 9_000_000).begin(NAME, "eu", {})
        begun = Operation(id="o", kind=FAILOVER, namespace=NAME, source="eu", target="us", by="x", begun_ms=1)
        await near.put(operation_key(NAME), begun.encode())
        far.near.set()
        assert await late
        rows = [await near.get(key) for key in (leadership(NAME), operation_key(NAME))]
        assert [row and row[0] for row in rows] == [answered.encode(), begun.encode()]

    run_alone(main())


def test_a_look_that_takes_long_holds_up_no_renewal() -> None:
    async def slow(*, anew: bool) -> bool:
        await asyncio.sleep(20)
        return False

    async def main(world: World) -> None:
        await world.switching.begin(NAME, "us", {})
        world.brokers["us"] = broker = Broker(world, "us")
        broker.leases._age = cast(Any, SimpleNamespace(look=slow))
        await broker.leases.start()
        await asyncio.sleep(22)
        assert world.open_in() == {"us": 1}, "nothing is confirmed before the first look"
        for number in range(40):
            await world.switching.begin(NAME, "us", {"rpo_s": float(number)})
            await asyncio.sleep(1)
            assert world.open_in() == {"us": 1}

    run(main)


# -- worlds ------------------------------------------------------------------------------------------------------------


async def lived(world: World, rng: random.Random) -> None:
    """Moves, starts, and copies that are put back: no two regions ever confirm under one epoch."""
    await led(world)
    used, copies = dict[int, str](), [world.copied()]

    async def look(seconds: float) -> None:
        for _ in range(int(seconds / 0.25)):
            await asyncio.sleep(0.25)
            for region, epoch in world.open_in().items():
                assert used.setdefault(epoch, region) == region, f"{region} confirms under {epoch} of {used[epoch]}"

    for _ in range(14):
        await look(rng.uniform(4, 8))  # the marks are newer than what was heard
        record = (await world.switching.get(NAME))[0]
        match rng.randrange(5):
            case 0:
                copies.append(world.copied())
            case 1:
                stopped = [region for region in REGIONS if rng.random() < 0.5]
                await world.stop(*stopped)
                if away := rng.random() < 0.5:  # the majority that is put back: watches tell without it
                    world.config.unavailable = "a majority is away"
                    await world.start(*stopped)
                    await look(rng.uniform(0, 12))
                world.put_back(rng.choice(copies))
                world.config.unavailable = None
                await look(rng.uniform(0, 3))
                if not away:
                    await world.start(*stopped)
            case 2:
                await world.start(rng.choice(REGIONS))
            case _ if record.asks:
                await world.switching.begin(NAME, rng.choice(REGIONS), {})
            case _ if record.state == OPEN:
                to = rng.choice([region for region in REGIONS if region != record.active])
                with suppress(NotAllowed):  # it asks meanwhile
                    await asyncio.wait_for(world.moved(to), 100)
    await look(15)
    assert used and len(world.open_in()) <= 1


def lives(seeds: range) -> None:
    for seed in seeds:
        run(lambda world, seed=seed: lived(world, random.Random(seed)))  # type: ignore[misc]


def test_no_epoch_is_confirmed_under_by_two_regions_whatever_is_put_back() -> None:
    lives(range(3))


def nobody_looks(patch: BrokenRules) -> None:
    async def look(self: ConfigurationAge, *, anew: bool) -> bool:
        return False

    patch.setattr(ConfigurationAge, "look", look)


def it_is_said_and_nothing_asks(patch: BrokenRules) -> None:
    patch.setattr(configuration_age, "restored_value", lambda key, value, now_ms, why="": value)


def what_was_heard_before_counts(patch: BrokenRules) -> None:
    patch.setattr(Writing, "forget_versions", lambda self: None)
    patch.setattr(WriteLeases, "_look_back", _kept_only)


async def _kept_only(self: WriteLeases, *, anew: bool) -> bool:
    assert self._age is not None
    await self._age.look(anew=anew)
    return False


@pytest.mark.parametrize("mutant", [nobody_looks, it_is_said_and_nothing_asks, what_was_heard_before_counts])
def test_each_rule_is_needed(mutant: Callable[[BrokenRules], None], broken: BrokenRules) -> None:
    mutant(broken)
    broken.look(lambda seed: lives(range(seed, seed + 1)), range(40), AssertionError)
