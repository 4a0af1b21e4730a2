"""What the ack sets of all cursors of a broker take together."""

from __future__ import annotations

import gc

from heliograph.model.ledger_metadata import LedgerInfo
from storage.managed_ledger.cursors.ack_set_budget import COUNTED_BYTES, AckSetBudget
from storage.managed_ledger.cursors.cursor import Cursor, CursorSettings
from storage.managed_ledger.metadata.ledger_catalog import Catalog
from tests.storage.managed_ledger.cursors.made_cursors import cursor_of

PART = 1 << 8 * 1000 - 1
"""An ack set of a thousand bytes."""
MOST = 6 * COUNTED_BYTES


def cursors_of(count: int) -> tuple[AckSetBudget, list[Cursor]]:
    budget, catalog = AckSetBudget(MOST), Catalog([LedgerInfo(1)])
    catalog.grow(2000, 2000)
    settings = CursorSettings(ack_sets=budget)
    return budget, [cursor_of(catalog, settings=settings) for _ in range(count)]


def held(cursors: list[Cursor]) -> int:
    return sum(cursor.ack_set_bytes for cursor in cursors)


def test_who_holds_most_gives_up_half_and_who_holds_little_nothing() -> None:
    _, cursors = cursors_of(12)
    little, large = cursors[:2], cursors[2:]
    for cursor in little:
        for entry in range(50):
            cursor.ack_batch((1, entry), PART)
    before = held(little)
    for entry in range(400):
        for number, cursor in enumerate(large):
            if entry % (number + 1) == 0:
                cursor.ack_batch((1, entry), PART)
            assert held(large) <= MOST + len(large) * COUNTED_BYTES
    assert held(little) == before and held(large) > MOST // 2
    for cursor in large:
        assert list(cursor.partly_acked)[-1:] == [(1, 399 // (large.index(cursor) + 1) * (large.index(cursor) + 1))]


def test_what_has_gone_counts_no_more() -> None:
    budget, cursors = cursors_of(3)
    kept = cursors[0]
    for cursor in cursors:
        for entry in range(250):
            cursor.ack_batch((1, entry), PART)
    after = len(kept.partly_acked)
    assert after < 250, "three have no room beside each other"
    del cursor
    cursors.clear()
    gc.collect()
    for entry in range(250, 450):
        kept.ack_batch((1, entry), PART)
    assert len(kept.partly_acked) >= after + 200 - 64 and len(budget._holders) == 1


def test_what_is_whole_meanwhile_goes_before_anything_else_is_given_up() -> None:
    _, (cursor,) = cursors_of(1)
    for entry in range(100):
        cursor.ack_batch((1, entry), PART)
    cursor.ack([(1, entry) for entry in range(50, 100)])
    cursor.give_up_ack_sets(61_000)
    assert list(cursor.partly_acked) == [(1, entry) for entry in range(50)]
