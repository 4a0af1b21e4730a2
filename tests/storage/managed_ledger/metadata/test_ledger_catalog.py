"""Catalog against a plain list of positions."""

from __future__ import annotations

import random

import pytest

from heliograph.model.ledger_metadata import LedgerInfo
from heliograph.model.positions import Position
from storage.managed_ledger.metadata.ledger_catalog import Catalog


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
