"""Catalog against a plain list of positions, and trimming."""

from __future__ import annotations

import random

import pytest

from heliograph.model.ledger_metadata import LedgerInfo
from heliograph.model.positions import Position
from storage.managed_ledger.metadata.ledger_catalog import Catalog
from storage.managed_ledger.retention.trim_rule import Retention, trim_count


@pytest.mark.parametrize("seed", range(60))
def test_positions_and_ranks(seed: int) -> None:
    rng = random.Random(seed)
    catalog, positions, ledger = Catalog(), list[Position](), 0
    for _ in range(40):
        match rng.randrange(4):
            case 0:
                ledger += rng.randrange(1, 4)
                catalog.append(LedgerInfo(ledger))
            case 1 if len(catalog.ids) > 1:
                count = rng.randrange(len(catalog.ids))
                gone = catalog.ids[:count]
                catalog.drop_first(count)
                positions = [p for p in positions if p[0] not in gone]
            case _ if catalog.ids:
                count, before = rng.randrange(1, 6), catalog.entries_of(catalog.ids[-1])
                positions += [(ledger, before + i) for i in range(count)]
                catalog.grow(count, 10 * count)
            case _:
                pass
        assert catalog.entries == len(positions) and catalog.size_bytes == 10 * len(positions)
        probes = [(a, b) for a in range(-1, ledger + 2) for b in (-1, 0, 2, 9)]
        for probe in rng.sample(probes, min(len(probes), 12)):
            after = [p for p in positions if p >= probe]
            upto = [p for p in positions if p <= probe]
            assert catalog.at_or_after(probe) == (after[0] if after else None)
            assert catalog.at_or_before(probe) == (upto[-1] if upto else None)
            following = [p for p in positions if p > probe]
            assert catalog.next(probe) == following[0] if following else catalog.next(probe) > max(probe, catalog.last)
            other = rng.choice(probes)
            between = len([p for p in positions if probe < p <= other])
            assert catalog.entries_between(probe, other) == between
        for index in range(0, len(positions), 3):
            assert catalog.position_at(catalog.rank(positions[0]) + index) == positions[index]


def _ledgers() -> list[LedgerInfo]:
    return [LedgerInfo(i, 10, 1 << 20, closed_ms=1_000 * (i + 1)) for i in range(4)] + [LedgerInfo(4, 3, 100)]


def test_trimming_passes_neither_the_slowest_cursor_nor_the_stored_state_nor_an_open_ledger() -> None:
    end = (4, 2)
    none = Retention()
    assert trim_count(_ledgers(), end, end, none, 10**9) == 4
    assert trim_count(_ledgers(), (2, 8), end, none, 10**9) == 2
    assert trim_count(_ledgers(), (2, 9), end, none, 10**9) == 3
    assert trim_count(_ledgers(), end, (1, 9), none, 10**9) == 2
    assert trim_count(_ledgers(), (-1, -1), end, none, 10**9) == 0
    assert trim_count(_ledgers()[-1:], end, end, none, 10**9) == 0
    closed = _ledgers()[:1]
    assert trim_count(closed, end, end, none, 10**9) == 1
    assert trim_count(closed, end, end, none, closed[0].closed_ms + 999, last_kept_ms=1000) == 0, (
        "as long as an open one would have been there"
    )
    assert trim_count(closed, end, end, none, closed[0].closed_ms + 1000, last_kept_ms=1000) == 1
    assert trim_count(closed, end, end, none, closed[0].closed_ms, (0, 9), last_kept_ms=1000) == 1, (
        "what is truncated is not kept"
    )


def test_retention_keeps_what_is_young_and_small() -> None:
    end = (4, 2)
    assert trim_count(_ledgers(), end, end, Retention(-1, -1), 10**9) == 0
    assert trim_count(_ledgers(), end, end, Retention(1, -1), 62_500) == 2
    assert trim_count(_ledgers(), end, end, Retention(-1, 3), 0) == 1
    assert trim_count(_ledgers(), end, end, Retention(1, 3), 62_500) == 2
    assert trim_count(_ledgers(), end, end, Retention(0, -1), 62_500) == 4
