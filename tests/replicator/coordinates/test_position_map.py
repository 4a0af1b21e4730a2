"""From coordinates to positions and back: whatever was stored, trimmed, thinned, and reloaded, the answer is what a
reader of the whole topic finds.
"""

from __future__ import annotations

import asyncio
import random

import pytest

from heliograph.model.coordinates import Origin, format_coordinate, parse_coordinate
from heliograph.model.errors import NotAllowed
from heliograph.model.positions import BEFORE_ALL, Position
from heliograph.wire.links.link_commands import SkipReason, SkipRecord
from heliograph.wire.run import Run
from replicator.coordinates import position_map
from replicator.coordinates.position_map import PositionMap
from replicator.dedup.producer_dedup import DedupSettings
from replicator.dedup.version_vector import RunVerdict
from replicator.log.coordinate_lookup import LookupStatus, coordinate_of, own_before, position_of, vector_at
from replicator.log.replicated_log import ReplicatedLog
from replicator.log.topic_state import TopicState
from tests.replicator.fake_ledger import FakeLedger, Store

OTHERS: tuple[Origin, ...] = ((2, 1, 77), (3, 1, 78), (3, 2, 78))


class SmallMap(PositionMap):
    """Has its bounds where a test reaches them."""

    every_entries, points_max, dumped_max, every_log_bytes = 5, 30, 12, 25
    __slots__ = ()


class Copy:
    """One region's topic, and what its two others have published and kept from it."""

    def __init__(self, seed: int) -> None:
        self.rng, self.store, self.epoch = random.Random(seed), Store(), 1
        self.at: dict[Origin, Position] = dict.fromkeys(OTHERS, BEFORE_ALL)
        self.published: dict[Origin, dict[Position, LookupStatus]] = {origin: {} for origin in OTHERS}
        self.log: ReplicatedLog
        self.load()

    def load(self) -> None:
        state = TopicState(
            region=1,
            epoch=self.epoch,
            rng=random.Random(5),
            deduplication=False,
            settings=DedupSettings(),
            positions=SmallMap(),
        )
        ledger = FakeLedger(self.store, state, auto=True)
        state.begin_epoch(ledger.last_confirmed)
        self.log = ReplicatedLog(ledger, state)  # type: ignore[arg-type]

    def step(self) -> None:
        ledger: FakeLedger = self.log.ledger  # type: ignore[assignment]
        match self.rng.randrange(12):
            case 0:
                ledger.rollover()
            case 1:
                ledger.save()
            case 2 if self.rng.random() < 0.3:
                blocks = self.store.blocks
                if blocks:
                    (number, first), count, _ = blocks[self.rng.randrange(len(blocks))]
                    ledger.trim((number, first + count - 1))
            case 3:
                self.epoch += self.rng.random() < 0.2
                self.load()
            case 4:
                self.skip(self.rng.choice(OTHERS))
            case 5 | 6 | 7:
                count = self.rng.randrange(1, 5)
                self.log.publish(
                    Run([b"x"] * count, [1] * count), lambda _: None, lambda error: pytest.fail(str(error))
                )
            case _:
                self.receive(self.rng.choice(OTHERS))

    def _next(self, origin: Origin) -> Position:
        ledger, entry = self.at[origin]
        if ledger < 0 or self.rng.random() < 0.1:
            return (ledger + self.rng.randrange(1, 3), 0)
        return (ledger, entry + 1)

    def receive(self, origin: Origin) -> None:
        """A run, of which some entries may be meant for others."""
        previous, spans = self.at[origin], []
        for _ in range(self.rng.randrange(1, 3)):
            ledger, first = self._next(origin)
            for _ in range(self.rng.choice((0, 0, 0, 2))):
                self.published[origin][ledger, first] = LookupStatus.FILTERED
                first += 1
            count = self.rng.randrange(1, 5)
            for entry in range(first, first + count):
                self.published[origin][ledger, entry] = LookupStatus.HERE
            spans.append((ledger, first, count))
            self.at[origin] = (ledger, first + count - 1)
        total = sum(count for _, _, count in spans)
        run = Run([b"y"] * total, [1] * total, origin=origin, spans=tuple(spans), checksums=[0] * total)
        assert (
            self.log.append_replicated(previous, run, lambda _: None, lambda error: pytest.fail(str(error)))
            is RunVerdict.ACCEPT
        )

    def skip(self, origin: Origin) -> None:
        previous, (ledger, first) = self.at[origin], self._next(origin)
        count, reason = self.rng.randrange(1, 4), self.rng.choice((SkipReason.LOST, SkipReason.FILTERED))
        for entry in range(first, first + count):
            self.published[origin][ledger, entry] = (
                LookupStatus.LOST if reason is SkipReason.LOST else LookupStatus.FILTERED
            )
        self.at[origin] = (ledger, first + count - 1)
        record = SkipRecord(origin, previous, self.at[origin], reason, "us")
        assert self.log.append_skip(record, lambda _: None, lambda error: pytest.fail(str(error))) is RunVerdict.ACCEPT

    def held(self) -> dict[tuple[Origin, Position], Position]:
        """(origin, coordinate) -> position, by reading everything."""
        found = {}
        for ledger, first, run in self.store.runs():
            for index in range(run.count):
                if run.flags is None:
                    position = (ledger, first + index)
                    coordinate = (
                        (self.log.state.origin_at(position), position)
                        if run.origin is None
                        else (run.origin, run.coordinate(index))
                    )
                    found[coordinate] = position
        return found

    async def check(self) -> None:
        held = self.held()
        lowest = {origin: min((c for o, c in held if o == origin), default=None) for origin in OTHERS}
        trimmed = self.store.trimmed_below > (0, 0)
        for origin, published in self.published.items():
            for coordinate, expected in self.rng.sample(sorted(published.items()), min(12, len(published))):
                found = await position_of(self.log, origin, coordinate)
                low = lowest[origin]
                if (origin, coordinate) in held:
                    assert found.status is LookupStatus.HERE and found.position == held[origin, coordinate]
                elif expected is LookupStatus.LOST:
                    assert found.status is LookupStatus.LOST
                elif trimmed and (low is None or low > coordinate):
                    assert found.status in (LookupStatus.TRIMMED, expected) and found.status is not LookupStatus.HERE
                    assert expected is not LookupStatus.HERE or found.status is LookupStatus.TRIMMED
                else:
                    assert found.status is LookupStatus.FILTERED is expected
                behind = [p for (o, c), p in held.items() if o == origin and c >= coordinate]
                assert found.following == min(behind, default=None)
                from_here = self.log.state.positions.behind(origin, coordinate)
                assert all(p >= from_here for (o, c), p in held.items() if o == origin and c > coordinate)
            ledger, entry = self.at[origin]
            assert (await position_of(self.log, origin, (ledger, entry + 1))).status in (
                LookupStatus.AWAITED,
                LookupStatus.UNKNOWN,
            )
        for (origin, coordinate), position in self.rng.sample(sorted(held.items()), min(15, len(held))):
            assert (await coordinate_of(self.log, position)).coordinate == (origin, coordinate)
            assert (await position_of(self.log, origin, coordinate)).position == position
            own = [
                p for (o, _), p in held.items() if self.log.state.is_own(o) and p <= position and p[0] == position[0]
            ]
            assert await own_before(self.log, position, back=(1, 2, 1 << 20)) == max(own, default=None)
            at = await vector_at(self.log, position)
            for other in OTHERS:
                below = [c for (o, c), p in held.items() if o == other and p <= position]
                assert at.get(other, BEFORE_ALL) >= max(below, default=BEFORE_ALL), (
                    "what lies at or below it is in the vector there"
                )
                above = [c for (o, c), p in held.items() if o == other and p > position]
                assert at.get(other, BEFORE_ALL) < min(above, default=(1 << 40, 0)), "and nothing above it"


@pytest.mark.parametrize("seed", range(30))
def test_lookups_agree_with_a_reader_of_the_whole_topic(seed: int) -> None:
    copy = Copy(seed)

    async def main() -> None:
        for turn in range(200):
            copy.step()
            assert copy.log.state.positions.count <= SmallMap.points_max + len(OTHERS) * 4
            if turn % 40 == 39:
                await copy.check()

    asyncio.run(main())


def test_where_an_origin_publishes_little_the_others_are_passed_over() -> None:
    places = SmallMap()
    for entry in range(20):
        places.add_own(30)
        places.add(Run([b"y"], [1], origin=OTHERS[0], spans=((1, 7 * entry, 1),), checksums=[0]), 9, 31 * entry + 30)
    for entry in range(20):
        assert places.behind(OTHERS[0], (1, 7 * entry - 1)) == (9, 31 * entry + 30)


def test_own_positions() -> None:
    copy = Copy(1)

    async def main() -> None:
        log = copy.log
        log.publish(Run([b"x"] * 3, [1] * 3), lambda _: None, lambda error: pytest.fail(str(error)))
        origin, last = log.last_own()
        assert (await position_of(log, origin, last)).position == last
        assert (await position_of(log, origin, (last[0], last[1] + 1))).status is LookupStatus.AWAITED
        copy.receive(OTHERS[0])
        assert (await position_of(log, (9, 1, 1), last)).status is LookupStatus.UNKNOWN
        copy.log.ledger.save()  # type: ignore[attr-defined]
        copy.log.ledger.trim(last)  # type: ignore[attr-defined]
        assert (await position_of(log, origin, last)).status is LookupStatus.TRIMMED
        assert (await coordinate_of(log, last)).status is LookupStatus.TRIMMED
        copy.epoch = 2
        copy.load()
        past = await position_of(copy.log, origin, (last[0] + 9, 0))
        assert past.status is LookupStatus.LOST, "the epoch has ended: what it did not publish here never comes"

    asyncio.run(main())


def test_memory_is_bounded_whatever_is_stored() -> None:
    found = PositionMap()
    for number in range(3 * position_map.POINTS_MAX):
        run = Run([b"y"] * 512, [1] * 512, origin=OTHERS[0], spans=((number, 0, 512),))
        found.add(run, number // 7, (number % 7) * 512)
        found.add(
            Run([b"y"] * 1024, [1] * 1024, origin=OTHERS[1], spans=((number, 0, 1024),)),
            number // 7,
            (number % 7) * 1024 + 4096,
        )
    assert found.count <= position_map.POINTS_MAX
    low, high = found.around(OTHERS[1], (3 * position_map.POINTS_MAX - 9, 0))
    assert high is not None and high[0] - low[0] <= 2, "the newest entries are found in one scan"
    again = PositionMap()
    again.load(found.dump())
    assert again.count <= position_map.DUMPED_MAX + 2 and again.newest() == found.newest()


def test_coordinates_as_text() -> None:
    coordinate = ((1, 2, 0x5F3A), (7, 12))
    assert format_coordinate(coordinate) == "1.2.5f3a:7:12" and parse_coordinate("1.2.5f3a:7:12") == coordinate
    for wrong in ("", "1.2:7:12", "1.2.5f3a:7", "1.2.5f3a:-1:3", "1.2.xyz:7:12", "1.2.5f3a:7:12 "):
        with pytest.raises(NotAllowed):
            parse_coordinate(wrong)
