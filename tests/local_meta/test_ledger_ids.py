"""Where ledger ids go on under each leader, and which of them are passed over."""

from __future__ import annotations

import asyncio
import random

import pytest

from heliograph.kv.in_process_store import EmbeddedStore
from heliograph.kv.metadata_store import ABSENT
from heliograph.kv.state_machine import KvMachine
from heliograph.model.errors import CorruptData
from local_meta import keys
from local_meta.ledger_ids import PassedOver, beginning, passed_over
from tests.local_meta.passed_over_ids import pass_over


class ManualClock:
    def __init__(self, ms: int) -> None:
        self.ms = ms

    def monotonic(self) -> float:
        return self.ms / 1000

    def wall_ms(self) -> int:
        return self.ms


class Metadata(EmbeddedStore):
    """A table, and the leaders that it has one behind the other."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(KvMachine())
        self.clock = clock

    def lead(self) -> None:
        for one in beginning(self.clock, random.Random(1), self.machine):
            self.machine.apply(self.machine.index + 1, one)

    def put_back(self, snapshot: bytes) -> None:
        self.machine = KvMachine()
        self.machine.restore(snapshot)

    async def give(self, count: int = 1) -> list[int]:
        first = await self.next_ids(keys.LEDGER_IDS, count)
        return list(range(first, first + count))


def test_no_state_of_a_metadata_gives_out_what_another_one_gave() -> None:
    """Whatever is put back, and however often; and what was given out under one state was passed over by the other."""

    async def work() -> None:
        rng = random.Random(7)
        meta = Metadata(clock := ManualClock(1_000_000))
        meta.lead()
        given: dict[int, None] = {}
        snapshots = [(meta.machine.snapshot(), dict(given))]
        mine: dict[int, None] = {}
        for _ in range(300):
            clock.ms += rng.randrange(50, 5000)
            chance = rng.random()
            if chance < 0.3:
                blob, mine = rng.choice(snapshots)
                mine = dict(mine)
                meta.put_back(blob)
                meta.lead()
            elif chance < 0.5:
                snapshots.append((meta.machine.snapshot(), dict(mine)))
            elif chance < 0.6:
                meta.lead()
            else:
                for ledger in await meta.give(rng.randrange(1, 5)):
                    assert ledger not in given
                    given[ledger] = mine[ledger] = None
            never = await passed_over(meta)
            assert not [ledger for ledger in mine if ledger in never]
            upcoming = await meta.next_ids(keys.LEDGER_IDS, 0)
            strange = [ledger for ledger in given if ledger not in mine and ledger < upcoming]
            assert all(ledger in never for ledger in strange)

    asyncio.run(work())


def test_a_leader_that_died_before_it_raised_the_counter_has_passed_over_nothing() -> None:
    async def work() -> None:
        meta = Metadata(clock := ManualClock(1000))
        meta.lead()
        (before,) = await meta.give()
        clock.ms = 9000
        written = beginning(clock, random.Random(1), meta.machine)[0]
        meta.machine.apply(meta.machine.index + 1, written)
        clock.ms = 3000  # the next one's is behind
        meta.lead()
        (behind,) = await meta.give()
        never = await passed_over(meta)
        assert behind == 3001 and behind not in never and before not in never and 2999 in never

    asyncio.run(work())


def test_ids_that_are_ahead_of_the_clock_go_on_as_they_were_and_that_is_told(caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        meta = Metadata(clock := ManualClock(9000))
        meta.lead()
        (before,) = await meta.give()
        clock.ms = 4000
        meta.lead()
        assert await meta.give() == [before + 1]
        assert [record.message for record in caplog.records] == ["metadata.ledger_ids_ahead"]

    asyncio.run(work())


def test_a_row_that_cannot_be_read_stays_and_the_counter_is_raised() -> None:
    async def work() -> None:
        meta = Metadata(clock := ManualClock(1000))
        meta.lead()
        await meta.put(keys.PASSED_OVER, b"\x63later", expected=ABSENT)
        clock.ms = 5000
        meta.lead()
        assert await meta.give() == [5001]
        with pytest.raises(CorruptData):
            await passed_over(meta)

    asyncio.run(work())


def test_the_shortest_is_forgotten_where_there_are_too_many() -> None:
    known = PassedOver()
    for at in range(1200):
        known = known.also(at * 100, at * 100 + (1 if at % 5 == 0 else 50))
    assert len(known.ranges) == 1000 and all(last - first == 50 for first, last in known.ranges[:790])
    assert PassedOver.decode(known.encode()) == known and 150 in known and 151 not in known and 99 not in known


def test_whoever_meets_a_ledger_that_nobody_made_passes_over_all_up_to_it() -> None:
    async def work() -> None:
        meta = Metadata(ManualClock(1000))
        meta.lead()
        (mine,) = await meta.give()
        (others,) = await meta.give()
        mine_now = await pass_over(meta, mine, 2000)
        never = await passed_over(meta)
        assert mine_now > 2000 and mine in never and 2000 in never and others not in never and mine_now not in never
        assert (await meta.give())[0] > mine_now

    asyncio.run(work())
