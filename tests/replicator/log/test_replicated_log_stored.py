"""ReplicatedLog and a link's sender over the real managed ledger: what a reload, another owner, and rollover leave of
the state.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

from geo_tests.sim.simulation import Simulation
from heliograph.kv.in_process_store import EmbeddedStore
from heliograph.model.configuration.configuration_records import RegionInfo
from heliograph.model.configuration.policy_table import applied
from heliograph.model.errors import HeliographError
from heliograph.model.positions import BEFORE_ALL
from heliograph.wire.links.link_commands import SkipReason, SkipRecord
from heliograph.wire.run import Run
from replicator.dedup.version_vector import RunVerdict
from replicator.log.replicated_log import ReplicatedLog
from storage.ledger.bookies.bookie_pool import BookiePool
from storage.managed_ledger.cache.entry_cache import EntryCache
from storage.managed_ledger.log.managed_ledger_factory import ManagedLedgerFactory
from storage.managed_ledger.managed_ledger_settings import ManagedLedgerSettings
from tests.storage.ledger.fake_bookies import FakeClient
from tests.storage.managed_ledger.world import TOPIC, Region

POLICIES = applied({"deduplication": True})
OTHER = (2, 1, 77)
SMALL = ManagedLedgerSettings(ledger_entries_max=12, checkpoint_entries=16)


class Owner:
    """One broker that owns the topic."""

    def __init__(self, region: Region, epoch: int = 1) -> None:
        meta = EmbeddedStore(region.machine)
        rng = random.Random(region.rng.getrandbits(32))
        self.pool = BookiePool(meta, lambda name, host, port: FakeClient(region.bookies[name]), rng)
        self.clock, self.rng, self.epoch = region.sim.clock(), rng, epoch
        self.factory = ManagedLedgerFactory(meta, self.pool, EntryCache(1 << 20), SMALL, self.clock, rng)
        self.stored: list[tuple[int, int, int]] = []
        self.errors: list[HeliographError] = []
        self.at = -1
        self.log: ReplicatedLog

    async def open(self) -> ReplicatedLog:
        await self.pool.ready()
        info = RegionInfo(name="us", number=1, epoch=self.epoch)
        self.log = await ReplicatedLog.open(
            self.factory, TOPIC, region=info, policies=POLICIES, clock=self.clock, rng=self.rng, create=True
        )
        held = self.log.vector.prefix(OTHER)
        self.at = held[1] if held > BEFORE_ALL else -1
        return self.log

    def publish(self, first: int, count: int) -> None:
        run = Run([b"x"] * count, [1] * count, producers=(("p", count, first, None),))
        self.log.publish(run, lambda segments: self.stored.extend(segments), self.errors.append)

    def replicate(self, count: int) -> None:
        run = Run(
            [b"y"] * count,
            [1] * count,
            origin=OTHER,
            spans=((5, self.at + 1, count),),
            checksums=[0] * count,
            producers=(("r", count, self.at + 1, None),),
        )
        previous = (5, self.at) if self.at >= 0 else BEFORE_ALL
        assert self.log.append_replicated(previous, run, lambda _: None, self.errors.append) is RunVerdict.ACCEPT
        self.at += count

    def skip(self) -> None:
        previous = (5, self.at) if self.at >= 0 else BEFORE_ALL
        record = SkipRecord(OTHER, previous, (5, self.at + 2), SkipReason.LOST, "us")
        assert self.log.append_skip(record, lambda _: None, self.errors.append) is RunVerdict.ACCEPT
        self.at += 2


def scenario(work: Callable[[Region], Awaitable[None]], *, seed: int = 1) -> None:
    with Simulation(seed=seed) as sim:

        async def main() -> None:
            region = Region(sim)
            await region.start()
            await work(region)

        sim.run(main(), limit_s=600)


def state_of(log: ReplicatedLog) -> tuple[Any, ...]:
    state = log.state
    return state.origin, state.past, state.vector, state.producers.dump(), state.outbox.totals


def test_the_next_owner_has_the_same_state_wherever_the_last_one_stopped() -> None:
    async def work(region: Region) -> None:
        rng = region.rng
        before: ReplicatedLog | None = None
        sequence = 0
        for life in range(6):
            owner = Owner(region)
            log = await owner.open()
            if before is not None:
                assert state_of(log) == state_of(before), life
            for _ in range(rng.randrange(5, 40)):
                match rng.randrange(4):
                    case 0 | 1:
                        count = rng.randrange(1, 5)
                        owner.publish(sequence, count)
                        sequence += count
                    case 2:
                        owner.replicate(rng.randrange(1, 5))
                    case 3:
                        owner.skip()
                if rng.random() < 0.3:
                    await asyncio.sleep(rng.random() * 0.05)
            await asyncio.sleep(1)
            assert (
                not owner.errors
                and log.last_sequence("p") == sequence - 1
                and log.vector.prefix(OTHER) == (5, owner.at)
            )
            if rng.random() < 0.5:
                await log.close()
            before = log

    for seed in range(8):
        scenario(work, seed=seed)


def test_an_owner_that_was_replaced_fails_and_does_not_answer_duplicates() -> None:
    async def work(region: Region) -> None:
        zombie = Owner(region)
        await zombie.open()
        zombie.publish(0, 4)
        await asyncio.sleep(0.2)
        owner = Owner(region)
        await owner.open()
        owner.publish(0, 6)
        zombie.publish(4, 2)
        zombie.publish(4, 2)
        await asyncio.sleep(3)
        assert [s[0] for s in owner.stored] == [4, 2] and owner.stored[0][1] == -1
        assert len(zombie.stored) == 1 and len(zombie.errors) == 2

    scenario(work)


def test_a_risen_region_epoch_is_durable_before_the_first_entry_of_it() -> None:
    async def work(region: Region) -> None:
        first = Owner(region)
        log = await first.open()
        first.publish(0, 5)
        await asyncio.sleep(0.5)
        old, end = log.origin, log.vector.prefix(log.origin)
        await log.close()
        second = Owner(region, epoch=2)
        log = await second.open()
        second.publish(5, 5)
        await asyncio.sleep(0.05)
        third = Owner(region, epoch=2)  # the second is killed right after its first receipt
        log = await third.open()
        assert log.origin == (1, 2, old[2]) and log.vector.prefix(old) == end
        assert log.vector.prefix(log.origin)[0] > end[0]

    scenario(work)
