"""A deleted ledger stays deleted, whatever else is forgotten."""

from __future__ import annotations

import random

import pytest

from storage.bookie.entry_log.deleted_ledgers import DeadLedgers


@pytest.mark.parametrize("seed", range(50))
def test_ranges_are_the_set(seed: int) -> None:
    rng = random.Random(seed)
    dead, model = DeadLedgers(), set[int]()
    for _ in range(200):
        one = rng.randrange(120)
        dead.add(one)
        model.add(one)
        assert [n for n in range(-1, 122) if n in dead] == sorted(model)
        ranges = dead.ranges()
        assert all(a <= b for a, b in ranges)
        assert all(ranges[i][1] + 1 < ranges[i + 1][0] for i in range(len(ranges) - 1))
    assert DeadLedgers(dead.ranges()).ranges() == dead.ranges()
