"""A replicated topic restored from the store: it takes what it lacks, refuses what it has, and publishes under a name
of its own.
"""

from __future__ import annotations

import asyncio
import random

import pytest

from geo_tests.sim.simulation import Simulation
from heliograph.model.configuration.configuration_records import RegionInfo
from heliograph.model.configuration.policy_table import applied
from heliograph.model.errors import HeliographError
from heliograph.model.positions import BEFORE_ALL
from heliograph.wire.run import Run
from region_node.tiering.broker_tier import RestoredTopic
from replicator.dedup.version_vector import RunVerdict
from replicator.log.replicated_log import ReplicatedLog
from storage.tiered.offload.topic_manifest import TopicManifest
from storage.tiered.reading.topic_restore import restore_topic
from tests.storage.managed_ledger.world import TOPIC, Region
from tests.storage.tiered.world import AT_ONCE, OFF, FakeStore, TierBroker, settled, simulated, until

OTHER = (2, 1, 77)
POLICIES = applied({"deduplication": True})


class Side:
    """One region's broker, with the topic as links and producers see it."""

    def __init__(self, broker: TierBroker, info: RegionInfo) -> None:
        self.broker, self.info = broker, info
        self.stored: list[tuple[int, int, int]] = []
        self.errors: list[HeliographError] = []
        self.log: ReplicatedLog

    async def open(self) -> ReplicatedLog:
        await self.broker.pool.ready()
        clock, rng = self.broker.region.sim.clock(), random.Random(self.info.number)
        self.log = await ReplicatedLog.open(
            self.broker.factory, TOPIC, region=self.info, policies=POLICIES, clock=clock, rng=rng, create=True
        )
        return self.log

    async def publish(self, sequence: int) -> tuple[int, int, int]:
        count = len(self.stored)
        self.log.publish(
            Run([b"x" * 40], [40], producers=(("p", 1, sequence, None),)), self.stored.extend, self.errors.append
        )
        await until(lambda: len(self.stored) > count or bool(self.errors))
        return self.stored[-1]

    async def replicate(self, entry: int) -> RunVerdict:
        run = Run(
            [b"y" * 40], [40], origin=OTHER, spans=((5, entry, 1),), checksums=[0], producers=(("r", 1, entry, None),)
        )
        previous = (5, entry - 1) if entry else BEFORE_ALL
        verdict = self.log.append_replicated(previous, run, lambda _: None, self.errors.append)
        await asyncio.sleep(0.1)
        return verdict


async def nothing_around(_: TopicManifest) -> list[str]:
    return []


@pytest.mark.parametrize("numbers", [(1, 1), (1, 3)])
@pytest.mark.parametrize("published", [24, 67])
def test_what_it_has_is_refused_what_it_lacks_is_taken_and_new_coordinates_are_new(
    numbers: tuple[int, int], published: int
) -> None:
    async def work(sim: Simulation, region: Region) -> None:
        objects = FakeStore({})
        lost = Side(TierBroker(region, objects, AT_ONCE), RegionInfo(name="us", number=numbers[0], epoch=1))
        await lost.broker.tiering.start()
        log = await lost.open()
        for i in range(published):
            await lost.publish(i)
            assert await lost.replicate(i) is RunVerdict.ACCEPT
            if i % 20 == 19:
                await settled(lost.broker, log.ledger)
        await settled(lost.broker, log.ledger)
        old = log.origin
        lost.broker.factory.abandon()

        empty = Region(sim)
        empty.rng = sim.rng("another")
        await empty.start()
        side = Side(TierBroker(empty, objects, OFF), RegionInfo(name="us", number=numbers[1], epoch=2))
        await side.broker.pool.ready()
        told = await restore_topic(
            side.broker.meta,
            side.broker.stores,
            side.broker.cold,
            TOPIC,
            RestoredTopic(side.info, random.Random(3)),
            nothing_around,
        )
        again = await side.open()
        own = replicated = 0
        position = again.ledger.first_position()
        while pieces := await again.ledger.read(position, 50, 1 << 20):
            for _, _, run in pieces:
                own += run.count if run.origin is None else 0
                replicated += 0 if run.origin is None else run.count
            position = (pieces[-1][0], pieces[-1][1] + pieces[-1][2].count)
        assert own + replicated == told.entries >= 2 * published - 20 and not lost.errors
        assert again.vector.prefix(OTHER) == (5, replicated - 1), "neither more nor less than what is there"
        assert again.last_sequence("p") == own - 1

        assert await side.replicate(replicated - 1) is RunVerdict.DUPLICATE
        assert await side.replicate(replicated + 1) is RunVerdict.GAP
        assert await side.replicate(replicated) is RunVerdict.ACCEPT
        assert again.origin != old and again.origin[:2] == (numbers[1], 2)
        assert (await side.publish(own - 1))[1] == -1, "a producer's retry of what was restored is a duplicate"
        _, ledger, first = await side.publish(own)
        assert again.vector.prefix(again.origin) == (ledger, first) > told.last and ledger > max(
            i.ledger for i in again.ledger.ledgers()[: told.ledgers]
        )
        assert again.state.is_own(old) == (numbers[0] == numbers[1])
        third = Side(TierBroker(empty, objects, OFF), side.info)
        last = await third.open()
        assert last.origin == again.origin and last.vector.prefix(OTHER) == (5, replicated)

    simulated(work)
