"""What a region holds is told by itself; what others knew of it once does not take that back."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from geo_tests.sim.simulation import Simulation
from heliograph.model.coordinates import Origin, Vector
from heliograph.model.positions import BEFORE_ALL, Position
from heliograph.wire.run import Run
from replicator.audit.audit_settings import AuditSettings
from replicator.dedup.producer_dedup import DedupSettings
from replicator.log.region_durability import RegionWaits
from replicator.log.replicated_log import ReplicatedLog
from replicator.log.routing_trees import Tree
from replicator.log.topic_state import TopicState
from replicator.manager.link_manager import LinkSettings
from tests.broken_rules import BrokenRules
from tests.replicator.fake_ledger import FakeLedger, Store
from tests.replicator.link_instance import Instance
from tests.replicator.link_world import entry

NAMES = ("us", "eu", "ap", "sa")


def play(seed: int = 1) -> None:
    """ap knows an old picture of eu. It reaches us again, which has a newer one of eu itself; eu is idle."""
    with Simulation(seed) as sim:

        async def main() -> None:
            instance = Instance(sim, NAMES, 1, LinkSettings(audit=AuditSettings(period_s=0)))
            for a in NAMES:
                for b in NAMES:
                    if a < b:
                        sim.network.latency(a, b, 0.01, 0.02)
            await instance.load()
            us, eu, ap, sa = instance.regions.values()
            for region in instance.regions.values():
                region.publish(2)
            await asyncio.sleep(3)
            origin = sa.log.origin
            for pair in (("ap", "eu"), ("ap", "us"), ("sa", "us"), ("sa", "ap")):
                sim.network.cut(*pair)
            await asyncio.sleep(1)
            sa.publish(5)
            await asyncio.sleep(15)
            held = eu.log.vector.prefix(origin)
            old = ap.log.known["eu"][0].prefix(origin)
            assert us.log.known["eu"][0].prefix(origin) == held > old
            sim.network.heal("ap", "us")
            seen: list[Position] = []
            for _ in range(150):
                await asyncio.sleep(0.2)
                assert us.log.known["eu"][0].prefix(origin) == held, "what eu told itself stays"
                seen.append(ap.log.known["eu"][0].prefix(origin))
            assert seen[-1] == held and sorted(seen) == seen, "ap, which does not hear eu, learns it from us, once"
            for name in ("ap", "sa"):
                sim.network.heal(name, "eu")
                sim.network.heal(name, "us")
            sim.network.heal("sa", "ap")
            await asyncio.sleep(30)
            for region in instance.regions.values():
                for other in instance.regions.values():
                    assert region is other or region.log.known[other.name][0] == other.log.vector, (
                        region.name,
                        other.name,
                    )

        sim.run(main(), limit_s=600)


def test_an_old_picture_of_a_third_region_takes_nothing_back() -> None:
    play()


def test_mutant_whoever_tells_last_is_believed(broken: BrokenRules) -> None:
    learn = ReplicatedLog.learn

    def last(self: Any, region: str, vector: Vector, now_ms: int, by: str = "") -> None:
        learn(self, region, vector, now_ms)

    broken.setattr(ReplicatedLog, "learn", last)
    broken.look(play, range(12))


PARENTS = {"eu": "us", "ap": "eu", "sa": "ap"}


def published(parents: dict[str, str] | None, count: int = 4) -> ReplicatedLog:
    """The log of us, which waits for all regions. parents: its tree."""
    state = TopicState(region=1, epoch=1, rng=random.Random(1), deduplication=False, settings=DedupSettings())
    state.restore(b"")
    log = ReplicatedLog(FakeLedger(Store("persistent://t/n/x"), state, auto=True), state)  # type: ignore[arg-type]
    if parents is not None:
        log.append_tree(Tree("us", parents, whole=True).as_run(), lambda _: None, lambda _: None)
    log.waits = RegionWaits(lambda: 0.0, lambda: 0, lambda: None)
    log.waits.obey({"regions": 2, "degradeAfterMs": 0}, ("eu", "ap", "sa"))
    for number in range(count):
        part = entry(number, "p", number)
        log.publish(Run([part], [len(part)]), lambda _: None, lambda _: None)
    return log


def holds(*prefixes: tuple[Origin, Position]) -> Vector:
    vector = Vector()
    for origin, position in prefixes:
        vector.advance(origin, position)
    return vector


@pytest.mark.parametrize(
    ("parents", "by", "region", "counts"),
    [
        (None, "eu", "ap", False),  # what is published here goes to ap directly
        (PARENTS, "eu", "ap", True),
        (PARENTS, "eu", "sa", True),  # by way of ap, of which eu hears
        (PARENTS, "ap", "sa", True),
        (PARENTS, "sa", "ap", False),  # behind it
        (PARENTS, "ap", "eu", False),
        ({"eu": "us", "ap": "us", "sa": "us"}, "eu", "sa", False),
    ],
)
def test_what_is_held_of_the_entries_published_here_is_known_to_those_who_hand_them_on(
    parents: dict[str, str] | None, by: str, region: str, counts: bool
) -> None:
    """Receipts that wait for other regions, and the cursors of links, go by it."""
    log, third = published(parents), (4, 1, 8)
    end = log.last_own()[1]
    assert log.waits is not None and log.waits.shown()["waiting"] == 4
    log.learn(region, holds((log.origin, end), (third, (0, 9))), 1, by)
    assert log.known[region][0] == (holds((log.origin, end), (third, (0, 9))) if counts else holds((third, (0, 9))))
    assert log.waits.shown()["waiting"] == (0 if counts else 4)


@pytest.mark.parametrize("parents", [None, PARENTS])
def test_nobody_holds_what_was_not_published_yet(parents: dict[str, str] | None) -> None:
    log = published(parents, count=0)
    log.learn("ap", holds((log.origin, (1 << 61, 0))), 1, "eu")
    part = entry(1, "p", 1)
    log.publish(Run([part], [len(part)]), lambda _: None, lambda _: None)
    assert log.waits is not None and log.waits.shown()["waiting"] == 1
    assert log.known["ap"][0].prefix(log.origin) == BEFORE_ALL


def test_what_a_region_told_of_itself_stays_whatever_others_say() -> None:
    log = published(None)
    (ledger, _), missing = log.last_own()[1], holds((log.origin, (0, 0)))
    missing.skip(log.origin, (0, 0), (ledger, 1))
    log.learn("ap", missing, 1)
    log.learn("ap", holds((log.origin, (ledger, 3)), ((4, 1, 8), (0, 9))), 2, "eu")
    held = log.known["ap"][0]
    assert held.prefix(log.origin) == (ledger, 1) and held.missing(log.origin) == (((0, 0), (ledger, 1)),)
    assert held.prefix((4, 1, 8)) == (0, 9)


def test_of_a_region_that_nobody_knows_nothing_is_kept() -> None:
    with Simulation(1) as sim:

        async def main() -> None:
            instance = Instance(sim, NAMES)
            await instance.load()
            us = instance.regions["us"]
            us.brokers[0].machine.run(us.log.learn, "xx", holds(((4, 1, 8), (0, 9))), 1, "eu")
            us.brokers[0].machine.run(us.log.learn, "sa", holds(((4, 1, 8), (0, 9))), 1, "eu")
            assert "xx" not in us.log.known and "sa" in us.log.known

        sim.run(main(), limit_s=60)
