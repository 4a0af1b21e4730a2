"""Deleting in two steps: nothing goes early, nothing comes back by itself, and what is brought back is whole."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

import pytest

from geo_tests.sim.loop import run_alone
from global_config import keys
from global_config.backup import restored_rows
from heliograph.kv.in_process_store import EmbeddedStore
from heliograph.model.configuration.leadership import leadership
from heliograph.model.configuration.tombstones import Tombstone, tombstone
from heliograph.model.errors import MetadataUnavailable, VersionConflict
from heliograph.model.topic_names import TopicName
from heliograph.runtime.clock import CautiousClock
from region_node.dr.leadership.leadership_changes import Switching
from region_node.topics.serving.deferred_deletion import Tombstones

TOPIC = "persistent://t/n/x"
REGIONS = ("us", "eu", "ap")


DAY_MS = 86_400_000


class Clock:
    def __init__(self, ahead_ms: int = 0) -> None:
        self._ahead_ms = ahead_ms

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()

    def wall_ms(self) -> int:
        return int(asyncio.get_running_loop().time() * 1000) + self._ahead_ms


class World:
    """Three regions with a copy each. A purge may fail; a region may stand still."""

    def __init__(self, rng: random.Random) -> None:
        self.store, self.rng = EmbeddedStore(), rng
        self.copies = set(REGIONS)
        self.made_ms = dict.fromkeys(REGIONS, -10 * DAY_MS)
        """When each region's copy was made."""
        self.forgotten = self.early = 0
        self.back = set[str]()
        self.unloaded = Counter[str]()
        self.parts: dict[str, Tombstones] = {}

    async def start(self, region: str, ahead_ms: int = 0) -> None:
        """ahead_ms: its clock is, and it hears the others'."""
        clock = CautiousClock(Clock(ahead_ms), lambda: [0.0, float(ahead_ms)])
        part = Tombstones(self.store, Copy(self, region), region=region, clock=clock)
        await part.start()
        part.run()
        self.parts[region] = part

    async def bury(self, grace_s: float, ahead_ms: int = 0) -> None:
        now = Clock(ahead_ms).wall_ms()
        made = Tombstone(topic=TOPIC, regions=REGIONS, since_ms=now, until_ms=now + int(grace_s * 1000))
        await self.store.put(tombstone(TOPIC), made.encode())

    async def undelete(self) -> bool:
        found = await self.store.get(tombstone(TOPIC))
        if found is None or Tombstone.decode(found[0]).purging:
            return False
        await asyncio.sleep(self.rng.choice((0.0, 0.01, 1.0)))
        try:
            await self.store.delete(tombstone(TOPIC), expected=found[1])
        except VersionConflict:
            return False
        return True

    def dead(self, region: str) -> bool:
        return self.parts[region].of(TopicName.parse(TOPIC)) is not None


class Copy:
    """One region's copy, as its broker sees it."""

    def __init__(self, world: World, region: str) -> None:
        self._world, self._region = world, region

    async def unload(self, topics: Sequence[str]) -> None:
        self._world.unloaded.update(topics)

    async def made_ms(self, found: Tombstone) -> int:
        return self._world.made_ms[self._region] if self._region in self._world.copies else 0

    async def purge(self, found: Tombstone, stands: Callable[[], Awaitable[bool]]) -> bool:
        world = self._world
        await asyncio.sleep(world.rng.uniform(0, 2))
        if world.rng.random() < 0.3:
            raise MetadataUnavailable("not now")
        truth = await world.store.get(tombstone(TOPIC))
        said = truth is not None and self._region in Tombstone.decode(truth[0]).purging
        world.early += Clock().wall_ms() < found.until_ms or not said
        world.copies.discard(self._region)
        return True

    async def forget(self, found: Tombstone, version: int) -> None:
        self._world.early += bool(self._world.copies)
        self._world.forgotten += 1

    async def back(self, found: Tombstone) -> None:
        self._world.back.add(self._region)


def test_it_is_brought_back_whole_or_goes_everywhere() -> None:
    async def main(seed: int) -> None:
        rng = random.Random(seed)
        world = World(rng)
        for region in ("us", "eu"):
            await world.start(region)
        await world.bury(10)
        await asyncio.sleep(1)
        assert all(world.dead(region) for region in ("us", "eu")) and world.copies == set(REGIONS)
        await asyncio.sleep(rng.uniform(7.0, 11.0))
        saved = await world.undelete()
        await asyncio.sleep(60)
        if saved:
            assert world.copies == set(REGIONS) and world.back == {"us", "eu"}
        else:
            assert world.copies == {"ap"} and world.dead("us"), "a region that is away keeps the tombstone"
            await world.start("ap")
            await asyncio.sleep(60)
            assert not world.copies and world.forgotten >= 1 and not any(world.dead(region) for region in REGIONS)
        assert not world.early, (
            "nothing is purged before its time, or before it is said; nothing is forgotten before all have purged"
        )
        for part in world.parts.values():
            await part.stop()

    for seed in range(60):
        run_alone(main(seed))


@pytest.mark.parametrize("wrong", ("of-who-deletes", "of-a-broker", "of-a-broker-that-comes-later"))
def test_one_wrong_clock_ends_no_grace_period(wrong: str) -> None:
    async def main() -> None:
        world = World(random.Random(1))
        await world.start("us", DAY_MS if wrong == "of-a-broker" else 0)
        await world.start("ap")
        await world.bury(100, -DAY_MS if wrong == "of-who-deletes" else 0)
        await world.start(
            "eu", DAY_MS if wrong == "of-a-broker-that-comes-later" else 0
        ) if wrong != "of-who-deletes" else None
        await asyncio.sleep(90)
        found = await world.store.get(tombstone(TOPIC))
        assert found is not None and not Tombstone.decode(found[0]).purging and world.copies == set(REGIONS)
        if wrong == "of-who-deletes":
            await world.start("eu")
        await asyncio.sleep(80)
        assert not world.copies and not any(world.dead(region) for region in REGIONS), (
            "a while later it is over for everybody"
        )
        for part in world.parts.values():
            await part.stop()

    run_alone(main())


@pytest.mark.parametrize("stage", ("waiting", "purging", "purged"))
def test_what_was_made_behind_a_deletion_is_not_what_was_deleted(stage: str) -> None:
    """A tombstone that the configuration had lost, or has again since it went back, at each stage of its life."""

    async def main() -> None:
        world = World(random.Random(1))
        old = Tombstone(
            topic=TOPIC,
            regions=REGIONS,
            since_ms=-900_000,
            until_ms=-800_000,
            purging=() if stage == "waiting" else REGIONS,
            purged=REGIONS if stage == "purged" else (),
        )
        world.made_ms["eu"] = -100_000
        await world.store.put(tombstone(TOPIC), old.encode())
        await world.start("eu")
        await asyncio.sleep(20)
        assert "eu was made after it was deleted" in world.parts["eu"].known[TOPIC][0].asks
        for region in ("us", "ap"):
            await world.start(region)
        await asyncio.sleep(60)
        assert world.copies == set(REGIONS) and not world.forgotten, "it asks, in every region"
        assert not any(world.dead(region) for region in REGIONS), "and hides nothing meanwhile"
        found = await world.store.get(tombstone(TOPIC))
        assert found is not None
        now = Clock().wall_ms()
        again = Tombstone(topic=TOPIC, regions=REGIONS, since_ms=now, until_ms=now + 10_000, sure=True)
        world.made_ms["eu"] = now + DAY_MS  # by a clock that was wrong
        await world.store.put(tombstone(TOPIC), again.encode(), expected=found[1])
        await asyncio.sleep(5)
        assert all(world.dead(region) for region in REGIONS) and world.copies == set(REGIONS)
        await asyncio.sleep(60)
        assert not world.copies and world.forgotten and await world.store.get(tombstone(TOPIC)) is None
        for part in world.parts.values():
            await part.stop()

    run_alone(main())


def test_a_tombstone_that_asks_is_taken_away_and_nothing_has_changed() -> None:
    async def main() -> None:
        world = World(random.Random(1))
        await world.start("us")
        asking = Tombstone(topic=TOPIC, regions=REGIONS, since_ms=0, until_ms=1, asks="it was restored")
        await world.store.put(tombstone(TOPIC), asking.encode())
        await asyncio.sleep(60)
        assert not world.dead("us")
        await world.store.delete(tombstone(TOPIC))
        await asyncio.sleep(20)
        assert world.copies == set(REGIONS) and not world.back and not world.forgotten and not world.dead("us")
        await world.parts["us"].stop()

    run_alone(main())


def test_a_backup_is_restored_with_tombstones_that_ask() -> None:
    stone = Tombstone(topic=TOPIC, regions=REGIONS, since_ms=1, until_ms=2, purging=("us",))
    rows = [(tombstone(TOPIC), (stone.encode(), 1, 0)), (tombstone("t/n"), (b"{}", 1, 0)), ("/x", (b"1", 1, 0))]
    restored = dict(restored_rows(rows, 0))
    assert "backup" in Tombstone.decode(restored[tombstone(TOPIC)]).asks
    assert restored[tombstone("t/n")] == b"{}" and restored["/x"] == b"1", "what is none stays as it was"


@pytest.mark.parametrize("away", ("deleted", "there", "never heard of", "made again"))
def test_a_region_that_was_deleted_for_good_is_not_waited_for(away: str) -> None:
    """ap is deleted before it has purged anything; its number says that it was one."""

    async def main() -> None:
        world = World(random.Random(1))
        for number, region in enumerate(REGIONS, 1):
            await world.store.put(keys.region(region), b"{}")
            await world.store.put(keys.region_number(number), region.encode())
        lost = REGIONS[-1]
        if away in ("deleted", "never heard of"):
            await world.store.delete(keys.region(lost))
        if away == "never heard of":
            await world.store.delete(keys.region_number(len(REGIONS)))
        for region in REGIONS[:-1]:
            await world.start(region)
        await world.bury(100)
        await asyncio.sleep(500)
        assert world.copies == {lost}
        assert (await world.store.get(tombstone(TOPIC)) is None) == (away == "deleted")
        if away == "made again":
            world.copies.clear()
            await world.start(lost)
            await asyncio.sleep(60)
            assert await world.store.get(tombstone(TOPIC)) is None
        for part in world.parts.values():
            await part.stop()

    run_alone(main())


class Counted(Tombstones):
    """Counts its looks, and how many there are at most while nobody else has a turn."""

    looks = together = together_max = 0

    async def settle(self, found: Tombstone, version: int, waits: set[str]) -> None:
        if not self.together:
            asyncio.get_running_loop().call_soon(self.turn)
        self.looks, self.together = self.looks + 1, self.together + 1
        self.together_max = max(self.together_max, self.together)
        await super().settle(found, version, waits)

    def turn(self) -> None:
        self.together = 0


class CountedReads(EmbeddedStore):
    reads = 0

    async def get(self, key: str) -> tuple[bytes, int] | None:
        self.reads += 1
        return await super().get(key)


MANY = 3000


async def with_many(part: Counted, store: EmbeddedStore, *, until_ms: int, purged: tuple[str, ...] = ()) -> None:
    for index in range(MANY):
        name = f"{TOPIC}{index}"
        stone = Tombstone(
            topic=name, regions=REGIONS, since_ms=0, until_ms=until_ms, purging=purged, purged=purged, sure=True
        )
        await store.put(tombstone(name), stone.encode())
    await part.start()
    part.run()


def counted(world: World, store: EmbeddedStore) -> Counted:
    return Counted(store, Copy(world, "us"), region="us", clock=CautiousClock(Clock()))


def test_very_many_that_are_not_due_are_unloaded_once_and_not_looked_at() -> None:
    async def main() -> None:
        world, store = World(random.Random(1)), CountedReads()
        part = counted(world, store)
        await with_many(part, store, until_ms=10 * DAY_MS)
        for index in range(10):  # others are deleted meanwhile, here and elsewhere
            made = await part.bury(f"{TOPIC}-here-{index}", REGIONS, grace_s=DAY_MS / 1000)
            name = f"{TOPIC}-elsewhere-{index}"
            await store.put(tombstone(name), replace(made, topic=name).encode())
            await asyncio.sleep(2)
        await asyncio.sleep(400)
        assert not part.looks
        assert len(world.unloaded) == MANY + 20 and set(world.unloaded.values()) == {1}
        await part.stop()

    run_alone(main())


def test_very_many_that_wait_for_a_region_ask_about_it_once_a_sweep_and_let_others_go_on() -> None:
    async def main() -> None:
        world, store = World(random.Random(1)), CountedReads()
        for region in REGIONS:
            await store.put(keys.region(region), b"{}")
        part = counted(world, store)
        await with_many(part, store, until_ms=0, purged=("us", "eu"))
        await asyncio.sleep(1)
        assert (part.looks, store.reads) == (MANY, 1)
        await asyncio.sleep(part.settings.sweep_s * 10)
        assert part.looks == 11 * MANY and store.reads == 11
        assert part.together_max <= 256, "the loop is given back"
        await part.stop()

    run_alone(main())


def test_one_that_is_made_while_its_topic_could_not_be_unloaded_is_unloaded_later() -> None:
    async def main() -> None:
        world = World(random.Random(1))

        class Late(Copy):
            failures = 2

            async def unload(self, topics: Sequence[str]) -> None:
                self.failures -= 1
                if self.failures >= 0:
                    raise MetadataUnavailable("not now")
                await super().unload(topics)

        part = Tombstones(world.store, Late(world, "us"), region="us", clock=CautiousClock(Clock()))
        await part.start()
        part.run()
        await world.bury(DAY_MS / 1000)
        await asyncio.sleep(60)
        assert world.unloaded == {TOPIC: 1}
        await part.stop()

    run_alone(main())


def test_nothing_is_purged_by_a_tombstone_that_is_gone_and_was_not_heard_to_be() -> None:
    async def main() -> None:
        for stands in (True, False):
            world = World(random.Random(2))
            stone = Tombstone(topic=TOPIC, regions=REGIONS, since_ms=0, until_ms=0, purging=REGIONS, sure=True)
            version = await world.store.put(tombstone(TOPIC), stone.encode())
            part = Tombstones(world.store, Copy(world, "us"), region="us", clock=CautiousClock(Clock()))
            if not stands:  # all have purged, its end was not told here yet, and us has the name again
                await world.store.delete(tombstone(TOPIC))
            await part.settle(stone, version, set())
            assert ("us" in world.copies) != stands

    run_alone(main())


def test_partitions_lie_under_the_stone_of_their_topic() -> None:
    async def main() -> None:
        world = World(random.Random(1))
        await world.start("us")
        await world.bury(100)
        await asyncio.sleep(1)
        found = world.parts["us"].of(TopicName.parse(f"{TOPIC}-partition-3"))
        assert found is not None and "undelete" in found.reason
        assert world.parts["us"].of(TopicName.parse("persistent://t/n/y")) is None
        await world.parts["us"].stop()

    run_alone(main())


def test_every_topic_lies_under_the_stone_of_its_namespace() -> None:
    async def main() -> None:
        world = World(random.Random(1))
        await world.start("us")
        now = Clock().wall_ms()
        made = Tombstone(topic="t/n", regions=REGIONS, since_ms=now, until_ms=now + 100_000)
        await world.store.put(tombstone("t/n"), made.encode())
        await asyncio.sleep(1)
        for topic in (TOPIC, "persistent://t/n/y-partition-3", "non-persistent://t/n/z"):
            found = world.parts["us"].of(TopicName.parse(topic))
            assert found is not None and found.whole and "undelete t/n" in found.reason
        assert world.parts["us"].of(TopicName.parse("persistent://t/nn/x")) is None
        await world.parts["us"].stop()

    run_alone(main())


def test_the_leadership_goes_with_the_name() -> None:
    async def main() -> None:
        store = EmbeddedStore()
        switching = Switching(store, lambda: 0)
        for name in ("t/n", "t/nn", f"{TOPIC}/s", f"{TOPIC}2/s", "persistent://t/nn/x/s"):
            await switching.begin(name, "us", {})
        await switching.forget(TOPIC)
        assert (
            await store.get(leadership(f"{TOPIC}/s")) is None and await store.get(leadership(f"{TOPIC}2/s")) is not None
        )
        await switching.forget("t/n")
        left = [
            await store.get(leadership(name)) is not None
            for name in ("t/n", f"{TOPIC}2/s", "t/nn", "persistent://t/nn/x/s")
        ]
        assert left == [False, False, True, True]

    run_alone(main())


@pytest.mark.parametrize("blob", (b"", b"{}", b'{"format": 1, "topic": 3}'))
def test_what_cannot_be_read_changes_nothing(blob: bytes) -> None:
    async def main() -> None:
        world = World(random.Random(1))
        await world.start("us")
        await world.bury(1000)
        await asyncio.sleep(1)
        await world.store.put(tombstone(TOPIC), blob)
        await asyncio.sleep(1)
        assert world.dead("us") and world.copies == set(REGIONS)
        await world.parts["us"].stop()

    run_alone(main())
