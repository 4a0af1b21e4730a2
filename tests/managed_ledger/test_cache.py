"""EntryCache: its bound, its order, and what it copies."""

from __future__ import annotations

import random

import pytest

from heliograph.wire.run import Run
from storage.managed_ledger.cache import RUN_BYTES, EntryCache, cut_point, pinned_bytes
from tests.managed_ledger.world import names_of, run_of


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
        assert cache.size_bytes == sum(t._bytes for t in topics)
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
