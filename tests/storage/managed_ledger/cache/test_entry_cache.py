"""EntryCache: its bound, its order, how it is shared, what each strategy lets go, and what it copies."""

from __future__ import annotations

import asyncio
import random

import pytest

from benchmarks.cache_hits import measured
from geo_tests.sim.simulation import Simulation
from heliograph.model.errors import ConfigError
from heliograph.model.positions import Position
from heliograph.wire.run import Run
from storage.managed_ledger.cache.cache_settings import CacheSettings, Eviction
from storage.managed_ledger.cache.entry_cache import EntryCache
from storage.managed_ledger.cache.topic_cache import RUN_BYTES, TopicCache, cut_point, pinned_bytes
from storage.managed_ledger.cursors.cursor import Cursor
from tests.storage.managed_ledger.world import Broker, Region, names_of, run_of, until


@pytest.mark.parametrize("seed", range(40))
def test_it_keeps_its_bound_and_the_newest_end_of_each_topic(seed: int) -> None:
    rng = random.Random(seed)
    cache = EntryCache(20_000)
    topics = [cache.topic() for _ in range(3)]
    logs: list[list[str]] = [[], [], []]
    for step in range(400):
        which = rng.randrange(3)
        names = [f"{which}-{len(logs[which]) + i}" for i in range(rng.randrange(1, 5))]
        topics[which].append(1, len(logs[which]), run_of(*names, pad=rng.randrange(10, 200)))
        logs[which] += names
        assert cache.size_bytes <= cache.byte_bound
        assert cache.size_bytes == sum(t.size_bytes for t in topics)
        assert cache.topics == sum(t.size_bytes > 0 for t in topics)
        if step == 200:
            topics[0].close()
            topics[0], logs[0] = cache.topic(), []
            continue
        log = logs[which]
        held = [i for i in range(len(log)) if topics[which].read((1, i), 1, 1)]
        assert held == list(range(held[0], len(log)))
        start, want = rng.choice(held), rng.randrange(1, 12)
        found = topics[which].read((1, start), want, 1 << 20)
        assert [n for *_, run in found for n in names_of(run)] == log[start : start + want]
        assert found[0][1] == start
    for topic in topics:
        topic.close()
    assert cache.size_bytes == cache.entries == cache.topics == 0


def test_a_flooded_topic_does_not_empty_the_cache_of_the_others() -> None:
    cache = EntryCache(100_000)
    quiet = [cache.topic() for _ in range(5)]
    for number, topic in enumerate(quiet):
        for entry in range(8):
            topic.append(number, entry, run_of("q", pad=800))  # 8 x 1,200 bytes: below a sixth of the bound
    flood = cache.topic()
    for entry in range(5_000):
        flood.append(9, entry, run_of("f", pad=800))
    assert all(topic.read((number, 0), 99, 1 << 20)[-1][1] == 7 for number, topic in enumerate(quiet)), (
        "nothing of a quiet topic has gone"
    )
    assert flood.size_bytes > 30_000, "the flooded one has all the rest"
    more = cache.topic()
    for entry in range(200):
        more.append(10, entry, run_of("m", pad=800))
        flood.append(9, 5_000 + entry, run_of("f", pad=800))
    assert 0.4 < more.size_bytes / flood.size_bytes < 2.5, "two that flood have about the same"


def test_what_is_fetched_ahead_counts_against_the_same_bound() -> None:
    cache = EntryCache(10_000)
    topic = cache.topic()
    for entry in range(100):
        topic.append(1, entry, run_of("x", pad=600))
    assert 8_000 < cache.size_bytes <= 10_000
    cache.reserve(4_000)
    assert cache.size_bytes <= 10_000 and topic.size_bytes <= 6_000 and topic.read((1, 99), 1, 1)
    cache.reserve(-4_000)
    assert cache.size_bytes == topic.size_bytes


class Reader:
    """A cursor as the cache asks it: where it reads, and what it has acknowledged."""

    def __init__(self, read: int, acked: int, backlog: int = 0) -> None:
        self.read, self.acked, self.backlog_entries = read, acked, backlog

    def needed_from(self, now: float, since: float, *, by_mark_delete: bool) -> Position | None:
        return (1, self.acked if by_mark_delete else self.read)


def filled(settings: CacheSettings, *readers: Reader) -> tuple[EntryCache, TopicCache]:
    cache = EntryCache(1 << 20, settings)
    topic = cache.topic()
    cursors: dict[str, Cursor] = {str(i): reader for i, reader in enumerate(readers)}  # type: ignore[misc]
    topic.cursors = cursors
    for entry in range(0, 100, 10):
        cache.now = entry / 10
        topic.append(1, entry, run_of(*(f"n{entry + i}" for i in range(10))))
    return cache, topic


def first_held(topic: TopicCache) -> int | None:
    return next((entry for entry in range(100) if topic.read((1, entry), 1, 1)), None)


@pytest.mark.parametrize(
    ("eviction", "first"),
    [(Eviction.READ, 50), (Eviction.MARK_DELETE, 20), (Eviction.TIME, 0)],
)
def test_each_strategy_lets_go_what_it_says(eviction: Eviction, first: int) -> None:
    cache, topic = filled(CacheSettings(eviction=eviction, time_ms=100_000), Reader(55, 29), Reader(99, 95))
    assert cache.sweep(10.0) and first_held(topic) == first
    assert cache.evicted == first and cache.entries == 100 - first and cache.inserted == 100
    cache.sweep(10.0 + 100.0 - 3.5)  # runs of the seconds 0 to 6 are older than 100 s now
    assert first_held(topic) == 70
    assert not cache.sweep(200.0) and cache.size_bytes == 0


def test_nothing_is_kept_back_for_a_backlogged_cursor_or_for_none() -> None:
    settings = CacheSettings(eviction=Eviction.READ, time_ms=100_000, backlogged_entries=50)
    _, topic = (found := filled(settings, Reader(10, 10, backlog=51), Reader(80, 80, backlog=20)))
    found[0].sweep(10.0)
    assert first_held(topic) == 80
    cache, topic = filled(settings, Reader(10, 10, backlog=51))
    assert not cache.sweep(10.0) and first_held(topic) is None
    cache, topic = filled(CacheSettings(backlogged_entries=0), Reader(10, 10, backlog=51))
    cache.sweep(10.0)
    assert first_held(topic) == 10, "0: no cursor counts as backlogged"


def test_one_sweep_looks_at_few_of_ten_thousand_topics_and_the_next_ones_at_the_others() -> None:
    cache = EntryCache(1 << 30, CacheSettings(time_ms=100_000))
    looked: list[int] = []

    class Looked(Reader):
        def __init__(self, number: int) -> None:
            super().__init__(1, 0)
            self.number = number

        def needed_from(self, now: float, since: float, *, by_mark_delete: bool) -> Position | None:
            looked.append(self.number)
            return super().needed_from(now, since, by_mark_delete=by_mark_delete)

    topics = [cache.topic() for _ in range(10_001)]
    for number, topic in enumerate(topics):
        topic.cursors = {"c": Looked(number)}  # type: ignore[dict-item]
        topic.append(1, 0, run_of("n"))
    for slice_ in range(11):
        before = len(looked)
        assert cache.sweep(1.0 + slice_ / 10)
        assert len(looked) - before <= 1000
    assert sorted(looked) == list(range(10_001)), "each once a round"
    for topic in topics[:5]:
        topic.close()  # what is gone in the middle of a round is passed over
    while cache.sweep(200.0):
        pass
    assert cache.size_bytes == cache.entries == cache.topics == 0


def test_settings_are_checked() -> None:
    with pytest.raises(ConfigError):
        CacheSettings(time_ms=0)
    with pytest.raises(ConfigError):
        CacheSettings(backlogged_entries=-1)


def test_a_cursor_whose_readers_have_left_counts_from_its_mark_delete_position_for_a_while() -> None:
    with Simulation(seed=5) as sim:

        async def main() -> None:
            region = Region(sim, 3)
            await region.start()
            broker = Broker(region)
            broker.cache.settings = CacheSettings(eviction=Eviction.READ, time_ms=5_000)
            log = await broker.open()
            cursor = await log.open_cursor("c", (-1, -1))
            cursor.reading = lambda: (log.last_confirmed[0], 30)
            for number in range(0, 50, 5):
                broker.append(log, *(f"n{number + i}" for i in range(5)))
            await until(lambda: len(broker.done) == 50)
            await asyncio.sleep(0.3)
            ledger = log.last_confirmed[0]
            assert not log.cached((ledger, 29), 1, 1) and log.cached((ledger, 30), 1, 1)
            cursor.reading = None
            cursor.ack_cumulative((ledger, 39))
            await asyncio.sleep(1.0)
            assert not log.cached((ledger, 39), 1, 1) and log.cached((ledger, 40), 1, 1), (
                "a restart goes on behind what was acknowledged"
            )
            await asyncio.sleep(4.5)
            assert not log.cached((ledger, 49), 1, 1) and broker.cache.size_bytes == 0
            assert broker.factory._evicting is None, "no timer while nothing is held"
            hits, misses = broker.cache.hits, broker.cache.misses
            await log.read((ledger, 0), 50, 1 << 20)
            assert (broker.cache.hits, broker.cache.misses) == (hits, misses + 50)

        sim.run(main(), limit_s=60)


def test_a_read_is_bounded_by_bytes_but_never_empty() -> None:
    topic = EntryCache(1 << 20).topic()
    topic.append(1, 0, run_of("a", "b", "c", pad=100))
    topic.append(1, 3, run_of("d", pad=100))
    assert [(first, run.count) for _, first, run in topic.read((1, 0), 9, 1)] == [(0, 1)]
    assert [(first, run.count) for _, first, run in topic.read((1, 1), 9, 250)] == [(1, 2)]
    assert [(first, run.count) for _, first, run in topic.read((1, 0), 9, 399)] == [(0, 3)]
    assert [(first, run.count) for _, first, run in topic.read((1, 0), 9, 400)] == [(0, 3), (3, 1)]
    assert topic.read((1, 4), 9, 400) == [] and topic.read((2, 0), 9, 400) == [] and topic.read((0, 0), 9, 400) == []
    assert cut_point(run_of("a", "b", pad=10), 0, 5, 5, False) == 0


def test_a_run_is_copied_only_where_its_block_would_pin_more_than_twice_its_size() -> None:
    block = memoryview(bytearray(100_000))
    cache = EntryCache(1 << 20)
    small = Run([block[10:30], block[40:60]], [20, 20])
    cache.topic().append(1, 0, small)
    assert pinned_bytes(small) == 40 and cache.size_bytes == 40 + RUN_BYTES
    large = Run([block[0:60_000]], [60_000])
    cache.topic().append(1, 0, large)
    assert isinstance(large.parts[0], memoryview) and large.parts[0].obj is block.obj
    assert cache.size_bytes == 40 + 100_000 + 2 * RUN_BYTES


@pytest.mark.parametrize("seed", range(2))
def test_consumers_that_restart_find_what_they_had_not_acknowledged(seed: int) -> None:
    """A short form of benchmarks/cache_hits.py."""
    ratios = {eviction: measured(eviction, seed, 15.0) for eviction in (Eviction.READ, Eviction.MARK_DELETE)}
    assert ratios[Eviction.MARK_DELETE].ratio > 0.95
    assert ratios[Eviction.READ].ratio < ratios[Eviction.MARK_DELETE].ratio
    small = measured(Eviction.MARK_DELETE, seed, 15.0, byte_bound=1 << 20)
    assert small.peak_bytes <= 1 << 20 and small.ratio < ratios[Eviction.MARK_DELETE].ratio
