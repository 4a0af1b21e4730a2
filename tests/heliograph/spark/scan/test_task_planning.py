"""Bundles of entry ranges: every entry once, sizes balanced, tiny topics packed together."""

from __future__ import annotations

import random

import pytest

pytest.importorskip("pyspark")

import itertools

from heliograph.spark.scan.offsets import EntryRange
from heliograph.spark.scan.task_planning import even, pack


@pytest.mark.parametrize("seed", range(100))
def test_every_entry_is_read_once(seed: int) -> None:
    rng = random.Random(seed)
    ranges = []
    for topic in range(rng.randrange(1, 8)):
        for ledger in range(rng.randrange(1, 4)):
            count = rng.randrange(1, 2000)
            ranges.append(EntryRange(f"t{topic}", ledger, 0, count - 1, count * rng.randrange(1, 5000)))
    bundles = pack(ranges, rng.choice([1 << 10, 1 << 20, 1 << 30]), rng.randrange(1, 5))
    seen = [(r.topic, r.ledger, e) for b in bundles for r in b for e in (r.first, r.last)]
    assert len(seen) == 2 * sum(len(b) for b in bundles)
    for whole in ranges:
        pieces = [r for b in bundles for r in b if (r.topic, r.ledger) == (whole.topic, whole.ledger)]
        assert pieces[0].first == 0 and pieces[-1].last == whole.last
        assert all(a.last + 1 == b.first for a, b in itertools.pairwise(pieces))
        assert sum(p.size_bytes for p in pieces) == whole.size_bytes


def test_a_thousand_tiny_topics_are_two_tasks() -> None:
    assert len(pack([EntryRange(f"t{i}", 1, 0, 9, 1000) for i in range(1000)], 64 << 20, 2)) == 2


@pytest.mark.parametrize("size", [1 << 20, 63 << 20, 129 << 20, 400 << 20, 4 << 30])
def test_tasks_are_whole_rounds_of_the_cores(size: int) -> None:
    ranges = [EntryRange(f"t{i}", 1, 0, 9999, size // 4) for i in range(4)]
    for cores in (1, 2, 3, 8):
        packed = pack(ranges, 64 << 20, even(size, 64 << 20, cores))
        assert len(packed) % cores == 0 and len(packed) - cores < -(-size // (64 << 20)) + cores
        sizes = [sum(r.size_bytes for r in bundle) for bundle in packed]
        assert max(sizes) <= 66 << 20


def test_nothing_is_no_bundle() -> None:
    assert pack([], 64 << 20, 2) == []
