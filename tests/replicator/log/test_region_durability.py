"""Durability over regions: a receipt means what the policy says, also while regions are cut off, and what it does not
mean is listed.
"""

from __future__ import annotations

import asyncio
import copy
import random
from collections.abc import Callable, Coroutine
from typing import Any

import crc32c
import pytest

from geo_tests.sim.simulation import Simulation
from heliograph.model.errors import CorruptData, TopicClosed
from heliograph.model.positions import Position
from heliograph.wire.pulsar.pulsar_pb2 import MessageMetadata
from heliograph.wire.run import Run
from replicator.dedup.producer_dedup import DedupSettings
from replicator.log import region_durability
from replicator.log.affected_ranges import AFFECTED_MAX, DUMPED_MAX, AffectedList
from replicator.log.region_durability import RegionWaits
from replicator.log.replicated_log import ReplicatedLog
from replicator.log.topic_state import TopicState
from tests.broken_rules import BrokenRules
from tests.replicator.fake_ledger import FakeLedger
from tests.replicator.link_instance import Instance, TestRegion
from tests.replicator.link_world import entry

Scenario = Callable[[Instance, Simulation, random.Random], Coroutine[Any, Any, None]]


def play(scenario: Scenario, *, seed: int = 1) -> None:
    names = ("us", "eu", "ap")
    with Simulation(seed) as sim:

        async def main() -> None:
            instance = Instance(sim, names)
            for a in names:
                for b in names:
                    if a < b:
                        sim.network.latency(a, b, 0.02, 0.06)
            await instance.load()
            await scenario(instance, sim, random.Random(seed))
            assert all(not region.faults for region in instance.regions.values())

        sim.run(main(), limit_s=600)


def require(region: TestRegion, regions: int, degrade_after_ms: int, *, per_message: bool = False) -> RegionWaits:
    broker = region.brokers[region.owner]
    policy = {"regions": regions, "degradeAfterMs": degrade_after_ms, "perMessage": per_message}
    broker.machine.run(broker.links.require, region.log, policy)
    waits: RegionWaits | None = region.log.waits
    assert waits is not None
    return waits


def crashed(region: TestRegion) -> AffectedList:
    """What a new owner would find if the broker died now."""
    store = copy.copy(region.store)
    store.owner, store.cursors = None, {}
    state = TopicState(
        region=region.info.number,
        epoch=region.info.epoch,
        rng=random.Random(1),
        deduplication=True,
        settings=DedupSettings(),
    )
    ReplicatedLog(FakeLedger(store, state), state)  # type: ignore[arg-type]
    return state.affected or AffectedList()


class Publisher:
    """Publishes in one region, and looks at every receipt: how many regions have the entry at that moment?"""

    def __init__(self, instance: Instance, region: TestRegion) -> None:
        self.instance, self.region = instance, region
        self.sequence = 0
        self.receipts: list[int] = []
        self.short: list[Position] = []
        """Entries whose receipts came before enough regions had them."""
        self.enough = 1

    def publish(self, count: int, *, again: bool = False) -> None:
        start = self.sequence - count if again else self.sequence
        parts = [entry(n, "p", n) for n in range(start, start + count)]
        self.sequence = start + count
        run = Run(parts, [len(p) for p in parts], producers=(("p", count, start, None),))

        def done(segments: list[tuple[int, int, int]]) -> None:
            self.receipts.append(start)
            for size, ledger, first in segments:
                if ledger < 0:
                    continue
                origin = self.region.log.origin
                for at in range(first, first + size):
                    holders = sum(
                        other is self.region or other.log.vector.holds(origin, (ledger, at))
                        for other in self.instance.regions.values()
                    )
                    if holders < self.enough:
                        self.short.append((ledger, at))
                        found = crashed(self.region)
                        assert any(a.after < (ledger, at) <= a.through for a in found.ranges), (
                            "the receipt goes out once the list is durable"
                        )

        self.region.brokers[0].machine.run(
            self.region.log.publish, run, done, lambda error: self.region.faults.append(repr(error))
        )


async def cuts_and_receipts(instance: Instance, sim: Simulation, rng: random.Random) -> None:
    us = instance.regions["us"]
    regions = rng.choice((2, 3, region_durability.ALL))
    waits = require(us, regions, 2000)
    publisher = Publisher(instance, us)
    publisher.enough = 3 if regions in (3, region_durability.ALL) else 2
    cut: set[str] = set()
    for _ in range(60):
        roll = rng.random()
        if roll < 0.6:
            publisher.publish(rng.randrange(1, 9), again=publisher.sequence > 8 and rng.random() < 0.1)
        elif roll < 0.75:
            other = rng.choice(("eu", "ap"))
            (sim.network.heal if other in cut else sim.network.cut)("us", other)
            cut ^= {other}
        await asyncio.sleep(rng.choice((0.0, 0.03, 0.5, 3.0)))
        listed = [at for at in publisher.short if any(a.after < at <= a.through for a in waits.affected)]
        assert listed == publisher.short, "what had too few regions is listed"
        assert sum(a.messages for a in waits.affected) >= len(publisher.short)
        found = crashed(us)
        assert publisher.short == [
            at for at in publisher.short if any(a.after < at <= a.through for a in found.ranges)
        ], "and survives the broker"
        assert found.messages >= len(publisher.short) and found.since is None
    for other in cut:
        sim.network.heal("us", other)
    await asyncio.sleep(40)
    assert len(publisher.receipts) == len([r for r in publisher.receipts if r >= 0]) and not waits.degraded
    before = len(publisher.short)
    publisher.publish(5)
    await asyncio.sleep(1)
    assert len(publisher.short) == before and waits.shown()["waiting"] == 0
    assert all(a["arrived_since"] for a in waits.shown()["affected"])
    if not waits.affected:
        assert not publisher.short
    assert crashed(us).ranges == waits.affected, "once it is over, exact"


@pytest.mark.parametrize("block", range(2))
def test_a_receipt_means_so_many_regions_or_is_listed(block: int) -> None:
    for seed in range(block * 12, block * 12 + 12):
        try:
            play(cuts_and_receipts, seed=seed)
        except AssertionError as error:
            error.add_note(f"seed {seed}")
            raise


def test_without_a_limit_of_time_it_waits_and_an_unload_tells_who_waits() -> None:
    async def scenario(instance: Instance, sim: Simulation, rng: random.Random) -> None:
        us = instance.regions["us"]
        waits = require(us, 3, 0)
        sim.network.cut("us", "ap")
        answers: list[Any] = []
        parts = [entry(1, "p", 0)]
        log = us.log
        us.brokers[0].machine.run(log.publish, Run(parts, [len(parts[0])]), answers.append, answers.append)
        await asyncio.sleep(300)
        assert answers == [] and waits.shown()["waiting"] == 1 and not waits.degraded
        await us.brokers[0].machine.ask(log.close)
        assert len(answers) == 1 and isinstance(answers[0], TopicClosed)
        sim.network.heal("us", "ap")

    play(scenario)


def test_a_limit_of_time_that_is_set_while_regions_are_away_counts_from_the_publish() -> None:
    async def scenario(instance: Instance, sim: Simulation, rng: random.Random) -> None:
        us = instance.regions["us"]
        require(us, 3, 0)
        sim.network.cut("us", "ap")
        publisher = Publisher(instance, us)
        publisher.publish(1)
        await asyncio.sleep(5)
        assert publisher.receipts == []
        waits = require(us, 3, 7000)
        await asyncio.sleep(1)
        assert publisher.receipts == []
        await asyncio.sleep(1.5)
        assert publisher.receipts == [0] and waits.degraded
        sim.network.heal("us", "ap")
        await asyncio.sleep(30)
        assert not waits.degraded

    play(scenario)


def test_one_timer_is_set_however_many_receipts_wait_one_after_another() -> None:
    async def scenario(instance: Instance, sim: Simulation, rng: random.Random) -> None:
        us = instance.regions["us"]
        require(us, 3, 3_600_000)
        publisher, timers = Publisher(instance, us), us.brokers[0].links.timers
        for _ in range(200):
            publisher.publish(1)
            await asyncio.sleep(0.3)
        assert len(publisher.receipts) == 200
        assert sum(due > asyncio.get_running_loop().time() + 3000 for due, _, _ in timers._heap) == 1

    play(scenario)


@pytest.mark.parametrize("per_message", (False, True))
@pytest.mark.parametrize(("before", "after", "left"), ((0, 0, "eu"), (3, 2, "eu ap"), (3, 3, "eu")))
def test_it_goes_back_when_all_that_are_still_meant_have_everything(
    before: int, after: int, left: str, per_message: bool
) -> None:
    """A region has left for good, or the class was lowered, while the topic was degraded."""
    now, answered = [0.0], list[object]()
    waits = RegionWaits(lambda: now[0], lambda: 0, lambda: None)
    policy = {"regions": before, "degradeAfterMs": 1000, "perMessage": per_message}
    waits.obey(policy, ["eu", "ap"])

    def publish(at: int) -> None:
        part = entry(at, "p", at)
        stored, _ = waits.wrap(Run([part], [len(part)]), answered.append, answered.append, lambda: (1, at))
        stored([(1, 1, at)])

    publish(0)
    now[0] = 1.0
    waits.expire()
    assert waits.degraded and len(answered) == 1
    waits.obey({**policy, "regions": after}, left.split())
    waits.heard("eu", (1, 0))
    if per_message and left == "eu ap":
        assert waits.degraded, "a message may have been promised both"
        waits.heard("ap", (1, 0))
    assert not waits.degraded
    publish(1)
    assert len(answered) == 1, "the next one waits again"


def asking(sequence: int, text: str) -> bytes:
    """A message with a class of its own."""
    metadata = MessageMetadata(producer_name="p", sequence_id=sequence, publish_time=1)
    metadata.properties.add(key="heliograph.durability", value=text)
    head = metadata.SerializeToString()
    rest = len(head).to_bytes(4, "big") + head + b"body"
    return b"\x0e\x01" + crc32c.crc32c(rest).to_bytes(4, "big") + rest


def test_a_message_may_ask_for_a_class_of_its_own() -> None:
    async def scenario(instance: Instance, sim: Simulation, rng: random.Random) -> None:
        us = instance.regions["us"]
        waits = require(us, 1, 4000, per_message=True)
        sim.network.cut("us", "ap")
        answered: list[str] = []
        for sequence, text in enumerate(("1", "2", "nonsense", "3", "1", "all")):
            part = asking(sequence, text)
            name = f"{sequence}:{text}"
            us.brokers[0].machine.run(
                us.log.publish, Run([part], [len(part)]), lambda _, name=name: answered.append(name), answered.append
            )
        await asyncio.sleep(0)
        assert answered == ["0:1"], "what asks for nothing more than its own region has it"
        await asyncio.sleep(1)
        assert answered == ["0:1", "1:2", "2:nonsense"], (
            "eu has the second; the fourth wants ap as well, and the order holds"
        )
        await asyncio.sleep(5)
        assert len(answered) == 6 and waits.degraded and [a.messages for a in waits.affected] == [1, 1], (
            "only those two were promised more"
        )
        sim.network.heal("us", "ap")
        await asyncio.sleep(20)
        assert not waits.degraded and all(a["arrived_since"] and a["regions"] == 3 for a in waits.shown()["affected"])

    play(scenario)


def test_switched_off_what_waits_is_answered() -> None:
    async def scenario(instance: Instance, sim: Simulation, rng: random.Random) -> None:
        us = instance.regions["us"]
        require(us, region_durability.ALL, 0)
        sim.network.cut("us", "ap")
        answers: list[Any] = []
        parts = [entry(1, "p", 0)]
        us.brokers[0].machine.run(us.log.publish, Run(parts, [len(parts[0])]), answers.append, answers.append)
        await asyncio.sleep(5)
        assert answers == []
        us.brokers[0].machine.run(us.brokers[0].links.require, us.log, None)
        assert len(answers) == 1 and us.log.waits is None
        sim.network.heal("us", "ap")

    play(scenario)


def _found(broken: BrokenRules, name: str, wrong: Any) -> None:
    broken.setattr(RegionWaits, name, wrong)
    broken.look(lambda seed: play(cuts_and_receipts, seed=seed), range(24))


def test_mutant_one_region_is_enough(broken: BrokenRules) -> None:
    _found(broken, "needed", lambda self, regions=None: 1)


def test_mutant_nothing_is_listed(broken: BrokenRules) -> None:
    _found(broken, "_note", lambda self, receipt: None)


def test_mutant_the_list_is_kept_in_memory_only(broken: BrokenRules) -> None:
    _found(broken, "expire", _expire_without_storing)


def _expire_without_storing(self: RegionWaits) -> None:
    if (due := self.next_deadline()) is not None and self._now() >= due and not self.degraded:
        self._degrading = True
        self._degrade()


def test_after_a_broker_has_died_the_list_is_shown_and_tells_what_has_arrived() -> None:
    async def scenario(instance: Instance, sim: Simulation, rng: random.Random) -> None:
        us = instance.regions["us"]
        publisher = Publisher(instance, us)
        publisher.publish(5)
        await asyncio.sleep(1)
        waits = require(us, 3, 1000)
        sim.network.cut("us", "ap")
        for _ in range(4):
            publisher.publish(5)
            await asyncio.sleep(2)
        assert waits.degraded and len(publisher.short) == 0 and publisher.receipts[-1] == 20
        broker = us.brokers[0]
        await broker.machine.ask(broker.links.detach, us.log)
        broker.log = None  # nothing more is stored
        log = us.log
        assert log.waits is None
        (lost,) = log.state.affected.ranges
        assert (lost.messages, lost.needed) == (20, 2), "of the five before nothing was promised"
        again = require(us, 3, 1000)
        assert (
            not again.degraded and again.affected_messages == 20 and not again.shown()["affected"][0]["arrived_since"]
        )
        sim.network.heal("us", "ap")
        await asyncio.sleep(20)
        assert [a["arrived_since"] for a in again.shown()["affected"]] == [True]
        broker.machine.run(broker.links.require, us.log, None)
        assert RegionWaits.past(us.log).shown()["affected_messages"] == 20, "also once the policy is gone"

    play(scenario)


def test_the_list_is_bounded_and_a_damaged_one_is_said() -> None:
    listed = AffectedList()
    for at in range(AFFECTED_MAX + 100):
        listed.note((1, 10 * at), (1, 10 * at + 5), 2, 7, 1)
    assert len(listed.ranges) == AFFECTED_MAX and listed.messages == 2 * (AFFECTED_MAX + 100)
    listed.since = ((1, 20_000), 8, 2)
    again = AffectedList.read(listed.dump())
    assert (
        len(again.ranges) == DUMPED_MAX
        and again.messages == listed.messages
        and again.ranges == listed.ranges[-DUMPED_MAX:]
    )
    again.loaded((1, 20_010), 0)
    assert again.ranges[-1].through == (1, 20_010) and again.ranges[-1].messages == 1, "too much rather than too little"
    for bad in ([], [0, None, [[1, 2]]], [0, [1], []], 7):
        with pytest.raises(CorruptData):
            AffectedList.read(bad)  # type: ignore[arg-type]


def test_mutant_it_never_goes_back(broken: BrokenRules) -> None:
    note = RegionWaits._note

    def far(self: RegionWaits, receipt: Any) -> None:
        note(self, receipt)
        self._newest = (1 << 62, 0)

    _found(broken, "_note", far)


@pytest.mark.parametrize(
    ("regions", "to", "waits_for"),
    [(2, ("ap",), "ap"), (3, ("ap",), "ap"), (region_durability.ALL, ("eu",), "eu"), (2, ("us",), ""), (2, (), "eu")],
)
def test_a_region_that_a_message_was_not_published_for_does_not_count(
    regions: int, to: tuple[str, ...], waits_for: str
) -> None:
    async def scenario(instance: Instance, sim: Simulation, rng: random.Random) -> None:
        us = instance.regions["us"]
        us.publish(3)
        await asyncio.sleep(2)
        waits = require(us, regions, 0)
        away = waits_for if to else "ap"
        if away:
            sim.network.cut("us", away)
        receipts: list[Any] = []
        part = entry(77, "p", 0, to)
        run = Run([part], [len(part)], producers=(("p", 1, 0, None),))
        us.brokers[0].machine.run(us.log.publish, run, receipts.append, receipts.append)
        await asyncio.sleep(5)
        assert bool(receipts) == (not to or not waits_for), "eu has it, or nobody else was to have it"
        if away:
            sim.network.heal("us", away)
        await asyncio.sleep(30)
        assert len(receipts) == 1 and not waits.affected_messages
        for name in to or ("eu", "ap"):
            assert 77 in instance.regions[name].bodies()

    play(scenario)


def test_mutant_whoever_passes_an_entry_counts(broken: BrokenRules) -> None:
    broken.setattr(region_durability, "meant_for", lambda _: None)
    with broken.found(match="nobody else was to have it"):
        test_a_region_that_a_message_was_not_published_for_does_not_count(2, ("ap",), "ap")
