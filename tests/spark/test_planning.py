"""Bundles of entry ranges: every entry once, sizes balanced, tiny topics packed together."""

from __future__ import annotations

import random

import pytest

pytest.importorskip("pyspark")

import itertools

from heliograph.spark.offsets import EntryRange
from heliograph.spark.planning import pack


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


def test_nothing_is_no_bundle() -> None:
    assert pack([], 64 << 20, 2) == []
